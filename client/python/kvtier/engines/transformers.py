"""The transformers connector: a causal LM whose prompts begin with KV that kvtier kept.

    from kvtier.engines.transformers import KvtierCache

    model = AutoModelForCausalLM.from_pretrained(...).eval()
    with KvtierCache(model, "unix:/tmp/kvtier/kvtier.sock") as cache:
        output = cache.generate(input_ids, max_new_tokens=64)   # as model.generate
        print(cache.last_call)                                  # what was loaded, computed, stored

`generate` looks up the longest prefix of each prompt that kvtier holds, rebuilds a DynamicCache from it,
lets the model compute the rest, and stores the whole blocks that are new, those of generated tokens too:
the next turn of a conversation finds them. `prefill` is one forward pass for callers with a loop of their
own; `load` and `store` are its two halves.

What comes out is what the model computes from its own live cache at the same split, bit for bit. Against
a prefill in one go it differs by rounding, as any other split or batch size does.

Reuse is of prefixes at the same positions: keys are kept after rotary embedding. The last token is always
computed, so of a prompt that is held whole all but one token is loaded.

Batches. Rows may be padded in front (attention_mask says how far); positions count from a row's first
real token, so padded and unpadded prompts share blocks. A DynamicCache has one length for all rows:
what is loaded ends, in columns, where the row ends of which the least is held. Batch prompts that share
prefixes, or call once for each.

Failures. A daemon that is dead, slow, full or wrong is a miss: the model computes, `last_call.failure`
says why, a warning is logged when it begins. It costs at most `Timeouts`, all rows together; after a
failure nothing more is tried in that call. Once the model has answered, nothing that goes wrong with the
store is raised: generate and prefill return the answer. What is raised is the caller's mistake:
ValueError from the arguments, UnsupportedModel and kvtier.InvalidArgument from the constructor.

Refused at construction: encoder-decoders, sliding windows, recurrent layers, latent attention (MLA),
quantised caches, models on several devices, models in training mode, rope types that depend on the
prompt's length. Refused by generate: beams, several sequences per prompt, assisted generation, chunked
prefill, other caches, and inputs beside tokens (images, embeddings, position_ids).

Tested with transformers 4.57, 5.19 and 5.24 and torch 2.13 on CPU. Not thread-safe, as models are not.
"""
from __future__ import annotations

import contextlib
import dataclasses
import inspect
import logging
import time
from typing import Any, Iterator, NamedTuple

import numpy
import torch
import transformers
from transformers.cache_utils import DynamicCache, DynamicLayer

import kvtier
from kvtier.engines.transformers_model import (KvShape, UnsupportedModel, cache_name, has_adapters, identity,
                                               kv_shape, parameter_forms)
from kvtier.protocol import check_rate

__all__ = ["CallReport", "KvtierCache", "Prefill", "Timeouts", "UnsupportedModel"]

_log = logging.getLogger(__name__)

_DTYPES = {torch.float32: kvtier.DType.FP32, torch.bfloat16: kvtier.DType.BF16,
           torch.float16: kvtier.DType.FP16}

_STORED = kvtier.StoreVerdict.STORED

_LEASE_SECONDS = 30.0
_NO_ANSWER = (kvtier.Unavailable, kvtier.DeadlineExceeded)

# What fails, as the log says it.
_LOAD = "prompts are computed in full"
_STORE = "new blocks are not kept"

_NO_TIME = 1e-3  # what a call gets when the others have used up its share: enough to fail

# A Store's payload is staged in pieces of about this much, so that a long prompt is not in memory twice.
_STAGING_BYTES = 128 << 20

# Arguments of generate that need a cache with other rows, or another length, than one row for each prompt.
_ONLY_VALUES: dict[str, tuple[Any, ...]] = {
    "num_beams": (None, 1), "num_return_sequences": (None, 1), "use_cache": (None, True),
    "cache_implementation": (None,), "prefill_chunk_size": (None,), "prompt_lookup_num_tokens": (None,),
    "assistant_model": (None,), "custom_generate": (None,), "is_assistant": (None, False)}


@dataclasses.dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds that one call may spend in kvtier at most, all its rows together.

    The release of a lease that is not answered adds the client's lookup_deadline (0.25 s), once.
    """

    lookup: float = 0.25
    fetch: float = 5.0
    store: float = 5.0

    def __post_init__(self) -> None:
        for name in ("lookup", "fetch", "store"):
            if not getattr(self, name) > 0:
                raise ValueError(f"timeouts.{name}: {getattr(self, name)} s; must be above 0")


@dataclasses.dataclass(slots=True)
class CallReport:
    """What one call did. Tokens are real ones, over all rows; positions are batch x columns, padding
    included, counted where the model embeds them."""

    prompt_tokens: int = 0
    found_tokens: int = 0        # in leading blocks that Lookup reported
    loaded_tokens: int = 0       # whose KV came from kvtier
    prefill_positions: int = 0   # computed by the model's first forward pass
    decode_positions: int = 0    # by all later ones
    stored_blocks: int = 0
    lookup_seconds: float = 0.0   # and release of its leases
    fetch_seconds: float = 0.0
    fetched_bytes: int = 0
    rebuild_seconds: float = 0.0  # from the fetched bytes to a DynamicCache
    store_seconds: float = 0.0
    failure: kvtier.Error | None = None  # the first; nothing more was tried after it

    @property
    def load_seconds(self) -> float:
        """kvtier's part of the time to the first token."""
        return self.lookup_seconds + self.fetch_seconds + self.rebuild_seconds


class Prefill(NamedTuple):
    """past_key_values covers every column of input_ids; logits are [batch, logits_to_keep, vocabulary]."""

    past_key_values: DynamicCache
    logits: torch.Tensor


class _Row(NamedTuple):
    """One prompt of a batch: columns of padding, then its tokens."""

    pad: int
    tokens: numpy.ndarray  # uint32

    def blocks(self, columns: int, block_tokens: int) -> int:
        """Blocks, the last one perhaps in part, that cover its tokens in the first `columns`."""
        return -(-max(0, columns - self.pad) // block_tokens)


@dataclasses.dataclass(slots=True)
class _Loaded:
    cache: DynamicCache
    columns: int      # of the batch, that the cache covers
    held: list[int]   # for each row: leading blocks that need not be stored


class KvtierCache:
    """Serves one model's prompts from kvtier, and keeps theirs there.

    client: an address ("unix:/path" or "host:port"), or a kvtier.Client, which stays the caller's.
    namespace: tenant, salt and adapter; nothing is shared across them. With adapters loaded (LoRA) it
        must name the one that is active, with its revision; a KvtierCache for each.
    name, revision: of the weights; transformers_model.identity says what stands in for them.
    block_tokens: tokens per block, 1 to 4,096; all who share blocks must have the same.
    prefill_tokens_per_second: what this model computes; then blocks that are slower to load than to compute,
        by what loads took lately, are computed. 0: unknown, all are loaded.

    The weights must stay as they are while it is in use; another dtype or shape is refused at the next
    call, other values of the same are not noticed. A daemon that is not there yet is tried again
    at each call. Raises: UnsupportedModel, ValueError, kvtier.InvalidArgument.
    """

    def __init__(self, model: transformers.PreTrainedModel, client: kvtier.Client | str, *,
                 namespace: kvtier.Namespace = kvtier.Namespace(), block_tokens: int = 16, name: str = "",
                 revision: str = "", timeouts: Timeouts = Timeouts(),
                 prefill_tokens_per_second: float = 0.0) -> None:
        if not isinstance(namespace, kvtier.Namespace):
            raise kvtier.InvalidArgument(f"namespace is a {type(namespace).__name__}, it must be a Namespace")
        check_rate(prefill_tokens_per_second)
        self.last_call = CallReport()
        self._model = model
        self._namespace = namespace
        self._timeouts = timeouts
        self._rate = prefill_tokens_per_second
        self._check_adapter()
        self._shape = kv_shape(model)
        self._cache_name = cache_name(model)
        self._forms = parameter_forms(model)
        self._spec = _spec(model, self._shape, block_tokens, name, revision)
        self._model_id = self._spec.id()
        self._registered = False
        self._failing: set[str] = set()
        self._owns_client = isinstance(client, str)
        if isinstance(client, str):
            client = kvtier.Client(client)
        self._client = client
        try:
            client.register_model(self._spec)
            self._registered = True
        except _NO_ANSWER as error:
            self._failed(self.last_call, _LOAD, error)

    def __enter__(self) -> KvtierCache:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the client if it was made here. With a closed client every call raises ValueError."""
        if self._owns_client:
            self._client.close()

    @property
    def spec(self) -> kvtier.ModelSpec:
        """What the model is registered as; its id() names it in prompts and to `kvtier models`."""
        return self._spec

    @property
    def block_tokens(self) -> int:
        return self._spec.block_tokens

    @property
    def block_bytes(self) -> int:
        return self.block_tokens * self._shape.token_bytes

    def generate(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None,
                 **arguments: Any) -> Any:
        """model.generate(input_ids, attention_mask=..., **arguments), from kvtier's KV.

        input_ids: integers [batch, tokens], padded in front. attention_mask: the same shape, 0 where
        padded, else 1 (or False and True); without one nothing is padding. Stores after the last token, so a
        streamer sees the first one before. Raises: ValueError for what the module's docstring refuses,
        naming the argument.
        """
        self._check_arguments(arguments)
        rows, mask = self._begin(input_ids, attention_mask)
        report = self.last_call = CallReport(prompt_tokens=sum(len(row.tokens) for row in rows))
        with _PositionCounter(self._model) as counter:
            loaded = self._load(rows, input_ids.shape[1], report)
            arguments[self._cache_name] = loaded.cache
            output = self._model.generate(input_ids, attention_mask=mask, **arguments)
        report.prefill_positions, report.decode_positions = counter.first, counter.rest
        with self._answered(report):
            sequences = output if isinstance(output, torch.Tensor) else output.sequences
            rows = _grown(rows, sequences, loaded.cache.get_seq_length())
            self._store(rows, loaded.held, loaded.cache, report)
        return output

    def prefill(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, *,
                logits_to_keep: int = 1) -> Prefill:
        """One forward pass over what kvtier does not hold, then a store of the new blocks.

        logits_to_keep: logits of the last so many columns; 0 = of all that were computed.
        """
        rows, mask = self._begin(input_ids, attention_mask)
        report = self.last_call = CallReport(prompt_tokens=sum(len(row.tokens) for row in rows))
        loaded = self._load(rows, input_ids.shape[1], report)
        with _PositionCounter(self._model) as counter, torch.no_grad():
            inputs = _forward_inputs(self._model, input_ids, mask, loaded.columns, logits_to_keep)
            inputs[self._cache_name] = loaded.cache
            output = self._model(**inputs, use_cache=True)
        report.prefill_positions = counter.first
        with self._answered(report):
            self._store(rows, loaded.held, loaded.cache, report)
        return Prefill(loaded.cache, output.logits[:, -logits_to_keep:])

    def load(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> DynamicCache:
        """A cache of the leading columns that kvtier holds, get_seq_length() of them: 0 to tokens - 1.

        The model goes on from it with input_ids[:, get_seq_length():], and with attention_mask whole.
        """
        rows, _ = self._begin(input_ids, attention_mask)
        report = self.last_call = CallReport(prompt_tokens=sum(len(row.tokens) for row in rows))
        return self._load(rows, input_ids.shape[1], report).cache

    def store(self, input_ids: torch.Tensor, past_key_values: DynamicCache,
              attention_mask: torch.Tensor | None = None) -> None:
        """Stores the whole blocks of input_ids, of which past_key_values must cover every column.

        Asks first what is held, and sends only the rest.
        """
        rows, _ = self._begin(input_ids, attention_mask)
        if past_key_values.get_seq_length() < input_ids.shape[1]:
            raise ValueError(f"past_key_values: {past_key_values.get_seq_length()} columns; must be all "
                             f"{input_ids.shape[1]} of input_ids")
        report = self.last_call = CallReport(prompt_tokens=sum(len(row.tokens) for row in rows))
        held = [found.blocks for found in self._lookup(rows, report, None, [])]
        self._store(rows, held, past_key_values, report)

    # ------------------------------------------------------------------------------------ before a call

    def _begin(self, input_ids: torch.Tensor,
               attention_mask: torch.Tensor | None) -> tuple[list[_Row], torch.Tensor]:
        if self._client.closed:
            raise ValueError("client: is closed, so nothing can be loaded or kept; make a new KvtierCache")
        self._check_adapter()
        if self._model.training:
            raise ValueError("model: is in training mode, where dropout changes the KV; call model.eval()")
        if torch.is_autocast_enabled(self._model.device.type):
            raise ValueError("autocast: is on, and changes the KV; load the model in the dtype it should "
                             "run in")
        self._check_forms()
        rows = _rows(input_ids, attention_mask, _pad_token(self._model.generation_config))
        # Positions are sums over the mask, so it has a dtype that can hold them.
        return rows, torch.ones_like(input_ids) if attention_mask is None else attention_mask.long()

    def _check_forms(self) -> None:
        """Whether KV of this model still has the shape and the meaning that it was registered with."""
        now = parameter_forms(self._model)
        if now == self._forms:
            return
        for name, form in self._forms.items():
            if now.get(name) != form:
                raise ValueError(f"model: its parameter {name} is {now.get(name, 'gone')}, and was {form} "
                                 "when this KvtierCache was made; make another one for the changed model")

    def _check_adapter(self) -> None:
        if has_adapters(self._model) and not self._namespace.adapter:
            raise ValueError("namespace.adapter: is empty, but the model has adapters loaded; must name the "
                             "active one and its revision")

    def _check_arguments(self, arguments: dict[str, Any]) -> None:
        own = self._model.generation_config
        config = arguments.get("generation_config") or own
        known = set(inspect.signature(self._model.generate).parameters) - {"kwargs", "inputs"}
        for name in arguments:
            if name not in known and not hasattr(config, name):
                raise ValueError(f"{name}: not an argument that the cached generate takes; the KV may depend "
                                 "on tokens and attention_mask only")
        for name, allowed in _ONLY_VALUES.items():
            # The model's own setting may count where the caller's is None or, in 4.x, the default.
            told = [arguments] if name in arguments else [vars(config), vars(own)]
            for value in (values.get(name) for values in told):
                if value not in allowed:
                    raise ValueError(f"{name}: {value}; must be {allowed[-1]}")

    # ---------------------------------------------------------------------------------------- load, store

    def _load(self, rows: list[_Row], width: int, report: CallReport) -> _Loaded:
        with self._leases(report) as leases:
            matches = self._lookup(rows, report, _LEASE_SECONDS, leases)
            held = [found.blocks for found in matches]
            report.found_tokens = sum(held) * self.block_tokens
            worth = [found.blocks_worth_fetching(self._rate) for found in matches]
            columns = min(width - 1, _covered(rows, worth, self.block_tokens)) if matches else 0
            if not any(row.blocks(columns, self.block_tokens) for row in rows):
                return _Loaded(DynamicCache(), 0, held)
            staging = _Staging(self._shape, self.block_tokens, rows, columns, self._model.device)
            fetched = self._fetch(matches, staging, report)
        for index, blocks in enumerate(fetched):
            if blocks < staging.wanted(index):
                held[index] = blocks  # the next one was lost since the lookup
        columns = min(columns, _covered(rows, fetched, self.block_tokens))
        began = time.perf_counter()
        cache = staging.rebuild(columns)
        report.rebuild_seconds = time.perf_counter() - began
        report.loaded_tokens = sum(max(0, columns - row.pad) for row in rows)
        return _Loaded(cache, columns, held)

    def _lookup(self, rows: list[_Row], report: CallReport, lease: float | None,
                leases: list[kvtier.Lease]) -> list[kvtier.PrefixMatch]:
        """One match for each row, or none at all after a failure. The leases go to `leases`."""
        limit = _Limit(self._timeouts.lookup)
        matches = []
        with self._as_misses(report, _LOAD):
            if not self._registered:
                self._client.register_model(self._spec, timeout=limit.left)
                self._registered = True
            for row in rows:
                found = self._client.lookup(self._prompt(row), lease=lease, timeout=limit.left,
                                            prefill_tokens_per_second=self._rate)
                matches.append(found)
                leases.append(found.lease)
                if found.failure is not None:
                    raise found.failure
        report.lookup_seconds = limit.spent
        return matches if report.failure is None else []

    @contextlib.contextmanager
    def _leases(self, report: CallReport) -> Iterator[list[kvtier.Lease]]:
        """Leases that end with the block. After a failure they are left to run out, as nobody may answer."""
        leases: list[kvtier.Lease] = []
        try:
            yield leases
        finally:
            began = time.perf_counter()
            for lease in leases:
                if report.failure is not None:
                    lease.detach()
                elif lease and isinstance(failure := lease.release().failure, _NO_ANSWER):
                    self._failed(report, _LOAD, failure)
            report.lookup_seconds += time.perf_counter() - began

    def _fetch(self, matches: list[kvtier.PrefixMatch], staging: _Staging, report: CallReport) -> list[int]:
        """For each row the leading blocks that are in the staging."""
        limit = _Limit(self._timeouts.fetch)
        fetched = [0] * len(matches)
        with self._as_misses(report, _LOAD):
            for index, found in enumerate(matches):
                if staging.wanted(index) == 0:
                    continue
                got = self._client.fetch_into(found.lease, staging.buffers(index), timeout=limit.left)
                fetched[index] = got.leading
                report.fetched_bytes += got.leading * self.block_bytes
                if got.failure is not None:
                    raise got.failure
        report.fetch_seconds = limit.spent
        return fetched

    def _store(self, rows: list[_Row], held: list[int], cache: DynamicCache, report: CallReport) -> None:
        """Stores the blocks of each row from the `held`-th on; of tokens that the cache covers."""
        if report.failure is not None:
            return
        limit = _Limit(self._timeouts.store)
        with self._as_misses(report, _STORE):
            for index, row in enumerate(rows):
                for first, payloads in self._exported(index, row, held[index], cache):
                    done = self._client.store_from(self._prompt(row), payloads, first_block=first,
                                                   first_missing=first, timeout=limit.left)
                    report.stored_blocks += [one.verdict for one in done.outcomes].count(_STORED)
                    if done.failure is not None:
                        raise done.failure
        report.store_seconds = limit.spent

    def _exported(self, index: int, row: _Row, first: int,
                  cache: DynamicCache) -> Iterator[tuple[int, list[memoryview]]]:
        """(first block, payloads) of one row's whole blocks from `first` on, some at a time."""
        step = max(1, _STAGING_BYTES // self.block_bytes)
        whole = len(row.tokens) // self.block_tokens
        for begin in range(first, whole, step):
            count = min(step, whole - begin)
            start = row.pad + begin * self.block_tokens
            yield begin, export_blocks(cache, self._shape, index, start, count, self.block_tokens)

    def _prompt(self, row: _Row) -> kvtier.Prompt:
        return kvtier.Prompt(self._model_id, tokens=row.tokens, namespace=self._namespace)

    # ------------------------------------------------------------------------------------------ failures

    @contextlib.contextmanager
    def _as_misses(self, report: CallReport, phase: str) -> Iterator[None]:
        """What kvtier raises inside becomes report.failure: the model computes instead."""
        try:
            yield
        except kvtier.Error as error:
            self._failed(report, phase, error)
        else:
            if phase in self._failing:
                self._failing.remove(phase)
                _log.info("kvtier works again")

    @contextlib.contextmanager
    def _answered(self, report: CallReport) -> Iterator[None]:
        """For what follows the answer, which must not be lost, whatever is raised inside."""
        try:
            yield
        except Exception as error:
            _log.debug("the store raised", exc_info=True)
            self._failed(report, _STORE, kvtier.Internal(f"the store raised {type(error).__name__}: {error}"))

    def _failed(self, report: CallReport, phase: str, error: kvtier.Error) -> None:
        report.failure = error
        if phase not in self._failing:  # one line each time that it begins
            self._failing.add(phase)
            _log.warning("%s until kvtier works again: %s", phase, error)


class _Limit:
    """The time of one phase of a call."""

    def __init__(self, seconds: float) -> None:
        self._began = time.perf_counter()
        self._seconds = seconds

    @property
    def spent(self) -> float:
        return time.perf_counter() - self._began

    @property
    def left(self) -> float:
        return max(self._seconds - self.spent, _NO_TIME)


class _Staging:
    """Host memory for the leading columns of a batch: [layer][K|V][row][column][kv head][dim].

    A block's part is [layer][K|V][token][kv head][dim], so its bytes are fetched to where they stay: the
    cache that `rebuild` makes on a CPU is views of this memory.
    """

    def __init__(self, shape: KvShape, block_tokens: int, rows: list[_Row], columns: int,
                 device: torch.device) -> None:
        self._shape = shape
        self._block_tokens = block_tokens
        self._rows = rows
        self._columns = columns
        self._device = device
        # The last block may reach past the last column that is used.
        self._width = max(row.pad + self.wanted(index) * block_tokens if self.wanted(index) else columns
                          for index, row in enumerate(rows))
        self._bytes = torch.empty(shape.layers * 2 * len(rows) * self._width * shape.side_bytes,
                                  dtype=torch.uint8, pin_memory=device.type == "cuda")

    def wanted(self, index: int) -> int:
        """Leading blocks of the row that its columns need."""
        return self._rows[index].blocks(self._columns, self._block_tokens)

    def buffers(self, index: int) -> list[list[memoryview]]:
        """Where the row's wanted blocks go: for each its 2 x layers segments."""
        memory = memoryview(self._bytes.numpy())
        side = self._shape.side_bytes
        segment = self._block_tokens * side
        starts = [((plane * len(self._rows) + index) * self._width + self._rows[index].pad) * side
                  for plane in range(2 * self._shape.layers)]
        return [[memory[start + block * segment:start + (block + 1) * segment] for start in starts]
                for block in range(self.wanted(index))]

    def rebuild(self, columns: int) -> DynamicCache:
        """A cache of the first `columns`; padding is zeros, which the attention mask hides."""
        if columns == 0:
            return DynamicCache()
        shape = self._shape
        sides = self._bytes.to(self._device).view(shape.dtype).view(
            shape.layers, 2, len(self._rows), self._width, shape.kv_heads, shape.head_dim)
        for index, row in enumerate(self._rows):
            sides[:, :, index, :min(row.pad, columns)] = 0
        sides = sides[:, :, :, :columns].transpose(3, 4)
        return _cache_of([(keys, values) for keys, values in sides])


def _cache_of(layers: list[tuple[torch.Tensor, torch.Tensor]]) -> DynamicCache:
    """A cache of these keys and values themselves: update() would copy them, and the next one does anyway."""
    cache = DynamicCache()
    for keys, values in layers:
        layer = DynamicLayer()
        layer.keys, layer.values = keys, values
        layer.dtype, layer.device, layer.is_initialized = keys.dtype, keys.device, True
        cache.layers.append(layer)
    return cache


@torch.no_grad()
def export_blocks(cache: DynamicCache, shape: KvShape, index: int, start: int, count: int,
                  block_tokens: int) -> list[memoryview]:
    """`count` blocks of row `index` from column `start` on, each [layer][K|V][token][kv head][dim]."""
    first = cache.layers[0].keys
    seen = KvShape(len(cache.layers), first.shape[1], first.shape[3], first.dtype)
    if seen != shape:
        raise ValueError(f"past_key_values: {seen}; must be {shape}, as the model's")
    staging = torch.empty((count, shape.layers, 2, block_tokens, shape.kv_heads, shape.head_dim),
                          dtype=shape.dtype, device=first.device)
    for number, layer in enumerate(cache.layers):
        for side, tensor in enumerate((layer.keys, layer.values)):
            part = tensor[index, :, start:start + count * block_tokens]
            staging[:, number, side] = part.unflatten(1, (count, block_tokens)).permute(1, 2, 0, 3)
    memory = memoryview(staging.cpu().view(torch.uint8).numpy()).cast("B")
    size = len(memory) // count
    return [memory[block * size:(block + 1) * size] for block in range(count)]


class _PositionCounter:
    """Counts, where the model embeds its input, what it really computes."""

    def __init__(self, model: transformers.PreTrainedModel) -> None:
        self._embeddings = model.get_input_embeddings()
        self._forwards: list[int] = []

    def __enter__(self) -> _PositionCounter:
        self._hook = self._embeddings.register_forward_hook(self._count)
        return self

    def __exit__(self, *unused: object) -> None:
        self._hook.remove()

    def _count(self, module: torch.nn.Module, arguments: tuple[Any, ...], output: torch.Tensor) -> None:
        self._forwards.append(output.shape[0] * output.shape[1])

    @property
    def first(self) -> int:
        return sum(self._forwards[:1])

    @property
    def rest(self) -> int:
        return sum(self._forwards[1:])


def _spec(model: transformers.PreTrainedModel, shape: KvShape, block_tokens: int, name: str,
          revision: str) -> kvtier.ModelSpec:
    who = identity(model, name, revision)
    attention = kvtier.GroupedAttention(kv_heads=shape.kv_heads, head_dim=shape.head_dim)
    return kvtier.ModelSpec(
        name=who.name, revision=who.revision, block_tokens=block_tokens, dtype=_DTYPES[shape.dtype],
        layer_groups=[kvtier.LayerGroup(attention, shape.layers)],
        pack_order=kvtier.PackOrder.LAYER_KV_TOKEN_HEAD, layout_fingerprint=who.fingerprint)


def _pad_token(config: transformers.GenerationConfig) -> int | None:
    """The token that can only be padding."""
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    return None if config.pad_token_id in ends else config.pad_token_id


def _rows(input_ids: torch.Tensor, attention_mask: torch.Tensor | None, pad_token: int | None) -> list[_Row]:
    for name, value in (("input_ids", input_ids), ("attention_mask", attention_mask)):
        if not isinstance(value, torch.Tensor) and not (value is None and name == "attention_mask"):
            raise ValueError(f"{name}: is a {type(value).__name__}; must be a tensor [batch, tokens]")
    if input_ids.dim() != 2 or input_ids.numel() == 0 or input_ids.is_floating_point():
        raise ValueError(f"input_ids: {tuple(input_ids.shape)} of {input_ids.dtype}; must be integers "
                         "[batch, tokens], at least one row and one token")
    ids = input_ids.cpu().numpy()
    if ids.min() < 0:
        raise ValueError(f"input_ids: {ids.min()}; must be at least 0")
    if attention_mask is None:
        if pad_token is not None and (ids == pad_token).any():
            raise ValueError(f"attention_mask: is None, but input_ids has pad tokens ({pad_token}); must say "
                             "which are padding")
        return [_Row(0, row.astype(numpy.uint32)) for row in ids]
    if attention_mask.shape != input_ids.shape:
        raise ValueError(f"attention_mask: {tuple(attention_mask.shape)}; must be {ids.shape}, as input_ids")
    # The model counts positions by adding the mask up: with any other value they, and the KV, were wrong.
    ones = attention_mask == 1
    others = attention_mask[~ones & (attention_mask != 0)]
    if others.numel():
        raise ValueError(f"attention_mask: {others[0].item()}; must be 0, where padded, or 1")
    rows = []
    for index, (row, real) in enumerate(zip(ids, ones.cpu().numpy())):
        pad = int((~real).sum())
        if pad == len(real) or not real[pad:].all():
            raise ValueError(f"attention_mask: row {index} must be zeros in front, then ones to the end")
        rows.append(_Row(pad, row[pad:].astype(numpy.uint32)))
    return rows


def _covered(rows: list[_Row], blocks: list[int], block_tokens: int) -> int:
    """Leading columns of which every row has, in so many leading blocks, or as padding, all."""
    return min(row.pad + count * block_tokens for row, count in zip(rows, blocks))


def _grown(rows: list[_Row], sequences: torch.Tensor, columns: int) -> list[_Row]:
    """The rows with the generated tokens whose KV is among `columns` of the cache.

    A run of one token at the end of a row of many is padding after its end, and is left out.
    """
    ids = sequences[:, :columns].cpu().numpy()
    grown = []
    for row, tokens in zip(rows, ids):
        end = len(tokens)
        while len(rows) > 1 and end > row.pad + len(row.tokens) and tokens[end - 1] == tokens[-1]:
            end -= 1
        grown.append(_Row(row.pad, tokens[row.pad:end].astype(numpy.uint32)))
    return grown


def _forward_inputs(model: transformers.PreTrainedModel, input_ids: torch.Tensor, mask: torch.Tensor,
                    columns: int, logits_to_keep: int) -> dict[str, Any]:
    """What a forward pass over the columns from `columns` on takes, as generate would give it."""
    takes = inspect.signature(model.forward).parameters
    inputs: dict[str, Any] = {"input_ids": input_ids[:, columns:], "attention_mask": mask}
    if "position_ids" in takes:
        positions = (mask.long().cumsum(-1) - 1).masked_fill(mask == 0, 0)
        inputs["position_ids"] = positions[:, columns:]
    if "logits_to_keep" in takes:
        inputs["logits_to_keep"] = logits_to_keep
    return inputs
