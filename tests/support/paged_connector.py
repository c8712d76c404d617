"""kvtier.engines.paged under the fake engine, against a real kvtierd; and ways to get it wrong.

    with Rig(ranks=2) as rig:
        with rig.engine() as engine:              # a connector, proxies and slots of its own
            engine.add(FakeRequest("r", tokens_of(1, 40)))
            engine.run()
            rig.settle(engine)                    # until no job is under way; nothing is pinned then
        rig.must_be_idle()                        # no lease, no pin, no stream is left in kvtierd

`Planted` names the protections that an engine is started without: each scenario has to fail then.
"""
from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
import pathlib
import sys
import tempfile
import threading
import time
from typing import Any, Callable, Sequence

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "client" / "python"))
import daemon as kvtierd  # noqa: E402
import kvtier  # noqa: E402
from fake_engine import FakeEngine, FakeRequest, Loaded, Slots, Stuck, WrongKv  # noqa: E402
from fake_kv import Owner, Shape, SlotPool, owner  # noqa: E402
from grpc_proxy import Fault, GrpcProxy  # noqa: E402
from kvtier.engines import paged  # noqa: E402

PATIENCE_SECONDS = 30
IDLE_WAIT = 0.01
# What the proxies do to payload they do to gRPC's.
PATIENT = kvtier.ClientOptions(lookup_deadline=10.0, shared_memory=False)


@dataclasses.dataclass(frozen=True, slots=True)
class Planted:
    """Faults of other connectors, each put where ours has its protection."""

    trusts_loads: bool = False       # a load that ended is taken for one that went well
    saves_early: bool = False        # before the step's KV is computed
    one_hash_per_block: bool = False  # hash i of a finer list is taken for block i
    matches_last_token: bool = False  # nothing is left to compute
    drops_namespace: bool = False
    forgets_failures: bool = False   # asks for the same request as if for the first time
    pins_nothing: bool = False       # while a save reads
    saves_uncommitted: bool = False  # beyond what the engine commits to
    one_part_for_all: bool = False   # ranks share an object's name
    believes_rank_0: bool = False    # the other ranks' loads are taken to be as good
    loads_alone: int = -1            # this rank waits for its load before it comes to a collective
    reports_with_work: bool = False  # an engine without work never hears that a save has ended


NOTHING = Planted()


class Pins:
    """The engine's slots as paged.BlockPinner."""

    def __init__(self, pool: SlotPool) -> None:
        self._pool = pool

    def pin(self, block_ids: Sequence[int]) -> None:
        self._pool.touch(block_ids)

    def unpin(self, block_ids: Sequence[int]) -> None:
        self._pool.release(block_ids)


class _TellingClient(kvtier.Client):
    """Sets `news` when a call has ended: what an idle engine waits for."""

    def __init__(self, address: str, options: kvtier.ClientOptions, news: threading.Event) -> None:
        super().__init__(address, options)
        self._news = news

    def lookup(self, *arguments: Any, **options: Any) -> kvtier.PrefixMatch:
        try:
            return super().lookup(*arguments, **options)
        finally:
            self._news.set()

    def store_from(self, *arguments: Any, **options: Any) -> kvtier.StoreReport:
        try:
            return super().store_from(*arguments, **options)
        finally:
            self._news.set()


class PagedWorker:
    """One rank."""

    def __init__(self, half: paged.WorkerHalf, rank: int, planted: Planted) -> None:
        self.half = half
        self._rank = rank
        self._planted = planted

    def before_compute(self, plan: paged.StepPlan) -> None:
        self.half.start_loads(plan)
        if self._planted.loads_alone == self._rank:
            self.settle()
        if self._planted.saves_early:
            self.half.start_saves(plan)
            self.settle()

    def after_compute(self, plan: paged.StepPlan) -> paged.Progress:
        if not self._planted.saves_early:
            self.half.start_saves(plan)
        if self._planted.reports_with_work and plan.idle:
            return paged.Progress(frozenset(), frozenset(), paged.WorkerReport())
        progress = self.half.poll(IDLE_WAIT if plan.idle else 0.0)
        if self._planted.trusts_loads:
            progress = dataclasses.replace(progress, failed_blocks=frozenset())
        return progress

    def settle(self) -> None:
        """Until none of its jobs is under way."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.half.busy():
            if time.monotonic() > deadline:
                raise AssertionError(f"jobs are under way for {PATIENCE_SECONDS} s")
            os.sched_yield()


class PagedConnector:
    """Both halves as the fake engine's Connector."""

    def __init__(self, scheduler: paged.SchedulerHalf, workers: Sequence[PagedWorker], shape: Shape,
                 planted: Planted, news: threading.Event) -> None:
        self._news = news
        self.scheduler = scheduler
        self.workers = workers
        self._shape = shape
        self._planted = planted
        self._reported: collections.Counter[str] = collections.Counter()
        self._targets: dict[str, list[int]] = {}
        self._failed: set[int] = set()
        self._alias: dict[str, str] = {}
        self._asked = 0

    def _view(self, request: FakeRequest) -> paged.RequestView:
        namespace = kvtier.Namespace(request.tenant, request.salt, request.adapter)
        if self._planted.drops_namespace:
            namespace = kvtier.Namespace()
        return paged.RequestView(self._alias.get(request.id, request.id), request.hashes, namespace)

    def match(self, request: FakeRequest, local_blocks: int, max_blocks: int) -> int | None:
        if self._planted.forgets_failures and request.loads:
            self._alias[request.id] = f"{request.id} load {request.loads}"
        found = self.scheduler.match(self._view(request), len(request.tokens),
                                     local_blocks * self._shape.block_tokens)
        if found and self._planted.matches_last_token:
            return len(request.tokens) // self._shape.block_tokens - local_blocks
        return found

    def allocated(self, request: FakeRequest, local_blocks: int, external_blocks: int) -> None:
        self.scheduler.allocated(self._view(request).request_id, request.slots, external_blocks)
        if external_blocks:
            self._targets[request.id] = request.slots[local_blocks:local_blocks + external_blocks]

    def plan(self, after_step: Sequence[tuple[FakeRequest, int]]) -> paged.StepPlan:
        return self.scheduler.plan([self._step(request, tokens) for request, tokens in after_step],
                                   idle=not after_step)

    def _step(self, request: FakeRequest, tokens: int) -> paged.RequestStep:
        if not self._planted.saves_uncommitted:
            tokens = min(tokens, request.commit_tokens)
        return paged.RequestStep(self._view(request), tuple(request.slots), tokens)

    def absorb(self, reports: Sequence[paged.Progress]) -> list[Loaded]:
        ended = []
        for rank, progress in enumerate(reports):
            if self._planted.believes_rank_0 and rank:
                progress = dataclasses.replace(progress, failed_blocks=frozenset())
            self.scheduler.absorb(progress.report)
            self._failed |= progress.failed_blocks
            self._reported.update(progress.loaded)
        for alias in [name for name, ranks in self._reported.items() if ranks == self._shape.ranks]:
            del self._reported[alias]
            request_id = alias.partition(" load ")[0]
            targets = set(self._targets.pop(request_id))
            ended.append(Loaded(request_id, frozenset(targets & self._failed)))
            self._failed -= targets
        return ended

    def finished(self, request: FakeRequest) -> None:
        step = None if request.aborted else self._step(request, request.computed)
        self.scheduler.finished(self._view(request).request_id, step)

    def preempted(self, request: FakeRequest) -> None:
        self.scheduler.preempted(self._view(request).request_id)

    def busy(self) -> bool:
        return self.scheduler.busy() or any(worker.half.busy() for worker in self.workers)

    def wait(self, seconds: float) -> None:
        self._news.wait(seconds)
        self._news.clear()


class ConnectedEngine(FakeEngine):
    """A fake engine with the connector, whose halves reach kvtierd through proxies: `lookups` that of the
    scheduler's half, `transfers[rank]` those of the workers'. A context manager that ends all threads."""

    def __init__(self, rig: Rig, slots: Slots, planted: Planted, scheduler: paged.SchedulerOptions,
                 worker: paged.WorkerOptions, client: kvtier.ClientOptions, **options: Any) -> None:
        shape = slots.shape
        self._stack = contextlib.ExitStack()
        self.lookups, *self.transfers = (
            self._stack.enter_context(GrpcProxy(rig.daemon.address, client.shared_memory))
            for _ in range(1 + shape.ranks))
        news = threading.Event()
        self._clients = [self._stack.enter_context(_TellingClient(proxy.address, client, news))
                         for proxy in (self.lookups, *self.transfers)]
        single = planted.one_part_for_all or shape.replicated
        spec = rig.spec(1 if single else shape.ranks)
        pinner = paged.NoPins() if planted.pins_nothing else Pins(slots.pool)
        self.scheduler = paged.SchedulerHalf(
            self._clients[0], paged.ModelHandle(self._clients[0], spec), ranks=shape.ranks,
            block_tokens=shape.block_tokens, pinner=pinner, options=scheduler,
            hash_tokens=shape.block_tokens if planted.one_hash_per_block else rig.hash_unit)
        models = [paged.ModelHandle(one, spec) for one in self._clients[1:]]
        for model in models if client.shared_memory else ():
            model.connect()  # by this their clients learn of it
        workers = [PagedWorker(paged.WorkerHalf(
            one, model, kvtier.Part(0, 0 if single else rank),
            paged.HostPages(slots.memory[rank].layers, [shape.page_bytes] * shape.layers),
            writes=rank == 0 or not shape.replicated, options=worker), rank, planted)
            for rank, (one, model) in enumerate(zip(self._clients[1:], models))]
        self.paged = PagedConnector(self.scheduler, workers, shape, planted, news)
        super().__init__(slots, self.paged, **options)

    def proxies(self) -> list[GrpcProxy]:
        return [self.lookups, *self.transfers]

    def inject(self, fault: Fault) -> Fault:
        """Into all of them."""
        for proxy in self.proxies():
            proxy.inject(fault)
        return fault

    def clear(self) -> None:
        for proxy in self.proxies():
            proxy.clear()

    def calls(self, method: str) -> int:
        return sum(proxy.calls(method) for proxy in self.proxies())

    def settle(self, seconds: float = PATIENCE_SECONDS) -> None:
        """Empty steps, as of an engine without work, until none of the connector's jobs is under way."""
        deadline = time.monotonic() + seconds
        while self.busy or self.paged.busy():
            if time.monotonic() > deadline:
                raise Stuck(f"jobs are under way after {seconds} s: {self.scheduler.counters()}")
            self.step()

    def __exit__(self, *failure: object) -> None:
        super().__exit__(*failure)
        for proxy in self.proxies():
            proxy.clear()
            if failure and failure[0]:
                proxy.close()  # whatever waits there ends
        for worker in self.paged.workers:
            worker.half.close()
        self.scheduler.close()
        self._stack.close()


class Rig:
    """A kvtierd, and engines that share it. `hash_unit`: tokens per engine hash."""

    def __init__(self, *flags: str, shape: Shape = Shape(), hash_unit: int = 16,
                 revision: str = "1") -> None:
        self.shape = shape
        self.hash_unit = hash_unit
        self.revision = revision
        self._flags = flags
        self._folder = tempfile.TemporaryDirectory(prefix="kvtier_rig_")
        self.start()

    def start(self) -> None:
        self.daemon = kvtierd.Daemon(self._folder.name + "/data", *self._flags)
        self._admin = kvtierd.Client(self.daemon.admin_address)
        self._client = kvtier.Client(self.daemon.address)

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *unused: object) -> None:
        self.stop()
        self._folder.cleanup()

    def stop(self, *, kill: bool = True) -> None:
        """kill -9, or SIGTERM. Idempotent."""
        self._client.close()
        self._admin.__exit__()
        if kill:
            self.daemon.close()
        else:
            self.daemon.stop()
            self.daemon.close()

    def restart(self, *, kill: bool = True) -> None:
        """kill -9 or SIGTERM, and a new daemon on the same directory and socket."""
        self.stop(kill=kill)
        self.start()

    def log(self) -> str:
        return self.daemon.log()

    def spec(self, ranks: int) -> kvtier.ModelSpec:
        return kvtier.ModelSpec(name="fake", revision=self.revision, block_tokens=self.shape.block_tokens,
                                tensor_parallel=ranks, pack_order=kvtier.PackOrder.OPAQUE,
                                layout_fingerprint=b"fake pages",
                                explicit_part_bytes=[self.shape.part_bytes] * ranks)

    def engine(self, planted: Planted = NOTHING, *, slots: int = 32, poison: bool = True,
               local_cache: bool = False,
               scheduler: paged.SchedulerOptions = paged.SchedulerOptions(lookup_budget=5.0),
               worker: paged.WorkerOptions = paged.WorkerOptions(load_budget=30.0, save_budget=30.0),
               client: kvtier.ClientOptions = PATIENT,
               **options: Any) -> ConnectedEngine:
        """The budgets are generous, so that what a scenario sees is never the machine's own slowness."""
        return ConnectedEngine(self, Slots(self.shape, slots, poison=poison), planted, scheduler, worker,
                               client, local_cache=local_cache, **options)

    def run(self, *requests: FakeRequest, planted: Planted = NOTHING, **options: Any) -> FakeEngine:
        """The engine, closed, after these requests ended and their saves did."""
        with self.engine(planted, **options) as engine:
            for request in requests:
                engine.add(request)
            engine.run()
            engine.settle()
        return engine

    # -- what kvtierd has ---------------------------------------------------------------------------

    def status(self) -> Any:
        return self._admin.admin("GetStatus", kvtierd.adm.GetStatusRequest())

    def until(self, condition: Callable[[Any], Any], what: str, seconds: float = PATIENCE_SECONDS) -> None:
        """Returns when the daemon's status fulfils it. Raises: Leaked after so long."""
        deadline = time.monotonic() + seconds
        while not condition(now := self.status()):
            if time.monotonic() > deadline:
                raise Leaked(f"not after {seconds} s: {what}; {now.leases} leases, "
                             f"{now.pinned_blocks} pinned blocks, {now.open_streams} streams")

    def must_be_idle(self) -> None:
        """Leases are given back by threads of the connector's, so this waits for it; but not so long that
        they end by themselves."""
        self.until(lambda now: not (now.leases or now.pinned_blocks or now.open_streams), "idle",
                   paged.SchedulerOptions().lease_seconds / 2)

    def prompt(self, request: FakeRequest) -> kvtier.Prompt:
        model = self._client.register_model(self.spec(1 if self.shape.replicated else self.shape.ranks))
        step = self.shape.block_tokens // self.hash_unit
        return kvtier.Prompt(model.id, engine_hashes=request.hashes[step - 1::step],
                             namespace=kvtier.Namespace(request.tenant, request.salt, request.adapter))

    def held(self, request: FakeRequest) -> int:
        """Leading blocks of it that kvtierd has."""
        if len(request.tokens) < self.shape.block_tokens:
            return 0
        return self._client.lookup(self.prompt(request)).blocks

    def must_hold_right(self, request: FakeRequest, blocks: int) -> None:
        """So many leading blocks of it and no more, and in each rank's part the right KV."""
        held = self.held(request)
        if held != blocks or self.must_hold_only_right(request) != blocks:
            raise AssertionError(f"{held} blocks of {request.id} are held, not {blocks}")

    def must_hold_only_right(self, request: FakeRequest) -> int:
        """Whatever it holds of it. Returns how many leading blocks can be fetched for every rank."""
        held = fetched = self.held(request)
        for rank in range(1 if self.shape.replicated else self.shape.ranks) if held else ():
            buffers = [bytearray(self.shape.part_bytes) for _ in range(held)]
            report = self._client.fetch_into(self.prompt(request), buffers, part=kvtier.Part(0, rank))
            fetched = min(fetched, report.leading)
            for block, data in enumerate(buffers[:report.leading]):
                right = Owner("kv", rank, tuple(request.block_prefixes(block, self.shape.block_tokens)))
                if owner(data, self.shape) != right:
                    raise WrongKv(f"stored as block {block} of {request.id}, rank {rank}: "
                                  f"{owner(data, self.shape)}")
        return fetched


class Leaked(AssertionError):
    """kvtierd keeps something for a client that is done with it."""


def threads_of_kvtier() -> list[str]:
    """Threads of connectors, engines and proxies that are alive."""
    return [one.name for one in threading.enumerate()
            if one.name.startswith(("kvtier-", "rank", "proxy"))]
