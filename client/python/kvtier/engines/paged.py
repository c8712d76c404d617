"""The two halves of a connector for an engine with a paged KV pool, without the engine.

An engine with a paged pool keeps the KV of `block_tokens` tokens in a *page* of each layer and calls
the pages of one block by a *block id*. It decides in a scheduler what to compute next, and computes in
one or more workers (ranks), each with a part of every block. A connector has a half in each:

    scheduler process                                  each rank
    -----------------                                  ---------
    half.match(request, tokens, local_tokens)
       -> None: ask again in the next step
       -> n blocks beyond the local ones
    half.allocated(request_id, block_ids, n)
    plan = half.plan(steps)            -- pickled -->  half.start_loads(plan)
                                                       ... submit this step's forward pass ...
                                                       half.start_saves(plan)
    half.absorb(progress.report)       <-- pickled --  progress = half.poll()
    half.finished(request_id)                             progress.loaded, progress.failed_blocks

What holds, whatever the daemon does:

  * SchedulerHalf never blocks on the network and never raises. A lookup runs on a thread of its own
    and has `lookup_budget` seconds; then it is a miss.
  * A block counts as loaded when its bytes are in the page and their checksum was verified. Every other
    block of a load is in `failed_blocks`, and the engine has to compute it. A load ends within
    `load_budget` + its bytes / `load_floor` seconds, and is reported only when nothing writes to the
    pages any more.
  * A block is pinned (BlockPinner) from the step in which it is complete until every rank has saved it
    or given up, within `save_budget` seconds. So its page is not reused while it is read.
  * Everything in flight is known by a job id, never by the request's: a request may be aborted, or its
    id used again, at any time.
  * With several ranks a block is found only when all parts of it are stored, and a load is done when
    every rank has reported; as many blocks count as the rank with the fewest verified.

No request is told that all of its tokens are there: an engine needs the last one to compute logits.

Threads: the methods of one half are called by one thread at a time. Both halves have threads of their
own, which are daemons; close() ends them.
"""
from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import itertools
import logging
import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from kvtier import (
    Client,
    Error,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    ModelSpec,
    Namespace,
    PackOrder,
    Part,
    Prompt,
    RegisteredModel,
    Tier,
    TierSpan,
)

logger = logging.getLogger("kvtier.engines.paged")

NO_LEASE = 0

T = TypeVar("T")


# What the engine tells -------------------------------------------------------------------------------


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


def _check_limits(field: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise ValueError(f"{field} is {value}, the limits are {least:g} and {most:g}")


# What goes between the halves ------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class LoadJob:
    """Fetch blocks [first_block, first_block + len(block_ids)) of a lease into these block ids. lease_end: when
    it ends, in seconds of ``time.monotonic``; a worker that is told may read the daemon's shared memory."""

    job_id: int
    request_id: str
    lease_id: int
    first_block: int
    block_ids: tuple[int, ...]
    lease_end: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class SaveJob:
    """Store these block ids; they are the last ones of the prompt that `hashes` names."""

    job_id: int
    hashes: tuple[bytes, ...]
    namespace: Namespace
    block_ids: tuple[int, ...]

    @property
    def first_block(self) -> int:
        return len(self.hashes) - len(self.block_ids)


@dataclasses.dataclass(frozen=True, slots=True)
class StepPlan:
    """One step's work, the same for every rank.

    cancelled: loads that nobody waits for any more. They still end with a report, of no block verified.
    idle: the step computes nothing, so a worker may as well wait a little for its jobs.
    """

    loads: tuple[LoadJob, ...] = ()
    saves: tuple[SaveJob, ...] = ()
    cancelled: tuple[int, ...] = ()
    idle: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class LoadOutcome:
    """A load's end on `ranks` ranks. verified: leading blocks that are in place on each of them.
    bytes: verified ones, of all these ranks. seconds: the slowest rank's. shared_bytes: read out of shared
    memory, by all these ranks, in shared_seconds together."""

    ranks: int
    verified: int
    bytes: int
    seconds: float
    shared_bytes: int = 0
    shared_seconds: float = 0.0

    def merge(self, other: LoadOutcome) -> LoadOutcome:
        return LoadOutcome(self.ranks + other.ranks, min(self.verified, other.verified),
                           self.bytes + other.bytes, max(self.seconds, other.seconds),
                           self.shared_bytes + other.shared_bytes, self.shared_seconds + other.shared_seconds)


# Of a lease by which nothing was loaded.
UNUSED = LoadOutcome(0, 0, 0, 0.0)


@dataclasses.dataclass(frozen=True, slots=True)
class SaveOutcome:
    """A save's end on `ranks` ranks. held: leading blocks of which kvtier has all of these ranks' parts.
    bytes: sent by all these ranks. seconds: the slowest rank's."""

    ranks: int
    held: int
    bytes: int
    seconds: float

    def merge(self, other: SaveOutcome) -> SaveOutcome:
        return SaveOutcome(self.ranks + other.ranks, min(self.held, other.held),
                           self.bytes + other.bytes, max(self.seconds, other.seconds))


@dataclasses.dataclass(slots=True)
class WorkerReport:
    """Jobs that ended, by job id. Reports of several ranks, or of several steps, merge to one."""

    loads: dict[int, LoadOutcome] = dataclasses.field(default_factory=dict)
    saves: dict[int, SaveOutcome] = dataclasses.field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.loads or self.saves)

    def merge(self, other: WorkerReport) -> WorkerReport:
        merged = WorkerReport(dict(self.loads), dict(self.saves))
        for job_id, load in other.loads.items():
            merged.loads[job_id] = merged.loads[job_id].merge(load) if job_id in merged.loads else load
        for job_id, save in other.saves.items():
            merged.saves[job_id] = merged.saves[job_id].merge(save) if job_id in merged.saves else save
        return merged


@dataclasses.dataclass(frozen=True, slots=True)
class Progress:
    """What a rank's poll() found.

    loaded: requests whose load ended on this rank, well or not, also if the request has ended before;
    each exactly once. With several ranks a request is loaded when all have said so.
    failed_blocks: block ids, of these loads, whose pages do not hold what they should; those of all ranks
    have to be computed.
    report: for SchedulerHalf.absorb, by way of the engine.
    """

    loaded: frozenset[str]
    failed_blocks: frozenset[int]
    report: WorkerReport


# Options and counters --------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class SchedulerOptions:
    """Seconds and blocks.

    lookup_budget: a lookup that takes longer is a miss.
    lookup_wait: how long all calls of match() in one step may wait, together, for an answer that is on
    its way, before they say None. 0 = not at all.
    lease_seconds: how long a match is kept by the daemon for a request that waits for room; after half
    of it the daemon is asked again. 0.001 to 600. A release that does not reach the daemon is not
    repeated: its blocks stay pinned there until this time is up.
    pinned_blocks: most blocks pinned for saves at a time. Above it blocks are not saved (yet).
    """

    lookup_budget: float = 0.05
    lookup_wait: float = 0.002
    lease_seconds: float = 30.0
    pinned_blocks: int = 1 << 30
    lookup_threads: int = 2

    def __post_init__(self) -> None:
        _check_limits("lookup_budget", self.lookup_budget, 0.001, 600.0)
        _check_limits("lookup_wait", self.lookup_wait, 0.0, 600.0)
        _check_limits("lease_seconds", self.lease_seconds, 0.001, 600.0)
        _check_limits("pinned_blocks", self.pinned_blocks, 0, 1 << 62)
        _check_limits("lookup_threads", self.lookup_threads, 1, 64)


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerOptions:
    """Seconds, and bytes per second.

    load_budget, load_floor: a load may take load_budget + bytes / load_floor seconds.
    save_budget: the same for a save, from the step that asked for it.
    inline: run loads within start_loads, and saves within start_saves, instead of on threads; the engine
    waits for them. For an engine whose own loop would keep the interpreter from these threads.
    """

    load_budget: float = 1.0
    load_floor: float = 100e6
    save_budget: float = 5.0
    load_threads: int = 2
    inline: bool = False

    def __post_init__(self) -> None:
        _check_limits("load_budget", self.load_budget, 0.001, 600.0)
        _check_limits("load_floor", self.load_floor, 1.0, 1e15)
        _check_limits("save_budget", self.save_budget, 0.001, 600.0)
        _check_limits("load_threads", self.load_threads, 1, 64)


@dataclasses.dataclass(slots=True)
class SchedulerCounters:
    """Totals since the start; pinned_blocks, loads and saves in flight as of now.

    lookup_misses_forced: lookups that ended without an answer (too late, daemon gone): misses.
    blocks_asked, blocks_matched: of lookups that were answered.
    blocks_failed: planned loads that were not verified. saves_skipped: blocks that were not saved
    because pinned_blocks was reached; one may count more than once.
    """

    lookups: int = 0
    lookup_misses_forced: int = 0
    blocks_asked: int = 0
    blocks_matched: int = 0
    loads: int = 0
    blocks_loaded: int = 0
    blocks_failed: int = 0
    bytes_loaded: int = 0
    load_seconds: float = 0.0
    saves: int = 0
    blocks_saved: int = 0
    blocks_refused: int = 0
    saves_skipped: int = 0
    bytes_saved: int = 0
    save_seconds: float = 0.0
    pinned_blocks: int = 0
    loads_in_flight: int = 0
    saves_in_flight: int = 0


# Shared machinery ------------------------------------------------------------------------------------


class ModelHandle:
    """A model that gets registered as soon as the daemon can be reached. Thread-safe.

    spec: with explicit_part_bytes it needs pack_order OPAQUE and a layout_fingerprint, without which
    engines with other layouts would share its blocks. Errors: InvalidArgument, whether or not a daemon
    is there.
    """

    def __init__(self, client: Client, spec: ModelSpec) -> None:
        spec.validate()
        if spec.explicit_part_bytes and spec.pack_order != PackOrder.OPAQUE:
            raise InvalidArgument(f"pack_order is {spec.pack_order.name}, with explicit_part_bytes it must be "
                                  "OPAQUE")
        if spec.explicit_part_bytes and not spec.layout_fingerprint:
            raise InvalidArgument("layout_fingerprint is empty, with explicit_part_bytes it must describe the "
                                  "layout: a digest of engine, version, dtype, shapes and parallel sizes")
        self.spec = spec
        self._client = client
        self._lock = threading.Lock()
        self._model: RegisteredModel | None = None

    def connect(self) -> Error | None:
        """Tries once, so that the first lookup need not. None, or why the daemon cannot be had now.
        Errors: InvalidArgument, FailedPrecondition, Internal: it will never take this model."""
        try:
            self.registered()
        except (InvalidArgument, FailedPrecondition, Internal):
            raise
        except Error as error:
            return error
        return None

    def registered(self) -> RegisteredModel:
        """Asks the daemon until it answered once. Errors: as Client.register_model."""
        with self._lock:
            if self._model is None:
                self._model = self._client.register_model(self.spec)
            return self._model


def _part_bytes(spec: ModelSpec, part: Part) -> int:
    if part.layer_group >= spec.groups or part.rank >= spec.tensor_parallel:
        raise ValueError(f"{part} is none of the model's spec, which has {spec.groups} layer groups and "
                         f"{spec.tensor_parallel} ranks")
    return spec.part_bytes()[part.layer_group * spec.tensor_parallel + part.rank]


class _Threads:
    """A few daemon threads that run what is submitted, in order of submission."""

    def __init__(self, count: int, name: str) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._run, name=f"{name}-{i}", daemon=True)
                         for i in range(count)]
        for thread in self._threads:
            thread.start()

    def submit(self, work: Callable[[], None]) -> None:
        self._work.put(work)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()

    def close(self, timeout: float) -> None:
        """Runs what was submitted, but waits `timeout` seconds at most."""
        deadline = time.monotonic() + timeout
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))


class _Once:
    """Logs each kind of event once as a warning, then only for debugging: a dead daemon is one line."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def warn(self, kind: str, message: str, *args: object, exc_info: bool = False) -> None:
        level = logging.DEBUG if kind in self._seen else logging.WARNING
        self._seen.add(kind)
        logger.log(level, message + " (said once)", *args, exc_info=exc_info)


class _HeldHashes:
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


# The scheduler's half --------------------------------------------------------------------------------


class _Answer:
    """A lookup under way or answered. The lookup's thread fills it in once, under the half's lock.

    told: match() has said what came of it.
    """

    __slots__ = ("deadline", "asked_at", "done", "failed", "told", "blocks", "asked_blocks", "lease_id",
                 "lease_end", "runs")

    def __init__(self, now: float, budget: float, asked_blocks: int) -> None:
        self.asked_at = now
        self.deadline = now + budget
        self.asked_blocks = asked_blocks
        self.done = False
        self.failed = False
        self.told = False
        self.blocks = 0
        self.lease_id = NO_LEASE
        self.lease_end: float | None = None
        self.runs: Sequence[TierSpan] = ()


class _Request:
    """What the half knows of a request that has not finished.

    saved: leading blocks that need not be saved any more. loading: job id. failed: a load of it failed,
    so it is computed from now on. stale: its KV is of before a reset and must not be saved.
    """

    __slots__ = ("answer", "local_blocks", "loading", "failed", "saved", "stale", "_namespace", "_hashes",
                 "_last_hash")

    def __init__(self) -> None:
        self.prompt_is(Namespace(), ())
        self.answer: _Answer | None = None
        self.local_blocks = 0
        self.loading: int | None = None
        self.failed = False
        self.saved = 0
        self.stale = False

    def prompt_is(self, namespace: Namespace, hashes: Sequence[bytes]) -> None:
        self._namespace = namespace
        self._hashes = len(hashes)
        self._last_hash = hashes[-1] if hashes else b""

    def has_prompt(self, namespace: Namespace, hashes: Sequence[bytes]) -> bool:
        """Whether it is this prompt, or a beginning of it. As hashes are chained, one tells of all before."""
        if self._hashes == 0:
            return True
        return (namespace == self._namespace and len(hashes) >= self._hashes
                and hashes[self._hashes - 1] == self._last_hash)


@dataclasses.dataclass(slots=True)
class _Load:
    job: LoadJob
    request: _Request
    outcome: LoadOutcome | None = None


@dataclasses.dataclass(slots=True)
class _Save:
    job: SaveJob
    outcome: SaveOutcome | None = None


class SchedulerHalf:
    """The half in the engine's scheduler: what to load, what to save, what to keep meanwhile.

    No method blocks (match() waits `lookup_wait` per step at most) and none raises; what goes wrong in
    the half itself is logged, and is a miss, or a block that is not saved.

    client: its own, or shared with others of this process; the owner closes it after the half.
    block_tokens: as in the model's spec. hash_tokens: tokens per engine hash; block_tokens must be a
    multiple. Block i goes by the hash at its end. ranks: how many reports a job needs; all ranks report
    each job, also one that does not write. Errors: ValueError.
    """

    def __init__(self, client: Client, model: ModelHandle, *, block_tokens: int, hash_tokens: int = 0,
                 ranks: int = 1, pinner: BlockPinner, options: SchedulerOptions = SchedulerOptions()) -> None:
        hash_tokens = hash_tokens or block_tokens
        if block_tokens < 1 or block_tokens % hash_tokens:
            raise ValueError(f"block_tokens {block_tokens} must be a multiple of hash_tokens {hash_tokens}")
        if block_tokens != model.spec.block_tokens:
            raise ValueError(f"block_tokens {block_tokens} must be that of the model's spec, "
                             f"{model.spec.block_tokens}")
        if ranks < 1:
            raise ValueError(f"ranks {ranks} must be at least 1")
        self._client = client
        self._model = model
        self._block_tokens = block_tokens
        self._hashes_per_block = block_tokens // hash_tokens
        self._ranks = ranks
        self._pinner = pinner
        self._options = options
        self._counters = SchedulerCounters()
        self._once = _Once()
        self._requests: dict[str, _Request] = {}
        self._loads: dict[int, _Load] = {}
        self._saves: dict[int, _Save] = {}
        self._new_loads: list[LoadJob] = []
        self._new_saves: list[SaveJob] = []
        self._cancelled: list[int] = []
        self._held = _HeldHashes()
        self._epoch = ""
        self._job_ids = itertools.count(1)
        self._wait_left = options.lookup_wait
        self._answered = threading.Condition()
        self._threads = _Threads(options.lookup_threads, "kvtier-lookup")

    # A request's way in

    def match(self, request: RequestView, tokens: int, local_tokens: int) -> int | None:
        """How many blocks kvtier can load beyond the engine's own `local_tokens`, of a request of
        `tokens` tokens. None: not known yet, ask again in the next step. May be called any number of
        times; what the last call said holds until allocated(), finished() or the next call.

        At least one token is left to compute. A local hit that ends within a block gets nothing loaded,
        as the block is the engine's. After a failed load the answer is 0 for good."""
        missed: int | None = 0
        return self._guard(missed, lambda: self._match(request, tokens, local_tokens))

    def allocated(self, request_id: str, block_ids: Sequence[int], external_blocks: int) -> None:
        """The engine took `external_blocks` of what match() offered; block_ids are the request's blocks
        in order, the local ones first. With 0 the match is dropped. The load is in the next plan; until
        it ends the engine must keep these blocks for the request, also when that is aborted."""
        self._guard(None, lambda: self._allocated(request_id, block_ids, external_blocks))

    def sources(self, request_id: str, external_blocks: int) -> dict[Tier, int]:
        """From which tiers these blocks, of the last match, come: blocks by tier."""
        unknown: dict[Tier, int] = {}
        return self._guard(unknown, lambda: self._sources(request_id, external_blocks))

    # A step

    def plan(self, steps: Iterable[RequestStep], idle: bool = False) -> StepPlan:
        """The plan of this step: all new loads, and saves of blocks that `steps` complete and kvtier
        does not have. Their blocks are pinned now. Hand it to every rank, also when it is empty."""
        self._guard(None, lambda: self._plan_saves(steps))
        plan = StepPlan(tuple(self._new_loads), tuple(self._new_saves), tuple(self._cancelled), idle)
        self._new_loads, self._new_saves, self._cancelled = [], [], []
        self._wait_left = self._options.lookup_wait
        return plan

    def absorb(self, report: WorkerReport) -> None:
        """Takes the ranks' reports, of one rank or merged, in any order."""
        self._guard(None, lambda: self._absorb(report))

    # A request's way out

    def finished(self, request_id: str, step: RequestStep | None = None) -> None:
        """The request is done or aborted, at whatever stage. `step`: only if it has completed blocks that
        were in no plan's steps; they are saved in the next plan, and pinned before this returns. A load
        under way is cancelled; the engine keeps its blocks until the ranks have reported it, which they
        do as always: the id comes back in Progress.loaded."""
        self._guard(None, lambda: self._finished(request_id, step))

    def preempted(self, request_id: str) -> None:
        """The engine took the request's blocks away; it will be matched anew. Optional: a match() after
        allocated() means the same."""
        self._guard(None, lambda: self._preempted(request_id))

    def reset(self) -> bool:
        """The engine's weights, or something else that its hashes do not cover, have changed.

        From now on this engine stores and finds under a name of its own: nothing that it, or another
        engine, stored before. (The old blocks stay for engines that still have the old weights; an
        operator removes them with `kvtier reset`.) Requests that have KV already are not saved. False
        if loads are under way: those are cancelled, and the engine should ask again."""
        return self._guard(False, self._reset)

    def busy(self) -> bool:
        """Whether jobs are under way or waiting to be planned: the engine should go on stepping."""
        return bool(self._loads or self._saves or self._cancelled)

    def counters(self) -> SchedulerCounters:
        """A copy."""
        now = dataclasses.replace(self._counters)
        now.loads_in_flight, now.saves_in_flight = len(self._loads), len(self._saves)
        return now

    def close(self, timeout: float = 1.0) -> None:
        """Gives up all leases and pins. The workers must have stopped."""
        for state in self._requests.values():
            self._drop_answer(state)
        for load in self._loads.values():
            self._release(load.job.lease_id)
        for save in self._saves.values():
            self._unpin(save.job)
        self._requests, self._loads, self._saves = {}, {}, {}
        self._threads.close(timeout)

    # Matching

    def _match(self, request: RequestView, tokens: int, local_tokens: int) -> int | None:
        state = self._requests.setdefault(request.request_id, _Request())
        if state.loading is not None:
            return None
        if local_tokens < 0:
            raise ValueError(f"local_tokens is {local_tokens}, the least is 0")
        hashes = self._block_hashes(request)
        if not state.has_prompt(request.namespace, hashes):  # its id went to another one, unfinished
            self._drop_answer(state)
            state = self._requests[request.request_id] = _Request()
        state.prompt_is(request.namespace, hashes)
        local, partial = divmod(local_tokens, self._block_tokens)
        limit = min((tokens - 1) // self._block_tokens, len(hashes))
        if state.failed or partial or limit <= local:
            self._drop_answer(state)
            return 0
        state.stale = False  # what it computes from here on is new
        answer = self._answer(state, request.namespace, hashes[:limit], local)
        if not self._settled(answer):
            return None
        answer.told = True
        state.local_blocks = local
        self._learn(state, answer, self._named(request.namespace), hashes)
        matched = min(answer.blocks, limit) - local
        if matched > 0:
            return matched
        # Nothing to load, so nothing to pin; what was found still tells what need not be saved.
        self._release(answer.lease_id)
        answer.lease_id = NO_LEASE
        return 0

    def _answer(self, state: _Request, namespace: Namespace, hashes: list[bytes], local: int) -> _Answer:
        answer = state.answer
        if answer is not None:
            given_back = answer.done and answer.blocks > local and answer.lease_id == NO_LEASE
            old = time.monotonic() - answer.asked_at > self._options.lease_seconds / 2
            # Whatever its age it is told once: a daemon, or an engine, whose every answer comes late must
            # not keep a request waiting for ever. At worst its lease is over and the load fails.
            if not answer.told or not (given_back or old):
                return answer
            self._drop_answer(state)
        state.answer = answer = _Answer(time.monotonic(), self._options.lookup_budget, len(hashes))
        self._counters.lookups += 1
        named = self._named(namespace)
        self._threads.submit(lambda: self._look_up(answer, named, hashes))
        return answer

    def _look_up(self, answer: _Answer, namespace: Namespace, hashes: list[bytes]) -> None:
        """On a lookup thread."""
        left = answer.deadline - time.monotonic()
        if answer.done or left <= 0:
            return
        blocks, lease_id, failed = 0, NO_LEASE, True
        lease_end: float | None = None
        runs: Sequence[TierSpan] = ()
        try:
            prompt = Prompt(self._model.registered().id, engine_hashes=hashes, namespace=namespace)
            found = self._client.lookup(prompt, lease=self._options.lease_seconds, timeout=left)
            failed = found.failure is not None
            if failed:
                self._once.warn("lookup", "lookup failed, taken for a miss: %s", found.failure)
            if found.lease:
                lease_end = found.lease.end
                blocks, lease_id, runs = found.blocks, found.lease.detach(), found.runs
        except Exception as error:
            self._once.warn(f"lookup {type(error)}", "lookup failed, taken for a miss: %s", error,
                            exc_info=not isinstance(error, Error))
        with self._answered:
            late, answer.done = answer.done, True
            if not late:
                answer.failed, answer.blocks, answer.runs = failed, blocks, runs
                answer.lease_id, answer.lease_end = lease_id, lease_end
                self._answered.notify_all()
        if late:
            self._release_now(lease_id)

    def _settled(self, answer: _Answer) -> bool:
        """Waits for the answer if this step has time left for that; past its deadline it is a miss."""
        with self._answered:
            began = time.monotonic()
            if not answer.done and self._wait_left > 0:
                self._answered.wait_for(lambda: answer.done,
                                        max(0.0, min(self._wait_left, answer.deadline - began)))
                self._wait_left -= time.monotonic() - began
            if not answer.done and time.monotonic() >= answer.deadline:
                answer.done = answer.failed = True
            return answer.done

    def _learn(self, state: _Request, answer: _Answer, namespace: Namespace, hashes: list[bytes]) -> None:
        """What a lookup says about what kvtier has; once per answer."""
        if answer.asked_blocks == 0:
            return
        if answer.failed:
            self._counters.lookup_misses_forced += 1
            answer.asked_blocks = 0
            return
        self._counters.blocks_asked += answer.asked_blocks
        self._counters.blocks_matched += answer.blocks
        state.saved = answer.blocks
        self._held.add(namespace, hashes[:answer.blocks])
        self._held.remove(namespace, hashes[answer.blocks:answer.asked_blocks])
        for save in self._saves.values():  # on their way
            self._held.add(save.job.namespace, save.job.hashes[save.job.first_block:])
        answer.asked_blocks = 0

    def _allocated(self, request_id: str, block_ids: Sequence[int], external_blocks: int) -> None:
        state = self._requests.setdefault(request_id, _Request())
        answer = state.answer
        if external_blocks <= 0:
            self._drop_answer(state)
            return
        first = state.local_blocks
        lease_id = answer.lease_id if answer is not None else NO_LEASE
        targets = tuple(block_ids[first:first + external_blocks])
        if lease_id == NO_LEASE or len(set(targets)) != external_blocks or min(targets) < 0:
            # Still a job: the engine waits for it, and has to hear that nothing was loaded.
            self._once.warn("allocated", "request %s takes %d blocks at %d that no match offered, or not into "
                            "as many block ids of 0 or more: %s", request_id, external_blocks, first, targets)
            self._release(lease_id)
            lease_id = NO_LEASE
        lease_end = answer.lease_end if answer is not None else None
        job = LoadJob(next(self._job_ids), request_id, lease_id, first, targets, lease_end)
        if answer is not None:
            answer.lease_id = NO_LEASE
        state.loading = job.job_id
        self._loads[job.job_id] = _Load(job, state)
        self._new_loads.append(job)

    def _preempted(self, request_id: str) -> None:
        state = self._requests.get(request_id)
        if state is not None:
            self._drop_answer(state)

    def _sources(self, request_id: str, external_blocks: int) -> dict[Tier, int]:
        state = self._requests[request_id]
        first, last = state.local_blocks, state.local_blocks + external_blocks
        at, sources = 0, collections.Counter[Tier]()
        for run in state.answer.runs if state.answer is not None else ():
            overlap = min(at + run.blocks, last) - max(at, first)
            if overlap > 0:
                sources[run.tier] += overlap
            at += run.blocks
        return dict(sources)

    # Saving

    def _plan_saves(self, steps: Iterable[RequestStep]) -> None:
        for step in steps:
            self._guard(None, functools.partial(self._plan_save, step))

    def _plan_save(self, step: RequestStep) -> None:
        state = self._requests.setdefault(step.request.request_id, _Request())
        if state.loading is not None or state.stale:
            return
        ready = min(step.computed_tokens // self._block_tokens,
                    len(step.request.hashes) // self._hashes_per_block)
        if ready <= state.saved:  # as most steps of most requests; costs nothing then
            return
        hashes = self._block_hashes(step.request)
        ready = min(ready, len(step.block_ids))
        namespace = self._named(step.request.namespace)
        state.saved += self._held.count_leading(namespace, hashes[state.saved:ready])
        first = state.saved
        last = min(ready, first + self._options.pinned_blocks - self._counters.pinned_blocks)
        self._counters.saves_skipped += ready - max(first, last)
        if last <= first:
            return
        job = SaveJob(next(self._job_ids), tuple(hashes[:last]), namespace, tuple(step.block_ids[first:last]))
        self._pinner.pin(job.block_ids)
        self._counters.pinned_blocks += len(job.block_ids)
        self._saves[job.job_id] = _Save(job)
        self._new_saves.append(job)
        self._held.add(namespace, job.hashes[first:])
        state.saved = last

    def _finished(self, request_id: str, step: RequestStep | None) -> None:
        state = self._requests.get(request_id)
        if state is not None and state.loading is not None:
            self._cancelled.append(state.loading)
        elif step is not None:
            self._plan_save(step)
        state = self._requests.pop(request_id, None)
        if state is not None:
            self._drop_answer(state)

    # Reports

    def _absorb(self, report: WorkerReport) -> None:
        for job_id, outcome in report.loads.items():
            load = self._loads.get(job_id)
            if load is not None:
                load.outcome = load.outcome.merge(outcome) if load.outcome else outcome
                if load.outcome.ranks >= self._ranks:
                    del self._loads[job_id]
                    self._loaded(load, load.outcome)
        for job_id, saved in report.saves.items():
            save = self._saves.get(job_id)
            if save is not None:
                save.outcome = save.outcome.merge(saved) if save.outcome else saved
                if save.outcome.ranks >= self._ranks:
                    del self._saves[job_id]
                    self._saved(save.job, save.outcome)

    def _loaded(self, load: _Load, outcome: LoadOutcome) -> None:
        job, state = load.job, load.request
        self._release(job.lease_id, outcome)
        failed = len(job.block_ids) - outcome.verified
        self._counters.loads += 1
        self._counters.blocks_loaded += outcome.verified
        self._counters.blocks_failed += failed
        self._counters.bytes_loaded += outcome.bytes
        self._counters.load_seconds += outcome.seconds
        state.loading = None
        if failed:
            # Never load for this request again, and store what it computes instead.
            state.failed = True
            state.saved = job.first_block + outcome.verified

    def _saved(self, job: SaveJob, outcome: SaveOutcome) -> None:
        self._unpin(job)
        self._counters.saves += 1
        self._counters.blocks_saved += outcome.held
        self._counters.blocks_refused += len(job.block_ids) - outcome.held
        self._counters.bytes_saved += outcome.bytes
        self._counters.save_seconds += outcome.seconds
        self._held.remove(job.namespace, job.hashes[job.first_block + outcome.held:])

    # Helpers

    def _reset(self) -> bool:
        self._epoch = f"reset-{uuid.uuid4().hex}"
        self._held.clear()
        for state in self._requests.values():
            self._drop_answer(state)
            state.saved, state.stale = 0, True
        self._cancelled.extend(self._loads)
        return not self._loads

    def _named(self, namespace: Namespace) -> Namespace:
        if not self._epoch:
            return namespace
        adapter = hashlib.sha256(namespace.adapter.encode()).hexdigest()  # of any length it fits beside
        return dataclasses.replace(namespace, adapter=f"{self._epoch} {adapter}")

    def _block_hashes(self, request: RequestView) -> list[bytes]:
        step = self._hashes_per_block
        return list(request.hashes[step - 1::step])

    def _drop_answer(self, state: _Request) -> None:
        answer, state.answer = state.answer, None
        if answer is None:
            return
        with self._answered:
            answer.done = True
            lease_id, answer.lease_id = answer.lease_id, NO_LEASE
        self._release(lease_id)

    def _release(self, lease_id: int, use: LoadOutcome = UNUSED) -> None:
        if lease_id != NO_LEASE:
            self._threads.submit(lambda: self._release_now(lease_id, use))

    def _release_now(self, lease_id: int, use: LoadOutcome = UNUSED) -> None:
        if lease_id == NO_LEASE:
            return
        try:
            done = self._client.release(lease_id, use.verified, shared_bytes=use.shared_bytes,
                                        shared_seconds=use.shared_seconds)
            failure = done.failure
        except Error as error:
            failure = error
        if failure is not None:
            self._once.warn("release", "lease not released, it ends by itself: %s", failure)

    def _unpin(self, job: SaveJob) -> None:
        self._pinner.unpin(job.block_ids)
        self._counters.pinned_blocks -= len(job.block_ids)

    def _guard(self, otherwise: T, work: Callable[[], T]) -> T:
        """The engine's scheduler must not die of a cache."""
        try:
            return work()
        except Exception as error:
            self._once.warn(f"scheduler {type(error)}", "the scheduler's half failed, taken for a miss: %s",
                            error, exc_info=True)
            return otherwise


# The worker's half -----------------------------------------------------------------------------------


class WorkerHalf:
    """The half in one rank: moves this rank's part of blocks between its pages and kvtier.

    model: once it has been connected, loads may go through shared memory. part: this rank's. pages: of as
    many bytes as the model's spec has for that part. writes: False for a rank whose part another rank stores
    (a latent that all ranks have alike); it loads and reports like the others. No method raises; the
    constructor: ValueError.
    """

    def __init__(self, client: Client, model: ModelHandle, part: Part, pages: Pages, *, writes: bool = True,
                 options: WorkerOptions = WorkerOptions()) -> None:
        expected = _part_bytes(model.spec, part)
        if pages.part_bytes != expected:
            raise ValueError(f"pages have {pages.part_bytes} bytes per block, {part} of the model's spec has "
                             f"{expected}")
        self._client = client
        self._model = model
        self._part = part
        self._pages = pages
        self._writes = writes
        self._options = options
        self._once = _Once()
        self._changed = threading.Condition()
        self._loading: set[int] = set()
        self._saving: set[int] = set()
        self._cancelled: set[int] = set()
        self._loaded: set[str] = set()
        self._failed_blocks: set[int] = set()
        self._report = WorkerReport()
        self._loaders = _Threads(0 if options.inline else options.load_threads, "kvtier-load")
        # One saver: a block can only be stored once the block before it is.
        self._saver = _Threads(0 if options.inline else 1, "kvtier-save")

    def start(self, plan: StepPlan) -> None:
        """Both halves of a step, for an engine whose forward pass is done when this is called."""
        self.start_loads(plan)
        self.start_saves(plan)

    def start_loads(self, plan: StepPlan) -> None:
        """Starts the plan's loads; with WorkerOptions.inline they have ended when it returns."""
        with self._changed:
            self._loading.update(job.job_id for job in plan.loads)
            self._cancelled.update(self._loading.intersection(plan.cancelled))
        mark = self._mark() if plan.loads else None
        for job in plan.loads:
            deadline = self._deadline(self._options.load_budget, len(job.block_ids))
            self._run(self._loaders, functools.partial(self._load, job, mark, deadline))

    def start_saves(self, plan: StepPlan) -> None:
        """Starts the plan's saves; with WorkerOptions.inline they have ended when it returns. Call it once
        this step's forward pass was submitted, never before: what it computes is saved. Where the pass may
        still be running then (a GPU), Pages.mark() is what makes the saves wait for it."""
        mark = self._mark() if plan.saves else None
        with self._changed:
            self._saving.update(job.job_id for job in plan.saves)
        for job in plan.saves:
            deadline = self._deadline(self._options.save_budget, len(job.block_ids))
            self._run(self._saver, functools.partial(self._save, job, mark, deadline))

    def poll(self, wait: float = 0.0) -> Progress:
        """What ended since the last call. wait: seconds to wait for a load or save, if one is under way and
        none has ended; an engine with nothing to compute thereby leaves the interpreter to them, and does
        not spin while it steps for the end of a save."""
        with self._changed:
            if wait > 0 and (self._loading or self._saving) and not self._report:
                self._changed.wait_for(lambda: self._report, wait)
            progress = Progress(frozenset(self._loaded), frozenset(self._failed_blocks), self._report)
            self._loaded, self._failed_blocks, self._report = set(), set(), WorkerReport()
        return progress

    def busy(self) -> bool:
        """Whether jobs are under way."""
        with self._changed:
            return bool(self._loading or self._saving)

    def close(self, timeout: float = 5.0) -> None:
        """Lets saves end, for `timeout` seconds at most. Loads are cancelled."""
        with self._changed:
            self._cancelled.update(self._loading)
        self._loaders.close(timeout)
        self._saver.close(timeout)

    def _mark(self) -> Any:
        """The pages' mark, or why there is none: then the jobs fail by it, on their own thread."""
        try:
            return self._pages.mark()
        except Exception as error:
            return error

    def _deadline(self, budget: float, blocks: int) -> float:
        return time.monotonic() + budget + blocks * self._pages.part_bytes / self._options.load_floor

    def _run(self, threads: _Threads, work: Callable[[], None]) -> None:
        if self._options.inline:
            work()
        else:
            threads.submit(work)

    # Loads

    def _load(self, job: LoadJob, mark: Any, deadline: float) -> None:
        """Never raises; when it returns nothing writes to the job's blocks any more."""
        began = time.monotonic()
        outcome = LoadOutcome(1, 0, 0, 0.0)
        try:
            outcome = self._fetch(job, mark, deadline)
        except Exception as error:
            self._once.warn(f"load {type(error)}", "load failed, its blocks are computed: %s", error,
                            exc_info=not isinstance(error, Error))
        with self._changed:
            if job.job_id in self._cancelled:
                self._cancelled.discard(job.job_id)
                outcome = dataclasses.replace(outcome, verified=0, bytes=0)
            self._loading.discard(job.job_id)
            self._loaded.add(job.request_id)
            self._failed_blocks.update(job.block_ids[outcome.verified:])
            self._report.loads[job.job_id] = dataclasses.replace(outcome, seconds=time.monotonic() - began)
            self._changed.notify_all()

    def _fetch(self, job: LoadJob, mark: Any, deadline: float) -> LoadOutcome:
        """But for its seconds."""
        if isinstance(mark, Exception):
            raise mark
        verified = shared = 0
        shared_seconds = 0.0
        step = self._pages.chunk_blocks or max(1, len(job.block_ids))
        for at in range(0, len(job.block_ids), step):
            left = deadline - time.monotonic()
            if job.lease_id == NO_LEASE or job.job_id in self._cancelled or left <= 0:
                break
            block_ids = job.block_ids[at:at + step]
            report = self._client.fetch_into(job.lease_id, self._pages.targets(block_ids),
                                             first_block=job.first_block + at, part=self._part,
                                             lease_end=job.lease_end, timeout=left)
            self._pages.written(block_ids[:report.leading], mark)
            verified += report.leading
            shared += report.shared
            shared_seconds += report.shared_seconds
            if report.failure is not None:
                self._once.warn("fetch", "load ended early, the rest is computed: %s", report.failure)
            if report.leading < len(block_ids):
                break
        size = self._pages.part_bytes
        return LoadOutcome(1, verified, verified * size, 0.0, shared * size, shared_seconds)

    # Saves

    def _save(self, job: SaveJob, mark: Any, deadline: float) -> None:
        """Never raises; when it returns nothing reads the job's blocks any more."""
        began = time.monotonic()
        held, sent = len(job.block_ids), 0
        if self._writes:
            held = 0
            try:
                held, sent = self._store(job, mark, deadline)
            except Exception as error:
                self._once.warn(f"save {type(error)}", "blocks not saved: %s", error,
                                exc_info=not isinstance(error, Error))
        with self._changed:
            self._saving.discard(job.job_id)
            self._report.saves[job.job_id] = SaveOutcome(1, held, sent * self._pages.part_bytes,
                                                         time.monotonic() - began)
            self._changed.notify_all()

    def _store(self, job: SaveJob, mark: Any, deadline: float) -> tuple[int, int]:
        """(leading blocks that kvtier has, blocks sent)."""
        if isinstance(mark, Exception):
            raise mark
        held = sent = 0
        step = self._pages.chunk_blocks or max(1, len(job.block_ids))
        for at in range(0, len(job.block_ids), step):
            left = deadline - time.monotonic()
            if left <= 0:
                self._once.warn("save", "blocks not saved: kvtierd is too slow for what is computed")
                break
            block_ids = job.block_ids[at:at + step]
            first = job.first_block + at
            hashes = job.hashes[:first + len(block_ids)]
            prompt = Prompt(self._model.registered().id, engine_hashes=hashes, namespace=job.namespace)
            report = self._client.store_from(prompt, self._pages.gather(block_ids, mark), first_block=first,
                                             part=self._part, first_missing=first, timeout=left)
            if report.failure is not None:
                self._once.warn("store", "blocks not saved: %s", report.failure)
            held, sent = held + report.held, sent + report.sent
            if report.held < len(block_ids):
                break
        return held, sent
