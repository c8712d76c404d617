"""Payload between the caller's memory and the daemon's own: FetchShared, views, StoreShared.

Whatever copies and hashes does it in bounded pieces. Large copies let go of the interpreter's lock, as
xxhash does, so other threads run meanwhile; small ones, and those from memory that is read-only, hold it for
some microseconds.
"""

from __future__ import annotations

import ctypes
import logging
import time
from types import TracebackType
from typing import Callable, NamedTuple, Sequence

import xxhash
from google.protobuf.message import DecodeError

from kvtier import wire
from kvtier.errors import Code, Error, Internal, InvalidArgument, NotFound
from kvtier.leases import LeaseWatch
from kvtier.prompt import Part, Prompt
from kvtier.shared_session import Mapping, SharedSession
from kvtier.transfer import Block
from kvtier.v1 import kvtier_pb2 as pb

_log = logging.getLogger("kvtier")

# Hashed, then copied: mostly still in the CPU's cache by then. Smaller pieces let go of the interpreter's
# lock more often, and wait for it each time when other threads are busy.
_PIECE = 512 << 10
_UNLOCKED = 64 << 10  # a copy from so many bytes on lets go of the interpreter's lock
_LINE = 64  # stored payloads start on lines of the CPU's cache
# The first batch, and at least: while it is filled the daemon has nothing to do. Those after it grow, as a
# call costs as much time as the copy of some MiB; the last ones shrink, while they are taken the client has
# nothing to do.
_BATCH_BYTES = 4 << 20
_BATCH_PAYLOADS = 1024

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
    """Copies parts into the caller's blocks. Each piece is hashed just before, so that it is read from memory
    once."""

    def __init__(self, blocks: Sequence[Block], watch: LeaseWatch, verify: bool) -> None:
        self.ok = [False] * len(blocks)
        self.checksum_failures = 0
        self.size = 0  # bytes read, in so many seconds
        self.seconds = 0.0
        self._blocks = blocks
        self._watch = watch
        self._verify = verify
        self._stopped = False

    def stop(self) -> None:
        """The caller's memory is left alone from the next piece on."""
        self._stopped = True

    def read(self, part: SharedPart) -> None:
        """Raises Stopped, and InvalidArgument when the caller's block is of another size."""
        block = self._blocks[part.index]
        if block.size != part.size:
            raise InvalidArgument(
                f"buffers[{part.index}] has {block.size} bytes, the part has {part.size}"
            )
        if self._watch.over:
            raise Stopped("the lease has ended")
        began = time.monotonic()
        checksum = self._copy(part, block)
        self.seconds += time.monotonic() - began
        self.size += part.size
        if self._verify and checksum != part.checksum:
            self.checksum_failures += 1
        else:
            self.ok[part.index] = True

    def _copy(self, part: SharedPart, block: Block) -> int:
        source = part.view
        if part.size <= _PIECE:
            checksum = xxhash.xxh3_64_intdigest(source) if self._verify else 0
            self._copy_piece(block, 0, source, part.mapping.address + part.offset)
            return checksum
        hashed = xxhash.xxh3_64()
        for at in range(0, part.size, _PIECE):
            piece = source[at : at + _PIECE]
            if self._verify:
                hashed.update(piece)
            self._copy_piece(block, at, piece, part.mapping.address + part.offset + at)
        return hashed.intdigest()

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


class Batch(NamedTuple):
    """Consecutive blocks [first, last) that go into one half of the store region together."""

    first: int
    last: int


class SharedFiller:
    """Lays the caller's blocks into the store region, a batch into the one half, the next into the other, and
    makes the requests for them."""

    def __init__(
        self,
        session: SharedSession,
        prompt: Prompt,
        blocks: Sequence[Block],
        first_block: int,
        part: Part,
        durable: bool,
        verify: bool,
    ) -> None:
        self._session = session
        self._prompt = prompt
        self._blocks = blocks
        self._first_block = first_block
        self._part = part
        self._durable = durable
        self._verify = verify
        self._half = session.store_region.size // 2 // _LINE * _LINE
        self._stopped = False
        self._filled: dict[Batch, bytes] = {}
        self.batches = self._make_batches()

    @property
    def fits(self) -> bool:
        """Every block fits into half of the region; otherwise nothing may be filled."""
        return all(_to_line(block.size) <= self._half for block in self._blocks)

    def is_last(self, batch: Batch) -> bool:
        return batch.last == len(self._blocks)

    def stop(self) -> None:
        """The caller's memory is left alone from the next piece on."""
        self._stopped = True

    def fill(self, number: int) -> None:
        """Once; the half's former batch must have been stored. After ``stop`` to no end."""
        batch = self.batches[number]
        if batch in self._filled:
            return
        at = number % 2 * self._half
        payloads = []
        for block in self._blocks[batch.first : batch.last]:
            payloads.append(pb.SharedPayload(offset=at, checksum=self._copy(block, at)))
            at += _to_line(block.size)
        self._filled[batch] = self._encode(batch, payloads)

    def request(self, number: int) -> bytes:
        return self._filled[self.batches[number]]

    def _make_batches(self) -> list[Batch]:
        sizes = [_to_line(block.size) for block in self._blocks]
        batches: list[Batch] = []
        left = sum(sizes)
        room = min(self._half, _BATCH_BYTES)
        first = used = 0
        for i, size in enumerate(sizes):
            if i > first and (used + size > room or i - first == _BATCH_PAYLOADS):
                batches.append(Batch(first, i))
                left -= used
                room = min(self._half, max(_BATCH_BYTES, min(2 * room, left // 2)))
                first, used = i, 0
            used += size
        return [*batches, Batch(first, len(sizes))]

    def _encode(self, batch: Batch, payloads: list[pb.SharedPayload]) -> bytes:
        fields = pb.StoreSharedRequest(
            session_id=self._session.id, payloads=payloads, unverified=not self._verify
        )
        header = wire.store_header(
            self._prompt,
            self._first_block + batch.first,
            batch.last - batch.first,
            self._part,
            self._durable and self.is_last(batch),
            wire.STORE_SHARED_HEADER,
        )
        return fields.SerializeToString() + header

    def _copy(self, block: Block, offset: int) -> int:
        """The checksum, or 0."""
        region = self._session.store_region
        hashed = xxhash.xxh3_64()
        for view in block.views:
            for at in range(0, view.nbytes, _PIECE):
                piece = view[at : at + _PIECE]
                if self._stopped:
                    return 0
                if self._verify:
                    hashed.update(piece)
                if piece.readonly or piece.nbytes < _UNLOCKED:
                    region.view[offset : offset + piece.nbytes] = piece
                else:
                    ctypes.memmove(region.address + offset, _address_of(piece), piece.nbytes)
                offset += piece.nbytes
        return hashed.intdigest() if self._verify else 0


def _to_line(size: int) -> int:
    return (size + _LINE - 1) // _LINE * _LINE
