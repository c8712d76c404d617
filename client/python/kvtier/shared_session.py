"""The daemon's own memory in this process: the session that hands it over (kvtier.proto, "Shared memory"),
and whether there is one. No gRPC here."""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from google.protobuf.message import DecodeError

from kvtier.breaker import BreakerOptions
from kvtier.errors import Code, Error
from kvtier.v1 import kvtier_pb2 as pb
from kvtier.warn_once import WarnOnce

_log = logging.getLogger("kvtier")

_CONNECT_SECONDS = 0.25  # the daemon is on this host and answers at once, if at all
_ANSWER_SECONDS = 1.0
_JOIN_SECONDS = 1.0
_MAX_PACKET = 64 << 10
_RECEIVE_FLAGS = socket.MSG_CMSG_CLOEXEC
_SEND_FLAGS = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL

_libc = ctypes.CDLL(None, use_errno=True)
_mmap = _libc.mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_munmap = _libc.munmap
_munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_FAILED = ctypes.c_void_p(-1).value


class SessionLost(Error):
    """The session has ended; gRPC goes on."""

    def __init__(self) -> None:
        super().__init__("the shared-memory session was lost", Code.ABORTED)


@runtime_checkable
class RegionListener(Protocol):
    """Hears which of the daemon's memory is mapped into this process, for an engine that wants to tell its
    device (pin it, say).

    ``mapped`` comes before the client uses the region, ``unmapping`` right before it is unmapped, when nothing
    refers to it any more: each once for each region, in this order, the second after the first has returned.
    Not at the interpreter's exit, and not in a fork's child. Different regions may come at the same time, and
    at the same addresses one after the other. The store region (``writable``; those of the RAM tier are
    read-only) comes on the thread whose call opens a session, others on a thread of the client's;
    ``unmapping`` on any thread and under any lock, as finalizers do, so it must take none that its own thread
    may hold already. A call that needs the region waits meanwhile, and gives the session up after a second:
    so be quick. Neither may call the client, or wait for a thread that does. What they raise is logged, once."""

    def mapped(self, address: int, size: int, writable: bool) -> None:
        """Bytes [address, address + size) are there."""

    def unmapping(self, address: int, size: int) -> None:
        """They are about to go."""


class Listening:
    """A listener, or none, of which nothing gets out."""

    def __init__(self, listener: RegionListener | None = None) -> None:
        self._listener = listener
        self._warn_once = WarnOnce(_log)

    def follow(self, mapping: Mapping) -> None:
        """From a new map to its end."""
        if self._listener is None:
            return
        self._tell(self._listener.mapped, mapping.address, mapping.size, mapping.writable)
        mapping.when_gone(self._gone, self._listener.unmapping, mapping.address, mapping.size, os.getpid())

    def _gone(self, unmapping: Callable[[int, int], None], address: int, size: int, process: int) -> None:
        if os.getpid() == process:  # else it is a copy of the parent's
            self._tell(unmapping, address, size)

    def _tell(self, call: Callable[..., None], *arguments: Any) -> None:
        try:
            call(*arguments)
        except Exception:  # theirs: it must break neither a call of the client's nor a finalizer
            self._warn_once("listener", "shared memory: the region listener failed", exc_info=True)


class Mapping:
    """Memory of the daemon's, mapped while anything refers to it: this object, ``view``, or a view of that.
    (Not Python's mmap: it keeps a descriptor, and does not tell the address of what is read-only.)"""

    __slots__ = ("view", "address", "size", "writable", "_memory")

    def __init__(self, fd: int, size: int, writable: bool) -> None:
        """Of the first ``size`` bytes of ``fd``, which must have them: a map beyond a file's end kills its
        reader. Raises OSError."""
        if not 0 < size <= os.fstat(fd).st_size:
            raise OSError(f"the daemon's descriptor does not have {size} bytes")
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        address = _mmap(None, size, protection, mmap.MAP_SHARED, fd, 0)
        if address is None or address == _FAILED:
            number = ctypes.get_errno()
            raise OSError(number, f"mmap: {os.strerror(number)}")
        self.address: int = address
        self.size = size
        self.writable = writable
        self._memory = (ctypes.c_ubyte * size).from_address(address)
        self.when_gone(_munmap, address, size)
        view = memoryview(self._memory).cast("B")
        self.view = view if writable else view.toreadonly()

    def when_gone(self, call: Any, *arguments: Any) -> None:
        """After those added later. May run on any thread, under any lock: must take none."""
        weakref.finalize(self._memory, call, *arguments).atexit = False

    def holds(self, offset: int, size: int) -> bool:
        return offset + size <= self.size


class SharedSession:
    """One connection to the daemon's socket. Thread-safe; a thread of its own reads the socket."""

    def __init__(self, path: str, limit: float, listening: Listening | None = None) -> None:
        """Connects and waits for the welcome. ``listening``: is told of its maps. Raises OSError,
        and ValueError for a path that is none."""
        self._changed = threading.Condition()  # guards what is below
        self._regions: dict[int, Mapping | None] = {}  # None: asked for
        self._storing = False
        self.ended = False
        self._listening = listening or Listening()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._socket.settimeout(limit)
            self._socket.connect(path)
            welcome, fd = _receive(self._socket)
            try:
                if welcome.WhichOneof("kind") != "welcome":
                    raise OSError("the daemon's first packet is no welcome")
                self.store_region = Mapping(fd, welcome.welcome.store_region_bytes, writable=True)
                self._listening.follow(self.store_region)
            finally:
                _close(fd)
            self.id: bytes = welcome.welcome.session_id
            self._socket.settimeout(None)
        except BaseException:
            self._socket.close()
            raise
        _sessions.add(self)
        self._thread = threading.Thread(target=self._read, name="kvtier-shared", daemon=True)
        self._thread.start()

    def map(self, region: int) -> Mapping | None:
        """The map of a region, asked for when it is not here yet. A region that the daemon has retired is
        unmapped, and the daemon told, when nothing refers to it any more. None: it is gone. Raises
        SessionLost; ends the session when the daemon does not answer within a second."""
        with self._changed:
            if not self.ended and region not in self._regions:
                self._regions[region] = None
                try:
                    _send(self._socket, pb.SharedMemoryRequest(open_region=region))
                except OSError:
                    self._end_locked()
            self._changed.wait_for(
                lambda: self.ended or self._regions.get(region, region) is not None, _ANSWER_SECONDS
            )
            if not self.ended and self._regions.get(region, region) is None:
                self._end_locked()
            if self.ended:
                raise SessionLost
            return self._regions.get(region)

    def take_store_region(self) -> bool:
        """For one user at a time. False: another has it. Raises SessionLost."""
        with self._changed:
            if self.ended:
                raise SessionLost
            taken, self._storing = not self._storing, True
            return taken

    def give_back_store_region(self) -> None:
        with self._changed:
            self._storing = False

    def end(self) -> None:
        """Hangs up. Maps stay while they are in use."""
        with self._changed:
            self._end_locked()
            dropped, self._regions = self._regions, {}
        dropped.clear()  # unmapped without the lock

    def join(self) -> None:
        """After ``end``: until its descriptor is closed."""
        if self._thread is not threading.current_thread():
            self._thread.join(_JOIN_SECONDS)

    def forked(self) -> None:
        """In the child of a fork: the connection is the parent's. No lock: its holder is not here."""
        self.ended = True
        self._socket.close()

    def _end_locked(self) -> None:
        """The regions go with the reader, which hears of it: not under the lock."""
        if not self.ended:
            self.ended = True
            _hang_up(self._socket)
        self._changed.notify_all()

    def _read(self) -> None:
        try:
            while True:
                message, fd = _receive(self._socket)
                try:
                    self._take(message, fd)
                finally:
                    _close(fd)
        except OSError as error:
            if not self.ended:
                _log.info("shared memory: %s; over gRPC until there is a new session", error)
        finally:
            self.end()
            self._socket.close()

    def _take(self, message: pb.SharedMemoryMessage, fd: int) -> None:
        kind = message.WhichOneof("kind")
        if kind == "region":
            self._take_region(message.region, fd)
        elif kind == "retired":
            self._drop(message.retired)

    def _take_region(self, told: pb.SharedRegion, fd: int) -> None:
        mapping = None
        if told.bytes:
            mapping = Mapping(fd, told.bytes, writable=False)
            mapping.when_gone(_say_released, self._socket, told.region)
            self._listening.follow(mapping)
        with self._changed:
            if self.ended or self._regions.get(told.region, mapping) is not None:
                return  # not asked for, or the session has ended
            if mapping is None:
                self._regions.pop(told.region, None)
            else:
                self._regions[told.region] = mapping
            self._changed.notify_all()

    def _drop(self, retired: pb.SharedRetired) -> None:
        for region in retired.regions:
            with self._changed:
                mapping = self._regions.get(region)
                if mapping is not None:
                    del self._regions[region]
            if mapping is None:
                _say_released(self._socket, region)
            del mapping


# Those of this process, for its children.
_sessions: weakref.WeakSet[SharedSession] = weakref.WeakSet()


def _after_fork() -> None:
    for session in list(_sessions):
        session.forked()


os.register_at_fork(after_in_child=_after_fork)


def _close(fd: int) -> None:
    if fd >= 0:
        os.close(fd)


def _hang_up(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError as error:  # the daemon was first
        _log.debug("shared memory: shutdown: %s", error)


def _send(connection: socket.socket, request: pb.SharedMemoryRequest) -> None:
    """A packet that does not fit into the socket's buffer meets a daemon that has stopped reading."""
    connection.send(request.SerializeToString(), _SEND_FLAGS)


def _say_released(connection: socket.socket, region: int) -> None:
    try:
        _send(connection, pb.SharedMemoryRequest(released=pb.SharedRetired(regions=[region])))
    except OSError as error:  # the session has ended, and with it what the daemon kept for it
        _log.debug("shared memory: region %d: %s", region, error)


def _receive(connection: socket.socket) -> tuple[pb.SharedMemoryMessage, int]:
    """The next packet and its descriptor, or -1. Raises OSError, also at the end."""
    packet, fds, flags, _ = socket.recv_fds(connection, _MAX_PACKET, 1, _RECEIVE_FLAGS)
    fd = fds[0] if fds else -1
    try:
        if not packet:
            raise OSError("the daemon hung up")
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise OSError("the daemon sent a packet that is too long")
        return pb.SharedMemoryMessage.FromString(packet), fd
    except DecodeError as error:
        _close(fd)
        raise OSError(f"the daemon sent a packet that is no SharedMemoryMessage: {error}") from None
    except OSError:
        _close(fd)
        raise


class SharedMemory:
    """Whether a client has shared memory, and its session while it has. A session that was lost, or was not
    to be had, is tried for again now and then, with the breaker's backoff; meanwhile everything goes over
    gRPC. Thread-safe."""

    def __init__(self, wanted: bool, pace: BreakerOptions, listener: RegionListener | None) -> None:
        self.wanted = wanted
        self._listening = Listening(listener)
        self._pace = pace
        self._lock = threading.Lock()  # guards what is below
        self._path = ""
        self._process = 0  # that was offered it
        self._session: SharedSession | None = None
        self._connecting = False
        self._backoff = 0.0  # of the last attempt, if it failed
        self._retry_at = 0.0
        self._closed = False

    def offer(self, path: str) -> None:
        """What RegisterModel says: the socket's path, or nothing."""
        former = None
        with self._lock:
            if path != self._path:
                former, self._session = self._session, None
            self._path = path if self.wanted else ""
            self._process = os.getpid()
        if former is not None:
            former.end()

    @property
    def session(self) -> SharedSession | None:
        with self._lock:
            session = self._session
            here = session is not None and not session.ended and self._process == os.getpid()
            return session if here else None

    @property
    def may_connect(self) -> bool:
        """Without a session: ``connect`` might make one."""
        with self._lock:
            return self._may_connect_locked()

    def connect(self) -> None:
        """Blocks for a quarter of a second at most."""
        with self._lock:
            if not self._may_connect_locked():
                return
            self._connecting = True
            path = self._path
        fresh, failure = None, ""
        try:
            fresh = SharedSession(path, _CONNECT_SECONDS, self._listening)
        except (OSError, ValueError) as error:  # ValueError: the path
            failure = str(error)
        with self._lock:
            self._connecting = False
            self._note_locked(path, failure)
            kept = path == self._path and not self._closed
            if kept and fresh is not None:
                self._session = fresh
        if fresh is not None and not kept:
            fresh.end()

    def close(self, wait: bool = True) -> None:
        """``wait``: until the session's descriptor is closed."""
        with self._lock:
            self._closed = True
            session, self._session = self._session, None
        if session is not None:
            session.end()
            if wait:
                session.join()

    def _may_connect_locked(self) -> bool:
        here = self._path and not self._closed and self._process == os.getpid()
        alive = self._session is not None and not self._session.ended
        return bool(here) and not alive and not self._connecting and time.monotonic() >= self._retry_at

    def _note_locked(self, path: str, failure: str) -> None:
        if not failure:
            self._backoff = self._retry_at = 0.0
            return
        if not self._backoff:
            _log.warning("shared memory: %s: %s; payload goes over gRPC until there is a session", path, failure)
        self._backoff = min(self._backoff * 2 or self._pace.first_backoff, self._pace.longest_backoff)
        self._retry_at = time.monotonic() + self._backoff
