"""What a client knows of leases: the blocks it has verified, and when each ends by its own clock."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass
from typing import Callable, Sequence

from kvtier.errors import NotFound

_UNKNOWN = -math.inf
_FEW_LEASES = 64


def empty_lease() -> NotFound:
    return NotFound(
        "the lease is empty: nothing was found, lookup was called without lease=, or it was released"
    )


@dataclass(frozen=True, slots=True)
class LeaseUse:
    """What the daemon is told at a lease's release, for its operator."""

    verified_blocks: int = 0  # fetched by it, and verified here
    shared_bytes: int = 0  # copied out of shared memory, and how long that took
    shared_seconds: float = 0.0


class LeaseLedger:
    """Which leases this client holds, and what it has made of them. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards what is below; both have the same leases
        self._verified: dict[int, bytearray] = {}
        self._shared: dict[int, tuple[int, float]] = {}

    def open(self, lease_id: int, blocks: int) -> None:
        with self._lock:
            self._verified[lease_id] = bytearray(blocks)
            self._shared[lease_id] = (0, 0.0)

    def note(self, lease_id: int, first_block: int, ok: Sequence[bool]) -> None:
        with self._lock:
            verified = self._verified.get(lease_id)
            if verified is None:
                return
            for i, good in enumerate(ok[: max(len(verified) - first_block, 0)], first_block):
                verified[i] |= good

    def note_shared(self, lease_id: int, size: int, seconds: float) -> None:
        with self._lock:
            if lease_id in self._shared:
                before = self._shared[lease_id]
                self._shared[lease_id] = (before[0] + size, before[1] + seconds)

    def close(self, lease_id: int) -> LeaseUse:
        with self._lock:
            return LeaseUse(sum(self._verified.pop(lease_id, b"")), *self._shared.pop(lease_id, (0, 0.0)))

    def open_ids(self) -> list[int]:
        with self._lock:
            return list(self._verified)


@dataclass(slots=True)
class _Times:
    end: float = _UNKNOWN  # whatever the renewals under way come to
    renewals: int = 0  # under way
    renewed_end: float = _UNKNOWN  # once the last of them is done


class LeaseTimes:
    """When leases end, in seconds of ``time.monotonic``: the time before the call that set it was sent, plus
    the length asked for, which is never later than the daemon's own. Where several renewals of one lease
    overlap, or one failed and may have been done all the same, the earliest end that is possible counts.
    Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.now = clock
        self._lock = threading.Lock()  # guards what is below
        self._leases: dict[int, _Times] = {}
        # Leases that were passed on are never closed here: now and then those that are over are dropped.
        self._forget_at = _FEW_LEASES

    def open(self, lease_id: int, end: float) -> None:
        with self._lock:
            self._forget_ended()
            self._leases[lease_id] = _Times(end)

    def begin_renew(self, lease_id: int, seconds: float) -> _Times:
        """Before the call that renews is sent; what it returns goes to ``end_renew``."""
        with self._lock:
            end = self.now() + seconds
            times = self._leases.setdefault(lease_id, _Times())
            times.end = min(times.end, end)
            times.renewed_end = min(times.renewed_end, end) if times.renewals else end
            times.renewals += 1
            return times

    def end_renew(self, lease_id: int, times: _Times, done: bool) -> None:
        with self._lock:
            if not done:
                times.renewed_end = min(times.renewed_end, times.end)
            times.renewals -= 1
            if times.renewals:
                return
            times.end = times.renewed_end
            if times.end == _UNKNOWN and self._leases.get(lease_id) is times:
                del self._leases[lease_id]

    def close(self, lease_id: int) -> None:
        """Before the call that releases is sent: from then on the daemon may use the memory anew."""
        with self._lock:
            self._leases.pop(lease_id, None)

    def end(self, lease_id: int) -> float | None:
        """None when the lease is not known here, or no longer."""
        with self._lock:
            times = self._leases.get(lease_id)
            return times.end if times is not None and times.end != _UNKNOWN else None

    def _forget_ended(self) -> None:
        if len(self._leases) < self._forget_at:
            return
        now = self.now()
        over = [number for number, times in self._leases.items() if not times.renewals and times.end <= now]
        for lease_id in over:
            del self._leases[lease_id]
        self._forget_at = max(_FEW_LEASES, 2 * len(self._leases))


class LeaseWatch:
    """Whether a lease's blocks are still what they were, by the client's clock."""

    __slots__ = ("_times", "_lease_id", "_end")

    def __init__(self, times: LeaseTimes, lease_id: int, end: float | None) -> None:
        """``end``: as the caller knows it."""
        self._times = times
        self._lease_id = lease_id
        self._end = end

    @property
    def known(self) -> bool:
        return self._end is not None or self._times.end(self._lease_id) is not None

    @property
    def over(self) -> bool:
        """Also when nobody knows its end. What was read before this is False is right."""
        known = self._times.end(self._lease_id)
        end = min(math.inf if known is None else known, math.inf if self._end is None else self._end)
        return end == math.inf or self._times.now() >= end
