"""What a transformers model is to kvtier: whether its KV can be kept, in what shape, under which identity.

A KV block may be reused when it is a function of the tokens up to its end, their positions and the
model, of nothing else. `kv_shape` refuses models of which that is not so, or whose cache is not plain
keys and values. `identity` is everything about the model that the KV depends on.
"""
from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
from typing import Any, Iterator

import torch
import transformers
import xxhash
from transformers.cache_utils import DynamicLayer

# Raised when a change of this connector makes what it stored before unusable.
FORMAT = 1

# These compute the same function; what they differ in is rounding, as batch sizes do. Any other is named
# in the identity: it may attend to less, or quantise.
EXACT_ATTENTION = frozenset({"eager", "sdpa", "flex_attention", "flash_attention_2", "flash_attention_3"})

# Of a config: what no key or value depends on. All else is part of the identity.
_WITHOUT_EFFECT = frozenset({
    "_name_or_path", "architectures", "attn_implementation", "bos_token_id", "dtype", "eos_token_id",
    "id2label", "initializer_range", "label2id", "output_attentions", "output_hidden_states", "pad_token_id",
    "problem_type", "return_dict", "torch_dtype", "transformers_version", "use_cache"})

# With these the rotation of a key depends on how long the whole prompt is.
_LENGTH_DEPENDENT_ROPE = frozenset({"dynamic", "longrope", "su"})

# Per tensor, elements that the sample of the weights takes.
_SAMPLE_ELEMENTS = 256

_PROBE_TOKENS = 4
_PROBE_SHARED = 2  # of them, those that both rows begin with


class UnsupportedModel(ValueError):
    """This model's KV cannot be kept; the message says why."""


@dataclasses.dataclass(frozen=True, slots=True)
class KvShape:
    """One token's KV: [layers][K|V][kv_heads][head_dim] elements of dtype."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def side_bytes(self) -> int:
        """One token's keys, or values, of one layer."""
        return self.kv_heads * self.head_dim * self.dtype.itemsize

    @property
    def token_bytes(self) -> int:
        return self.layers * 2 * self.side_bytes


def kv_shape(model: transformers.PreTrainedModel) -> KvShape:
    """The shape, seen in the cache that the model itself makes of a few tokens.

    Raises: UnsupportedModel.
    """
    _check_config(model)
    _check_device(model)
    layers = _probe(model)
    shapes = {(tuple(side.shape), side.dtype) for layer in layers for side in (layer.keys, layer.values)}
    if len(shapes) != 1:
        raise UnsupportedModel(f"model: its keys and values have {len(shapes)} shapes or dtypes; all layers "
                               "must have the same heads and one head_dim for keys and values")
    ((_, kv_heads, _, head_dim), dtype), = shapes
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise UnsupportedModel(f"model: its KV is {dtype}; must be float32, bfloat16 or float16")
    return KvShape(len(layers), kv_heads, head_dim, dtype)


def _check_config(model: transformers.PreTrainedModel) -> None:
    if model.training:
        raise UnsupportedModel("model: is in training mode, where dropout changes the KV; call model.eval()")
    config = model.config.get_text_config(decoder=True)
    if config.is_encoder_decoder:
        raise UnsupportedModel("model: is an encoder-decoder; must be a decoder-only causal LM")
    if getattr(config, "kv_lora_rank", None):
        raise UnsupportedModel("model: has multi-head latent attention (kv_lora_rank); only full keys and "
                               "values are kept")
    for rope in _rope_types(config.to_dict()):
        if rope in _LENGTH_DEPENDENT_ROPE:
            raise UnsupportedModel(f"model: its rope type '{rope}' rotates keys by the length of the whole "
                                   "prompt, so a prefix of another prompt has other keys")


def _rope_types(config: dict[str, Any]) -> Iterator[str]:
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _rope_types(value)
            if name.startswith("rope_") and "type" in value:
                yield str(value["type"])
        elif name == "rope_type":
            yield str(value)


def _check_device(model: transformers.PreTrainedModel) -> None:
    devices = {parameter.device for parameter in model.parameters()}
    if len(devices) != 1 or any(device.type == "meta" for device in devices):
        names = ", ".join(sorted(str(device) for device in devices))
        raise UnsupportedModel(f"model: its weights are on {names}; must be on one device")


def _probe(model: transformers.PreTrainedModel) -> list[DynamicLayer]:
    """The layers of the cache after two prompts with one beginning, whose KV must be the same."""
    rows = torch.arange(_PROBE_TOKENS).repeat(2, 1)
    rows[1, _PROBE_SHARED:] += _PROBE_TOKENS
    rows = (rows % model.config.get_text_config(decoder=True).vocab_size).to(model.device)
    with torch.no_grad():
        output = model(input_ids=rows, attention_mask=torch.ones_like(rows), use_cache=True)
    cache = getattr(output, cache_name(model), None)
    layers = getattr(cache, "layers", None)
    if not layers:
        raise UnsupportedModel(f"model: its cache is a {type(cache).__name__}; must be a DynamicCache")
    other = sorted({type(layer).__name__ for layer in layers if type(layer) is not DynamicLayer})
    if other:
        raise UnsupportedModel(f"model: its cache has layers of the kind {', '.join(other)}; all must be "
                               "full attention (no sliding window, no recurrent state, no quantised cache)")
    if len(layers) != model.config.get_text_config(decoder=True).num_hidden_layers:
        raise UnsupportedModel(f"model: its cache has {len(layers)} layers; must be num_hidden_layers")
    for layer in layers:
        for side in (layer.keys, layer.values):
            mine, other_row = side[:, :, :_PROBE_SHARED]
            if not torch.allclose(mine.float(), other_row.float(), rtol=1e-2, atol=1e-3):
                raise UnsupportedModel("model: the KV of its first tokens depends on later ones; must be "
                                       "causal")
    return layers


def cache_name(model: transformers.PreTrainedModel) -> str:
    """What forward, its output and generate call the cache: `cache` from transformers 5.24 on."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def has_adapters(model: transformers.PreTrainedModel) -> bool:
    """Whether LoRA or other adapters are loaded, whether active or not."""
    return bool(getattr(model, "_hf_peft_config_loaded", False) or getattr(model, "peft_config", None))


def parameter_forms(model: transformers.PreTrainedModel) -> dict[str, str]:
    """Dtype and shape of each parameter, by its name as it is without adapters."""
    return {name.replace(".base_layer.", "."): f"{parameter.dtype} {tuple(parameter.shape)}"
            for name, parameter in model.named_parameters()}


@dataclasses.dataclass(frozen=True, slots=True)
class Identity:
    """name, revision and layout_fingerprint of the model's kvtier.ModelSpec."""

    name: str
    revision: str
    fingerprint: bytes


def identity(model: transformers.PreTrainedModel, name: str = "", revision: str = "") -> Identity:
    """Equal for two models only when their KV means the same.

    The weights are known by `revision`, else by the hub's commit, else by a digest of all their bytes
    (seconds for a large model). A revision or commit vouches for them: beside it only a sample of each
    tensor is looked at, at most some hundred elements, which tells a fine-tuned or merged model and may
    miss an edit of a few. Buffers count too, also those that are not saved (rotary frequencies, to the last
    bit). What else counts: class, config, transformers' version, and an attention implementation that is
    not known to be exact. Batch size, device, and eager or sdpa or flash attention do not: they change
    rounding, not meaning. Not seen: what was changed in the model's code, its hooks, or numbers that its
    modules took from the config when they were made (a scaling, an epsilon); name such a model otherwise.
    """
    commit = getattr(model.config, "_commit_hash", None) or ""
    if not name:
        name = (commit and model.config._name_or_path) or type(model).__name__
    if not revision:
        revision = commit or "weights-xxh3:" + weights_digest(model)
    config = {key: value for key, value in model.config.to_dict().items() if key not in _WITHOUT_EFFECT}
    attention = str(getattr(model.config, "_attn_implementation", "eager"))
    facts = {
        "format": FORMAT,
        "transformers": transformers.__version__,
        "class": type(model).__name__,
        "config": config,
        "attention": "exact" if attention in EXACT_ATTENTION else attention,
        "sample": weights_digest(model, sample=True),
    }
    canonical = json.dumps(facts, sort_keys=True, default=str).encode()
    return Identity(name, revision, hashlib.sha256(canonical).digest())


def weights_digest(model: transformers.PreTrainedModel, sample: bool = False) -> str:
    """XXH3-128, in hex, of the name, dtype, shape and bytes, or a few hundred elements, of every tensor:
    parameters and buffers, also those that are not saved with the model."""
    digest = xxhash.xxh3_128()
    tensors = {**model.state_dict(), **dict(model.named_buffers(remove_duplicate=False))}
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        flat = tensor.detach().reshape(-1)
        if sample:
            flat = flat[::max(1, flat.numel() // _SAMPLE_ELEMENTS)]
        digest.update(flat.contiguous().view(torch.uint8).cpu().numpy())
    return digest.hexdigest()
