from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

BLOCK_STATUS_MISS: BlockStatus
BLOCK_STATUS_NOT_SHARED: BlockStatus
BLOCK_STATUS_OK: BlockStatus
BLOCK_STATUS_UNSPECIFIED: BlockStatus
DESCRIPTOR: _descriptor.FileDescriptor
DTYPE_BF16: DType
DTYPE_FP16: DType
DTYPE_FP32: DType
DTYPE_FP8: DType
DTYPE_INT8: DType
DTYPE_UNSPECIFIED: DType
DURABILITY_ACCEPTED: Durability
DURABILITY_DURABLE: Durability
DURABILITY_UNSPECIFIED: Durability
PACK_ORDER_HEAD_FIRST: PackOrder
PACK_ORDER_LAYER_KV_TOKEN_HEAD: PackOrder
PACK_ORDER_OPAQUE: PackOrder
PACK_ORDER_UNSPECIFIED: PackOrder
REJECT_REASON_CHECKSUM: RejectReason
REJECT_REASON_COLLISION: RejectReason
REJECT_REASON_NOT_SENT: RejectReason
REJECT_REASON_NO_PARENT: RejectReason
REJECT_REASON_NO_SPACE: RejectReason
REJECT_REASON_RESET: RejectReason
REJECT_REASON_UNSPECIFIED: RejectReason
STORE_STATUS_ALREADY_PRESENT: StoreStatus
STORE_STATUS_REJECTED: StoreStatus
STORE_STATUS_STORED: StoreStatus
STORE_STATUS_UNSPECIFIED: StoreStatus
TIER_GPU: Tier
TIER_RAM: Tier
TIER_SSD: Tier
TIER_UNSPECIFIED: Tier

class BlockOutcome(_message.Message):
    __slots__ = ["reason", "status"]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    reason: RejectReason
    status: StoreStatus
    def __init__(self, status: _Optional[_Union[StoreStatus, str]] = ..., reason: _Optional[_Union[RejectReason, str]] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ["allow_gaps", "first_block", "last_block", "lease_id", "part", "prompt"]
    ALLOW_GAPS_FIELD_NUMBER: _ClassVar[int]
    FIRST_BLOCK_FIELD_NUMBER: _ClassVar[int]
    LAST_BLOCK_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    allow_gaps: bool
    first_block: int
    last_block: int
    lease_id: int
    part: Part
    prompt: Prompt
    def __init__(self, prompt: _Optional[_Union[Prompt, _Mapping]] = ..., lease_id: _Optional[int] = ..., first_block: _Optional[int] = ..., last_block: _Optional[int] = ..., part: _Optional[_Union[Part, _Mapping]] = ..., allow_gaps: bool = ...) -> None: ...

class FetchResponse(_message.Message):
    __slots__ = ["pieces"]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    pieces: _containers.RepeatedCompositeFieldContainer[Piece]
    def __init__(self, pieces: _Optional[_Iterable[_Union[Piece, _Mapping]]] = ...) -> None: ...

class FetchSharedRequest(_message.Message):
    __slots__ = ["allow_gaps", "first_block", "last_block", "lease_id", "part", "session_id"]
    ALLOW_GAPS_FIELD_NUMBER: _ClassVar[int]
    FIRST_BLOCK_FIELD_NUMBER: _ClassVar[int]
    LAST_BLOCK_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    allow_gaps: bool
    first_block: int
    last_block: int
    lease_id: int
    part: Part
    session_id: bytes
    def __init__(self, session_id: _Optional[bytes] = ..., lease_id: _Optional[int] = ..., first_block: _Optional[int] = ..., last_block: _Optional[int] = ..., part: _Optional[_Union[Part, _Mapping]] = ..., allow_gaps: bool = ...) -> None: ...

class FetchSharedResponse(_message.Message):
    __slots__ = ["blocks"]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    blocks: _containers.RepeatedCompositeFieldContainer[SharedBlock]
    def __init__(self, blocks: _Optional[_Iterable[_Union[SharedBlock, _Mapping]]] = ...) -> None: ...

class GroupedAttention(_message.Message):
    __slots__ = ["head_dim", "kv_heads", "value_head_dim"]
    HEAD_DIM_FIELD_NUMBER: _ClassVar[int]
    KV_HEADS_FIELD_NUMBER: _ClassVar[int]
    VALUE_HEAD_DIM_FIELD_NUMBER: _ClassVar[int]
    head_dim: int
    kv_heads: int
    value_head_dim: int
    def __init__(self, kv_heads: _Optional[int] = ..., head_dim: _Optional[int] = ..., value_head_dim: _Optional[int] = ...) -> None: ...

class LatentAttention(_message.Message):
    __slots__ = ["kv_lora_rank", "rope_head_dim"]
    KV_LORA_RANK_FIELD_NUMBER: _ClassVar[int]
    ROPE_HEAD_DIM_FIELD_NUMBER: _ClassVar[int]
    kv_lora_rank: int
    rope_head_dim: int
    def __init__(self, kv_lora_rank: _Optional[int] = ..., rope_head_dim: _Optional[int] = ...) -> None: ...

class LayerGroup(_message.Message):
    __slots__ = ["grouped", "latent", "layers", "state", "window_tokens"]
    GROUPED_FIELD_NUMBER: _ClassVar[int]
    LATENT_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    WINDOW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    grouped: GroupedAttention
    latent: LatentAttention
    layers: int
    state: StateLayers
    window_tokens: int
    def __init__(self, grouped: _Optional[_Union[GroupedAttention, _Mapping]] = ..., latent: _Optional[_Union[LatentAttention, _Mapping]] = ..., state: _Optional[_Union[StateLayers, _Mapping]] = ..., layers: _Optional[int] = ..., window_tokens: _Optional[int] = ...) -> None: ...

class LookupRequest(_message.Message):
    __slots__ = ["before_store", "lease_ms", "prefill_tokens_per_second", "promote_to", "prompt"]
    BEFORE_STORE_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    PROMOTE_TO_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    before_store: bool
    lease_ms: int
    prefill_tokens_per_second: float
    promote_to: Tier
    prompt: Prompt
    def __init__(self, prompt: _Optional[_Union[Prompt, _Mapping]] = ..., lease_ms: _Optional[int] = ..., promote_to: _Optional[_Union[Tier, str]] = ..., before_store: bool = ..., prefill_tokens_per_second: _Optional[float] = ...) -> None: ...

class LookupResponse(_message.Message):
    __slots__ = ["blocks", "group_blocks", "lease_id", "runs", "tokens"]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    GROUP_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    blocks: int
    group_blocks: _containers.RepeatedScalarFieldContainer[int]
    lease_id: int
    runs: _containers.RepeatedCompositeFieldContainer[TierRun]
    tokens: int
    def __init__(self, blocks: _Optional[int] = ..., tokens: _Optional[int] = ..., runs: _Optional[_Iterable[_Union[TierRun, _Mapping]]] = ..., lease_id: _Optional[int] = ..., group_blocks: _Optional[_Iterable[int]] = ...) -> None: ...

class MediaSpan(_message.Message):
    __slots__ = ["digest", "first_token", "token_count"]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    first_token: int
    token_count: int
    def __init__(self, first_token: _Optional[int] = ..., token_count: _Optional[int] = ..., digest: _Optional[bytes] = ...) -> None: ...

class ModelSpec(_message.Message):
    __slots__ = ["block_tokens", "dtype", "explicit_groups", "explicit_part_bytes", "layer_groups", "layout_fingerprint", "name", "pack_order", "revision", "tensor_parallel"]
    BLOCK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    EXPLICIT_GROUPS_FIELD_NUMBER: _ClassVar[int]
    EXPLICIT_PART_BYTES_FIELD_NUMBER: _ClassVar[int]
    LAYER_GROUPS_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PACK_ORDER_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    TENSOR_PARALLEL_FIELD_NUMBER: _ClassVar[int]
    block_tokens: int
    dtype: DType
    explicit_groups: int
    explicit_part_bytes: _containers.RepeatedScalarFieldContainer[int]
    layer_groups: _containers.RepeatedCompositeFieldContainer[LayerGroup]
    layout_fingerprint: bytes
    name: str
    pack_order: PackOrder
    revision: str
    tensor_parallel: int
    def __init__(self, name: _Optional[str] = ..., revision: _Optional[str] = ..., block_tokens: _Optional[int] = ..., dtype: _Optional[_Union[DType, str]] = ..., layer_groups: _Optional[_Iterable[_Union[LayerGroup, _Mapping]]] = ..., tensor_parallel: _Optional[int] = ..., pack_order: _Optional[_Union[PackOrder, str]] = ..., layout_fingerprint: _Optional[bytes] = ..., explicit_part_bytes: _Optional[_Iterable[int]] = ..., explicit_groups: _Optional[int] = ...) -> None: ...

class Namespace(_message.Message):
    __slots__ = ["adapter", "salt", "tenant"]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    SALT_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    adapter: str
    salt: bytes
    tenant: str
    def __init__(self, tenant: _Optional[str] = ..., salt: _Optional[bytes] = ..., adapter: _Optional[str] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ["layer_group", "rank"]
    LAYER_GROUP_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    layer_group: int
    rank: int
    def __init__(self, layer_group: _Optional[int] = ..., rank: _Optional[int] = ...) -> None: ...

class Piece(_message.Message):
    __slots__ = ["block", "checksum", "offset", "part_bytes", "payload", "status"]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    PART_BYTES_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    block: int
    checksum: int
    offset: int
    part_bytes: int
    payload: bytes
    status: BlockStatus
    def __init__(self, block: _Optional[int] = ..., status: _Optional[_Union[BlockStatus, str]] = ..., offset: _Optional[int] = ..., part_bytes: _Optional[int] = ..., checksum: _Optional[int] = ..., payload: _Optional[bytes] = ...) -> None: ...

class Prompt(_message.Message):
    __slots__ = ["engine_hashes", "media", "model_id", "namespace", "tokens"]
    ENGINE_HASHES_FIELD_NUMBER: _ClassVar[int]
    MEDIA_FIELD_NUMBER: _ClassVar[int]
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    engine_hashes: _containers.RepeatedScalarFieldContainer[bytes]
    media: _containers.RepeatedCompositeFieldContainer[MediaSpan]
    model_id: bytes
    namespace: Namespace
    tokens: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, model_id: _Optional[bytes] = ..., namespace: _Optional[_Union[Namespace, _Mapping]] = ..., tokens: _Optional[_Iterable[int]] = ..., engine_hashes: _Optional[_Iterable[bytes]] = ..., media: _Optional[_Iterable[_Union[MediaSpan, _Mapping]]] = ...) -> None: ...

class RegisterModelRequest(_message.Message):
    __slots__ = ["spec"]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    spec: ModelSpec
    def __init__(self, spec: _Optional[_Union[ModelSpec, _Mapping]] = ...) -> None: ...

class RegisterModelResponse(_message.Message):
    __slots__ = ["block_bytes", "layer_groups", "model_id", "part_bytes", "shared_memory_socket", "tensor_parallel", "tiers"]
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    LAYER_GROUPS_FIELD_NUMBER: _ClassVar[int]
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    PART_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHARED_MEMORY_SOCKET_FIELD_NUMBER: _ClassVar[int]
    TENSOR_PARALLEL_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    block_bytes: int
    layer_groups: int
    model_id: bytes
    part_bytes: _containers.RepeatedScalarFieldContainer[int]
    shared_memory_socket: str
    tensor_parallel: int
    tiers: _containers.RepeatedCompositeFieldContainer[TierCapacity]
    def __init__(self, model_id: _Optional[bytes] = ..., part_bytes: _Optional[_Iterable[int]] = ..., block_bytes: _Optional[int] = ..., layer_groups: _Optional[int] = ..., tensor_parallel: _Optional[int] = ..., tiers: _Optional[_Iterable[_Union[TierCapacity, _Mapping]]] = ..., shared_memory_socket: _Optional[str] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ["lease_id", "shared_bytes", "shared_seconds", "verified_blocks"]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    SHARED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHARED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    VERIFIED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    lease_id: int
    shared_bytes: int
    shared_seconds: float
    verified_blocks: int
    def __init__(self, lease_id: _Optional[int] = ..., verified_blocks: _Optional[int] = ..., shared_bytes: _Optional[int] = ..., shared_seconds: _Optional[float] = ...) -> None: ...

class ReleaseResponse(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ["lease_id", "lease_ms"]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    lease_id: int
    lease_ms: int
    def __init__(self, lease_id: _Optional[int] = ..., lease_ms: _Optional[int] = ...) -> None: ...

class RenewResponse(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class SharedBlock(_message.Message):
    __slots__ = ["block", "bytes", "checksum", "offset", "region", "status"]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    block: int
    bytes: int
    checksum: int
    offset: int
    region: int
    status: BlockStatus
    def __init__(self, block: _Optional[int] = ..., status: _Optional[_Union[BlockStatus, str]] = ..., checksum: _Optional[int] = ..., region: _Optional[int] = ..., offset: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class SharedMemoryMessage(_message.Message):
    __slots__ = ["region", "retired", "welcome"]
    REGION_FIELD_NUMBER: _ClassVar[int]
    RETIRED_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    region: SharedRegion
    retired: SharedRetired
    welcome: SharedWelcome
    def __init__(self, welcome: _Optional[_Union[SharedWelcome, _Mapping]] = ..., region: _Optional[_Union[SharedRegion, _Mapping]] = ..., retired: _Optional[_Union[SharedRetired, _Mapping]] = ...) -> None: ...

class SharedMemoryRequest(_message.Message):
    __slots__ = ["open_region", "released"]
    OPEN_REGION_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    open_region: int
    released: SharedRetired
    def __init__(self, open_region: _Optional[int] = ..., released: _Optional[_Union[SharedRetired, _Mapping]] = ...) -> None: ...

class SharedRegion(_message.Message):
    __slots__ = ["bytes", "region"]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    region: int
    def __init__(self, region: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class SharedRetired(_message.Message):
    __slots__ = ["regions"]
    REGIONS_FIELD_NUMBER: _ClassVar[int]
    regions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, regions: _Optional[_Iterable[int]] = ...) -> None: ...

class SharedWelcome(_message.Message):
    __slots__ = ["session_id", "store_region_bytes"]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    STORE_REGION_BYTES_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    store_region_bytes: int
    def __init__(self, session_id: _Optional[bytes] = ..., store_region_bytes: _Optional[int] = ...) -> None: ...

class StateLayers(_message.Message):
    __slots__ = ["state_bytes"]
    STATE_BYTES_FIELD_NUMBER: _ClassVar[int]
    state_bytes: int
    def __init__(self, state_bytes: _Optional[int] = ...) -> None: ...

class StoreHeader(_message.Message):
    __slots__ = ["block_count", "durability", "first_block", "part", "prompt"]
    BLOCK_COUNT_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    FIRST_BLOCK_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    block_count: int
    durability: Durability
    first_block: int
    part: Part
    prompt: Prompt
    def __init__(self, prompt: _Optional[_Union[Prompt, _Mapping]] = ..., first_block: _Optional[int] = ..., block_count: _Optional[int] = ..., part: _Optional[_Union[Part, _Mapping]] = ..., durability: _Optional[_Union[Durability, str]] = ...) -> None: ...

class StoreRequest(_message.Message):
    __slots__ = ["header", "pieces"]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    header: StoreHeader
    pieces: _containers.RepeatedCompositeFieldContainer[Piece]
    def __init__(self, header: _Optional[_Union[StoreHeader, _Mapping]] = ..., pieces: _Optional[_Iterable[_Union[Piece, _Mapping]]] = ...) -> None: ...

class StoreResponse(_message.Message):
    __slots__ = ["checksum_mismatches", "outcomes"]
    CHECKSUM_MISMATCHES_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    checksum_mismatches: int
    outcomes: _containers.RepeatedCompositeFieldContainer[BlockOutcome]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[BlockOutcome, _Mapping]]] = ..., checksum_mismatches: _Optional[int] = ...) -> None: ...

class StoreSharedRequest(_message.Message):
    __slots__ = ["header", "session_id", "unverified"]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    UNVERIFIED_FIELD_NUMBER: _ClassVar[int]
    header: StoreHeader
    session_id: bytes
    unverified: bool
    def __init__(self, session_id: _Optional[bytes] = ..., header: _Optional[_Union[StoreHeader, _Mapping]] = ..., unverified: bool = ...) -> None: ...

class TierCapacity(_message.Message):
    __slots__ = ["blocks", "tier", "tokens"]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    blocks: int
    tier: Tier
    tokens: int
    def __init__(self, tier: _Optional[_Union[Tier, str]] = ..., blocks: _Optional[int] = ..., tokens: _Optional[int] = ...) -> None: ...

class TierRun(_message.Message):
    __slots__ = ["blocks", "load_seconds", "tier"]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    LOAD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    blocks: int
    load_seconds: float
    tier: Tier
    def __init__(self, tier: _Optional[_Union[Tier, str]] = ..., blocks: _Optional[int] = ..., load_seconds: _Optional[float] = ...) -> None: ...

class DType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class PackOrder(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class Tier(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class BlockStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class Durability(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class StoreStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class RejectReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []
