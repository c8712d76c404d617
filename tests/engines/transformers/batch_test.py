"""Batches: rows of one length and padded ones, hits of different lengths, dtypes, head counts."""
from __future__ import annotations

import dataclasses
import unittest

import torch
from support import (BLOCK, GREEDY, EngineTest, answer, go_on, ids_of, model_of, padded, planted)
from tiny_model import TINY

from kvtier.engines.transformers import _Staging

MHA = dataclasses.replace(TINY, kv_heads=4)
MQA = dataclasses.replace(TINY, kv_heads=1)


class BatchTest(EngineTest):
    def check(self, cache, model, ids, mask, live, columns):
        """One prefill of a batch, of which `columns` come from kvtier; bits against the live cache."""
        past, logits = cache.prefill(ids, mask, logits_to_keep=0)
        loaded = sum(max(0, columns - int((row == 0).sum())) for row in mask)
        self.assert_served(cache, loaded)
        self.assertEqual(cache.last_call.prefill_positions, len(ids) * (ids.shape[1] - columns))
        expected = go_on(model, ids, live, columns, mask)
        for index, row in enumerate(mask[:, columns:]):  # of padding the logits mean nothing
            self.assert_bits(logits[index][row == 1], expected[index][row == 1], f"row {index}")
        return past

    def check_answer(self, cache, model, ids, mask):
        out = cache.generate(ids, mask, **GREEDY)
        self.assertIsNone(cache.last_call.failure)
        self.assertTrue(torch.equal(out, answer(model, ids, mask)))

    def test_dtypes_and_heads(self):
        address = self.start().address
        for shape in (TINY, MHA, MQA):
            for dtype in ("float32", "bfloat16", "float16"):
                for attention in ("sdpa", "eager"):
                    with self.subTest(kv_heads=shape.kv_heads, dtype=dtype, attention=attention):
                        model = model_of(dataclasses.replace(shape, dtype=dtype), attention)
                        cache = self.cache(model, address, revision=attention)
                        ids, mask = padded(ids_of("dtypes", 70))
                        live = self.check(cache, model, ids, mask, None, 0)
                        self.assertEqual(cache.last_call.stored_blocks, 4)
                        self.check(cache, model, ids, mask, live, 64)
                        self.assertEqual(cache.last_call.fetched_bytes, shape.kv_bytes(64) // (
                            1 if dtype == "float32" else 2))

    def test_attention_implementations_share(self):
        """They compute the same function: other bits, the same meaning."""
        address = self.start().address
        ids = ids_of("attention", 100)
        self.cache(model_of(TINY, "sdpa"), address).prefill(ids)
        model = model_of(TINY, "eager")
        eager = self.cache(model, address)
        _, logits = eager.prefill(ids, logits_to_keep=0)
        self.assert_served(eager, 96)
        self.assertLess((logits - go_on(model, ids, None, 0)[:, 96:]).abs().max().item(), 1e-3)

    def test_rows_of_one_length(self):
        model = model_of()
        cache = self.cache(model, self.start().address)
        ids, mask = padded(*(ids_of(f"row {row}", 50) for row in range(4)))
        live = self.check(cache, model, ids, mask, None, 0)
        self.assertEqual(cache.last_call.stored_blocks, 4 * 3)
        self.check(cache, model, ids, mask, live, 48)
        self.check_answer(cache, model, ids, mask)
        self.assertEqual(cache.last_call.loaded_tokens, 4 * 48)

    def test_padded_rows(self):
        model = model_of()
        cache = self.cache(model, self.start().address)
        lengths = (100, 33, 64, 7)
        ids, mask = padded(*(ids_of(f"padded {row}", count) for row, count in enumerate(lengths)))
        live = self.check(cache, model, ids, mask, None, 0)
        self.assertEqual(cache.last_call.stored_blocks, 6 + 2 + 4 + 0)
        # Row 3 has no whole block, so its 93 columns of padding are all that can be passed over.
        self.check(cache, model, ids, mask, live, 93)
        self.check_answer(cache, model, ids, mask)
        self.assertEqual(cache.last_call.loaded_tokens, 93 + 26 + 57)

    def test_padded_and_unpadded_share(self):
        """Positions count from the first real token, so a prompt is the same in any batch."""
        model = model_of()
        cache = self.cache(model, self.start().address)
        short, long = ids_of("short", 40), ids_of("long", 90)
        ids, mask = padded(short, long)
        cache.prefill(ids, mask)
        self.assertEqual(cache.last_call.stored_blocks, 2 + 5)
        for row, loaded in ((short, 32), (long, 80)):
            _, logits = cache.prefill(row, logits_to_keep=0)
            self.assert_served(cache, loaded)
            self.assertLess((logits - go_on(model, row, None, 0)[:, loaded:]).abs().max().item(), 1e-3)
            self.check_answer(cache, model, *padded(row))

    def test_the_row_with_least_decides(self):
        model = model_of()
        cache = self.cache(model, self.start().address)
        known, cold = ids_of("known", 64), ids_of("never seen", 64)
        cache.prefill(known)
        both, mask = padded(known, cold)
        live = self.check(cache, model, both, mask, None, 0)
        self.assertEqual(cache.last_call.found_tokens, 64)
        self.assertEqual(cache.last_call.stored_blocks, 4)  # of the cold row alone
        # Sixteen tokens of the second row are known now, all of the first: the second decides.
        other = torch.cat([cold[:, :20], ids_of("tail", 44)], dim=1)
        both, mask = padded(known, other)
        self.check(cache, model, both, mask, live, BLOCK)  # the live cache has the first 20 tokens of both

    def test_control_padding_out_of_place(self):
        """The rows' blocks put one column off change the logits."""
        model = model_of()
        cache = self.cache(model, self.start().address)
        ids, mask = padded(ids_of("place", 60), ids_of("place two", 50))
        live = self.check(cache, model, ids, mask, None, 0)
        self.check(cache, model, ids, mask, live, 48)
        buffers = _Staging.buffers

        def one_off(staging, index):
            row = staging._rows[index]
            staging._rows[index] = row._replace(pad=max(0, row.pad - 1))
            try:
                return buffers(staging, index)
            finally:
                staging._rows[index] = row
        with planted(_Staging, "buffers", one_off):
            _, logits = cache.prefill(ids, mask, logits_to_keep=0)
        expected = go_on(model, ids, live, 48, mask)
        self.assert_bits(logits[0], expected[0])
        self.assertFalse(torch.equal(logits[1], expected[1]))

    def test_a_batch_whose_rows_end_at_different_steps(self):
        model = model_of()
        cache = self.cache(model, self.start().address)
        ids, mask = padded(*(ids_of(f"ends {row}", 30 + row) for row in range(3)))
        free = answer(model, ids, mask)
        ending = {**GREEDY, "max_new_tokens": 40, "eos_token_id": int(free[0, ids.shape[1] + 2])}
        for _ in range(2):
            out = cache.generate(ids, mask, **ending)
            self.assertTrue(torch.equal(out, model.generate(ids, attention_mask=mask, **ending)))
            self.assertIsNone(cache.last_call.failure)

    def test_equal_rows(self):
        model = model_of()
        cache = self.cache(model, self.start().address)
        ids, mask = padded(*[ids_of("same", 64)] * 3)
        live = self.check(cache, model, ids, mask, None, 0)
        self.check(cache, model, ids, mask, live, 63)


if __name__ == "__main__":
    unittest.main()
