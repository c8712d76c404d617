"""The stream of payload in a session's store region, from this client, which fills it in, to the daemon, which
takes it out at the same time (kvtier.proto, StoreSharedRequest; common/store_ring.h is the same in C++)."""

from __future__ import annotations

import ctypes
import platform
import sys
import time

from kvtier.shared_session import Mapping

LINE = 64
PIECE = 256 << 10  # handed over at once: large beside the cost of saying so, small beside a core's cache

_RING_OFFSET = 4096
_FILLED, _TAKEN = 0, LINE // 4  # in words of 4 bytes
_U32 = (1 << 32) - 1
# The daemon is as a rule in the middle of a piece; to fall asleep and be woken takes longer than to look on
# for some 20 us.
_LOOKS = 200

_SYS_FUTEX = 202  # Linux on x86-64: asm/unistd_64.h
_FUTEX_WAIT, _FUTEX_WAKE = 0, 1  # linux/futex.h; not private: between processes
_ALL = (1 << 31) - 1


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


_NAP = _Timespec(0, 20_000_000)
# One that lets go of the interpreter's lock, and one that does not: a wake takes less than to get it back.
_sleep = ctypes.CDLL(None).syscall
_wake = ctypes.PyDLL(None).syscall
for _call in (_sleep, _wake):
    _call.restype = ctypes.c_long
    _call.argtypes = [ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint]  # number, word, operation, value
    _call.argtypes += [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint]  # time limit; the others are not used


def usable(region: Mapping) -> bool:
    """Python has plain loads and stores only. That the bytes are seen before the counter that speaks of them is
    x86-64's order of memory; elsewhere this client stores over gRPC."""
    ordered = sys.platform == "linux" and platform.machine() == "x86_64" and sys.maxsize > _U32
    return ordered and region.size >= _RING_OFFSET + LINE


def to_line(size: int) -> int:
    return (size + LINE - 1) // LINE * LINE


def stream_bytes(part_bytes: int) -> int:
    """Of a part with its checksum."""
    return to_line(part_bytes) + LINE


class StoreRing:
    """The client's side. Not thread-safe, save for ``stop``."""

    def __init__(self, region: Mapping, end: float) -> None:
        """Begins a stream; no call may take from the region. At ``end``, by time.monotonic, it stops."""
        self._region = region  # mapped while somebody may still wake the other side
        self._counters = region.view[:_RING_OFFSET].cast("I")
        self._lines = (region.size - _RING_OFFSET) // LINE
        self._end = end
        self._next = 0  # line of the stream
        self._told = 0
        self._stopped = False
        self._counters[_TAKEN] = 0
        self._counters[_FILLED] = 0

    def holds(self, size: int) -> bool:
        """Whether so many bytes go in without anybody taking."""
        return size <= self._lines * LINE

    def stop(self) -> None:
        """Nobody takes any more. From any thread, at any time, more than once."""
        self._stopped = True
        self._wake(_TAKEN)

    def room(self, size: int) -> tuple[int, int]:
        """Where in the region the first of the next ``size`` bytes go, and how many, a piece at most. Waits while
        the ring is full; (0, 0) once stopped."""
        while not self._stopped:
            taken = self._counters[_TAKEN]
            full = (self._next - taken) & _U32
            if full < self._lines:
                line = self._next % self._lines
                lines = self._lines - max(full, line)  # not beyond the ring's end
                return _RING_OFFSET + line * LINE, min(size, lines * LINE, PIECE)
            if time.monotonic() >= self._end:
                break
            self.flush()
            self._await(taken)
        return 0, 0

    def fill(self, size: int) -> None:
        """So many are there, and what remains of the last line is skipped. The daemon hears of it when a piece
        has come together, when ``room`` waits, or by ``flush``."""
        self._next += to_line(size) // LINE
        if (self._next - self._told) * LINE >= PIECE:
            self.flush()

    def flush(self) -> None:
        if self._told != self._next:
            self._told = self._next
            self._counters[_FILLED] = self._next & _U32
            self._wake(_FILLED)

    def _await(self, taken: int) -> None:
        counters = self._counters
        for _ in range(_LOOKS):
            if counters[_TAKEN] != taken:
                return
        # Does not sleep if it has changed. Whatever ends the sleep, the caller looks again.
        at = self._region.address + 4 * _TAKEN
        _sleep(_SYS_FUTEX, at, _FUTEX_WAIT, taken, ctypes.addressof(_NAP), None, 0)

    def _wake(self, counter: int) -> None:
        _wake(_SYS_FUTEX, self._region.address + 4 * counter, _FUTEX_WAKE, _ALL, None, None, 0)
