"""What makes a dead daemon cost nothing after the first few calls."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import Callable

from kvtier.errors import LONGEST_TIMEOUT, Unavailable, check_range, check_seconds

_log = logging.getLogger("kvtier")


@dataclass(frozen=True, slots=True)
class BreakerOptions:
    failures_to_open: int = 3  # calls in a row that end Unavailable or DeadlineExceeded; 0 = no breaker
    first_backoff: float = 0.1  # seconds; doubles with each failed probe
    longest_backoff: float = 5.0

    def __post_init__(self) -> None:
        check_range("breaker.failures_to_open", self.failures_to_open, 0, 1 << 31)
        check_seconds("breaker.first_backoff", self.first_backoff, 0, LONGEST_TIMEOUT)
        check_seconds("breaker.longest_backoff", self.longest_backoff, 0, LONGEST_TIMEOUT)


class CircuitBreaker:
    """Closed: calls go through, failures in a row are counted. Open: calls are refused until the backoff is
    over. Half open: one call probes; its success closes the breaker, its failure opens it for twice as long.
    Thread-safe."""

    def __init__(
        self, options: BreakerOptions, address: str = "", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._options = options
        self._address = address
        self._clock = clock
        self._lock = threading.Lock()  # guards what is below
        self._failures = 0  # in a row
        self._open = False
        self._probing = False
        self._backoff = options.first_backoff
        self._retry_at = 0.0
        self._opened = 0
        self._refused = 0

    def admit(self) -> None:
        """Returns: make the call, then call ``record`` or ``withdraw`` exactly once. Raises Unavailable:
        refused."""
        with self._lock:
            if not self._open:
                return
            now = self._clock()
            if now >= self._retry_at and not self._probing:
                self._probing = True
                return
            self._refused += 1
            left = max(self._retry_at - now, 0)
            raise Unavailable(
                f"{self._address}: circuit breaker is open after {self._failures} failed calls in a row, "
                f"next attempt in {left * 1000:.0f} ms"
            )

    def record(self, failed: bool) -> None:
        """``failed``: the daemon was not reached, or not in time. A call that the daemon refused is no
        failure."""
        with self._lock:
            if not failed:
                self._close_locked()
                return
            self._failures += 1
            if not 0 < self._options.failures_to_open <= self._failures:
                return
            # Calls that were under way when the breaker opened change nothing when they fail too.
            if self._open and not self._probing:
                return
            self._open_locked()

    def withdraw(self) -> None:
        """The call was given up before it could tell anything."""
        with self._lock:
            self._probing = False

    @property
    def opened(self) -> int:
        with self._lock:
            return self._opened

    @property
    def refused(self) -> int:
        with self._lock:
            return self._refused

    def _close_locked(self) -> None:
        if self._open:
            _log.info("%s answers again after %d failed calls", self._address, self._failures)
        self._failures = 0
        self._open = False
        self._probing = False
        self._backoff = self._options.first_backoff

    def _open_locked(self) -> None:
        if self._probing:
            self._backoff = min(self._backoff * 2, self._options.longest_backoff)
        if not self._open:
            _log.warning(
                "%s: %d calls failed in a row; calls are misses until it answers again",
                self._address,
                self._failures,
            )
        self._open = True
        self._probing = False
        self._retry_at = self._clock() + self._backoff
        self._opened += 1
