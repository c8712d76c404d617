"""What goes between the halves: jobs and plans to the workers, outcomes and reports back. Plain data, to be
pickled."""
from __future__ import annotations

import dataclasses

from kvtier import Namespace

NO_LEASE = 0


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
