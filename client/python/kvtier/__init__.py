"""kvtier's client for Python: looks up, fetches and stores the KV of prompt prefixes.

Rule above all: a block that is reported ok has, in the caller's memory, the exact bytes that were stored
under that identity, and their checksum was verified here. Everything else is a miss.

``Client`` blocks, ``AsyncClient`` is for asyncio. Words, limits and the wire: kvtier.proto.
"""

from kvtier.aio import AsyncClient, AsyncLease, AsyncPrefixMatch
from kvtier.breaker import BreakerOptions
from kvtier.client import Client, Lease, PrefixMatch
from kvtier.errors import (
    Code,
    DeadlineExceeded,
    Error,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unavailable,
)
from kvtier.keys import block_keys
from kvtier.model import (
    DType,
    GroupedAttention,
    LatentAttention,
    LayerGroup,
    ModelSpec,
    PackOrder,
    RegisteredModel,
    StateLayers,
    Tier,
    TierRoom,
)
from kvtier.prompt import MediaSpan, Namespace, Part, Prompt
from kvtier.protocol import ClientOptions
from kvtier.results import Done, FetchReport, StoredBlock, StoreRefusal, StoreReport, StoreVerdict, TierSpan
from kvtier.shared_session import RegionListener
from kvtier.shared_transfer import SharedViews
from kvtier.transfer import Counters

__version__ = "0.1.0"

__all__ = [
    "AsyncClient",
    "AsyncLease",
    "AsyncPrefixMatch",
    "BreakerOptions",
    "Client",
    "ClientOptions",
    "Code",
    "Counters",
    "DType",
    "DeadlineExceeded",
    "Done",
    "Error",
    "FailedPrecondition",
    "FetchReport",
    "GroupedAttention",
    "Internal",
    "InvalidArgument",
    "LatentAttention",
    "LayerGroup",
    "Lease",
    "MediaSpan",
    "ModelSpec",
    "Namespace",
    "NotFound",
    "PackOrder",
    "Part",
    "PrefixMatch",
    "Prompt",
    "RegionListener",
    "RegisteredModel",
    "ResourceExhausted",
    "SharedViews",
    "StateLayers",
    "StoreRefusal",
    "StoreReport",
    "StoreVerdict",
    "StoredBlock",
    "Tier",
    "TierRoom",
    "TierSpan",
    "Unavailable",
    "block_keys",
]
