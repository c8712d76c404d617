"""Prompts of every awkward length: cold, in part and whole from kvtier, from SSD after a restart, after
eviction. Bits equal to the live cache at the same split, answers equal to full recomputation."""
from __future__ import annotations

import unittest

import torch
from support import (BLOCK, GREEDY, PATIENT, EngineTest, answer, go_on, ids_of, kvtier, loadable, model_of)

LENGTHS = (15, 16, 17, 31, 32, 33, 48, 500, 2000)
TOLERANCE = 1e-3  # of fp32 logits against a prefill in one go


class PrefixTest(EngineTest):
    def check(self, cache, ids, live, loaded):
        """One prefill and one generate of `ids`, with `loaded` tokens expected from kvtier."""
        model = model_of()
        count = ids.shape[1]
        past, logits = cache.prefill(ids, logits_to_keep=0)
        self.assert_served(cache, loaded)
        self.assertEqual(cache.last_call.prefill_positions, count - loaded)
        self.assertEqual(past.get_seq_length(), count)
        self.assert_bits(logits, go_on(model, ids, live, loaded))
        in_one_go = go_on(model, ids, None, 0)[:, loaded:]
        self.assertLess((logits - in_one_go).abs().max().item(), TOLERANCE)
        self.assertTrue(torch.equal(logits.argmax(-1), in_one_go.argmax(-1)))
        return past

    def check_answer(self, cache, ids):
        out = cache.generate(ids, **GREEDY)
        self.assertTrue(torch.equal(out, answer(model_of(), ids)))
        self.assertIsNone(cache.last_call.failure)
        self.assertEqual(cache.last_call.decode_positions, GREEDY["max_new_tokens"] - 1)
        self.assertEqual(cache.last_call.prefill_positions, ids.shape[1] - cache.last_call.loaded_tokens)

    def test_cold_then_whole(self):
        cache = self.cache(model_of(), self.start().address)
        for count in LENGTHS:
            with self.subTest(tokens=count):
                ids = ids_of(f"whole {count}", count)
                live = self.check(cache, ids, None, 0)
                self.assertEqual(cache.last_call.stored_blocks, count // BLOCK)
                self.check(cache, ids, live, loadable(count))
                self.assertEqual(cache.last_call.stored_blocks, 0)
                self.check_answer(cache, ids)
                self.assertEqual(cache.last_call.loaded_tokens, loadable(count))

    def test_cold_generate(self):
        cache = self.cache(model_of(), self.start().address)
        for count in LENGTHS:
            with self.subTest(tokens=count):
                self.check_answer(cache, ids_of(f"cold {count}", count))
                self.assertEqual(cache.last_call.loaded_tokens, 0)

    def test_in_part(self):
        cache = self.cache(model_of(), self.start().address)
        for count in LENGTHS:
            shared = max(1, count * 2 // 3)
            with self.subTest(tokens=count, shared=shared):
                first = ids_of(f"part {count}", shared)
                live = self.check(cache, first, None, 0)
                longer = torch.cat([first, ids_of(f"tail {count}", count - shared)], dim=1)
                loaded = loadable(count, held=shared)
                self.check(cache, longer, live, loaded)
                self.assertEqual(cache.last_call.stored_blocks, count // BLOCK - shared // BLOCK)
                self.check_answer(cache, longer)
                self.assertEqual(cache.last_call.loaded_tokens, loadable(count))

    def test_other_ending_hits_only_what_is_shared(self):
        cache = self.cache(model_of(), self.start().address)
        first = ids_of("ends", 48)
        live = self.check(cache, first, None, 0)
        for changed in (0, 15, 16, 31, 32, 47):
            with self.subTest(changed=changed):
                other = first.clone()
                other[0, changed] += 1
                self.check(cache, other, live, changed // BLOCK * BLOCK)

    def test_after_a_restart(self):
        kvtierd = self.start("--ssd-bytes", "64MiB")
        cache = self.cache(model_of(), kvtierd.address)
        live = {}
        for count in LENGTHS:
            live[count] = self.check(cache, ids_of(f"restart {count}", count), None, 0)
        self.assertEqual(kvtierd.stop(), 0)
        kvtierd = self.start("--ssd-bytes", "64MiB")
        for count in LENGTHS:
            with self.subTest(tokens=count):
                ids = ids_of(f"restart {count}", count)
                self.assertEqual(self.tiers(cache, ids), {kvtier.Tier.SSD} if count >= BLOCK else set())
                self.check(cache, ids, live[count], loadable(count))
                self.check_answer(cache, ids)

    def tiers(self, cache, ids):
        """Where the prompt's blocks are, by a lookup of the test's own."""
        prompt = kvtier.Prompt(cache.spec.id(), tokens=ids[0].tolist())
        with kvtier.Client(f"unix:{self.folder}/data/kvtier.sock") as client:
            return {run.tier for run in client.lookup(prompt, timeout=PATIENT.lookup).runs}

    def test_after_eviction(self):
        """Twice as much as fits: what has left is a miss and computed again, then found again."""
        cache = self.cache(model_of(), self.start(ram="4MiB").address)
        for count in LENGTHS:
            with self.subTest(tokens=count):
                ids = ids_of(f"evict {count}", count)
                live = self.check(cache, ids, None, 0)
                self.check(cache, ids, live, loadable(count))
                for flood in range(3):
                    cache.prefill(ids_of(f"flood {count} {flood}", 2000))
                live = self.check(cache, ids, None, 0)
                self.check(cache, ids, live, loadable(count))
                self.check_answer(cache, ids)

    def test_after_eviction_to_ssd(self):
        cache = self.cache(model_of(), self.start("--ssd-bytes", "128MiB", ram="4MiB").address)
        for count in (33, 500, 2000):
            with self.subTest(tokens=count):
                ids = ids_of(f"demote {count}", count)
                live = self.check(cache, ids, None, 0)
                for flood in range(3):
                    cache.prefill(ids_of(f"flood {count} {flood}", 2000))
                self.assertEqual(self.tiers(cache, ids), {kvtier.Tier.SSD})
                self.check(cache, ids, live, loadable(count))

    def test_blocks_that_load_slowly_are_computed(self):
        """By the daemon's own measure of what loads took, against the rate that the engine tells."""
        address = self.start().address
        ids = ids_of("rate", 500)
        slow_model = self.cache(model_of(), address, prefill_tokens_per_second=1.0)
        live = self.check(slow_model, ids, None, 0)
        for _ in range(3):  # from which the daemon learns what a load takes
            self.check(slow_model, ids, live, loadable(500))
        quick_model = self.cache(model_of(), address, prefill_tokens_per_second=1e9)
        self.check(quick_model, ids, None, 0)
        self.assertEqual((quick_model.last_call.found_tokens, quick_model.last_call.stored_blocks), (496, 0))

    def test_the_next_turn_finds_generated_tokens(self):
        cache = self.cache(model_of(), self.start().address)
        said = cache.generate(ids_of("turn", 40), **dict(GREEDY, max_new_tokens=30))
        self.assertEqual(said.shape[1], 70)
        self.assertEqual(cache.last_call.stored_blocks, 4)  # of 69 tokens, as the last has no KV
        following = torch.cat([said, ids_of("turn two", 10)], dim=1)
        out = cache.generate(following, **GREEDY)
        self.assert_served(cache, 64)
        self.assertTrue(torch.equal(out, answer(model_of(), following)))


if __name__ == "__main__":
    unittest.main()
