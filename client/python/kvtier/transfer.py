"""Payload between the caller's memory and messages: the only copies of it that this package makes."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Iterable, Sequence

import xxhash

from kvtier import wire
from kvtier.errors import Internal, InvalidArgument


_PLAIN_FORMATS = frozenset("bBcdefhHiIlLnNqQ?")


class Block:
    """The caller's memory of one block's part: one contiguous object of the buffer protocol, or several that
    lie end to end in the part. Refers to the memory, never copies it; holds the objects' buffers while it
    lives."""

    __slots__ = ("views", "size")

    def __init__(self, field: str, memory: Any, writable: bool) -> None:
        try:
            self.views = [_bytes_of(field, memoryview(memory), writable)]
        except TypeError:
            self.views = _segments(field, memory, writable)
        self.size = sum(view.nbytes for view in self.views)
        if self.size == 0:
            raise InvalidArgument(f"{field} is empty")

    def slices(self, offset: int, length: int) -> list[memoryview]:
        """[offset, offset + length) of the part."""
        if len(self.views) == 1:
            return [self.views[0][offset : offset + length]]
        out = []
        for view in self.views:
            if length == 0:
                break
            if offset >= view.nbytes:
                offset -= view.nbytes
                continue
            piece = view[offset : offset + length]
            out.append(piece)
            length -= piece.nbytes
            offset = 0
        return out


def blocks_of(field: str, buffers: Sequence[Any], writable: bool) -> list[Block]:
    if not isinstance(buffers, Iterable):
        raise InvalidArgument(f"{field} is a {type(buffers).__name__}, it must be a sequence of buffers")
    return [Block(f"{field}[{i}]", memory, writable) for i, memory in enumerate(buffers)]


def check_sizes(field: str, blocks: Sequence[Block], part_bytes: int) -> None:
    for i, block in enumerate(blocks):
        if block.size != part_bytes:
            raise InvalidArgument(f"{field}[{i}] has {block.size} bytes, the part has {part_bytes}")


def _segments(field: str, memory: Any, writable: bool) -> list[memoryview]:
    if not isinstance(memory, Sequence):
        raise InvalidArgument(
            f"{field} is a {type(memory).__name__}, it must be of the buffer protocol or a sequence of "
            "such objects"
        )
    views = []
    for i, segment in enumerate(memory):
        try:
            view = memoryview(segment)
        except TypeError:
            raise InvalidArgument(
                f"{field}[{i}] is a {type(segment).__name__}, it must be of the buffer protocol"
            ) from None
        if view.nbytes:
            views.append(_bytes_of(f"{field}[{i}]", view, writable))
    return views


def _bytes_of(field: str, view: memoryview, writable: bool) -> memoryview:
    if writable and view.readonly:
        raise InvalidArgument(f"{field} is read-only, payload is to be written there")
    if not view.c_contiguous:
        raise InvalidArgument(f"{field} is not contiguous, strides are {view.strides} for shape {view.shape}")
    if view.format == "B" and view.ndim == 1:
        return view
    if view.format.lstrip("@") not in _PLAIN_FORMATS:  # of objects and pointers not even bytes must change
        raise InvalidArgument(
            f"{field} has items of format '{view.format}', they must be of one native type; cast it to bytes"
        )
    if view.nbytes == 0:
        return memoryview(bytearray())
    return view.cast("B")


class FetchAssembler:
    """Takes the messages of one Fetch apart, into the caller's memory. Payload is copied once, from the
    message that gRPC handed over.

    Order, offsets and sizes are checked (Internal); a part whose XXH3-64 is not that of its pieces is a miss.
    """

    def __init__(self, first_block: int, blocks: Sequence[Block]) -> None:
        self.checksum_failures = 0
        self.ok = [False] * len(blocks)
        self._first = first_block
        self._blocks = blocks
        self._next = first_block  # the block that has to come next
        self._current: wire.Piece | None = None  # the first piece of the block under way
        self._received = 0
        self._hash = xxhash.xxh3_64()

    def add(self, message: bytes) -> None:
        view = memoryview(message)
        for piece in wire.decode_pieces(message):
            if self._current is None and not self._begin(piece):
                continue
            self._check(piece)
            self._take(piece, view[piece.begin : piece.end])

    def finish(self) -> None:
        """At the end of the stream."""
        if self._current is not None:
            raise _broken(
                self._current, f"the stream ended after {self._received} of {self._current.part_bytes} bytes"
            )

    def _begin(self, piece: wire.Piece) -> bool:
        """False: the block is a miss."""
        end = self._first + len(self._blocks)
        if piece.block != self._next or piece.block >= end:
            raise _broken(piece, f"the next block is {self._next}, the last is before {end}")
        self._next += 1
        if piece.status == wire.STATUS_MISS:
            if piece.end > piece.begin:
                raise _broken(piece, "a miss with payload")
            return False
        if piece.status != wire.STATUS_OK:
            raise _broken(piece, f"status is {piece.status}")
        if piece.part_bytes == 0:
            raise _broken(piece, "part_bytes is 0")
        room = self._blocks[piece.block - self._first].size
        if piece.part_bytes != room:
            raise InvalidArgument(
                f"buffers[{piece.block - self._first}] has {room} bytes, the part has {piece.part_bytes}"
            )
        self._current = piece
        self._received = 0
        return True

    def _check(self, piece: wire.Piece) -> None:
        current = self._current
        assert current is not None
        if piece.block != current.block:
            raise _broken(
                piece, f"block {current.block} has only {self._received} of {current.part_bytes} bytes"
            )
        if (piece.status, piece.part_bytes, piece.checksum) != (
            wire.STATUS_OK,
            current.part_bytes,
            current.checksum,
        ):
            raise _broken(piece, "status, part_bytes or checksum differ within a block")
        if piece.offset != self._received:
            raise _broken(piece, f"offset is {piece.offset}, expected {self._received}")
        size, left = piece.end - piece.begin, current.part_bytes - self._received
        if not 0 < size <= left:
            raise _broken(piece, f"payload has {size} bytes, {left} are left")

    def _take(self, piece: wire.Piece, payload: memoryview) -> None:
        whole = payload.nbytes == piece.part_bytes
        # Hashed first: what is copied then is in the CPU's cache.
        if whole:
            checksum = xxhash.xxh3_64_intdigest(payload)
        else:
            self._hash.update(payload)
        self._copy(piece, payload)
        self._received += payload.nbytes
        if self._received < piece.part_bytes:
            return
        if not whole:
            checksum = self._hash.intdigest()
            self._hash.reset()
        self._current = None
        if checksum == piece.checksum:
            self.ok[piece.block - self._first] = True
        else:
            self.checksum_failures += 1

    def _copy(self, piece: wire.Piece, payload: memoryview) -> None:
        block = self._blocks[piece.block - self._first]
        if len(block.views) == 1:
            block.views[0][piece.offset : piece.offset + payload.nbytes] = payload
            return
        at = 0
        for target in block.slices(piece.offset, payload.nbytes):
            target[:] = payload[at : at + target.nbytes]
            at += target.nbytes


def _broken(piece: wire.Piece, what: str) -> Internal:
    return Internal(f"Fetch: the reply breaks the protocol at block {piece.block}: {what}")


class StoreMessages:
    """The messages of one attempt of a Store, for gRPC to iterate over: the header, then pieces. Payload is
    copied once, into the message.

    gRPC iterates on a thread of its own, which may go on for a moment after the call has ended: after
    ``stop`` the caller's memory is not read any more.
    """

    def __init__(self, header: bytes, first_block: int, blocks: Sequence[Block]) -> None:
        self._lock = threading.Lock()
        self._header: bytes | None = header
        self._first = first_block
        self._blocks = blocks
        self._next = 0  # index in blocks
        self._offset = 0
        self._hash = xxhash.xxh3_64()
        self._stopped = False

    def __iter__(self) -> StoreMessages:
        return self

    def __next__(self) -> bytes:
        with self._lock:
            if self._stopped:
                raise StopIteration
            if self._header is not None:
                header, self._header = self._header, None
                return header
            if self._next == len(self._blocks):
                raise StopIteration
            return self._message()

    def stop(self) -> None:
        with self._lock:
            self._stopped = True

    def _message(self) -> bytes:
        chunks: list[bytes | memoryview] = []
        room = wire.MESSAGE_PAYLOAD
        for _ in range(wire.MESSAGE_PIECES):
            if room == 0 or self._next == len(self._blocks):
                break
            room -= self._add_piece(chunks, room)
        return b"".join(chunks)

    def _add_piece(self, chunks: list[bytes | memoryview], room: int) -> int:
        block = self._blocks[self._next]
        size = min(room, block.size - self._offset)
        payload = block.slices(self._offset, size)
        last = self._offset + size == block.size
        if last and self._offset == 0 and len(payload) == 1:
            checksum = xxhash.xxh3_64_intdigest(payload[0])
        else:
            for view in payload:
                self._hash.update(view)
            checksum = self._hash.intdigest() if last else 0
        chunks.append(wire.piece_head(self._first + self._next, self._offset, block.size, checksum, size))
        chunks += payload
        self._offset += size
        if last:
            self._hash.reset()
            self._next += 1
            self._offset = 0
        return size


@dataclass(frozen=True, slots=True)
class Counters:
    """Totals since the client was made."""

    calls: int = 0  # that reached the network, retries not counted
    retries: int = 0
    failures: int = 0  # calls that ended Unavailable or DeadlineExceeded
    refused_by_breaker: int = 0
    breaker_opened: int = 0
    checksum_failures: int = 0  # fetched blocks turned into misses
    # Through shared memory; views count as fetched when they are handed out.
    shared_fetched_blocks: int = 0
    shared_stored_blocks: int = 0
    ended_leases: int = 0  # fetches whose lease was over before the bytes were read
