"""A model's attention shape, and from it the bytes of a block and its parts, and the model's identity.

Pure functions of a ``ModelSpec``, and the same in C++ (common/model_spec.cc): the daemon's answers are
checked against them.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import Sequence

import xxhash

from kvtier.errors import InvalidArgument, bytes_of, check_bytes, check_range, check_type, utf8_of

_MAX_NAME_BYTES = 256
_MAX_FINGERPRINT_BYTES = 64
_MAX_BLOCK_TOKENS = 4096
_MAX_GROUPS = 64
_MAX_LAYERS = 1024
_MAX_DIMENSION = 65536
_MAX_RANKS = 1024
_MAX_PARTS = 4096
_MAX_STATE_BYTES = 1 << 40
_MAX_PART_BYTES = 64 << 20

_SPEC_TAG = b"kvtier-spec-1"  # the number is the encoding's version


class DType(enum.IntEnum):
    """Element type of the KV, by the numbers of kvtier.proto."""

    UNSPECIFIED = 0
    FP32 = 1
    BF16 = 2
    FP16 = 3
    FP8 = 4
    INT8 = 5

    @property
    def bytes_per_element(self) -> int:
        """0 for UNSPECIFIED."""
        return (0, 4, 2, 2, 1, 1)[self]


class PackOrder(enum.IntEnum):
    """Byte order inside one packed part; two engines that pack differently never share a block."""

    UNSPECIFIED = 0
    LAYER_KV_TOKEN_HEAD = 1  # [layer][K|V][token][kv head][dim]
    HEAD_FIRST = 2  # reserved
    OPAQUE = 3  # the engine's own; ModelSpec.layout_fingerprint is its whole description


class Tier(enum.IntEnum):
    """Where blocks lie. UNKNOWN is a tier that this package does not know yet."""

    UNKNOWN = 0
    GPU = 1
    RAM = 2
    SSD = 3


@dataclass(frozen=True, slots=True)
class GroupedAttention:
    """MHA (kv_heads = query heads), GQA, MQA (kv_heads = 1)."""

    kv_heads: int  # of the whole model, not of one rank
    head_dim: int  # elements of one key vector
    value_head_dim: int = 0  # elements of one value vector; 0 = head_dim


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """MLA: one latent per layer and token, without a factor 2 and without heads."""

    kv_lora_rank: int
    rope_head_dim: int = 0


@dataclass(frozen=True, slots=True)
class StateLayers:
    """Linear attention, state space: a fixed size per sequence."""

    state_bytes: int  # per layer and sequence, over all ranks


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """A run of layers that attend alike."""

    attention: GroupedAttention | LatentAttention | StateLayers
    layers: int
    window_tokens: int = 0  # sliding window; 0 = full attention


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What makes KV interchangeable, apart from the prompt. Two specs that differ in any field are two
    models.

    The shape is either given (``layer_groups`` and ``dtype``) or withheld (``explicit_part_bytes``, with a
    ``layout_fingerprint``) by an engine that moves whole opaque blocks.
    """

    name: str  # 1 to 256 bytes of UTF-8
    revision: str = ""  # of the weights: change it when they change; up to 256 bytes
    block_tokens: int = 16  # tokens per block, 1 to 4,096
    dtype: DType = DType.UNSPECIFIED  # required with layer_groups
    layer_groups: Sequence[LayerGroup] = ()  # at most 64, in layer order
    tensor_parallel: int = 1  # ranks that split the kv heads, at most 1,024
    pack_order: PackOrder = PackOrder.UNSPECIFIED
    layout_fingerprint: bytes = b""  # up to 64 bytes
    # Bytes of each part, group-major: part (group g, rank r) is element g * tensor_parallel + r. Each at most
    # 64 MiB.
    explicit_part_bytes: Sequence[int] = ()
    explicit_groups: int = 1

    def __post_init__(self) -> None:
        fingerprint = bytes_of("layout_fingerprint", self.layout_fingerprint)
        object.__setattr__(self, "layout_fingerprint", fingerprint)
        object.__setattr__(self, "layer_groups", tuple(self.layer_groups))
        object.__setattr__(self, "explicit_part_bytes", tuple(self.explicit_part_bytes))

    @property
    def groups(self) -> int:
        return self.explicit_groups if self.explicit_part_bytes else len(self.layer_groups)

    def validate(self) -> None:
        """Raises InvalidArgument naming field, value and limit."""
        check_bytes("name", len(utf8_of("name", self.name)), 1, _MAX_NAME_BYTES)
        check_bytes("revision", len(utf8_of("revision", self.revision)), 0, _MAX_NAME_BYTES)
        check_bytes("layout_fingerprint", len(self.layout_fingerprint), 0, _MAX_FINGERPRINT_BYTES)
        check_range("block_tokens", self.block_tokens, 1, _MAX_BLOCK_TOKENS)
        check_range("tensor_parallel", self.tensor_parallel, 1, _MAX_RANKS)
        check_type("dtype", self.dtype, DType)
        check_type("pack_order", self.pack_order, PackOrder)
        _check_shape(self)
        check_range(
            "parts (layer groups * tensor_parallel)", self.groups * self.tensor_parallel, 1, _MAX_PARTS
        )
        for i, size in enumerate(self.part_bytes()):
            check_range(f"part_bytes[{i}]", size, 1, _MAX_PART_BYTES)

    def part_bytes(self) -> tuple[int, ...]:
        """Bytes of each part, group-major. A part of a state group holds the state at the block's end."""
        if self.explicit_part_bytes:
            return tuple(self.explicit_part_bytes)
        return tuple(
            _rank_part_bytes(self, group) for group in self.layer_groups for _ in range(self.tensor_parallel)
        )

    def block_bytes(self) -> int:
        return sum(self.part_bytes())

    def canonical(self) -> bytes:
        """The length-prefixed encoding whose digest is the model's id; covers every field."""
        out = bytearray(_SPEC_TAG)
        _put_bytes(out, 1, self.name.encode())
        _put_bytes(out, 2, self.revision.encode())
        _put_number(out, 3, self.block_tokens)
        _put_number(out, 4, self.dtype)
        _put_number(out, 5, len(self.layer_groups))
        for group in self.layer_groups:
            _put_group(out, group)
        _put_number(out, 6, self.tensor_parallel)
        _put_number(out, 7, self.pack_order)
        _put_bytes(out, 8, self.layout_fingerprint)
        _put_number(out, 9, len(self.explicit_part_bytes))
        for size in self.explicit_part_bytes:
            _put_number(out, 1, size)
        _put_number(out, 10, self.explicit_groups)
        return bytes(out)

    def id(self) -> bytes:
        """16 bytes, as RegisterModel answers. Raises InvalidArgument as ``validate``."""
        self.validate()
        return xxhash.xxh3_128_digest(self.canonical())


@dataclass(frozen=True, slots=True)
class TierRoom:
    """What a tier holds of one model that has the tier for itself."""

    tier: Tier
    blocks: int
    tokens: int


@dataclass(frozen=True, slots=True)
class RegisteredModel:
    """What ``register_model`` tells."""

    id: bytes  # 16 bytes
    block_tokens: int
    layer_groups: int  # their number
    tensor_parallel: int
    part_bytes: tuple[int, ...]  # group-major: part (g, r) is element g * tensor_parallel + r
    block_bytes: int  # their sum
    tiers: tuple[TierRoom, ...]  # the tiers that are on


def tier_of(number: int) -> Tier:
    return Tier(number) if number in Tier._value2member_map_ else Tier.UNKNOWN


# Each field goes in as its number, then its value: integers in 8 bytes, strings after their length, lists
# after their count.
def _put_number(out: bytearray, field: int, value: int) -> None:
    out += struct.pack("<BQ", field, value)


def _put_bytes(out: bytearray, field: int, value: bytes) -> None:
    _put_number(out, field, len(value))
    out += value


def _put_group(out: bytearray, group: LayerGroup) -> None:
    attention = group.attention
    fields: tuple[tuple[int, int], ...]
    if isinstance(attention, GroupedAttention):
        fields = ((1, 0), (2, attention.kv_heads), (3, attention.head_dim), (4, attention.value_head_dim))
    elif isinstance(attention, LatentAttention):
        fields = ((1, 1), (5, attention.kv_lora_rank), (6, attention.rope_head_dim))
    else:
        fields = ((1, 2), (7, attention.state_bytes))
    for field, value in (*fields, (8, group.layers), (9, group.window_tokens)):
        _put_number(out, field, value)


def _rank_part_bytes(spec: ModelSpec, group: LayerGroup) -> int:
    attention = group.attention
    if isinstance(attention, StateLayers):
        return group.layers * (attention.state_bytes // spec.tensor_parallel)
    if isinstance(attention, GroupedAttention):
        # With more ranks than heads, several ranks hold the same head.
        heads = max(attention.kv_heads // spec.tensor_parallel, 1)
        elements = heads * (attention.head_dim + (attention.value_head_dim or attention.head_dim))
    else:
        elements = attention.kv_lora_rank + attention.rope_head_dim
    return group.layers * DType(spec.dtype).bytes_per_element * elements * spec.block_tokens


def _check_shape(spec: ModelSpec) -> None:
    if spec.layer_groups and spec.explicit_part_bytes:
        raise InvalidArgument(
            f"explicit_part_bytes has {len(spec.explicit_part_bytes)} elements, with layer_groups "
            "it must be empty"
        )
    if spec.layer_groups:
        _check_groups(spec)
    elif spec.explicit_part_bytes:
        _check_explicit(spec)
    else:
        raise InvalidArgument("layer_groups and explicit_part_bytes are both empty")


def _check_groups(spec: ModelSpec) -> None:
    check_range("layer_groups.size", len(spec.layer_groups), 1, _MAX_GROUPS)
    if spec.dtype == DType.UNSPECIFIED:
        raise InvalidArgument("dtype is unspecified, layer_groups need it")
    check_range("explicit_groups", spec.explicit_groups, 1, 1)
    for i, group in enumerate(spec.layer_groups):
        _check_group(f"layer_groups[{i}]", group, spec.tensor_parallel)


def _check_explicit(spec: ModelSpec) -> None:
    check_range("explicit_groups", spec.explicit_groups, 1, _MAX_GROUPS)
    expected = spec.explicit_groups * spec.tensor_parallel
    if len(spec.explicit_part_bytes) != expected:
        raise InvalidArgument(
            f"explicit_part_bytes has {len(spec.explicit_part_bytes)} elements, "
            f"explicit_groups * tensor_parallel is {expected}"
        )


def _check_group(field: str, group: LayerGroup, ranks: int) -> None:
    check_type(field, group, LayerGroup)
    check_range(f"{field}.layers", group.layers, 1, _MAX_LAYERS)
    check_range(f"{field}.window_tokens", group.window_tokens, 0, (1 << 32) - 1)
    attention = group.attention
    if isinstance(attention, GroupedAttention):
        _check_grouped(field, attention, ranks)
    elif isinstance(attention, LatentAttention):
        check_range(f"{field}.kv_lora_rank", attention.kv_lora_rank, 1, _MAX_DIMENSION)
        check_range(f"{field}.rope_head_dim", attention.rope_head_dim, 0, _MAX_DIMENSION)
    elif isinstance(attention, StateLayers):
        _check_state(field, attention, group.window_tokens, ranks)
    else:
        raise InvalidArgument(
            f"{field}.attention is a {type(attention).__name__}, one of GroupedAttention, "
            "LatentAttention, StateLayers is needed"
        )


def _check_grouped(field: str, attention: GroupedAttention, ranks: int) -> None:
    check_range(f"{field}.kv_heads", attention.kv_heads, 1, _MAX_DIMENSION)
    check_range(f"{field}.head_dim", attention.head_dim, 1, _MAX_DIMENSION)
    check_range(f"{field}.value_head_dim", attention.value_head_dim, 0, _MAX_DIMENSION)
    if attention.kv_heads % ranks and ranks % attention.kv_heads:
        raise InvalidArgument(
            f"{field}.kv_heads is {attention.kv_heads}, tensor_parallel is {ranks}: one must divide the other"
        )


def _check_state(field: str, attention: StateLayers, window_tokens: int, ranks: int) -> None:
    check_range(f"{field}.state_bytes", attention.state_bytes, 1, _MAX_STATE_BYTES)
    check_range(f"{field}.window_tokens", window_tokens, 0, 0)
    if attention.state_bytes % ranks:
        raise InvalidArgument(
            f"{field}.state_bytes is {attention.state_bytes}, not a multiple of tensor_parallel, {ranks}"
        )
