"""What is logged of things that go wrong again and again."""
from __future__ import annotations

import logging


class WarnOnce:
    """Logs each kind of event once as a warning, then only for debugging: a dead daemon is one line."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._seen: set[str] = set()

    def __call__(self, kind: str, message: str, *args: object, exc_info: bool = False) -> None:
        level = logging.DEBUG if kind in self._seen else logging.WARNING
        self._seen.add(kind)
        self._logger.log(level, message + " (said once)", *args, exc_info=exc_info, stacklevel=2)
