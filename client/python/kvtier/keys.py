"""From a prompt to the keys of its blocks, as the daemon computes them.

    root   = XXH3-128(canonical encoding of format version, model, prompt kind, namespace)
    key(i) = XXH3-128(key(i-1) || identity(i)),  key(-1) = root
    identity(i) = the block's tokens as u32 little endian, then its media; or the engine's hash

Keys are 16 bytes, most significant first. A client does not need them (the daemon hashes for itself): they
are for routers, caches in front and tests. tests/common/testdata/keys.golden pins them for C++ and Python
alike.
"""

from __future__ import annotations

import struct
from typing import Iterator, Sequence

import xxhash

from kvtier.prompt import MediaSpan, Namespace, Prompt

_ROOT_TAG = b"kvtier-root-1"  # the number is the key format's version
_TOKENS, _ENGINE_HASHES = 1, 2


def root_key(model_id: bytes, namespace: Namespace, *, block_tokens: int = 0, hash_bytes: int = 0) -> bytes:
    """The key before the first. Give ``block_tokens`` for prompts of tokens, ``hash_bytes`` (the length of
    one) for prompts of engine hashes."""
    kind, identity_bytes = (_TOKENS, 4 * block_tokens) if block_tokens else (_ENGINE_HASHES, hash_bytes)
    fields = (namespace.tenant.encode(), namespace.salt, namespace.adapter.encode())
    return xxhash.xxh3_128_digest(
        b"".join(
            (_ROOT_TAG, _field(model_id), struct.pack("<BI", kind, identity_bytes), *map(_field, fields))
        )
    )


def child_key(parent: bytes, identity: bytes) -> bytes:
    """key(i) from key(i-1) and identity(i)."""
    return xxhash.xxh3_128_digest(parent + identity)


class TokenKeys:
    """Keys of a token prompt that arrives bit by bit. Not thread-safe.

    keys = TokenKeys(model.id, model.block_tokens, namespace)
    keys.feed(prompt_token_bytes)  # a key for each block that is now complete
    keys.feed(more)
    """

    def __init__(
        self,
        model_id: bytes,
        block_tokens: int,
        namespace: Namespace = Namespace(),
        media: Sequence[MediaSpan] = (),
    ) -> None:
        self.blocks = 0  # keys given so far
        self._block_tokens = block_tokens
        self._media = list(media)
        self._rest = b""
        self._last = root_key(model_id, namespace, block_tokens=block_tokens)

    def feed(self, token_bytes: bytes) -> list[bytes]:
        """``token_bytes``: u32, little endian, as ``Prompt.token_bytes``."""
        data = self._rest + token_bytes
        size = 4 * self._block_tokens
        end = len(data) - len(data) % size
        self._rest = data[end:]
        keys = []
        for at in range(0, end, size):
            self._last = child_key(self._last, data[at : at + size] + self._media_of_block())
            self.blocks += 1
            keys.append(self._last)
        return keys

    def _media_of_block(self) -> bytes:
        if not self._media:
            return b""
        begin = self.blocks * self._block_tokens
        end = begin + self._block_tokens
        while self._media and self._media[0].first_token + self._media[0].token_count <= begin:
            self._media.pop(0)
        # A span's place is relative to the block's, so that one image at another offset is another identity.
        return b"".join(
            struct.pack("<iI", span.first_token - begin, span.token_count) + _field(span.digest)
            for span in self._media
            if span.first_token < end
        )


def iter_keys(prompt: Prompt, block_tokens: int) -> Iterator[bytes]:
    """The prompt's block keys, each computed when it is asked for."""
    if prompt.engine_hashes:
        key = root_key(prompt.model_id, prompt.namespace, hash_bytes=len(prompt.engine_hashes[0]))
        for identity in prompt.engine_hashes:
            key = child_key(key, identity)
            yield key
        return
    keys = TokenKeys(prompt.model_id, block_tokens, prompt.namespace, prompt.media)
    size = 4 * block_tokens
    for at in range(0, len(prompt.token_bytes) - size + 1, size):
        yield from keys.feed(prompt.token_bytes[at : at + size])


def block_keys(prompt: Prompt, block_tokens: int) -> list[bytes]:
    """The keys of all full blocks of a prompt."""
    return list(iter_keys(prompt, block_tokens))


def _field(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data
