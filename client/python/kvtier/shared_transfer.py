"""Payload between the caller's memory and the daemon's own: FetchShared, views, StoreShared.

Whatever copies and hashes does it in bounded pieces. Large copies let go of the interpreter's lock, as
xxhash does, so other threads run meanwhile; small ones, and those from memory that is read-only, hold it for
some microseconds.
"""

from __future__ import annotations

import ctypes
import logging
import struct
import threading
import time
from collections import deque
from contextlib import suppress
from types import TracebackType
from typing import Callable, NamedTuple, Sequence

import xxhash
from google.protobuf.message import DecodeError

from kvtier.errors import Code, Error, Internal, InvalidArgument, NotFound
from kvtier.leases import LeaseWatch
from kvtier.prompt import Part
from kvtier.shared_session import Mapping, SharedSession
from kvtier.store_ring import LINE, StoreRing, stream_bytes
from kvtier.transfer import Block
from kvtier.v1 import kvtier_pb2 as pb

_log = logging.getLogger("kvtier")

# Copied, then hashed: in the CPU's cache by then, which a copy fills faster than a hash does. Smaller pieces let
# go of the interpreter's lock more often, and wait for it each time when other threads are busy.
_HASHED_PIECE = 256 << 10
_PIECE = 4 << 20  # when only copied: what a reader that was told to stop still does
# From so many bytes on two threads are quicker, in parts of this size or larger: to hand the interpreter's lock
# over takes as long as the copy of a small one.
_TWO_THREADS = 8 << 20
_LARGE_PART = 256 << 10
_UNLOCKED = 64 << 10  # a copy from so many bytes on lets go of the interpreter's lock
_SHORT = 256 << 10
_CHECKSUM = struct.Struct("<Q")

OK, MISS, NOT_SHARED = pb.BLOCK_STATUS_OK, pb.BLOCK_STATUS_MISS, pb.BLOCK_STATUS_NOT_SHARED


class Stopped(Error):
    """Reading was given up: the lease has ended, or the caller does not wait any more."""

    def __init__(self, why: str) -> None:
        super().__init__(why, Code.CANCELLED)


def grpc_may_do(error: Error) -> bool:
    """The session, the lease or the call is not known, or the session was lost: gRPC has the last word."""
    return error.code in (Code.NOT_FOUND, Code.UNIMPLEMENTED, Code.ABORTED)


def lease_ended(lease_id: int) -> NotFound:
    return NotFound(
        f"lease {lease_id:x} was over, by this client's clock, before all bytes were read out of shared "
        "memory: take a longer lease, or renew it meanwhile"
    )


class SharedPart(NamedTuple):
    """A block's part where the daemon has it. What holds ``mapping`` or ``view`` keeps it readable, not
    unchanged."""

    index: int  # from the first block asked for
    checksum: int
    mapping: Mapping
    offset: int
    size: int

    @property
    def view(self) -> memoryview:
        return self.mapping.view[self.offset : self.offset + self.size]


def store_shared_request(session: SharedSession, header: bytes, verify: bool) -> bytes:
    fields = pb.StoreSharedRequest(session_id=session.id, unverified=not verify)
    return fields.SerializeToString() + header


def fetch_shared_request(
    session: SharedSession, lease_id: int, first_block: int, last_block: int, part: Part, allow_gaps: bool
) -> bytes:
    return pb.FetchSharedRequest(
        session_id=session.id,
        lease_id=lease_id,
        first_block=first_block,
        last_block=last_block,
        part=pb.Part(layer_group=part.layer_group, rank=part.rank),
        allow_gaps=allow_gaps,
    ).SerializeToString()


class SharedReply:
    """Takes the messages of one FetchShared apart. ``on_part`` sees each block that is OK, in order."""

    def __init__(
        self,
        session: SharedSession,
        first_block: int,
        count: int,
        on_part: Callable[[SharedPart], None],
    ) -> None:
        self._session = session
        self._first = first_block
        self._count = count
        self._on_part = on_part
        self._statuses: list[int] = []
        self._region: tuple[int, Mapping] | None = None

    def add(self, message: bytes) -> None:
        """Raises Internal for what breaks the protocol, SessionLost, and what ``on_part`` raises."""
        try:
            blocks = pb.FetchSharedResponse.FromString(message).blocks
        except DecodeError as error:
            raise Internal(f"FetchShared: a reply of {len(message)} bytes is not protobuf: {error}") from None
        for block in blocks:
            self._add(block)

    def statuses(self) -> list[int]:
        """At the end of the stream. Blocks that the daemon did not name follow what ended it."""
        last = self._statuses[-1] if self._statuses else MISS
        rest = MISS if last == OK else last
        return self._statuses + [rest] * (self._count - len(self._statuses))

    def _add(self, block: pb.SharedBlock) -> None:
        index = len(self._statuses)
        if index == self._count or block.block != self._first + index:
            raise _broken(
                block, f"the next block is {self._first + index}, the last before {self._first + self._count}"
            )
        if block.status not in (OK, MISS, NOT_SHARED):
            raise _broken(block, f"status is {block.status}")
        if block.status != OK:
            self._statuses.append(block.status)
            return
        mapping = self._map(block.region)
        if mapping is None:
            # Given up since the reply was made, by a lease that has ended.
            self._statuses.append(NOT_SHARED)
            return
        if block.bytes == 0 or not mapping.holds(block.offset, block.bytes):
            raise _broken(
                block,
                f"{block.bytes} bytes at {block.offset} of region {block.region}, which has {mapping.size}",
            )
        self._statuses.append(OK)
        self._on_part(SharedPart(index, block.checksum, mapping, block.offset, block.bytes))

    def _map(self, region: int) -> Mapping | None:
        if self._region is None or self._region[0] != region:
            mapping = self._session.map(region)
            if mapping is None:
                return None
            self._region = (region, mapping)
        return self._region[1]


def _broken(block: pb.SharedBlock, what: str) -> Internal:
    return Internal(f"FetchShared: the reply breaks the protocol at block {block.block}: {what}")


class SharedReader:
    """Copies parts into the caller's blocks, many bytes by two threads: one alone takes twice as long where there
    are two cores. Each piece is hashed just after, so that it is read from memory once."""

    def __init__(self, blocks: Sequence[Block], watch: LeaseWatch, verify: bool) -> None:
        self.ok = [False] * len(blocks)
        self.checksum_failures = 0
        self.size = 0  # bytes read, in so many seconds
        self.seconds = 0.0
        self._blocks = blocks
        self._watch = watch
        self._verify = verify
        self._stopped = False
        self._parts: list[SharedPart] = []

    def stop(self) -> None:
        """The caller's memory is left alone from the next piece on."""
        self._stopped = True

    def add(self, part: SharedPart) -> None:
        """For ``read_all``. Raises InvalidArgument when the caller's block is of another size."""
        block = self._blocks[part.index]
        if block.size != part.size:
            raise InvalidArgument(
                f"buffers[{part.index}] has {block.size} bytes, the part has {part.size}"
            )
        self._parts.append(part)

    def read_all(self) -> None:
        """What was added since the last time. Raises Stopped."""
        parts, self._parts = self._parts, []
        began = time.monotonic()
        size = sum(part.size for part in parts)
        by_two = size >= _TWO_THREADS and len(parts) > 1 and size >= len(parts) * _LARGE_PART
        (self._read_by_two if by_two else self._read_from)(deque(parts))
        self.size += size
        self.seconds += time.monotonic() - began
        self.checksum_failures += sum(not self.ok[part.index] for part in parts)

    def read(self, part: SharedPart) -> None:
        """Raises Stopped."""
        if self._watch.over:
            raise Stopped("the lease has ended")
        checksum = self._copy(part, self._blocks[part.index])
        self.ok[part.index] = not self._verify or checksum == part.checksum

    def _read_by_two(self, parts: deque[SharedPart]) -> None:
        failures: list[BaseException] = []

        def help_out() -> None:
            try:
                self._read_from(parts)
            except BaseException as error:
                failures.append(error)

        helper = threading.Thread(target=help_out, name="kvtier-copy", daemon=True)
        try:
            with suppress(RuntimeError):  # no thread is to be had
                helper.start()
            self._read_from(parts)
        finally:
            parts.clear()  # after a failure the helper ends with the part that it is at
            if helper.ident is not None:
                helper.join()
        if failures:
            raise failures.pop()

    def _read_from(self, parts: deque[SharedPart]) -> None:
        while True:
            try:
                part = parts.popleft()
            except IndexError:  # the other thread may have taken the last one
                return
            self.read(part)

    def _copy(self, part: SharedPart, block: Block) -> int:
        """The checksum, or 0."""
        step = _HASHED_PIECE if self._verify else _PIECE
        hashed = xxhash.xxh3_64()
        source = part.view
        for at in range(0, part.size, step):
            piece = source[at : at + step]
            self._copy_piece(block, at, piece, part.mapping.address + part.offset + at)
            if self._verify:
                hashed.update(piece)
        return hashed.intdigest() if self._verify else 0

    def _copy_piece(self, block: Block, offset: int, piece: memoryview, address: int) -> None:
        if self._stopped:
            raise Stopped("the caller does not wait any more")
        at = 0
        for target in block.slices(offset, piece.nbytes):
            size = target.nbytes
            if size < _UNLOCKED:
                target[:] = piece[at : at + size]
            else:
                ctypes.memmove(_address_of(target), address + at, size)
            at += size


def _address_of(view: memoryview) -> int:
    """Of memory that may be written. The caller keeps the view."""
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


class SharedViews:
    """Blocks of a lease where the daemon has them: nothing was copied, and nothing read. A context manager
    that lets go of the memory.

    blocks[i]      a read-only memoryview of block first_block + i, or None for a miss
    not_shared[i]  with None: held, but not in shared memory; ``fetch_into`` brings it
    leading        blocks before the first miss
    failure        why there is nothing, or None

    The bytes stay what they are until the lease ends; afterwards the daemon uses the memory anew. What was
    read is right if ``expired()`` is False afterwards. A view that somebody else still exports (numpy does)
    cannot be released: it stays readable, with whatever the memory holds then.
    """

    def __init__(
        self,
        parts: Sequence[SharedPart | None],
        not_shared: Sequence[bool],
        watch: LeaseWatch | None,
        failure: Error | None = None,
    ) -> None:
        self.blocks = [part.view if part is not None else None for part in parts]
        self.not_shared = list(not_shared)
        self.leading = next((i for i, view in enumerate(self.blocks) if view is None), len(self.blocks))
        self.failure = failure
        self._checksums = [part.checksum if part is not None else 0 for part in parts]
        self._watch = watch

    def __enter__(self) -> SharedViews:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def expired(self) -> bool:
        """The lease is over by this client's clock: ended, released, or not sure to be renewed in time."""
        return self._watch is None or self._watch.over

    def verify(self, index: int) -> bool:
        """Compares the bytes of blocks[index] with the checksum that they were stored with, which reads them
        all. False also for a miss."""
        view = self.blocks[index]
        return view is not None and xxhash.xxh3_64_intdigest(view) == self._checksums[index]

    def release(self) -> None:
        """Idempotent."""
        exported = 0
        for view in self.blocks:
            try:
                if view is not None:
                    view.release()
            except BufferError:
                exported += 1
        self.blocks = [None] * len(self.blocks)
        self.leading = 0
        if exported:
            _log.warning("%d views of shared memory are still in use after their release", exported)


class SharedFiller:
    """Lays the caller's blocks into the store region, a stream that one StoreShared takes out."""

    def __init__(self, region: Mapping, blocks: Sequence[Block], verify: bool, end: float) -> None:
        """The region must be ``usable``, and no call take from it. At ``end``, by time.monotonic, it stops."""
        self._region = region
        self._blocks = blocks
        self._verify = verify
        self._ring = StoreRing(region, end)

    @property
    def short(self) -> bool:
        """It should go in before the call: that the daemon begins meanwhile saves less than the second thread
        costs."""
        size = sum(stream_bytes(block.size) for block in self._blocks)
        return size <= _SHORT and self._ring.holds(size)

    def stop(self) -> None:
        """From another thread: nobody takes any more. The caller's memory is left alone from the next piece
        on."""
        self._ring.stop()

    def fill(self) -> None:
        """Once. Waits for the daemon where the ring is full."""
        if all(self._fill_part(block) for block in self._blocks):
            self._ring.flush()

    def _fill_part(self, block: Block) -> bool:
        """False: it was stopped."""
        hashed = xxhash.xxh3_64()
        filled = 0
        while filled < block.size:
            at, size = self._ring.room(block.size - filled)
            if size == 0:
                return False
            for view in block.slices(filled, size):
                self._copy(at, view)
                if self._verify:
                    hashed.update(view)
                at += view.nbytes
            self._ring.fill(size)
            filled += size
        at, size = self._ring.room(LINE)
        if size == 0:
            return False
        _CHECKSUM.pack_into(self._region.view, at, hashed.intdigest() if self._verify else 0)
        self._ring.fill(size)
        return True

    def _copy(self, at: int, view: memoryview) -> None:
        if view.readonly or view.nbytes < _UNLOCKED:
            self._region.view[at : at + view.nbytes] = view
        else:
            ctypes.memmove(self._region.address + at, _address_of(view), view.nbytes)
