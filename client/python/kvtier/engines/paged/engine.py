"""What an engine tells the scheduler's half, and what it brings: its pins and its pages."""
from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

from kvtier import InvalidArgument, Namespace


@dataclasses.dataclass(frozen=True, slots=True)
class RequestView:
    """A request, as the engine knows it now.

    hashes: the engine's chained hashes, one per `hash_tokens` tokens, each of the same 8 to 64 bytes;
    they may grow with the request. hash i covers its tokens and all before them, adapter, media and
    salt; only the model and what `namespace` has need not be in it.
    """

    request_id: str
    hashes: Sequence[bytes]
    namespace: Namespace = Namespace()

    def __post_init__(self) -> None:
        if not isinstance(self.namespace, Namespace):
            raise InvalidArgument(f"namespace is a {type(self.namespace).__name__}, it must be a Namespace")


@dataclasses.dataclass(frozen=True, slots=True)
class RequestStep:
    """Where a request stands once the step that is being planned has run.

    block_ids: its blocks, in order from its first token.
    computed_tokens: of its leading tokens, how many have KV in those blocks that is final and may be
    saved. A block is saved when all its tokens are among them.
    """

    request: RequestView
    block_ids: Sequence[int]
    computed_tokens: int


class BlockPinner(Protocol):
    """The engine's reference counts. A pinned block is neither freed nor given to another request."""

    def pin(self, block_ids: Sequence[int]) -> None: ...

    def unpin(self, block_ids: Sequence[int]) -> None: ...


class NoPins:
    """For an engine that keeps a block until `SchedulerHalf.busy()` is False."""

    def pin(self, block_ids: Sequence[int]) -> None:
        pass

    def unpin(self, block_ids: Sequence[int]) -> None:
        pass


Segments = Sequence[memoryview]


class Pages(Protocol):
    """One rank's part of every block, as memory.

    A block's bytes are its segments, end to end: `part_bytes` in all, in the same order on every engine
    that shares the model. `chunk_blocks`: how many blocks may be asked for at a time; 0 = any number.
    """

    part_bytes: int
    chunk_blocks: int

    def mark(self) -> Any:
        """Called by start_loads and start_saves, on the engine's thread: what the engine has submitted for
        its pages up to here comes before the load or save. Host memory needs none, as there a forward
        pass is done when it returns. On a GPU it is submitted only: record an event on the engine's
        stream, and let gather() and written() wait for it."""

    def gather(self, block_ids: Sequence[int], mark: Any) -> Sequence[Segments]:
        """Readable memory with these blocks as of `mark`; valid until the next call on this thread."""

    def targets(self, block_ids: Sequence[int]) -> Sequence[Segments]:
        """Writable memory for these blocks; valid until the next call on this thread."""

    def written(self, block_ids: Sequence[int], mark: Any) -> None:
        """These blocks' targets hold what belongs there; when it returns, so do the pages."""


class HostPages:
    """Pages in host memory: the engine's own, read and written in place.

    layers: for each layer, in a fixed order, its whole memory as one contiguous memoryview of bytes;
    block b of it is [b * stride, b * stride + page_bytes). Errors: ValueError, for memory that has no
    block, and for the id of a block that is not in it.
    """

    chunk_blocks = 0

    def __init__(self, layers: Sequence[memoryview], page_bytes: Sequence[int],
                 strides: Sequence[int] | None = None) -> None:
        sizes = zip(layers, page_bytes, strides or page_bytes, strict=True)
        self._layers = [(layer.cast("B"), page, stride) for layer, page, stride in sizes]
        self.part_bytes = sum(page_bytes)
        if not self._layers:
            raise ValueError("layers is empty, the least is 1")
        for i, (layer, page, stride) in enumerate(self._layers):
            if not 0 < page <= min(stride, len(layer)):
                raise ValueError(f"page_bytes[{i}] is {page}, the limits are 1 and the least of its stride, "
                                 f"{stride}, and its layer, {len(layer)}")
        self._blocks = min((len(layer) - page) // stride + 1 for layer, page, stride in self._layers)

    def mark(self) -> None:
        return None

    def gather(self, block_ids: Sequence[int], mark: Any = None) -> Sequence[Segments]:
        return [self.block(b) for b in block_ids]

    def targets(self, block_ids: Sequence[int]) -> Sequence[Segments]:
        return [self.block(b) for b in block_ids]

    def written(self, block_ids: Sequence[int], mark: Any = None) -> None:
        pass

    def block(self, block_id: int) -> Segments:
        """The block's page in each layer."""
        if not 0 <= block_id < self._blocks:
            raise ValueError(f"block id is {block_id}, the limits are 0 and {self._blocks - 1}")
        return [layer[block_id * stride:block_id * stride + page] for layer, page, stride in self._layers]
