"""What both halves stand on."""
from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable

from kvtier import (
    Client,
    Error,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    ModelSpec,
    PackOrder,
    RegisteredModel,
)

logger = logging.getLogger("kvtier.engines.paged")


def check_limits(field: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise ValueError(f"{field} is {value}, the limits are {least:g} and {most:g}")


class ModelHandle:
    """A model that gets registered as soon as the daemon can be reached. Thread-safe.

    spec: with explicit_part_bytes it needs pack_order OPAQUE and a layout_fingerprint, without which
    engines with other layouts would share its blocks. Errors: InvalidArgument, whether or not a daemon
    is there.
    """

    def __init__(self, client: Client, spec: ModelSpec) -> None:
        spec.validate()
        if spec.explicit_part_bytes and spec.pack_order != PackOrder.OPAQUE:
            raise InvalidArgument(f"pack_order is {spec.pack_order.name}, with explicit_part_bytes it must be "
                                  "OPAQUE")
        if spec.explicit_part_bytes and not spec.layout_fingerprint:
            raise InvalidArgument("layout_fingerprint is empty, with explicit_part_bytes it must describe the "
                                  "layout: a digest of engine, version, dtype, shapes and parallel sizes")
        self.spec = spec
        self._client = client
        self._lock = threading.Lock()
        self._model: RegisteredModel | None = None

    def connect(self) -> Error | None:
        """Tries once, so that the first lookup need not. None, or why the daemon cannot be had now.
        Errors: InvalidArgument, FailedPrecondition, Internal: it will never take this model."""
        try:
            self.registered()
        except (InvalidArgument, FailedPrecondition, Internal):
            raise
        except Error as error:
            return error
        return None

    def registered(self) -> RegisteredModel:
        """Asks the daemon until it answered once. Errors: as Client.register_model."""
        with self._lock:
            if self._model is None:
                self._model = self._client.register_model(self.spec)
            return self._model


class Threads:
    """A few daemon threads that run what is submitted, in order of submission."""

    def __init__(self, count: int, name: str) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._run, name=f"{name}-{i}", daemon=True)
                         for i in range(count)]
        for thread in self._threads:
            thread.start()

    def submit(self, work: Callable[[], None]) -> None:
        self._work.put(work)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()

    def close(self, timeout: float) -> None:
        """Runs what was submitted, but waits `timeout` seconds at most."""
        deadline = time.monotonic() + timeout
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
