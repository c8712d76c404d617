"""The messages of kvtier.proto, to bytes and back.

Tokens and payload are joined into a request, and read out of a reply, by hand: protobuf would copy payload
once more, and packs a long list of tokens slowly. Everything around them goes through the generated messages:
encoded fields may stand in any order, so a message is its small fields, from protobuf, then its large one.
"""

from __future__ import annotations

import struct
from typing import Iterator, NamedTuple, TypeVar

from google.protobuf.message import DecodeError, Message

from kvtier.errors import Internal, InvalidArgument
from kvtier.leases import LeaseUse
from kvtier.model import (
    GroupedAttention,
    LatentAttention,
    LayerGroup,
    ModelSpec,
    RegisteredModel,
    TierRoom,
    tier_of,
)
from kvtier.prompt import Part, Prompt
from kvtier.v1 import kvtier_pb2 as pb

MAX_REQUEST_BYTES = 8 << 20  # as the daemon's
MESSAGE_PAYLOAD = 1 << 20
# More would be allowed; by then a message costs little beside its pieces.
MESSAGE_PIECES = 256

STATUS_OK, STATUS_MISS = 1, 2

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

M = TypeVar("M", bound=Message)


def varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _length_delimited(field: int, size: int) -> bytes:
    """The tag and length of a field of ``size`` bytes."""
    return bytes((field << 3 | _BYTES,)) + varint(size)


# ------------------------------------------------------------------------------------------------ requests


def encode_prompt(prompt: Prompt) -> bytes:
    """The message Prompt; kept with the prompt, as one prompt is looked up, fetched and stored."""
    if prompt._encoded is None:
        name = prompt.namespace
        head = pb.Prompt(
            model_id=prompt.model_id,
            engine_hashes=prompt.engine_hashes,
            namespace=pb.Namespace(tenant=name.tenant, salt=name.salt, adapter=name.adapter),
            media=[
                pb.MediaSpan(first_token=m.first_token, token_count=m.token_count, digest=m.digest)
                for m in prompt.media
            ],
        ).SerializeToString()
        tokens = prompt.token_bytes
        prompt._encoded = b"".join((head, _length_delimited(3, len(tokens)), tokens)) if tokens else head
    return prompt._encoded


def _with_prompt(fields: bytes, prompt: Prompt | None) -> bytes:
    if prompt is None:
        return fields
    body = encode_prompt(prompt)
    message = b"".join((fields, _length_delimited(1, len(body)), body))
    if len(message) > MAX_REQUEST_BYTES:
        raise InvalidArgument(
            f"prompt makes a message of {len(message)} bytes, the limit is {MAX_REQUEST_BYTES}"
        )
    return message


def lookup_request(
    prompt: Prompt,
    *,
    lease_ms: int = 0,
    promote_to: int = 0,
    before_store: bool = False,
    prefill_tokens_per_second: float = 0.0,
) -> bytes:
    fields = pb.LookupRequest(
        lease_ms=lease_ms,
        promote_to=promote_to,  # type: ignore[arg-type]
        before_store=before_store,
        prefill_tokens_per_second=prefill_tokens_per_second,
    )
    return _with_prompt(fields.SerializeToString(), prompt)


def fetch_request(
    prompt: Prompt | None, lease_id: int, first_block: int, last_block: int, part: Part, allow_gaps: bool
) -> bytes:
    fields = pb.FetchRequest(
        lease_id=lease_id,
        first_block=first_block,
        last_block=last_block,
        part=_part(part),
        allow_gaps=allow_gaps,
    )
    return _with_prompt(fields.SerializeToString(), prompt)


STORE_HEADER, STORE_SHARED_HEADER = 1, 2  # the header's field in StoreRequest, in StoreSharedRequest


def store_header(
    prompt: Prompt,
    first_block: int,
    block_count: int,
    part: Part,
    durable: bool,
    field: int = STORE_HEADER,
) -> bytes:
    """A Store's first message, or the header of a StoreSharedRequest."""
    durability = pb.DURABILITY_DURABLE if durable else pb.DURABILITY_ACCEPTED
    fields = pb.StoreHeader(
        first_block=first_block, block_count=block_count, part=_part(part), durability=durability
    )
    header = _with_prompt(fields.SerializeToString(), prompt)
    return _length_delimited(field, len(header)) + header


def piece_head(block: int, offset: int, part_bytes: int, checksum: int, payload_bytes: int) -> bytes:
    """What stands before a piece's payload in a StoreRequest."""
    fields = bytearray()
    for field, value in ((1, block), (3, offset), (4, part_bytes)):
        if value:
            fields.append(field << 3 | _VARINT)
            fields += varint(value)
    if checksum:
        fields.append(5 << 3 | _FIXED64)
        fields += struct.pack("<Q", checksum)
    fields += _length_delimited(15, payload_bytes)
    return _length_delimited(2, len(fields) + payload_bytes) + fields


def register_request(spec: ModelSpec) -> bytes:
    message = pb.ModelSpec(
        name=spec.name,
        revision=spec.revision,
        block_tokens=spec.block_tokens,
        dtype=int(spec.dtype),  # type: ignore[arg-type]
        layer_groups=[_layer_group(group) for group in spec.layer_groups],
        tensor_parallel=spec.tensor_parallel,
        pack_order=int(spec.pack_order),  # type: ignore[arg-type]
        layout_fingerprint=spec.layout_fingerprint,
        explicit_part_bytes=spec.explicit_part_bytes,
        explicit_groups=spec.explicit_groups,
    )
    return pb.RegisterModelRequest(spec=message).SerializeToString()


def release_request(lease_id: int, use: LeaseUse) -> bytes:
    return pb.ReleaseRequest(
        lease_id=lease_id,
        verified_blocks=use.verified_blocks,
        shared_bytes=use.shared_bytes,
        shared_seconds=use.shared_seconds,
    ).SerializeToString()


def renew_request(lease_id: int, lease_ms: int) -> bytes:
    return pb.RenewRequest(lease_id=lease_id, lease_ms=lease_ms).SerializeToString()


def _part(part: Part) -> pb.Part:
    return pb.Part(layer_group=part.layer_group, rank=part.rank)


def _layer_group(group: LayerGroup) -> pb.LayerGroup:
    out = pb.LayerGroup(layers=group.layers, window_tokens=group.window_tokens)
    attention = group.attention
    if isinstance(attention, GroupedAttention):
        out.grouped.kv_heads = attention.kv_heads
        out.grouped.head_dim = attention.head_dim
        out.grouped.value_head_dim = attention.value_head_dim
    elif isinstance(attention, LatentAttention):
        out.latent.kv_lora_rank = attention.kv_lora_rank
        out.latent.rope_head_dim = attention.rope_head_dim
    else:
        out.state.state_bytes = attention.state_bytes
    return out


# ------------------------------------------------------------------------------------------------- replies


def _parse(kind: type[M], reply: bytes, call: str) -> M:
    message = kind()
    try:
        message.ParseFromString(reply)
    except DecodeError as error:
        raise Internal(f"{call}: the reply of {len(reply)} bytes is not protobuf: {error}") from None
    return message


def decode_lookup(reply: bytes) -> pb.LookupResponse:
    return _parse(pb.LookupResponse, reply, "Lookup")


def decode_store(reply: bytes) -> pb.StoreResponse:
    return _parse(pb.StoreResponse, reply, "Store")


def decode_shared_memory_socket(reply: bytes) -> str:
    """Of a RegisterModelResponse; empty when none is offered."""
    return _parse(pb.RegisterModelResponse, reply, "RegisterModel").shared_memory_socket


def decode_model(reply: bytes, spec: ModelSpec) -> RegisteredModel:
    """Checks the daemon's answer against what the spec says here."""
    message = _parse(pb.RegisterModelResponse, reply, "RegisterModel")
    if message.model_id != spec.id():
        raise Internal(
            f"RegisterModel: the daemon's model_id for this spec is {message.model_id.hex()}, this package's "
            f"is {spec.id().hex()}"
        )
    if tuple(message.part_bytes) != spec.part_bytes():
        raise Internal(
            f"RegisterModel: the daemon's part_bytes are {list(message.part_bytes)}, this package's are "
            f"{list(spec.part_bytes())}"
        )
    tiers = tuple(TierRoom(tier_of(t.tier), t.blocks, t.tokens) for t in message.tiers)
    return RegisteredModel(
        message.model_id,
        spec.block_tokens,
        message.layer_groups,
        message.tensor_parallel,
        tuple(message.part_bytes),
        message.block_bytes,
        tiers,
    )


class Piece(NamedTuple):
    """A piece of a FetchResponse; its payload is [begin, end) of the message."""

    block: int
    status: int
    offset: int
    part_bytes: int
    checksum: int
    begin: int
    end: int


def decode_pieces(message: bytes) -> Iterator[Piece]:
    """The pieces of a FetchResponse, whose payload stays where it is. Raises Internal when it is
    malformed."""
    at, size = 0, len(message)
    try:
        while at < size:
            tag, at = _varint(message, at)
            if tag != 1 << 3 | _BYTES:
                at = _skip(message, at, tag)
                continue
            length, at = _varint(message, at)
            if at + length > size:
                raise IndexError
            yield _piece(message, at, at + length)
            at += length
        if at != size:
            raise IndexError
    except (IndexError, struct.error):
        raise Internal(f"Fetch: a reply of {size} bytes is malformed at byte {at}") from None


def _piece(message: bytes, at: int, end: int) -> Piece:
    values = [0] * 5
    payload_begin = payload_end = at
    while at < end:
        tag = message[at]
        at += 1
        field, kind = tag >> 3, tag & 7
        if tag >= 0x80:
            tag, at = _varint(message, at - 1)
            at = _skip(message, at, tag)
        elif kind == _VARINT and 1 <= field <= 4:
            values[field - 1], at = _varint(message, at)
        elif kind == _FIXED64 and field == 5:
            values[4] = int.from_bytes(message[at : at + 8], "little")
            at += 8
        elif kind == _BYTES and field == 15:
            length, payload_begin = _varint(message, at)
            at = payload_end = payload_begin + length
        else:
            at = _skip(message, at, tag)
    if at != end:
        raise IndexError
    block, status, offset, part_bytes, checksum = values
    return Piece(block, status, offset, part_bytes, checksum, payload_begin, payload_end)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    value, shift = byte & 0x7F, 7
    while shift < 70:
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
        shift += 7
    raise IndexError


def _skip(data: bytes, at: int, tag: int) -> int:
    """Past a field that this package does not know."""
    kind = tag & 7
    if tag >> 3 == 0:
        raise IndexError
    if kind == _VARINT:
        return _varint(data, at)[1]
    if kind == _BYTES:
        length, at = _varint(data, at)
        return at + length
    if kind in (_FIXED64, _FIXED32):
        return at + (8 if kind == _FIXED64 else 4)
    raise IndexError
