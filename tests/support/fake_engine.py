"""An inference engine with no model: what a connector sees of one, and who notices when it is wrong.

    slots = Slots(Shape(ranks=2))      # memory and pool, which the connector gets too
    engine = FakeEngine(slots, connector)
    engine.add(FakeRequest("r1", tokens_of(1, 40), max_new=4, tenant="a"))
    engine.run()                       # steps until all requests have ended
    engine.finished["r1"].output       # the tokens it made
    engine.must_be_clean()             # all KV that was used was right; no slot is pinned

It does what engines with a paged KV pool do: waiting requests ask the connector for a cached prefix beyond
the local one, get slots, load asynchronously, run in chunks of a token budget, are preempted when slots
run out (their slots are free at once), and cache full blocks locally. Slots are poisoned when they are
taken. *Computing* a token writes its row in each rank's memory; *attention* compares every row before it
with what that prefix must have, and notes what is wrong in `wrong`, with the owner of the bytes. The next
token is made of the last row as it lies in memory, so wrong KV also changes the answer.

Each rank is a thread, and a step has two collectives; a rank that does not come to one within
WATCHDOG_SECONDS is a deadlock: it raises.
"""
from __future__ import annotations

import concurrent.futures
import dataclasses
import enum
import threading
from typing import Any, Callable, Protocol, Sequence

from fake_kv import Owner, RankMemory, Shape, SlotPool, chain, digest, namespace_root

SLOTS = 32
STEP_TOKENS = 64
WATCHDOG_SECONDS = 20.0
IDLE_SECONDS = 0.01  # how long at most an idle step waits for the connector to get on
VOCABULARY = 50_000


class WrongKv(AssertionError):
    """KV was used that is not that of the prefix."""


class Pinned(AssertionError):
    """Slots are in use that nobody has."""


class Stuck(AssertionError):
    """Requests do not end."""


class Stage(enum.Enum):
    WAITING = "waiting"
    LOADING = "loading"
    LOADED = "loaded"
    RUNNING = "running"
    ENDED = "ended"


class FakeRequest:
    """A prompt and how it stands. `hashes` are the engine's own, one per full unit of `hash_unit` tokens;
    they cover tokens alone, so that tenant, salt and adapter reach a store only by the namespace.
    commit_tokens: the engine keeps no more of it; what lies beyond must not be stored. weights: the
    model's, which no hash and no namespace tells of."""

    def __init__(self, request_id: str, tokens: Sequence[int], *, max_new: int = 1, tenant: str = "",
                 salt: bytes = b"", adapter: str = "", hash_unit: int = 16,
                 commit_tokens: int = 1 << 30, weights: str = "") -> None:
        self.id = request_id
        self.tokens = list(tokens)
        self.prompt_tokens = len(self.tokens)
        self.max_new = max_new
        self.tenant, self.salt, self.adapter = tenant, salt, adapter
        self.hash_unit = hash_unit
        self.commit_tokens = commit_tokens
        self.stage = Stage.WAITING
        self.slots: list[int] = []
        self.computed = 0        # tokens whose KV is in the slots
        self.loading = 0         # blocks that a load in flight brings
        self.tokens_computed = 0  # over its life, not loaded
        self.loads = 0            # that were asked for
        self.preemptions = 0
        self.aborted = False
        self.weights = weights
        self._root = namespace_root(tenant, salt, adapter) + weights.encode()
        self.prefixes: list[bytes] = []
        self._chain: list[bytes] = []
        self._extend(self.tokens)

    def _extend(self, tokens: Sequence[int]) -> None:
        self.prefixes += chain(self.prefixes[-1] if self.prefixes else self._root, tokens)
        self._chain += chain(self._chain[-1] if self._chain else b"", tokens)

    def append(self, token: int) -> None:
        self.tokens.append(token)
        self._extend([token])

    @property
    def hashes(self) -> list[bytes]:
        return self._chain[self.hash_unit - 1::self.hash_unit]

    @property
    def output(self) -> list[int]:
        return self.tokens[self.prompt_tokens:]

    def block_prefixes(self, block: int, block_tokens: int) -> list[bytes]:
        return self.prefixes[block * block_tokens:(block + 1) * block_tokens]


@dataclasses.dataclass(frozen=True, slots=True)
class Loaded:
    """A load that has ended; failed slots have undefined contents."""

    request_id: str
    failed_slots: frozenset[int] = frozenset()


class Worker(Protocol):
    """A connector's half in one rank."""

    def before_compute(self, plan: Any) -> None: ...
    def after_compute(self, plan: Any) -> Any:
        """This step's report to the scheduler's half."""


class Connector(Protocol):
    """A connector's half beside the scheduler, and its halves in the ranks. Blocks count from the prompt's
    first; `max_blocks` and what match() returns are blocks beyond the local ones."""

    workers: Sequence[Worker]

    def match(self, request: FakeRequest, local_blocks: int, max_blocks: int) -> int | None: ...
    def allocated(self, request: FakeRequest, local_blocks: int, external_blocks: int) -> None: ...
    def plan(self, after_step: Sequence[tuple[FakeRequest, int]]) -> Any:
        """after_step: the requests that compute in this step, and the tokens they will have."""
    def absorb(self, reports: Sequence[Any]) -> Sequence[Loaded]: ...
    def finished(self, request: FakeRequest) -> None: ...
    def preempted(self, request: FakeRequest) -> None: ...
    def wait(self, seconds: float) -> None:
        """Until something may have come, at most so long."""


@dataclasses.dataclass(frozen=True, slots=True)
class Wrong:
    """KV that was used and is not that of the prefix."""

    request_id: str
    rank: int
    block: int
    slot: int
    owner: Owner


@dataclasses.dataclass(frozen=True, slots=True)
class Work:
    """A request's share of a step: rows [begin, end) are computed."""

    request: FakeRequest
    begin: int
    end: int


class NoConnector:
    """An engine's life without one."""

    def __init__(self, ranks: int = 1) -> None:
        self.workers: Sequence[Worker] = [self] * ranks

    def before_compute(self, plan: Any) -> None: ...
    def after_compute(self, plan: Any) -> Any: ...
    def allocated(self, request: FakeRequest, local_blocks: int, external_blocks: int) -> None: ...
    def plan(self, after_step: Sequence[tuple[FakeRequest, int]]) -> Any: ...
    def finished(self, request: FakeRequest) -> None: ...
    def preempted(self, request: FakeRequest) -> None: ...
    def wait(self, seconds: float) -> None: ...

    def match(self, request: FakeRequest, local_blocks: int, max_blocks: int) -> int | None:
        return 0

    def absorb(self, reports: Sequence[Any]) -> Sequence[Loaded]:
        return ()


class FakeEngine:
    """Single-threaded but for its ranks. `on_compute(rank)` is called in each step before anything is
    computed, after the ranks have begun it. keeps_loading: the slots of a request that is aborted while it
    loads stay its own until the load has ended; without, the engine is at fault."""

    def __init__(self, slots: Slots, connector: Connector, *, local_cache: bool = True,
                 step_tokens: int = STEP_TOKENS, on_compute: Callable[[int], None] | None = None,
                 watchdog: float = WATCHDOG_SECONDS, keeps_loading: bool = True) -> None:
        self.shape = slots.shape
        self.pool = slots.pool
        self.memory = slots.memory
        self.connector = connector
        self.local_cache = local_cache
        self.step_tokens = step_tokens
        self.steps = 0
        self.idle_steps = 0
        self.preemptions = 0
        self.waiting: list[FakeRequest] = []
        self.running: list[FakeRequest] = []
        self.finished: dict[str, FakeRequest] = {}
        self.wrong: list[Wrong] = []
        self._leaving: dict[str, FakeRequest] = {}  # aborted while loading: their slots wait for the load
        self._on_compute = on_compute
        self._keeps_loading = keeps_loading
        self._barrier = threading.Barrier(self.shape.ranks, timeout=watchdog)
        self._threads = concurrent.futures.ThreadPoolExecutor(self.shape.ranks,
                                                              thread_name_prefix="rank")

    def __enter__(self) -> FakeEngine:
        return self

    def __exit__(self, *unused: object) -> None:
        self._threads.shutdown()

    # -- what users do ------------------------------------------------------------------------------

    def add(self, request: FakeRequest) -> FakeRequest:
        if -(-(len(request.tokens) + request.max_new) // self.shape.block_tokens) > self.pool.slots:
            raise ValueError(f"request {request.id} needs more than {self.pool.slots} slots")
        self.waiting.append(request)
        return request

    def abort(self, request: FakeRequest) -> None:
        """At any stage; one that has ended already is left alone."""
        if request.stage is Stage.ENDED:
            return
        request.aborted = True
        (self.running if request in self.running else self.waiting).remove(request)
        self._end(request)

    def preempt(self, request: FakeRequest) -> None:
        """Its slots are free, and may be taken in this very step."""
        (self.running if request in self.running else self.waiting).remove(request)
        self.connector.preempted(request)
        self.pool.release(request.slots)
        request.slots, request.computed = [], 0
        request.preemptions += 1
        self.preemptions += 1
        request.stage = Stage.WAITING
        self.waiting.insert(0, request)

    def _unblock(self) -> None:
        """Loaded requests may hold all slots, each in want of one more: the last one gives way."""
        stuck = [one for one in self.waiting if one.stage is Stage.LOADED]
        if len(stuck) > 1 and not any(one.stage is Stage.LOADING for one in self.waiting):
            self.preempt(stuck[-1])

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running or self._leaving)

    def run(self, max_steps: int = 20_000) -> int:
        """Steps until all requests have ended. Raises: Stuck after `max_steps`."""
        begin = self.steps
        while self.busy:
            if self.steps - begin >= max_steps:
                raise Stuck(f"no end after {max_steps} steps: waiting {self._names(self.waiting)},"
                            f" running {self._names(self.running)}, leaving {list(self._leaving)}")
            self.step()
        return self.steps - begin

    def must_be_right(self) -> None:
        """All KV that was used so far was that of its prefix."""
        if self.wrong:
            raise WrongKv(f"wrong KV was used {len(self.wrong)} times, first {self.wrong[0]}")

    def must_be_clean(self) -> None:
        """Right, and, once no request is left, no slot that somebody still pins."""
        self.must_be_right()
        if not self.busy and self.pool.pins:
            raise Pinned(f"{self.pool.pins} pins are left")

    # -- a step -------------------------------------------------------------------------------------

    def step(self) -> None:
        self.steps += 1
        work: list[Work] = []
        budget = self.step_tokens
        before = self.preemptions
        for request in list(self.running):
            budget -= self._schedule(request, budget, work)
        if self.preemptions == before:
            self._admit(budget, work)
        if not work:
            self._unblock()
        after = [(one.request, one.end) for one in work if one.request in self.running]
        plan = self.connector.plan(after)
        reports = self._execute(plan, [one for one in work if one.request in self.running])
        loaded = self.connector.absorb(reports)
        for one in work:
            if one.request in self.running:
                self._computed(one)
        for load in loaded:
            self._loaded(load)
        if not work and not loaded:
            self.idle_steps += 1
            self.connector.wait(IDLE_SECONDS)

    def _schedule(self, request: FakeRequest, budget: int, work: list[Work]) -> int:
        """A chunk of a running request; the youngest running one gives way when slots run out."""
        chunk = min(budget, len(request.tokens) - request.computed)
        while request in self.running and chunk > 0:
            if self._grow(request, request.computed + chunk):
                work.append(Work(request, request.computed, request.computed + chunk))
                return chunk
            self.preempt(self.running[-1])
        return 0

    def _grow(self, request: FakeRequest, tokens: int) -> bool:
        slots = self.pool.allocate(max(-(-tokens // self.shape.block_tokens) - len(request.slots), 0))
        if slots is None:
            return False
        request.slots += slots
        return True

    def _admit(self, budget: int, work: list[Work]) -> None:
        for request in list(self.waiting):
            if budget <= 0:
                return
            if request.stage is Stage.WAITING and not self._place(request, budget):
                continue
            if request.stage is not Stage.LOADED:
                continue
            chunk = min(budget, len(request.tokens) - request.computed)
            if not self._grow(request, request.computed + chunk):
                continue
            self.waiting.remove(request)
            self.running.append(request)
            request.stage = Stage.RUNNING
            work.append(Work(request, request.computed, request.computed + chunk))
            budget -= chunk

    def _place(self, request: FakeRequest, budget: int) -> bool:
        """Local prefix, then the connector's; False when it has to be tried again."""
        size = self.shape.block_tokens
        most = (len(request.tokens) - 1) // size  # a token at least is computed
        local = self._local(request)[:most]
        external = self.connector.match(request, len(local), most - len(local))
        if external is None:
            return False
        if not 0 <= external <= most - len(local):
            raise AssertionError(f"{external} blocks matched of {most - len(local)}, {len(local)} local")
        self.pool.touch(local)
        here = (len(local) + external) * size
        chunk = 0 if external else min(budget, len(request.tokens) - here)
        more = -(-(here + chunk) // size) - len(local)
        slots = self.pool.allocate(more)
        if slots is None:
            self.pool.release(local)
            return False
        request.slots = local + slots
        request.computed = len(local) * size
        request.loading = external
        request.stage = Stage.LOADING if external else Stage.LOADED
        request.loads += external > 0
        self.connector.allocated(request, len(local), external)
        return True

    def _local(self, request: FakeRequest) -> list[int]:
        size = self.shape.block_tokens
        return self.pool.cached_prefix(request.prefixes[size - 1::size]) if self.local_cache else []

    def _loaded(self, load: Loaded) -> None:
        leaving = self._leaving.pop(load.request_id, None)
        if leaving is not None:
            self.pool.release(leaving.slots)
            return
        if load.request_id in self.finished and not self._keeps_loading:
            return
        request = next(one for one in self.waiting if one.id == load.request_id)
        if request.stage is not Stage.LOADING:
            raise AssertionError(f"a load of {request.id} is reported that is not in flight")
        size = self.shape.block_tokens
        first = request.computed // size
        good = 0
        while good < request.loading and request.slots[first + good] not in load.failed_slots:
            good += 1
        request.computed += good * size
        request.loading = 0
        self._cache(request)
        if request.computed:
            request.stage = Stage.LOADED
            self.connector.allocated(request, first + good, 0)
        else:
            self.pool.release(request.slots)
            request.slots = []
            request.stage = Stage.WAITING

    def _computed(self, one: Work) -> None:
        request = one.request
        request.computed = one.end
        request.tokens_computed += one.end - one.begin
        self._cache(request)
        if request.computed < len(request.tokens):
            return
        request.append(self._sample(request))
        if len(request.output) == request.max_new:
            self.running.remove(request)
            self._end(request)

    def _sample(self, request: FakeRequest) -> int:
        """Of what lies in memory, over all ranks, layers and rows."""
        size, row_bytes = self.shape.block_tokens, self.shape.row_bytes
        seen = [bytes(segment[:(request.computed - block * size) * row_bytes])
                for memory in self.memory for block, slot in enumerate(request.slots)
                for segment in memory.segments(slot)]
        return int.from_bytes(digest(*seen)[:4], "little") % VOCABULARY

    def _cache(self, request: FakeRequest) -> None:
        size = self.shape.block_tokens
        if self.local_cache:
            for block in range(request.computed // size):
                self.pool.cache(request.slots[block], request.prefixes[(block + 1) * size - 1])

    def _end(self, request: FakeRequest) -> None:
        self.connector.finished(request)
        if request.stage is Stage.LOADING and self._keeps_loading:
            self._leaving[request.id] = request
        else:
            self.pool.release(request.slots)
        request.stage = Stage.ENDED
        self.finished[request.id] = request

    # -- the ranks ----------------------------------------------------------------------------------

    def _execute(self, plan: Any, work: Sequence[Work]) -> list[Any]:
        steps = [self._threads.submit(self._rank_step, rank, plan, work)
                 for rank in range(self.shape.ranks)]
        errors = [error for error in (step.exception() for step in steps) if error]
        for error in errors:  # the cause rather than the others' broken barrier
            if not isinstance(error, threading.BrokenBarrierError):
                raise error
        return [step.result() for step in steps]

    def _rank_step(self, rank: int, plan: Any, work: Sequence[Work]) -> Any:
        worker = self.connector.workers[rank]
        try:
            worker.before_compute(plan)
            self._barrier.wait()
            if self._on_compute:
                self._on_compute(rank)
            for one in work:
                self._compute(rank, one)
            report = worker.after_compute(plan)
            self._barrier.wait()
            return report
        except BaseException:
            self._barrier.abort()
            raise

    def _compute(self, rank: int, one: Work) -> None:
        size, memory, request = self.shape.block_tokens, self.memory[rank], one.request
        for block in range(one.begin // size, -(-one.end // size)):
            begin, end = max(one.begin, block * size), min(one.end, (block + 1) * size)
            memory.write(request.slots[block], begin - block * size, request.prefixes[begin:end])
        for block in range(-(-one.end // size)):
            prefixes = request.prefixes[block * size:min(one.end, (block + 1) * size)]
            if not memory.holds(request.slots[block], prefixes):
                slot = request.slots[block]
                self.wrong.append(Wrong(request.id, rank, block, slot, memory.owner(slot)))

    @staticmethod
    def _names(requests: Sequence[FakeRequest]) -> list[str]:
        return [f"{one.id} ({one.stage.value})" for one in requests]


class Slots:
    """The memory of all ranks and the pool over it: exists before the connector does. poison: off, a slot
    that is taken still has the KV of whoever had it before, as a real engine's."""

    def __init__(self, shape: Shape, slots: int = SLOTS, *, poison: bool = True) -> None:
        self.shape = shape
        self._poisons = poison
        self.memory = [RankMemory(shape, slots, rank) for rank in range(shape.ranks)]
        self.pool = SlotPool(slots, self._poison)

    def _poison(self, slot: int) -> None:
        for memory in self.memory if self._poisons else ():
            memory.poison(slot)


def tokens_of(seed: int, count: int) -> list[int]:
    """A prompt that no other seed has, not even in part."""
    return [seed * 100_003 + i for i in range(count)]
