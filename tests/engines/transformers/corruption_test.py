"""A changed byte is a miss and computed again, wherever it changed on the way; and the controls, which
change one where nothing can notice but the answer."""
from __future__ import annotations

import pathlib
import unittest

import torch
from grpc_proxy import Fault, GrpcProxy
from support import BLOCK, GREEDY, EngineTest, answer, go_on, ids_of, model_of, planted

from kvtier.engines import transformers as connector

TOKENS = 100
WHOLE = 96


class CorruptionTest(EngineTest):
    def setUp(self):
        super().setUp()
        self.model = model_of()
        self.ids = ids_of("corruption", TOKENS)

    def check(self, cache, live, loaded):
        past, logits = cache.prefill(self.ids, logits_to_keep=0)
        self.assert_served(cache, loaded)
        self.assert_bits(logits, go_on(self.model, self.ids, live, loaded))
        return past

    def test_flipped_on_disk(self):
        """One byte of block 3 on SSD: blocks 0 to 2 are loaded, the others computed and stored again."""
        for place in (0, 777, -1):
            with self.subTest(place=place):
                kvtierd = self.start("--ssd-bytes", "64MiB")
                cache = self.cache(self.model, kvtierd.address, revision=f"flip {place}")
                live = self.check(cache, None, 0)
                self.assertEqual(kvtierd.stop(), 0)
                flip_on_disk(pathlib.Path(kvtierd.data_dir), payload_of(cache, live, 3), place)

                kvtierd = self.start("--ssd-bytes", "64MiB")
                again = self.check(cache, live, 3 * BLOCK)
                self.assertEqual(cache.last_call.found_tokens, WHOLE)
                self.assertEqual(cache.last_call.stored_blocks, 1)  # the ones after it are held as they were
                self.assertTrue(torch.equal(cache.generate(self.ids, **GREEDY), answer(self.model, self.ids)))
                self.assert_served(cache, WHOLE)
                self.assertEqual(again.get_seq_length(), TOKENS)
                self.assertEqual(kvtierd.stop(), 0)

    def test_not_flipped_on_disk(self):
        """The control: the same restart finds everything when no byte was changed."""
        kvtierd = self.start("--ssd-bytes", "64MiB")
        cache = self.cache(self.model, kvtierd.address)
        live = self.check(cache, None, 0)
        self.assertEqual(kvtierd.stop(), 0)
        self.start("--ssd-bytes", "64MiB")
        self.check(cache, live, WHOLE)

    def test_flipped_in_transit_to_the_engine(self):
        with GrpcProxy(self.start().address) as proxy:
            cache = self.cache(self.model, proxy.address)
            live = self.check(cache, None, 0)
            self.check(cache, live, WHOLE)
            proxy.inject(Fault("Fetch", flip=0, times=1))
            past, logits = cache.prefill(self.ids, logits_to_keep=0)
            self.assertEqual(proxy.struck(), 1)
            loaded = cache.last_call.loaded_tokens
            self.assertLess(loaded, WHOLE)
            self.assert_bits(logits, go_on(self.model, self.ids, live, loaded))
            self.check(cache, live, WHOLE)

    def test_flipped_in_transit_to_the_daemon(self):
        with GrpcProxy(self.start().address) as proxy:
            cache = self.cache(self.model, proxy.address)
            proxy.inject(Fault("Store", flip=1, times=1))
            live = self.check(cache, None, 0)
            self.assertEqual(proxy.struck(), 1)
            _, logits = cache.prefill(self.ids, logits_to_keep=0)
            loaded = cache.last_call.loaded_tokens
            self.assertLess(loaded, WHOLE)
            self.assert_bits(logits, go_on(self.model, self.ids, live, loaded))

    def test_control_flipped_behind_the_checksum(self):
        """One byte in the rebuilt memory, after it was verified: every place of it shows in the logits."""
        cache = self.cache(self.model, self.start().address)
        live = self.check(cache, None, 0)
        expected = go_on(self.model, self.ids, live, WHOLE)
        rebuild = connector._Staging.rebuild
        size = WHOLE * self.model_token_bytes(cache)
        for place in (3, size // 3 | 3, size // 2 | 3, size - 1):  # the byte with sign and exponent
            def flipped(staging, columns, place=place):
                staging._bytes[place] ^= 0x40
                return rebuild(staging, columns)
            with self.subTest(place=place), planted(connector._Staging, "rebuild", flipped):
                _, logits = cache.prefill(self.ids, logits_to_keep=0)
                self.assert_served(cache, WHOLE)
                self.assertFalse(torch.equal(logits, expected))
        self.check(cache, live, WHOLE)

    def test_control_claimed_and_not_loaded(self):
        """Zeros in place of the fetched blocks change the generated tokens."""
        cache = self.cache(self.model, self.start().address)
        self.check(cache, None, 0)
        rebuild = connector._Staging.rebuild

        def emptied(staging, columns):
            staging._bytes.zero_()
            return rebuild(staging, columns)
        with planted(connector._Staging, "rebuild", emptied), planted(cache, "_store", lambda *unused: None):
            out = cache.generate(self.ids, **GREEDY)
        self.assert_served(cache, WHOLE)
        self.assertFalse(torch.equal(out, answer(self.model, self.ids)))
        self.assertTrue(torch.equal(cache.generate(self.ids, **GREEDY), answer(self.model, self.ids)))

    def model_token_bytes(self, cache):
        return cache.block_bytes // cache.block_tokens


def payload_of(cache, live, block):
    """The bytes that kvtier holds of a block of the live cache's first row."""
    return bytes(connector.export_blocks(live, cache._shape, 0, block * BLOCK, 1, BLOCK)[0])


def flip_on_disk(folder, payload, place):
    """Changes one bit of every copy of the payload in the files of the folder; there must be one."""
    place %= len(payload)
    flipped = 0
    for path in folder.rglob("*"):
        if not path.is_file():
            continue
        held = path.read_bytes()
        at = held.find(payload)
        if at < 0:
            continue
        with open(path, "r+b") as file:
            while at >= 0:
                file.seek(at + place)
                file.write(bytes([held[at + place] ^ 0x40]))
                flipped += 1
                at = held.find(payload, at + 1)
    if flipped == 0:
        raise AssertionError(f"{folder}: no file has the payload of {len(payload)} bytes")


if __name__ == "__main__":
    unittest.main()
