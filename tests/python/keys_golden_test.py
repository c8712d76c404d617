"""The package's keys are those of C++: tests/common/testdata/keys.golden pins both. keys.py is another
implementation than common/prompt.cc, so each also checks the other.

With a file as argument: prints a digest of all keys that the package computes for it."""

import hashlib
import json
import os
import pathlib
import random
import subprocess
import sys
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = SOURCE / "tests/common/testdata/keys.golden"
if not os.environ.get("KVTIER_INSTALLED"):
    sys.path.insert(0, str(SOURCE / "client/python"))

try:
    from kvtier import keys, prompt as prompts
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)


def vectors():
    lines = [line for line in GOLDEN.read_text().splitlines() if not line.startswith("#")]
    return [json.loads(line) for line in lines]


def tokens_of(vector):
    first, step, count = vector["tokens"]
    return [(first + i * step) % 2**32 for i in range(count)]


def namespace_of(vector):
    # Golden namespaces are random bytes; text of this API is UTF-8, so they go in below its checks.
    name = prompts.Namespace(salt=bytes.fromhex(vector["salt"]))
    object.__setattr__(name, "tenant", _Raw(vector["tenant"]))
    object.__setattr__(name, "adapter", _Raw(vector["adapter"]))
    return name


class _Raw(str):
    def encode(self, *unused):
        return bytes.fromhex(self)


def prompt_of(vector):
    model, namespace = bytes.fromhex(vector["model"]), namespace_of(vector)
    if "hashes" in vector:
        return prompts.Prompt(model, engine_hashes=map(bytes.fromhex, vector["hashes"]), namespace=namespace)
    media = [
        prompts.MediaSpan(first, count, bytes.fromhex(digest)) for first, count, digest in vector["media"]
    ]
    return prompts.Prompt(model, tokens_of(vector), namespace=namespace, media=media)


def root_of(vector):
    sizes = (
        {"hash_bytes": len(vector["hashes"][0]) // 2}
        if "hashes" in vector
        else {"block_tokens": vector["block_tokens"]}
    )
    return keys.root_key(bytes.fromhex(vector["model"]), namespace_of(vector), **sizes).hex()


def keys_of(vector):
    return [key.hex() for key in keys.block_keys(prompt_of(vector), vector.get("block_tokens", 0))]


class KeysGoldenTest(unittest.TestCase):
    def test_every_vector_comes_out_again(self):
        golden = vectors()
        self.assertEqual(len(golden), 1000)
        for vector in golden:
            self.assertEqual((root_of(vector), keys_of(vector)), (vector["root"], vector["keys"]))

    def test_the_hash_seed_of_python_does_not_matter(self):
        digests = set()
        for seed in ("0", "1", "4242", "random"):
            done = subprocess.run(
                [sys.executable, __file__, str(GOLDEN)],
                capture_output=True,
                text=True,
                check=True,
                env={**os.environ, "PYTHONHASHSEED": seed},
            )
            digests.add(done.stdout)
        expected = hashlib.sha256("".join(key for v in vectors() for key in v["keys"]).encode()).hexdigest()
        self.assertEqual(digests, {expected + "\n"})

    def test_keys_that_stream_are_the_same(self):
        seed = random.randrange(1 << 32)
        print(f"seed {seed}")
        rng = random.Random(seed)
        for vector in rng.sample([v for v in vectors() if "tokens" in v], 100):
            prompt = prompt_of(vector)
            stream = keys.TokenKeys(prompt.model_id, vector["block_tokens"], prompt.namespace, prompt.media)
            got, at = [], 0
            while at < len(prompt.token_bytes):
                step = rng.randint(1, 200)
                got += stream.feed(prompt.token_bytes[at : at + step])
                at += step
            self.assertEqual([key.hex() for key in got], vector["keys"])

    def test_a_change_anywhere_changes_every_later_key(self):
        base = prompts.Prompt(bytes(16), list(range(64)))
        other = prompts.Prompt(bytes(16), [*range(20), 999, *range(21, 64)])
        mine, theirs = keys.block_keys(base, 16), keys.block_keys(other, 16)
        self.assertEqual(mine[:1], theirs[:1])
        self.assertFalse(set(mine[1:]) & set(theirs[1:]))


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].endswith(".golden"):
        print(hashlib.sha256("".join(key for v in vectors() for key in keys_of(v)).encode()).hexdigest())
    else:
        unittest.main(verbosity=2)
