"""What calls return. ``failure`` is None, or why there is nothing: kvtier/errors.py says what is a
failure."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from kvtier.errors import Error
from kvtier.model import Tier, tier_of


@dataclass(frozen=True, slots=True)
class TierSpan:
    """Consecutive blocks whose best tier is the same."""

    tier: Tier
    blocks: int
    # Expected time to fetch these blocks, all parts, by what fetches took lately; 0: not measured yet.
    load_seconds: float


@dataclass(frozen=True, slots=True)
class Found:
    """The longest cached prefix."""

    blocks: int = 0  # leading blocks present with all parts
    tokens: int = 0  # blocks * block_tokens
    runs: tuple[TierSpan, ...] = ()  # the best tier of each block, run-length coded, in order
    group_blocks: tuple[int, ...] = ()  # leading blocks by layer group
    lease_id: int = 0
    failure: Error | None = None

    def blocks_worth_fetching(self, prefill_tokens_per_second: float) -> int:
        """How many leading blocks are worth fetching for an engine that computes so many prompt tokens per
        second: the longest prefix of whole runs that saves the most time. Runs that are not measured yet
        count as worth it; a rate of 0 or less is unknown: all blocks."""
        if self.blocks == 0 or prefill_tokens_per_second <= 0:
            return self.blocks
        block_seconds = self.tokens / self.blocks / prefill_tokens_per_second
        saved = most_saved = 0.0
        blocks = worth = 0
        for run in self.runs:
            blocks += run.blocks
            saved += run.blocks * block_seconds - run.load_seconds
            if saved >= most_saved:
                most_saved, worth = saved, blocks
        return worth


@dataclass(frozen=True, slots=True)
class FetchReport:
    """``ok[i]``: buffers[i] has the exact bytes that were stored, their checksum verified here (but see
    ClientOptions.verify_shared). The memory of a block that is not ok has undefined contents. With a
    ``failure`` none is ok."""

    ok: list[bool]
    leading: int  # ok blocks before the first that is not
    failure: Error | None = None
    shared: int = 0  # blocks read out of shared memory
    shared_seconds: float = 0.0  # that copying and checking these took


class StoreVerdict(enum.IntEnum):
    REJECTED = 0
    STORED = 1
    ALREADY_PRESENT = 2  # the first bytes stay


class StoreRefusal(enum.IntEnum):
    """Why a block was rejected."""

    NONE = 0  # not rejected, or the call failed as a whole
    NO_SPACE = 1
    CHECKSUM = 2  # the bytes changed on the way, or while they were sent
    NO_PARENT = 3  # the block before it is not held
    RESET = 4
    NOT_SENT = 5
    COLLISION = 6


@dataclass(frozen=True, slots=True)
class StoredBlock:
    verdict: StoreVerdict = StoreVerdict.REJECTED
    refusal: StoreRefusal = StoreRefusal.NONE

    @property
    def held(self) -> bool:
        """The daemon has the block's part now."""
        return self.verdict != StoreVerdict.REJECTED


@dataclass(frozen=True, slots=True)
class StoreReport:
    outcomes: list[StoredBlock]  # one per buffer
    sent: int = 0  # blocks whose payload went over the wire
    checksum_mismatches: int = 0  # present blocks whose bytes differ from those sent
    failure: Error | None = None
    shared: int = 0  # of ``sent``, through shared memory

    @property
    def held(self) -> int:
        """Leading blocks that the daemon has now."""
        return next((i for i, outcome in enumerate(self.outcomes) if not outcome.held), len(self.outcomes))


@dataclass(frozen=True, slots=True)
class Done:
    """True when the daemon did it."""

    failure: Error | None = field(default=None)

    def __bool__(self) -> bool:
        return self.failure is None


def span_of(tier: int, blocks: int, load_seconds: float) -> TierSpan:
    # A daemon that tells nonsense has not measured.
    return TierSpan(tier_of(tier), blocks, load_seconds if 0 < load_seconds < 1e6 else 0.0)


def refusal_of(reason: int) -> StoreRefusal:
    return StoreRefusal(reason) if reason in StoreRefusal._value2member_map_ else StoreRefusal.NONE
