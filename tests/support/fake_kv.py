"""KV that says whose it is, and the paged memory of a fake engine that holds it.

A *row* is one token's KV in one layer of one rank. Its bytes follow from the namespace, every token up to
this one, the layer and the rank, as a real model's do; so whoever reads a row can tell whose it is, and
one prefix has one right content. A *page* is a block's rows in one layer; a block's *part* is its pages in
layer order, which is what a connector stores for one rank.
"""
from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import threading
from typing import Callable, Iterable, Iterator, Sequence

POISON = 0xDB
DIGEST_BYTES = 16
_ROW_UNIT = 32  # bytes: digest, layer, rank, padding


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a fake model on a fake engine. row_bytes: a multiple of 32. replicated: all ranks have the
    same KV, that of rank 0, as of a latent that is not split."""

    block_tokens: int = 16
    layers: int = 2
    row_bytes: int = 64
    ranks: int = 1
    replicated: bool = False

    @property
    def page_bytes(self) -> int:
        return self.block_tokens * self.row_bytes

    @property
    def part_bytes(self) -> int:
        return self.layers * self.page_bytes


def digest(*parts: bytes) -> bytes:
    return hashlib.blake2b(b"".join(len(p).to_bytes(4, "little") + p for p in parts),
                           digest_size=DIGEST_BYTES).digest()


def chain(root: bytes, tokens: Iterable[int]) -> Iterator[bytes]:
    """One digest per token, each of everything up to it."""
    for token in tokens:
        root = digest(root, token.to_bytes(8, "little"))
        yield root


def namespace_root(tenant: str = "", salt: bytes = b"", adapter: str = "") -> bytes:
    return digest(b"namespace", tenant.encode(), salt, adapter.encode())


@functools.lru_cache(maxsize=20_000)
def row(prefix: bytes, layer: int, rank: int, row_bytes: int) -> bytes:
    """The KV of the token that `prefix` ends with."""
    unit = prefix + bytes([layer, rank]) + digest(prefix, bytes([layer, rank]))
    return unit[:_ROW_UNIT].ljust(_ROW_UNIT, b"\0") * (row_bytes // _ROW_UNIT)


@functools.lru_cache(maxsize=256)
def _page(prefixes: tuple[bytes, ...], layer: int, rank: int, row_bytes: int) -> bytes:
    return b"".join(row(prefix, layer, rank, row_bytes) for prefix in prefixes)


def page(prefixes: Sequence[bytes], layer: int, rank: int, shape: Shape) -> bytes:
    """The rows of these tokens, end to end."""
    return _page(tuple(prefixes), layer, rank, shape.row_bytes)


def part(prefixes: Sequence[bytes], rank: int, shape: Shape) -> bytes:
    """A whole block's, as it is stored. `prefixes`: those of its block_tokens tokens."""
    return b"".join(page(prefixes, layer, rank, shape) for layer in range(shape.layers))


@dataclasses.dataclass(frozen=True, slots=True)
class Owner:
    """Whose bytes these are: "kv", "poison" (nobody wrote since the slot was taken), or "none"
    (anything else, a mixture too). prefixes: the tokens' digests, with kv only; a block that is filled
    in part has fewer than block_tokens."""

    kind: str
    rank: int = -1
    prefixes: tuple[bytes, ...] = ()


def owner(data: bytes | bytearray | memoryview, shape: Shape) -> Owner:
    """`data`: a part."""
    data = bytes(data)
    if data == bytes([POISON]) * len(data):
        return Owner("poison")
    rank = data[DIGEST_BYTES + 1]
    starts = range(0, shape.page_bytes, shape.row_bytes)
    prefixes = tuple(data[at:at + DIGEST_BYTES] for at in starts
                     if data[at:at + shape.row_bytes] != bytes([POISON]) * shape.row_bytes)
    if len(data) == shape.part_bytes and _filled(prefixes, rank, shape) == data:
        return Owner("kv", rank, prefixes)
    return Owner("none")


def _filled(prefixes: Sequence[bytes], rank: int, shape: Shape) -> bytes:
    filler = bytes([POISON])
    return b"".join(page(prefixes, layer, rank, shape).ljust(shape.page_bytes, filler)
                    for layer in range(shape.layers))


class RankMemory:
    """One rank's slots: per layer one buffer of `slots` pages."""

    def __init__(self, shape: Shape, slots: int, rank: int) -> None:
        self.shape = shape
        self.rank = 0 if shape.replicated else rank
        self.slots = slots
        self.layers = [memoryview(bytearray([POISON]) * (slots * shape.page_bytes))
                       for _ in range(shape.layers)]

    def segments(self, slot: int) -> list[memoryview]:
        """The slot's pages, writable, in layer order: what a connector gathers and scatters."""
        at = slot * self.shape.page_bytes
        return [layer[at:at + self.shape.page_bytes] for layer in self.layers]

    def read(self, slot: int) -> bytes:
        return b"".join(self.segments(slot))

    def owner(self, slot: int) -> Owner:
        return owner(self.read(slot), self.shape)

    def poison(self, slot: int) -> None:
        for segment in self.segments(slot):
            segment[:] = bytes([POISON]) * len(segment)

    def write(self, slot: int, first_row: int, prefixes: Sequence[bytes]) -> None:
        begin = first_row * self.shape.row_bytes
        end = begin + len(prefixes) * self.shape.row_bytes
        for layer, segment in enumerate(self.segments(slot)):
            segment[begin:end] = page(prefixes, layer, self.rank, self.shape)

    def holds(self, slot: int, prefixes: Sequence[bytes]) -> bool:
        """Whether its first rows are the KV of these tokens, in every layer."""
        end = len(prefixes) * self.shape.row_bytes
        return all(segment[:end] == page(prefixes, layer, self.rank, self.shape)
                   for layer, segment in enumerate(self.segments(slot)))


class SlotPool:
    """Which slots are free, used and cached. Thread-safe, because a connector may unpin from a thread.

    A slot with no user keeps its content and can be found by its key until it is taken for something
    else; `on_reuse` is called then.
    """

    def __init__(self, slots: int, on_reuse: Callable[[int], None]) -> None:
        self.slots = slots
        self._on_reuse = on_reuse
        self._lock = threading.RLock()
        self._users = [0] * slots
        self._free: collections.OrderedDict[int, None] = collections.OrderedDict.fromkeys(range(slots))
        self._key_of: dict[int, bytes] = {}
        self._slot_of: dict[bytes, int] = {}

    @property
    def free(self) -> int:
        with self._lock:
            return len(self._free)

    @property
    def pins(self) -> int:
        """Uses of all slots together."""
        with self._lock:
            return sum(self._users)

    def allocate(self, count: int) -> list[int] | None:
        """The ones that were free for longest; None when there are too few."""
        with self._lock:
            if count > len(self._free):
                return None
            slots = [self._free.popitem(last=False)[0] for _ in range(count)]
            for slot in slots:
                self._users[slot] = 1
                self._forget(slot)
                self._on_reuse(slot)
            return slots

    def touch(self, slots: Iterable[int]) -> None:
        with self._lock:
            for slot in slots:
                self._free.pop(slot, None)
                self._users[slot] += 1

    def release(self, slots: Iterable[int]) -> None:
        """In reverse: a prompt's tail is taken for something else before its head."""
        with self._lock:
            for slot in reversed(list(slots)):
                if self._users[slot] == 0:
                    raise AssertionError(f"slot {slot} is released by one who does not use it")
                self._users[slot] -= 1
                if self._users[slot] == 0:
                    self._free[slot] = None

    def cache(self, slot: int, key: bytes) -> None:
        with self._lock:
            if key not in self._slot_of and slot not in self._key_of:
                self._key_of[slot] = key
                self._slot_of[key] = slot

    def cached_prefix(self, keys: Iterable[bytes]) -> list[int]:
        """Slots of the leading keys that are cached; not touched."""
        found = []
        with self._lock:
            for key in keys:
                slot = self._slot_of.get(key)
                if slot is None:
                    break
                found.append(slot)
        return found

    def uncache(self) -> None:
        with self._lock:
            self._key_of.clear()
            self._slot_of.clear()

    def _forget(self, slot: int) -> None:
        key = self._key_of.pop(slot, None)
        if key is not None:
            del self._slot_of[key]
