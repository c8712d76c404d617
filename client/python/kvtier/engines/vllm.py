"""kvtier for vLLM: prefixes that were computed once, by this engine or another, are fetched.

    vllm serve MODEL --kv-transfer-config '{
        "kv_connector": "KvtierConnector", "kv_connector_module_path": "kvtier.engines.vllm",
        "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"address": "unix:/tmp/kvtier/kvtier.sock"}}'

docs/CONNECTORS.md is the manual. This file only translates: vLLM's calls to the two halves in paged/,
by what vllm_compat.py knows of vLLM's version.

Loads are asynchronous to vLLM: a request waits for its blocks while others compute, failures are told by
block, and the request computes those. In `load` = "sync" the load itself runs within the step that starts
it, on the engine's thread, still by the asynchronous protocol: vLLM's own synchronous loads cannot be
rejected safely. "auto" is "sync" when the engine runs in the user's own process, else "async".

Not a SupportsHMA connector: vLLM switches its hybrid memory allocator off, so sliding-window layers keep
all their blocks. With it on, vLLM cannot recover from a block that failed to load.
"""
from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from kvtier import Client, ClientOptions, InvalidArgument, ModelSpec, Namespace
from kvtier.engines import vllm_compat as compat
from kvtier.engines.paged import (
    ModelHandle,
    Progress,
    RequestStep,
    SchedulerCounters,
    SchedulerHalf,
    SchedulerOptions,
    StepPlan,
    WorkerHalf,
    WorkerOptions,
    WorkerReport,
)
from kvtier.engines.torch_pages import pages_of
from kvtier.warn_once import WarnOnce

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

logger = compat.init_logger("vllm.kvtier")

EXTRA = "kv_connector_extra_config"
IDLE_WAIT_SECONDS = 0.005
PINNED_SHARE = 4  # at most one block in four may be pinned for saves

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """kv_connector_extra_config. Seconds.

    address: of kvtierd, "unix:/path" or "host:port". tenant: engines of different tenants share nothing.
    revision: of the weights; without it their files are looked at. lookup_budget, load_budget,
    save_budget: as in paged.SchedulerOptions and WorkerOptions. load: "auto", "async" or "sync".
    """

    address: str
    tenant: str = ""
    revision: str = ""
    load: str = "auto"
    lookup_budget: float = 0.05
    load_budget: float = 1.0
    save_budget: float | None = None

    @staticmethod
    def read(extra: Any) -> Settings:
        """Errors: ValueError naming the key."""
        if not isinstance(extra, dict):
            raise ValueError(f"{EXTRA} is {extra!r}, it must be an object")
        known = {field.name for field in dataclasses.fields(Settings)}
        unknown = sorted(set(extra) - known, key=str)
        if unknown:
            raise ValueError(f"{EXTRA} has unknown keys {unknown}, known are {sorted(known)}")
        if "address" not in extra:
            raise ValueError(f'{EXTRA} lacks address, for instance "unix:/tmp/kvtier/kvtier.sock"')
        for name in ("address", "tenant", "revision", "load"):
            if not isinstance(extra.get(name, ""), str):
                raise ValueError(f"{EXTRA}.{name} is {extra[name]!r}, it must be a string")
        for name in ("lookup_budget", "load_budget", "save_budget"):
            value = extra.get(name, 1)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.001 <= value <= 600:
                raise ValueError(f"{EXTRA}.{name} is {value!r}, the limits are 0.001 and 600 seconds")
        settings = Settings(**extra)
        try:
            settings.namespace()
        except InvalidArgument as error:
            raise ValueError(f"{EXTRA}.tenant: {error}") from None
        if settings.load not in ("auto", "async", "sync"):
            raise ValueError(f'{EXTRA}.load is "{settings.load}", it must be auto, async or sync')
        return settings

    def namespace(self, adapter: str = "") -> Namespace:
        return Namespace(tenant=self.tenant, adapter=adapter)

    def inline(self, config: VllmConfig) -> bool:
        return self.load == "sync" or (self.load == "auto" and compat.engine_in_this_process(config))


@dataclasses.dataclass
class KvtierMetadata(compat.KVConnectorMetadata):
    """Scheduler to workers."""

    plan: StepPlan


@dataclasses.dataclass
class KvtierWorkerMetadata(compat.KVConnectorWorkerMetadata):
    """Workers to scheduler."""

    report: WorkerReport

    def aggregate(self, other: compat.KVConnectorWorkerMetadata) -> compat.KVConnectorWorkerMetadata:
        assert isinstance(other, KvtierWorkerMetadata)
        return KvtierWorkerMetadata(self.report.merge(other.report))


class KvtierConnector(compat.KVConnectorBase_V1):
    """vLLM makes one in the scheduler's process and one in each worker; a half is behind it."""

    _scheduler: _Scheduler  # in the scheduler's process
    _worker: _Worker  # in a worker

    def __init__(self, vllm_config: VllmConfig, role: compat.KVConnectorRole,
                 kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        _show_logs()
        settings = Settings.read(self._kv_transfer_config.kv_connector_extra_config)
        warnings = compat.check_supported(vllm_config, kv_cache_config)
        self._client = Client(settings.address, options=ClientOptions())
        spec = compat.model_spec(vllm_config, kv_cache_config, settings.revision)
        model = ModelHandle(self._client, spec)
        self._half: _Scheduler | _Worker
        # Also in a worker: its client learns of shared memory by this.
        missing = model.connect()
        if role == compat.KVConnectorRole.SCHEDULER:
            for warning in warnings:
                logger.warning("%s", warning)
            if missing is not None:
                logger.warning("no kvtierd at %s yet: vLLM runs without it and tries again (%s)",
                               settings.address, missing)
            self._half = self._scheduler = _Scheduler(self._client, model, settings, vllm_config,
                                                      kv_cache_config)
        else:
            self._half = self._worker = _Worker(self._client, model, settings, vllm_config,
                                                kv_cache_config, spec)

    @property
    def requires_kv_delivery(self) -> bool:
        """A save that is dropped is a later miss, no loss."""
        return False

    def shutdown(self) -> None:
        self._half.close()
        self._client.close()

    # Scheduler

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        self._scheduler.bind(gpu_block_pool)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        return self._scheduler.match(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self._scheduler.allocated(request, blocks, num_external_tokens)

    def get_external_cache_hit_sources(self, request: Any,
                                       num_external_tokens: int) -> dict[compat.CacheHitSource, int]:
        return self._scheduler.sources(request, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> KvtierMetadata:
        return KvtierMetadata(self._scheduler.plan(scheduler_output))

    def update_connector_output(self, connector_output: Any) -> None:
        self._scheduler.absorb(connector_output)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        self._scheduler.finished(request, block_ids)
        return False, None

    def has_pending_push_work(self) -> bool:
        """Saves hold blocks until a step brings their report: the engine goes on stepping for that."""
        return self._scheduler.half.busy()

    def reset_cache(self) -> bool:
        return self._scheduler.reset()

    # Worker

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        self._worker.register(kv_caches)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        self._worker.half.start_loads(self._plan())

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing: a request is computed when all its blocks are there."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Nothing: whole blocks are saved after the step."""

    def wait_for_save(self) -> None:
        self._worker.half.start_saves(self._plan())

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        return None, self._worker.poll(self._plan().idle)

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._worker.take_failed_blocks()

    def build_connector_worker_meta(self) -> KvtierWorkerMetadata | None:
        report = self._worker.take_report()
        return KvtierWorkerMetadata(report) if report else None

    def _plan(self) -> StepPlan:
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, KvtierMetadata)
        return metadata.plan

    # Statistics

    def get_kv_connector_stats(self) -> KvtierStats | None:
        return self._scheduler.stats() if self.role == compat.KVConnectorRole.SCHEDULER else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KvtierStats:
        return KvtierStats(data=dict(data or {}))

    @classmethod
    def build_prom_metrics(cls, vllm_config: Any, metric_types: Any, labelnames: list[str],
                           per_engine_labelvalues: dict[int, list[object]]) -> KvtierPromMetrics:
        return KvtierPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)


class _Scheduler:
    """SchedulerHalf, in vLLM's words. Like the half, no method that vLLM calls for a request or a step
    raises: that would end vLLM's engine, with all its requests. What fails is a miss, or not saved."""

    def __init__(self, client: Client, model: ModelHandle, settings: Settings, config: VllmConfig,
                 kv_cache: KVCacheConfig) -> None:
        self._pins = compat.PoolPins()
        self._settings = settings
        self._adapters = compat.Adapters()
        self._warn_once = WarnOnce(logger)
        self._requests: dict[str, Any] = {}
        self._block_tokens = compat.block_tokens(config, kv_cache)
        # A loop that stops with its last request saves as it goes; another saves what was generated once,
        # when its request ends.
        inline = settings.inline(config)
        self._save_at_end = not inline
        self._may_load, self._may_save = compat.roles(config)
        self.half = SchedulerHalf(
            client, model, block_tokens=self._block_tokens, ranks=compat.worker_count(config),
            pinner=self._pins, options=SchedulerOptions(lookup_budget=settings.lookup_budget,
                                     pinned_blocks=max(1, kv_cache.num_blocks // PINNED_SHARE)))
        self._told = self.half.counters()
        logger.info("kvtier at %s: %d tokens per block, loads %s", settings.address, self._block_tokens,
                    "within the step" if inline else "between steps")

    def bind(self, pool: Any) -> None:
        self._pins.bind(pool)

    def match(self, request: Any, local_tokens: int) -> tuple[int | None, bool]:
        missed: tuple[int | None, bool] = (0, False)
        return self._guard(missed, lambda: self._match(request, local_tokens))

    def _match(self, request: Any, local_tokens: int) -> tuple[int | None, bool]:
        self._requests[request.request_id] = request
        namespace = self._namespace(request)
        if not self._may_load or not compat.may_load(request) or namespace is None:
            return 0, False
        blocks = self.half.match(compat.view(request, namespace), request.num_tokens, local_tokens)
        return (None, False) if blocks is None else (blocks * self._block_tokens, blocks > 0)

    def allocated(self, request: Any, blocks: Any, tokens: int) -> None:
        def tell() -> None:
            self._requests[request.request_id] = request
            block_ids = blocks.get_block_ids()[0]
            self.half.allocated(request.request_id, block_ids, tokens // self._block_tokens)
        self._guard(None, tell)

    def sources(self, request: Any, tokens: int) -> dict[Any, int]:
        unknown: dict[Any, int] = {}
        return self._guard(unknown, lambda: self._sources(request, tokens)) if tokens else unknown

    def _sources(self, request: Any, tokens: int) -> dict[Any, int]:
        by_tier = self.half.sources(request.request_id, tokens // self._block_tokens)
        found: dict[Any, int] = {}
        for tier, blocks in by_tier.items():
            source = compat.HIT_SOURCES.get(tier, compat.CacheHitSource.EXTERNAL_UNSPECIFIED)
            found[source] = found.get(source, 0) + blocks * self._block_tokens
        return found

    def plan(self, output: Any) -> StepPlan:
        none: list[RequestStep] = []
        steps = self._guard(none, lambda: self._steps(output)) if self._may_save else none
        return self.half.plan(steps, self._guard(False, lambda: compat.is_idle(output)))

    def _steps(self, output: Any) -> list[RequestStep]:
        steps = [self._guard(None, functools.partial(self._step, item, self._save_at_end))
                 for item in compat.scheduled(output, self._requests)]
        return [step for step in steps if step is not None]

    def _step(self, item: compat.Scheduled, prompt_only: bool) -> RequestStep | None:
        """None for a request that is not cached."""
        namespace = self._namespace(item.request)
        return None if namespace is None else compat.step_of(item, namespace, prompt_only)

    def absorb(self, output: Any) -> None:
        meta = self._guard(None, lambda: compat.worker_meta(output))
        if isinstance(meta, KvtierWorkerMetadata):
            self.half.absorb(meta.report)

    def finished(self, request: Any, block_ids: list[int]) -> None:
        def last_step() -> RequestStep | None:
            return self._step(compat.Scheduled(request, block_ids, tokens=0), prompt_only=False)
        self._requests.pop(request.request_id, None)
        step = self._guard(None, last_step) if self._may_save and self._save_at_end else None
        self.half.finished(request.request_id, step)

    def reset(self) -> bool:
        self._adapters = compat.Adapters()
        return self.half.reset()

    def stats(self) -> KvtierStats | None:
        now = self.half.counters()
        stats = KvtierStats.between(self._told, now)
        self._told = now
        return stats

    def close(self) -> None:
        self.half.close()

    def _namespace(self, request: Any) -> Namespace | None:
        """None when it cannot be told what its KV will be: then the request is not cached."""
        adapter = request.lora_request
        try:
            return self._settings.namespace(self._adapters.name(adapter))
        except compat.UnknownAdapter as error:
            self._warn_once(f"adapter {adapter.lora_int_id}", "requests with adapter %r are not cached: %s",
                            adapter.lora_name, error)
            return None

    def _guard(self, otherwise: T, work: Callable[[], T]) -> T:
        try:
            return work()
        except Exception as error:
            self._warn_once(f"failed {type(error)}", "the connector failed, taken for a miss: %s", error,
                            exc_info=True)
            return otherwise


class _Worker:
    """WorkerHalf, in vLLM's words; keeps what one poll found until vLLM has asked for each piece."""

    half: WorkerHalf  # once vLLM's memory is there

    def __init__(self, client: Client, model: ModelHandle, settings: Settings, config: VllmConfig,
                 kv_cache: KVCacheConfig, spec: ModelSpec) -> None:
        self._client = client
        self._model = model
        self._kv_cache = kv_cache
        self._spec = spec
        inline = settings.inline(config)
        save_budget = settings.save_budget or (0.25 if inline else 5.0)
        self._options = WorkerOptions(load_budget=settings.load_budget, save_budget=save_budget,
                                      inline=inline)
        self._failed_blocks: frozenset[int] = frozenset()
        self._report = WorkerReport()

    def register(self, kv_caches: dict[str, Any]) -> None:
        part, writes = compat.this_part(self._kv_cache)
        pages = pages_of(compat.layers_as_bytes(self._kv_cache, kv_caches))
        expected = self._spec.part_bytes()[part.layer_group * self._spec.tensor_parallel + part.rank]
        if pages.part_bytes != expected:
            raise ValueError(f"{part} has {pages.part_bytes} bytes, expected are {expected}: this rank's "
                             "layers are not those that vLLM's partition says")
        self.half = WorkerHalf(self._client, self._model, part, pages, writes=writes, options=self._options)

    def poll(self, idle: bool) -> set[str] | None:
        progress: Progress = self.half.poll(IDLE_WAIT_SECONDS if idle else 0.0)
        self._failed_blocks, self._report = progress.failed_blocks, progress.report
        return set(progress.loaded) or None

    def take_failed_blocks(self) -> set[int]:
        taken, self._failed_blocks = self._failed_blocks, frozenset()
        return set(taken)

    def take_report(self) -> WorkerReport:
        taken, self._report = self._report, WorkerReport()
        return taken

    def close(self) -> None:
        if hasattr(self, "half"):
            self.half.close(self._options.save_budget)


def _show_logs() -> None:
    """kvtier's own log lines, where vLLM's go."""
    ours = logging.getLogger("kvtier")
    if not ours.handlers:
        theirs = logging.getLogger("vllm")
        ours.setLevel(theirs.getEffectiveLevel())
        ours.propagate = False
        for handler in theirs.handlers:
            ours.addHandler(handler)


# Statistics ------------------------------------------------------------------------------------------

COUNTERS = {
    "lookups": "Lookups that vLLM's scheduler asked kvtier for.",
    "lookup_misses_forced": "Lookups that ended without an answer within their budget, taken for misses.",
    "blocks_asked": "Blocks of prompts that were looked up.",
    "blocks_matched": "Blocks of those that kvtier has.",
    "blocks_loaded": "Blocks that were loaded and verified.",
    "blocks_failed": "Blocks that could not be loaded and are computed.",
    "bytes_loaded": "Bytes loaded and verified, of all ranks.",
    "load_seconds": "Time of loads, each by its slowest rank.",
    "blocks_saved": "Blocks that kvtier has taken or had already.",
    "blocks_refused": "Blocks that kvtier did not take.",
    "saves_skipped": "Blocks not saved because too many were pinned already.",
    "bytes_saved": "Bytes sent to kvtier, of all ranks.",
    "save_seconds": "Time of saves, each by its slowest rank.",
}
GAUGES = {"pinned_blocks": "Blocks of vLLM's pool that are pinned for saves."}


@dataclasses.dataclass
class KvtierStats(compat.KVConnectorStats):
    """What happened in an interval: data is {counter: increase, gauge: last value}."""

    @staticmethod
    def between(before: SchedulerCounters, after: SchedulerCounters) -> KvtierStats | None:
        """None when nothing happened."""
        data = {name: getattr(after, name) - getattr(before, name) for name in COUNTERS}
        if not any(data.values()) and before.pinned_blocks == after.pinned_blocks:
            return None
        return KvtierStats(data=data | {name: getattr(after, name) for name in GAUGES})

    def reset(self) -> None:
        self.data = {}

    def aggregate(self, other: compat.KVConnectorStats) -> compat.KVConnectorStats:
        for name, value in other.data.items():
            self.data[name] = value if name in GAUGES else self.data.get(name, 0) + value
        return self

    def reduce(self) -> dict[str, int | float]:
        """For vLLM's log line."""
        out = {f"kvtier {name}": value for name, value in self.data.items() if value}
        for what in ("load", "save"):
            seconds, size = self.data.get(f"{what}_seconds", 0), self.data.get(f"bytes_{what}{_ED[what]}", 0)
            if seconds and size:
                out[f"kvtier {what} GB/s"] = round(size / seconds / 1e9, 3)
        return out

    def is_empty(self) -> bool:
        return not any(self.data.values())


_ED = {"load": "ed", "save": "d"}


class KvtierPromMetrics(compat.KVConnectorPromMetrics):
    """vllm:kvtier_<counter> (Prometheus appends _total) and vllm:kvtier_<gauge>, by engine."""

    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: list[str],
                 per_engine_labelvalues: dict[int, list[object]]) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        kinds = [(self._counter_cls, COUNTERS), (self._gauge_cls, GAUGES)]
        self._metrics: dict[str, Any] = {
            name: kind(name=f"vllm:kvtier_{name}", documentation=text, labelnames=labelnames)
            for kind, names in kinds for name, text in names.items()}

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        labels = self.per_engine_labelvalues[engine_idx]
        for name, value in transfer_stats_data.items():
            metric = self._metrics[name].labels(*labels)
            if name in GAUGES:
                metric.set(value)
            else:
                metric.inc(value)
