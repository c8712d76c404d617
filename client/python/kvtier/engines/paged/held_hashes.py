"""What is in kvtier, as far as the scheduler's half knows: so that no block is sent twice."""
from __future__ import annotations

import collections
import itertools
from collections.abc import Iterable

from kvtier import Namespace


class HeldHashes:
    """Hashes that kvtier holds or is being sent, as far as this engine knows, each in its namespace.
    Bounded; least recently noted leave first. Wrong at worst by an eviction in kvtier, until a lookup
    tells."""

    def __init__(self, limit: int = 1 << 17) -> None:
        self._limit = limit
        self._hashes: collections.OrderedDict[bytes, None] = collections.OrderedDict()

    def count_leading(self, namespace: Namespace, hashes: Iterable[bytes]) -> int:
        held = (name in self._hashes for name in self._names(namespace, hashes))
        return sum(1 for _ in itertools.takewhile(bool, held))

    def add(self, namespace: Namespace, hashes: Iterable[bytes]) -> None:
        for name in self._names(namespace, hashes):
            self._hashes[name] = None
            self._hashes.move_to_end(name)
        while len(self._hashes) > self._limit:
            self._hashes.popitem(last=False)

    def remove(self, namespace: Namespace, hashes: Iterable[bytes]) -> None:
        for name in self._names(namespace, hashes):
            self._hashes.pop(name, None)

    def clear(self) -> None:
        self._hashes.clear()

    @staticmethod
    def _names(namespace: Namespace, hashes: Iterable[bytes]) -> Iterable[bytes]:
        tag = hash(namespace).to_bytes(8, "little", signed=True)
        return (tag + block_hash for block_hash in hashes)
