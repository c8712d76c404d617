#!/usr/bin/env python3
"""Recomputes tests/common/testdata/keys.golden without any code of kvtier.

Needs the PyPI module xxhash. Usage: keys_check.py [GOLDEN_FILE]
Exit status 0 when every root and key is as the file says.
"""

import json
import pathlib
import struct
import sys

import xxhash

DEFAULT_FILE = pathlib.Path(__file__).parents[1] / "common" / "testdata" / "keys.golden"
KIND_TOKENS = 1
KIND_ENGINE_HASHES = 2


def field(data):
    return struct.pack("<I", len(data)) + data


def canonical_root(vector, kind, identity_bytes):
    out = b"kvtier-root-1"
    out += field(bytes.fromhex(vector["model"]))
    out += bytes([kind])
    out += struct.pack("<I", identity_bytes)
    for name in ("tenant", "salt", "adapter"):
        out += field(bytes.fromhex(vector[name]))
    return out


def token_identities(vector):
    size = vector["block_tokens"]
    first, step, count = vector["tokens"]
    tokens = [(first + i * step) % 2**32 for i in range(count)]
    for begin in range(0, count - size + 1, size):
        identity = struct.pack(f"<{size}I", *tokens[begin : begin + size])
        for start, length, digest in vector["media"]:
            if start < begin + size and begin < start + length:
                identity += struct.pack("<II", (start - begin) % 2**32, length)
                identity += field(bytes.fromhex(digest))
        yield identity


def compute(vector):
    if "hashes" in vector:
        identities = [bytes.fromhex(h) for h in vector["hashes"]]
        root = canonical_root(vector, KIND_ENGINE_HASHES, len(identities[0]))
    else:
        identities = list(token_identities(vector))
        root = canonical_root(vector, KIND_TOKENS, 4 * vector["block_tokens"])
    key = xxhash.xxh3_128_digest(root)
    root_hex = key.hex()
    keys = []
    for identity in identities:
        key = xxhash.xxh3_128_digest(key + identity)
        keys.append(key.hex())
    return root_hex, keys


def main():
    path = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_FILE
    vectors = wrong = keys = 0
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.startswith("#"):
            continue
        vector = json.loads(line)
        vectors += 1
        keys += len(vector["keys"])
        if compute(vector) != (vector["root"], vector["keys"]):
            wrong += 1
            print(f"{path}:{number}: other keys", file=sys.stderr)
    print(f"{vectors} vectors, {keys} keys, {wrong} wrong")
    return 0 if vectors > 0 and wrong == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
