"""A prompt, from its first token, and what keeps prompts apart."""

from __future__ import annotations

import array
import sys
from dataclasses import dataclass
from typing import Any, Iterable, Sequence

from kvtier.errors import InvalidArgument, bytes_of, check_bytes, check_range, check_type, utf8_of
from kvtier.model import RegisteredModel

_U32 = (1 << 32) - 1
_MODEL_ID_BYTES = 16
# The array type of 4 bytes: "I" on every platform that CPython runs on today.
_U32_TYPE = next(code for code in "IL" if array.array(code).itemsize == 4)


@dataclass(frozen=True, slots=True)
class Namespace:
    """Everything that keeps blocks apart besides model and prompt. Nothing crosses a namespace."""

    tenant: str = ""  # up to 128 bytes of UTF-8
    salt: bytes = b""  # secret, up to 128 bytes; the daemon neither stores nor logs it in clear
    adapter: str = ""  # LoRA or other adapter and its revision; up to 256 bytes of UTF-8

    def __post_init__(self) -> None:
        object.__setattr__(self, "salt", bytes_of("namespace.salt", self.salt))
        check_bytes("namespace.tenant", len(utf8_of("namespace.tenant", self.tenant)), 0, 128)
        check_bytes("namespace.salt", len(self.salt), 0, 128)
        check_bytes("namespace.adapter", len(utf8_of("namespace.adapter", self.adapter)), 0, 256)

    def __repr__(self) -> str:  # without the secret
        return f"Namespace(tenant={self.tenant!r}, salt=<{len(self.salt)} bytes>, adapter={self.adapter!r})"


@dataclass(frozen=True, slots=True)
class MediaSpan:
    """A span of tokens that stand for something else (an image, audio): equal placeholder tokens, other
    content. The digest enters the identity of every block that the span touches, with the span's place."""

    first_token: int
    token_count: int  # at least 1; the span must end within the prompt
    digest: bytes  # 16 to 64 bytes

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", bytes_of("media.digest", self.digest))


@dataclass(frozen=True, slots=True)
class Part:
    """The piece of a block that one layer group and one tensor-parallel rank own."""

    layer_group: int = 0
    rank: int = 0

    def __post_init__(self) -> None:
        check_range("part.layer_group", self.layer_group, 0, _U32)
        check_range("part.rank", self.rank, 0, _U32)


class Prompt:
    """A prompt of a registered model, from its first token: either ``tokens`` or ``engine_hashes``.

    tokens         a sequence of ints from 0 to 2^32 - 1, or a buffer of 4-byte integers (numpy, array.array),
                   which is much quicker to take. A partial last block is ignored.
    engine_hashes  the engine's own chained block hashes, one per full block, all of one length from 8 to 64
                   bytes. The engine vouches that a hash covers its block and everything before it.
    media          spans whose tokens are placeholders; ascending, not overlapping; only with tokens.

    Immutable: it holds a copy of what it was made of, and may be used for any number of calls, from any
    thread. Raises InvalidArgument naming field, value and limit.
    """

    __slots__ = ("model_id", "namespace", "media", "token_bytes", "engine_hashes", "_encoded")

    def __init__(
        self,
        model_id: bytes,
        tokens: Sequence[int] | Any | None = None,
        *,
        engine_hashes: Iterable[bytes] | None = None,
        namespace: Namespace = Namespace(),
        media: Sequence[MediaSpan] = (),
    ) -> None:
        if isinstance(model_id, RegisteredModel):
            raise InvalidArgument("model_id is a RegisteredModel, it must be bytes: its id")
        self.model_id = bytes_of("model_id", model_id)
        if len(self.model_id) != _MODEL_ID_BYTES:
            raise InvalidArgument(f"model_id has {len(self.model_id)} bytes, it must have {_MODEL_ID_BYTES}")
        check_type("namespace", namespace, Namespace)
        self.namespace = namespace
        self.media = tuple(media)
        self.token_bytes = b"" if tokens is None else _token_bytes(tokens)  # u32, little endian
        self.engine_hashes = () if engine_hashes is None else _hashes_of(engine_hashes)
        self._encoded: bytes | None = None  # by wire.encode_prompt
        if bool(self.token_bytes) == bool(self.engine_hashes):
            raise InvalidArgument(
                f"prompt has {self.token_count} tokens and {len(self.engine_hashes)} engine_hashes, "
                "it must have one of the two"
            )
        _check_hashes(self.engine_hashes)
        _check_media(self.media, self.token_count)

    @property
    def token_count(self) -> int:
        """0 for a prompt of engine hashes."""
        return len(self.token_bytes) // 4

    def block_count(self, block_tokens: int) -> int:
        """Full blocks in the prompt."""
        return len(self.engine_hashes) or self.token_count // block_tokens

    def __repr__(self) -> str:
        what = f"{len(self.engine_hashes)} hashes" if self.engine_hashes else f"{self.token_count} tokens"
        return f"Prompt(model {self.model_id.hex()}, {what}, {self.namespace!r}, {len(self.media)} media)"


def _token_bytes(tokens: Any) -> bytes:
    try:
        view = memoryview(tokens)
    except TypeError:
        return _pack(tokens)
    if view.ndim != 1:
        raise InvalidArgument(f"tokens has {view.ndim} dimensions, it must have 1")
    code = view.format.lstrip("@=<")
    if view.itemsize == 8 and code in "lLqQ":
        return _pack(view.tolist())
    if view.itemsize != 4 or code not in "iIlL":
        raise InvalidArgument(
            f"tokens is a buffer of items of {view.itemsize} bytes and format '{view.format}', it must "
            "be of 4-byte integers"
        )
    packed = view.tobytes()
    if code in "il" and not packed[3::4].isascii():  # a sign bit is set
        raise InvalidArgument(f"tokens has {min(view.tolist())}, the limits are 0 and {_U32}")
    return packed if sys.byteorder == "little" else _swapped(packed)


def _pack(tokens: Sequence[int]) -> bytes:
    try:
        packed = array.array(_U32_TYPE, tokens)
    except (OverflowError, TypeError, ValueError) as error:
        raise InvalidArgument(_what_is_wrong(tokens) or f"tokens is no sequence of ints: {error}") from None
    if sys.byteorder != "little":
        packed.byteswap()
    return packed.tobytes()


def _what_is_wrong(tokens: Sequence[Any]) -> str | None:
    for i, token in enumerate(tokens if isinstance(tokens, Iterable) else ()):
        if not isinstance(token, int):
            return f"tokens[{i}] is a {type(token).__name__}, it must be an int"
        if not 0 <= token <= _U32:
            return f"tokens[{i}] is {token}, the limits are 0 and {_U32}"
    return None


def _swapped(packed: bytes) -> bytes:
    items = array.array(_U32_TYPE, packed)
    items.byteswap()
    return items.tobytes()


def _hashes_of(hashes: Iterable[bytes]) -> tuple[bytes, ...]:
    if isinstance(hashes, (str, bytes)):
        raise InvalidArgument(f"engine_hashes is a {type(hashes).__name__}, it must be a sequence of bytes")
    return tuple(bytes_of(f"engine_hashes[{i}]", block_hash) for i, block_hash in enumerate(hashes))


def _check_hashes(hashes: tuple[bytes, ...]) -> None:
    length = len(hashes[0]) if hashes else 8
    if not 8 <= length <= 64 or any(len(h) != length for h in hashes):
        i = next((i for i, h in enumerate(hashes) if len(h) != length), 0)
        raise InvalidArgument(
            f"engine_hashes[{i}] has {len(hashes[i])} bytes, the first has {length}, the limits are 8 and 64"
        )


def _check_media(media: tuple[MediaSpan, ...], tokens: int) -> None:
    end = 0
    for i, span in enumerate(media):
        check_type(f"media[{i}]", span, MediaSpan)
        check_bytes(f"media[{i}].digest", len(span.digest), 16, 64)
        check_range(f"media[{i}].first_token", span.first_token, 0, _U32)
        check_range(f"media[{i}].token_count", span.token_count, 1, _U32)
        if span.first_token < end:
            raise InvalidArgument(
                f"media[{i}].first_token is {span.first_token}, before the end of the span before it, {end}"
            )
        end = span.first_token + span.token_count
        if end > tokens:
            raise InvalidArgument(f"media[{i}] ends at token {end}, the prompt has {tokens}")
