"""What makes KV another KV makes it another block: changed one at a time, through every entry point, nothing
is found; unchanged, everything is."""

import dataclasses
import pathlib
import sys
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from package import DaemonCase, both, kvtier, payloads_of, tokens_of  # noqa: E402

from kvtier import wire  # noqa: E402

BLOCKS = 4
SPEC = kvtier.ModelSpec(
    "identity",
    "r1",
    16,
    kvtier.DType.BF16,
    [kvtier.LayerGroup(kvtier.GroupedAttention(2, 8), 2)],
    1,
    kvtier.PackOrder.LAYER_KV_TOKEN_HEAD,
)
SIZE = SPEC.part_bytes()[0]
NAME = kvtier.Namespace("tenant", b"salt", "adapter@1")
MEDIA = (kvtier.MediaSpan(0, 5, b"d" * 16),)  # in block 0, so that nothing before it is shared

# Other dtypes and heads of the same bytes, so that only the identity can tell them apart.
SPECS = {
    "name": dataclasses.replace(SPEC, name="identity2"),
    "revision": dataclasses.replace(SPEC, revision="r2"),
    "dtype": dataclasses.replace(SPEC, dtype=kvtier.DType.FP16),
    "shape": dataclasses.replace(SPEC, layer_groups=[kvtier.LayerGroup(kvtier.GroupedAttention(8, 2), 2)]),
    "layout fingerprint": dataclasses.replace(SPEC, layout_fingerprint=b"other"),
    "pack order": dataclasses.replace(SPEC, pack_order=kvtier.PackOrder.OPAQUE),
}
NAMES = {
    "tenant": dataclasses.replace(NAME, tenant="tenant2"),
    "no tenant": dataclasses.replace(NAME, tenant=""),
    "salt": dataclasses.replace(NAME, salt=b"Salt"),
    "adapter": dataclasses.replace(NAME, adapter="adapter@2"),
    "moved": kvtier.Namespace("tenantsalt", b"", "adapter@1"),  # the same bytes, end to end
}
MEDIAS = {
    "media digest": (kvtier.MediaSpan(0, 5, b"e" * 16),),
    "media place": (kvtier.MediaSpan(1, 5, b"d" * 16),),
    "media length": (kvtier.MediaSpan(0, 6, b"d" * 16),),
    "no media": (),
}


@both
class IdentityCases(DaemonCase):
    def setUp(self):
        super().setUp()
        self.model = self.client.register_model(SPEC)
        self.prompt = kvtier.Prompt(self.model.id, tokens_of(1, BLOCKS), namespace=NAME, media=MEDIA)
        self.payloads = payloads_of("mine", BLOCKS, SIZE)
        self.assertEqual(self.client.store_from(self.prompt, self.payloads).held, BLOCKS)

    def others(self):
        tokens = tokens_of(1, BLOCKS)
        for what, spec in SPECS.items():
            yield (
                what,
                kvtier.Prompt(self.client.register_model(spec).id, tokens, namespace=NAME, media=MEDIA),
            )
        for what, name in NAMES.items():
            yield what, kvtier.Prompt(self.model.id, tokens, namespace=name, media=MEDIA)
        for what, media in MEDIAS.items():
            yield what, kvtier.Prompt(self.model.id, tokens, namespace=NAME, media=media)
        yield "first token", kvtier.Prompt(self.model.id, [7] + tokens[1:], namespace=NAME, media=MEDIA)
        hashes = [bytes([i]) * 64 for i in range(BLOCKS)]
        yield "kind", kvtier.Prompt(self.model.id, engine_hashes=hashes, namespace=NAME)

    def test_unchanged_is_found_by_every_entry_point(self):
        again = kvtier.Prompt(
            self.model.id,
            tuple(tokens_of(1, BLOCKS, rest=3)),
            media=list(MEDIA),
            namespace=kvtier.Namespace("tenant", bytearray(b"salt"), "adapter@1"),
        )
        with self.client.lookup(again, lease=60) as found:
            self.assertEqual(found.blocks, BLOCKS)
            self.assertEqual(self.fetched(found.lease, BLOCKS, SIZE)[1], self.payloads)
        self.assertEqual(self.fetched(again, BLOCKS, SIZE)[1], self.payloads)
        self.assertEqual(self.client.store_from(again, self.payloads).sent, 0)

    def test_each_change_is_a_miss_by_every_entry_point(self):
        for what, other in self.others():
            with self.subTest(what):
                with self.client.lookup(other, lease=60) as found:
                    self.assertEqual((found.blocks, bool(found.lease), found.failure), (0, False, None))
                report, blocks = self.fetched(other, BLOCKS, SIZE, allow_gaps=True)
                self.assertEqual((blocks, report.failure), ([None] * BLOCKS, None))
                # A store must not take the other's blocks for its own, nor overwrite them.
                theirs = payloads_of(what, BLOCKS, SIZE)
                self.assertEqual(self.client.store_from(other, theirs).sent, BLOCKS)
                self.assertEqual(self.fetched(other, BLOCKS, SIZE)[1], theirs)
                self.assertEqual(self.fetched(self.prompt, BLOCKS, SIZE)[1], self.payloads)

    def test_a_client_that_forgets_the_namespace_would_be_noticed(self):
        whole = wire.encode_prompt

        def forgetful(prompt):
            return whole(kvtier.Prompt(prompt.model_id, [*memoryview(prompt.token_bytes).cast("I")]))

        with mock.patch.object(wire, "encode_prompt", forgetful):
            tokens = tokens_of(3, BLOCKS)
            mine, theirs = (
                kvtier.Prompt(self.model.id, tokens, namespace=kvtier.Namespace(salt=s)) for s in (b"1", b"2")
            )
            self.client.store_from(mine, self.payloads)
            self.assertEqual(self.client.lookup(theirs).blocks, BLOCKS)

    def test_media_leave_the_blocks_before_them_alone(self):
        tokens = tokens_of(2, BLOCKS)
        first = kvtier.Prompt(self.model.id, tokens, media=[kvtier.MediaSpan(32, 4, b"1" * 16)])
        second = kvtier.Prompt(self.model.id, tokens, media=[kvtier.MediaSpan(32, 4, b"2" * 16)])
        self.client.store_from(first, self.payloads)
        self.assertEqual(self.client.lookup(first).blocks, 4)
        self.assertEqual(self.client.lookup(second).blocks, 2)


if __name__ == "__main__":
    unittest.main(verbosity=2)
