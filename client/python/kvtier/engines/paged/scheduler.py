"""The half in the engine's scheduler."""
from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import itertools
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from kvtier import Client, Namespace, Tier
from kvtier.engines.paged.engine import BlockPinner, RequestStep, RequestView
from kvtier.engines.paged.held_hashes import HeldHashes
from kvtier.engines.paged.lookups import Answer, Lookups
from kvtier.engines.paged.machinery import ModelHandle, check_limits, logger
from kvtier.engines.paged.plans import (
    NO_LEASE,
    LoadJob,
    LoadOutcome,
    SaveJob,
    SaveOutcome,
    StepPlan,
    WorkerReport,
)
from kvtier.warn_once import WarnOnce

T = TypeVar("T")


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
        check_limits("lookup_budget", self.lookup_budget, 0.001, 600.0)
        check_limits("lookup_wait", self.lookup_wait, 0.0, 600.0)
        check_limits("lease_seconds", self.lease_seconds, 0.001, 600.0)
        check_limits("pinned_blocks", self.pinned_blocks, 0, 1 << 62)
        check_limits("lookup_threads", self.lookup_threads, 1, 64)


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


class _Request:
    """What the half knows of a request that has not finished.

    saved: leading blocks that need not be saved any more. loading: job id. failed: a load of it failed,
    so it is computed from now on. stale: its KV is of before a reset and must not be saved.
    """

    __slots__ = ("answer", "local_blocks", "loading", "failed", "saved", "stale", "_namespace", "_hashes",
                 "_last_hash")

    def __init__(self) -> None:
        self.prompt_is(Namespace(), ())
        self.answer: Answer | None = None
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
        self._block_tokens = block_tokens
        self._hashes_per_block = block_tokens // hash_tokens
        self._ranks = ranks
        self._pinner = pinner
        self._options = options
        self._counters = SchedulerCounters()
        self._warn_once = WarnOnce(logger)
        self._requests: dict[str, _Request] = {}
        self._loads: dict[int, _Load] = {}
        self._saves: dict[int, _Save] = {}
        self._new_loads: list[LoadJob] = []
        self._new_saves: list[SaveJob] = []
        self._cancelled: list[int] = []
        self._held = HeldHashes()
        self._epoch = ""
        self._job_ids = itertools.count(1)
        self._lookups = Lookups(client, model, self._warn_once, budget=options.lookup_budget,
                                step_wait=options.lookup_wait, lease_seconds=options.lease_seconds,
                                threads=options.lookup_threads)

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
        self._lookups.next_step()
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
            self._lookups.release(load.job.lease_id)
        for save in self._saves.values():
            self._unpin(save.job)
        self._requests, self._loads, self._saves = {}, {}, {}
        self._lookups.close(timeout)

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
        if not self._lookups.settled(answer):
            return None
        answer.told = True
        state.local_blocks = local
        self._learn(state, answer, self._named(request.namespace), hashes)
        matched = min(answer.blocks, limit) - local
        if matched > 0:
            return matched
        # Nothing to load, so nothing to pin; what was found still tells what need not be saved.
        self._lookups.release(answer.lease_id)
        answer.lease_id = NO_LEASE
        return 0

    def _answer(self, state: _Request, namespace: Namespace, hashes: list[bytes], local: int) -> Answer:
        answer = state.answer
        if answer is not None:
            given_back = answer.done and answer.blocks > local and answer.lease_id == NO_LEASE
            old = time.monotonic() - answer.asked_at > self._options.lease_seconds / 2
            # Whatever its age it is told once: a daemon, or an engine, whose every answer comes late must
            # not keep a request waiting for ever. At worst its lease is over and the load fails.
            if not answer.told or not (given_back or old):
                return answer
            self._drop_answer(state)
        state.answer = self._lookups.ask(self._named(namespace), hashes)
        self._counters.lookups += 1
        return state.answer

    def _learn(self, state: _Request, answer: Answer, namespace: Namespace, hashes: list[bytes]) -> None:
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
            self._warn_once("allocated", "request %s takes %d blocks at %d that no match offered, or not into "
                            "as many block ids of 0 or more: %s", request_id, external_blocks, first, targets)
            self._lookups.release(lease_id)
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
        self._lookups.release(job.lease_id, outcome)
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
        if answer is not None:
            self._lookups.drop(answer)

    def _unpin(self, job: SaveJob) -> None:
        self._pinner.unpin(job.block_ids)
        self._counters.pinned_blocks -= len(job.block_ids)

    def _guard(self, otherwise: T, work: Callable[[], T]) -> T:
        """The engine's scheduler must not die of a cache."""
        try:
            return work()
        except Exception as error:
            self._warn_once(f"scheduler {type(error)}", "the scheduler's half failed, taken for a miss: %s",
                            error, exc_info=True)
            return otherwise
