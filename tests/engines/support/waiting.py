"""Waiting for what another process does."""
import threading
import time
from typing import Callable

PATIENCE_SECONDS = 60


def wait_until(reached: Callable[[], bool], what: str, seconds: float = PATIENCE_SECONDS) -> None:
    """Returns when reached() is true. Raises: AssertionError, naming what, after `seconds`."""
    end = time.monotonic() + seconds
    idle = threading.Event()
    while not reached():
        if time.monotonic() > end:
            raise AssertionError(f"not reached within {seconds} s: {what}")
        idle.wait(0.02)
