"""The half in each rank."""
from __future__ import annotations

import dataclasses
import functools
import threading
import time
from collections.abc import Callable
from typing import Any

from kvtier import Client, Error, ModelSpec, Part, Prompt
from kvtier.engines.paged.engine import Pages
from kvtier.engines.paged.machinery import ModelHandle, Threads, check_limits, logger
from kvtier.engines.paged.plans import (
    NO_LEASE,
    LoadJob,
    LoadOutcome,
    Progress,
    SaveJob,
    SaveOutcome,
    StepPlan,
    WorkerReport,
)
from kvtier.warn_once import WarnOnce


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
        check_limits("load_budget", self.load_budget, 0.001, 600.0)
        check_limits("load_floor", self.load_floor, 1.0, 1e15)
        check_limits("save_budget", self.save_budget, 0.001, 600.0)
        check_limits("load_threads", self.load_threads, 1, 64)


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
        self._warn_once = WarnOnce(logger)
        self._changed = threading.Condition()
        self._loading: set[int] = set()
        self._saving: set[int] = set()
        self._cancelled: set[int] = set()
        self._loaded: set[str] = set()
        self._failed_blocks: set[int] = set()
        self._report = WorkerReport()
        self._loaders = Threads(0 if options.inline else options.load_threads, "kvtier-load")
        # One saver: a block can only be stored once the block before it is.
        self._saver = Threads(0 if options.inline else 1, "kvtier-save")

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

    def _run(self, threads: Threads, work: Callable[[], None]) -> None:
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
            self._warn_once(f"load {type(error)}", "load failed, its blocks are computed: %s", error,
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
                self._warn_once("fetch", "load ended early, the rest is computed: %s", report.failure)
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
                self._warn_once(f"save {type(error)}", "blocks not saved: %s", error,
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
                self._warn_once("save", "blocks not saved: kvtierd is too slow for what is computed")
                break
            block_ids = job.block_ids[at:at + step]
            first = job.first_block + at
            hashes = job.hashes[:first + len(block_ids)]
            prompt = Prompt(self._model.registered().id, engine_hashes=hashes, namespace=job.namespace)
            report = self._client.store_from(prompt, self._pages.gather(block_ids, mark), first_block=first,
                                             part=self._part, first_missing=first, timeout=left)
            if report.failure is not None:
                self._warn_once("store", "blocks not saved: %s", report.failure)
            held, sent = held + report.held, sent + report.sent
            if report.held < len(block_ids):
                break
        return held, sent


def _part_bytes(spec: ModelSpec, part: Part) -> int:
    if part.layer_group >= spec.groups or part.rank >= spec.tensor_parallel:
        raise ValueError(f"{part} is none of the model's spec, which has {spec.groups} layer groups and "
                         f"{spec.tensor_parallel} ranks")
    return spec.part_bytes()[part.layer_group * spec.tensor_parallel + part.rank]
