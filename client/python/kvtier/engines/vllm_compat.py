"""All that kvtier's vLLM connector knows of one version of vLLM and not of the next.

Tested with vLLM 0.32.0 (V1 engine; the CPU build, whose runner, scheduler and connector interface are
vLLM's own). Another version gets a warning at start; what this file takes from vLLM is what to check then:

  * the connector interface: KVConnectorBase_V1, its metadata, statistics and metrics classes;
  * KVCacheConfig: groups, kv_cache_tensors (strides, order of layers), kv_tp_replicas, kv_cache_layout;
  * Request: block_hashes, num_computed_tokens, num_prompt_tokens, num_tokens, skip_reading_prefix_cache,
    lora_request;
  * SchedulerOutput: num_scheduled_tokens, total_num_scheduled_tokens, kv_connector_block_state;
  * BlockPool: blocks, touch, free_blocks;
  * that wait_for_save runs in every step after its forward pass, and a block hash covers adapter name,
    media, cache_salt and embeddings, but neither the model nor what the adapter's files hold;
  * that an adapter is loaded once for its lora_int_id, when a request first needs it, or again when it was
    evicted or its request has load_inplace.
"""
from __future__ import annotations

import dataclasses
import hashlib
import json
import multiprocessing
import operator
import os
import pathlib
import struct
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

import torch
import vllm
from vllm.distributed import get_pp_group, get_tensor_model_parallel_rank
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
)
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats
from vllm.distributed.utils import get_pp_indices
from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.v1.core.kv_cache_utils import _NON_CRYPTO_HASH_FUNCTIONS
from vllm.v1.kv_cache_interface import UniformTypeKVCacheSpecs, group_kernel_blocks
from vllm.v1.metrics.cache_hit_source import CacheHitSource
from vllm.utils.hashing import get_hash_fn_by_name

from kvtier import ModelSpec, Namespace, PackOrder, Part, Tier
from kvtier.engines.paged import RequestStep, RequestView

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

__all__ = [
    "CacheHitSource", "KVConnectorBase_V1", "KVConnectorMetadata", "KVConnectorPromMetrics",
    "KVConnectorRole", "KVConnectorStats", "KVConnectorWorkerMetadata", "init_logger",
]

TESTED = "0.32.0"

# vLLM's names for where a hit came from.
HIT_SOURCES = {Tier.RAM: CacheHitSource.HOST, Tier.SSD: CacheHitSource.DISK}


def check_supported(config: VllmConfig, kv_cache: KVCacheConfig) -> list[str]:
    """Refuses what cannot work (ValueError); returns warnings about what can, but less well."""
    if len(kv_cache.kv_cache_groups) != 1:
        raise ValueError(f"kv_cache_groups has {len(kv_cache.kv_cache_groups)} groups, kvtier takes 1: a "
                         "model that mixes attention kinds which vLLM cannot unify is not supported")
    if config.parallel_config.prefill_context_parallel_size > 1:
        raise ValueError("prefill_context_parallel_size is "
                         f"{config.parallel_config.prefill_context_parallel_size}, kvtier takes 1")
    algorithm = config.cache_config.prefix_caching_hash_algo
    random_seed = get_hash_fn_by_name(algorithm) in _NON_CRYPTO_HASH_FUNCTIONS
    if random_seed and os.environ.get("PYTHONHASHSEED") is None:
        raise ValueError(f"prefix_caching_hash_algo is {algorithm}, whose block hashes differ from process "
                         "to process: nothing would ever be found. Set PYTHONHASHSEED to the same number for "
                         "all engines, or take sha256")
    warnings = []
    if vllm.__version__.split("+")[0] != TESTED:
        warnings.append(f"kvtier was tested with vLLM {TESTED}, this is {vllm.__version__}")
    assert config.kv_transfer_config is not None  # else there were no connector
    if config.kv_transfer_config.kv_load_failure_policy == "fail":
        warnings.append('kv_load_failure_policy is "fail", vLLM\'s default: a block that leaves kvtier '
                        'between lookup and load ends its request with an error. Set "recompute"')
    return warnings


# Blocks, parts, memory -------------------------------------------------------------------------------


def block_tokens(config: VllmConfig, kv_cache: KVCacheConfig) -> int:
    """Tokens of a manager block, over all ranks that split its tokens."""
    split = kv_cache.kv_cache_groups[0].kv_cache_spec.dcp_sharded
    ranks = config.parallel_config.decode_context_parallel_size if split else 1
    return config.cache_config.block_size * ranks


def page_bytes(kv_cache: KVCacheConfig) -> dict[str, int]:
    """Bytes of one manager block in each layer of this rank, in the order of the layers."""
    # Layers are outermost or blocks are: one of the strides is the page, the other spans several.
    pages = {name: min(tensor.layer_stride, tensor.block_stride)
             for tensor in kv_cache.kv_cache_tensors for name in tensor.layers}
    return {name: pages[name] for name in kv_cache.kv_cache_groups[0].layer_names}


def part_bytes(config: VllmConfig, kv_cache: KVCacheConfig) -> list[int]:
    """Of every part, group-major. Pipeline ranks are layer groups; tensor ranks that hold the same KV
    (a latent, a replicated head) share a part."""
    stages = config.parallel_config.pipeline_parallel_size
    ranks = part_ranks(config, kv_cache)
    pages = page_bytes(kv_cache)
    if stages == 1:
        return [sum(pages.values())] * ranks
    if len(set(pages.values())) != 1:
        raise ValueError(f"layers have pages of {sorted(set(pages.values()))} bytes, with "
                         f"pipeline_parallel_size {stages} kvtier takes layers that are alike")
    page = next(iter(pages.values()))
    layers = config.model_config.get_total_num_hidden_layers()
    ranges = [get_pp_indices(layers, stage, stages) for stage in range(stages)]
    return [page * (last - first) for first, last in ranges for _ in range(ranks)]


def part_ranks(config: VllmConfig, kv_cache: KVCacheConfig) -> int:
    return config.parallel_config.tensor_parallel_size // kv_cache.kv_tp_replicas


def this_part(kv_cache: KVCacheConfig) -> tuple[Part, bool]:
    """(this worker's part, whether this worker is the one that stores it)."""
    rank, replicas = get_tensor_model_parallel_rank(), kv_cache.kv_tp_replicas
    return Part(get_pp_group().rank_in_group, rank // replicas), rank % replicas == 0


def worker_count(config: VllmConfig) -> int:
    """Workers whose reports vLLM merges, one each per step."""
    return config.parallel_config.world_size


def layers_as_bytes(kv_cache: KVCacheConfig, kv_caches: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """Each layer as an int8 tensor (blocks, page bytes) over its own storage: whatever the attention
    backend made of a page, it is moved as it is. Indexed by manager block, never by the tensor's own
    first dimension, which may be finer."""
    layers = []
    for name, page in page_bytes(kv_cache).items():
        blocks = group_kernel_blocks(kv_caches[name], kv_cache.num_blocks)
        size = blocks.element_size()
        layers.append(torch.tensor([], dtype=torch.int8, device=blocks.device).set_(
            blocks.untyped_storage(), blocks.storage_offset() * size, (kv_cache.num_blocks, page),
            (blocks.stride(0) * size, 1)))
    return layers


# Identity --------------------------------------------------------------------------------------------


def model_spec(config: VllmConfig, kv_cache: KVCacheConfig, revision: str) -> ModelSpec:
    """The model that blocks of this engine belong to: two engines share blocks when all of this is
    equal. `revision`: the operator's word on the weights; empty = look at their files."""
    model = config.model_config
    name = os.path.basename(os.path.realpath(model.model)) if os.path.isdir(model.model) else model.model
    described = json.dumps(layout(config, kv_cache), sort_keys=True, default=str)
    return ModelSpec(
        name=name[-256:],
        revision=revision or weights_digest(model),
        block_tokens=block_tokens(config, kv_cache),
        tensor_parallel=part_ranks(config, kv_cache),
        pack_order=PackOrder.OPAQUE,
        layout_fingerprint=hashlib.sha256(described.encode()).digest(),
        explicit_part_bytes=part_bytes(config, kv_cache),
        explicit_groups=config.parallel_config.pipeline_parallel_size)


def layout(config: VllmConfig, kv_cache: KVCacheConfig) -> dict[str, Any]:
    """All that the bytes of a page depend on, besides prompt and weights. The same in the scheduler and
    in every worker."""
    model, cache, parallel = config.model_config, config.cache_config, config.parallel_config
    spec = kv_cache.kv_cache_groups[0].kv_cache_spec
    if isinstance(spec, UniformTypeKVCacheSpecs):  # as vLLM's scheduler sees it
        spec = next(iter(spec.kv_cache_specs.values()))
    shape = model.hf_config.to_dict()
    for name in ("_name_or_path", "transformers_version", "architectures"):
        shape.pop(name, None)
    return {
        "engine": f"vllm {vllm.__version__}",
        "model": shape, "dtype": model.dtype, "quantization": model.quantization,
        # Long-context variants of rotary embedding choose their factors by it.
        "max_model_len": model.max_model_len if "longrope" in str(shape) else None,
        "seed": model.seed if config.load_config.load_format == "dummy" else None,
        "cache_dtype": cache.cache_dtype, "block_size": cache.block_size, "layout": kv_cache.kv_cache_layout,
        "spec": repr(spec), "layers": len(kv_cache.kv_cache_groups[0].layer_names)
        if parallel.pipeline_parallel_size == 1 else None,
        "hash": cache.prefix_caching_hash_algo,
        "tp": parallel.tensor_parallel_size, "pp": parallel.pipeline_parallel_size,
        "dcp": parallel.decode_context_parallel_size, "replicas": kv_cache.kv_tp_replicas,
        "device": current_platform.device_type, "attention": config.attention_config.backend,
        "capability": _capability(),
    }


def _capability() -> str:
    """What an attention backend chooses its packing by."""
    if current_platform.is_cpu():
        return f"{current_platform.get_cpu_architecture()} avx512={torch.cpu._is_avx512_supported()} " \
               f"amx={torch.cpu._is_amx_tile_supported()}"
    return str(current_platform.get_device_capability())


def weights_digest(model: Any) -> str:
    """Tells weights apart that have the same name: of a folder, by a sample of every file's bytes; of a
    hub's model, by its commit. Weights that differ in a few single elements only may get the same
    digest; who makes such has to name a revision."""
    if os.path.isdir(model.model):
        return folder_digest(pathlib.Path(model.model))
    commit = getattr(model.hf_config, "_commit_hash", None)
    if commit:
        return str(commit)
    raise ValueError(f"weights of {model.model} are neither in a folder nor of a known commit: set revision "
                     "in kv_connector_extra_config, and change it whenever the weights change")


SAMPLES = 4096
SAMPLE_BYTES = 64
WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf")


def folder_digest(folder: pathlib.Path) -> str:
    """Of the weights in a folder: each file's name, size, and samples all over. Errors: OSError, and
    ValueError for a file that is not whole."""
    files = sorted(path for path in folder.iterdir() if path.suffix in WEIGHT_SUFFIXES)
    digest = hashlib.sha256()
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            for at in _sample_places(file, path.suffix, size, max(16, SAMPLES // len(files))):
                file.seek(at)
                digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()


def _sample_places(file: BinaryIO, suffix: str, size: int, count: int) -> Iterator[int]:
    """In safetensors the middle of tensors, so that none is missed among its neighbours; else evenly."""
    spans = _tensor_spans(file, size) if suffix == ".safetensors" else []
    if not spans:
        spans = [(size * i // count, size * (i + 1) // count) for i in range(count)]
    per_span = max(1, count // len(spans))
    for first, last in spans[::max(1, len(spans) // count)]:
        for i in range(per_span):
            yield first + (last - first) * (2 * i + 1) // (2 * per_span)


def _tensor_spans(file: BinaryIO, size: int) -> list[tuple[int, int]]:
    """Where its tensors are. Errors: ValueError."""
    try:
        head = struct.unpack("<Q", file.read(8))[0]
        if head > size - 8:
            raise ValueError(f"its header has {head} bytes")
        tensors = json.loads(file.read(head))
        tensors.pop("__metadata__", None)
        offsets = [tensor["data_offsets"] for _, tensor in sorted(tensors.items())]
        data = 8 + head
        spans = [(data + operator.index(first), data + operator.index(last)) for first, last in offsets]
        if any(not data <= first <= last <= size for first, last in spans):
            raise ValueError("a tensor ends beyond it")
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{file.name} with {size} bytes is not a whole safetensors file: {error}") from None
    return spans


class UnknownAdapter(Exception):
    """It cannot be told with which weights vLLM computes; the message says why."""


# What no name is: from now on no name of this adapter is the first one.
_CHANGED = ""


class Adapters:
    """Names of adapters that change with their files. vLLM's block hashes have an adapter's name and folder
    only, and vLLM may go on with what it loaded before its files changed."""

    def __init__(self) -> None:
        self._names: dict[tuple[Any, ...], str] = {}
        self._first: dict[int, str] = {}  # by lora_int_id

    def name(self, adapter: Any) -> str:
        """For Namespace.adapter; empty for none. Raises: UnknownAdapter, now when its files cannot be read
        (as while they are written), and for good when its id came with other files or another name."""
        if adapter is None:
            return ""
        try:
            name = self._name_now(adapter)
        except (OSError, ValueError) as error:
            raise UnknownAdapter(f"its files cannot be read: {error}") from error
        if self._first.setdefault(adapter.lora_int_id, name) != name:
            self._first[adapter.lora_int_id] = _CHANGED
            raise UnknownAdapter(f"its id {adapter.lora_int_id} came with other files or another name "
                                 "before, and vLLM may compute with those; give changed files another id")
        return name

    def _name_now(self, adapter: Any) -> str:
        folder = pathlib.Path(adapter.lora_path)
        key = (adapter.lora_name, *(_stamp(path) for path in _weight_files(folder)))
        if key not in self._names:
            # Of an adapter that is not in files nobody else can know that it is the same.
            what = folder_digest(folder)[:32] if len(key) > 1 else uuid.uuid4().hex
            self._names[key] = f"{hashlib.sha256(adapter.lora_name.encode()).hexdigest()[:32]}@{what}"
        return self._names[key]


def _weight_files(folder: pathlib.Path) -> list[pathlib.Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.suffix in WEIGHT_SUFFIXES)


def _stamp(path: pathlib.Path) -> tuple[str, int, int]:
    status = path.stat()
    return str(path), status.st_size, status.st_mtime_ns


# The scheduler's objects -----------------------------------------------------------------------------


class PoolPins:
    """BlockPinner over vLLM's reference counts."""

    _pool: BlockPool

    def bind(self, pool: BlockPool) -> None:
        self._pool = pool

    def pin(self, block_ids: Sequence[int]) -> None:
        self._pool.touch([self._pool.blocks[b] for b in block_ids])

    def unpin(self, block_ids: Sequence[int]) -> None:
        # The tail of a prompt is evicted before its head.
        self._pool.free_blocks(self._pool.blocks[b] for b in reversed(block_ids))


def roles(config: VllmConfig) -> tuple[bool, bool]:
    """(loads, saves), by kv_role."""
    transfer = config.kv_transfer_config
    assert transfer is not None  # else there were no connector
    return transfer.is_kv_consumer, transfer.is_kv_producer


def may_load(request: Request) -> bool:
    """False for a request that wants its whole prompt computed (log probabilities of the prompt)."""
    return not request.skip_reading_prefix_cache


def view(request: Request, namespace: Namespace) -> RequestView:
    return RequestView(request.request_id, request.block_hashes, namespace)


@dataclasses.dataclass(frozen=True, slots=True)
class Scheduled:
    """A request of this step, which computes so many tokens more."""

    request: Request
    block_ids: Sequence[int]
    tokens: int

    @property
    def computed_tokens(self) -> int:
        """When the step has run."""
        return self.request.num_computed_tokens + self.tokens


class _BlockTable(Sequence[int]):
    """A request's block ids, copied from vLLM only when somebody looks."""

    def __init__(self, output: SchedulerOutput, request_id: str) -> None:
        self._output, self._request_id = output, request_id
        self._ids: list[int] | None = None

    def __len__(self) -> int:
        return len(self._all())

    def __getitem__(self, index: Any) -> Any:
        return self._all()[index]

    def _all(self) -> list[int]:
        if self._ids is None:
            state = self._output.kv_connector_block_state
            groups = state.get_block_ids(self._request_id) if state is not None else None
            self._ids = groups[0] if groups else []
        return self._ids


def scheduled(output: SchedulerOutput, requests: dict[str, Request]) -> Iterable[Scheduled]:
    """Of this step; to be used while the step is planned."""
    for request_id, tokens in output.num_scheduled_tokens.items():
        request = requests.get(request_id)
        if request is not None:
            yield Scheduled(request, _BlockTable(output, request_id), tokens)


def is_idle(output: SchedulerOutput) -> bool:
    return output.total_num_scheduled_tokens == 0


def step_of(item: Scheduled, namespace: Namespace, prompt_only: bool) -> RequestStep:
    limit = item.request.num_prompt_tokens if prompt_only else item.computed_tokens
    return RequestStep(view(item.request, namespace), item.block_ids, min(item.computed_tokens, limit))


def worker_meta(output: KVConnectorOutput) -> Any:
    return output.kv_connector_worker_meta


def engine_in_this_process(config: VllmConfig) -> bool:
    """Whether scheduler and worker run in the user's own process (LLM without multiprocessing): its loop
    then never sleeps while a load is under way, and keeps the interpreter from every other thread."""
    return config.parallel_config.world_size == 1 and multiprocessing.parent_process() is None
