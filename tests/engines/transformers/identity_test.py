"""What keeps KV apart: each thing changed alone gives no hit, nothing changed gives all, through every
entry point."""
from __future__ import annotations

import copy
import dataclasses
import unittest
import unittest.mock

import torch
from support import GREEDY, EngineTest, answer, ids_of, kvtier, model_of
from tiny_model import TINY
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from kvtier.engines import transformers_model
from kvtier.engines.transformers import KvtierCache

NAMESPACE = kvtier.Namespace(tenant="a", salt=b"1", adapter="x@1")
TOKENS = 100
WHOLE = 96


def changed_config(**values):
    model = copy.deepcopy(model_of())
    for name, value in values.items():
        setattr(model.config, name, value)
    return model


def changed_weight():
    """One element of one matrix, as an edit in memory would."""
    model = copy.deepcopy(model_of())
    with torch.no_grad():
        model.model.layers[1].self_attn.v_proj.weight[3, 5] += 0.25
    return model


class IdentityTest(EngineTest):
    def setUp(self):
        super().setUp()
        self.address = self.start().address
        self.ids = ids_of("identity", TOKENS)

    def found(self, cache) -> dict[str, tuple[int, int]]:
        """(found, loaded) tokens of one prompt by each entry point; the answer must be right in any case."""
        out = {}
        cache.load(self.ids)
        out["load"] = (cache.last_call.found_tokens, cache.last_call.loaded_tokens)
        with self.without_store(cache):
            cache.prefill(self.ids)
            out["prefill"] = (cache.last_call.found_tokens, cache.last_call.loaded_tokens)
            cache.generate(self.ids, **GREEDY)
            out["generate"] = (cache.last_call.found_tokens, cache.last_call.loaded_tokens)
        self.assertIsNone(cache.last_call.failure)
        return out

    def without_store(self, cache):
        return unittest.mock.patch.object(cache, "_store", lambda *unused: None)

    def assert_all(self, cache):
        self.assertEqual(self.found(cache), dict.fromkeys(("load", "prefill", "generate"), (WHOLE, WHOLE)))

    def assert_none(self, cache):
        self.assertEqual(self.found(cache), dict.fromkeys(("load", "prefill", "generate"), (0, 0)))
        # Its own blocks are stored whole beside the others', and found.
        past, _ = cache.prefill(self.ids)
        self.assertEqual(cache.last_call.stored_blocks, WHOLE // 16)
        self.assert_all(cache)

    def test_nothing_changed(self):
        self.cache(model_of(), self.address, namespace=NAMESPACE).prefill(self.ids)
        self.assert_all(self.cache(model_of(), self.address, namespace=NAMESPACE))
        self.assert_all(self.cache(copy.deepcopy(model_of()), self.address, namespace=NAMESPACE))

    def test_namespace(self):
        self.cache(model_of(), self.address, namespace=NAMESPACE).prefill(self.ids)
        for change in ({"tenant": "b"}, {"tenant": ""}, {"salt": b"2"}, {"salt": b""}, {"adapter": "x@2"},
                       {"adapter": ""}):
            with self.subTest(**change):
                namespace = dataclasses.replace(NAMESPACE, **change)
                self.assert_none(self.cache(model_of(), self.address, namespace=namespace))

    def test_named_model(self):
        named = {"name": "org/model", "revision": "r1"}
        self.cache(model_of(), self.address, **named).prefill(self.ids)
        self.assert_all(self.cache(model_of(), self.address, **named))
        for change in ({"name": "org/other"}, {"revision": "r2"}):
            with self.subTest(**change):
                self.assert_none(self.cache(model_of(), self.address, **{**named, **change}))
        bf16 = model_of(dataclasses.replace(TINY, dtype="bfloat16"))
        self.assert_none(self.cache(bf16, self.address, **named))

    def test_weights_of_a_named_model(self):
        """A revision does not cover up other weights: those of another seed, or all scaled a little."""
        named = {"name": "org/model", "revision": "r1"}
        self.cache(model_of(), self.address, **named).prefill(self.ids)
        self.assert_none(self.cache(model_of(dataclasses.replace(TINY, seed=1)), self.address, **named))
        tuned = copy.deepcopy(model_of())
        with torch.no_grad():
            tuned.model.layers[0].self_attn.k_proj.weight.mul_(1.001)
        self.assert_none(self.cache(tuned, self.address, **named))

    def test_unnamed_model(self):
        self.cache(model_of(), self.address).prefill(self.ids)
        self.assert_all(self.cache(model_of(), self.address))
        cases = {
            "seed": model_of(dataclasses.replace(TINY, seed=1)),
            "dtype bf16": model_of(dataclasses.replace(TINY, dtype="bfloat16")),
            "dtype fp16": model_of(dataclasses.replace(TINY, dtype="float16")),
            "kv heads": model_of(dataclasses.replace(TINY, kv_heads=4)),
            "layers": model_of(dataclasses.replace(TINY, layers=3)),
            "one weight": changed_weight(),
            "rope": changed_config(rope_parameters={"rope_type": "default", "rope_theta": 20000.0}),
            "norm": changed_config(rms_norm_eps=1e-3),
        }
        for what, model in cases.items():
            with self.subTest(what):
                self.assert_none(self.cache(model, self.address))

    def test_buffers_that_are_not_saved(self):
        """Rotary frequencies changed in memory, with and without a revision that vouches for the weights."""
        turned = copy.deepcopy(model_of())
        turned.model.rotary_emb.inv_freq.mul_(0.25)
        for named in ({}, {"name": "org/model", "revision": "r1"}):
            with self.subTest(**named):
                self.cache(model_of(), self.address, **named).prefill(self.ids)
                self.assert_none(self.cache(turned, self.address, **named))
                self.assert_all(self.cache(copy.deepcopy(model_of()), self.address, **named))

    def test_names(self):
        model = copy.deepcopy(model_of())
        model.config._commit_hash, model.config._name_or_path = "abc", "org/model"
        self.assertEqual(self.named(model), ("org/model", "abc"))
        model.config._name_or_path = ""
        self.assertEqual(self.named(model), ("LlamaForCausalLM", "abc"))
        self.cache(model, self.address).prefill(self.ids)
        self.assert_all(self.cache(model, self.address))

    def named(self, model):
        who = transformers_model.identity(model)
        return who.name, who.revision

    def test_block_tokens(self):
        self.cache(model_of(), self.address).prefill(self.ids)
        with KvtierCache(model_of(), self.address, block_tokens=32) as other:
            other.prefill(self.ids)
            self.assertEqual(other.last_call.found_tokens, 0)
            other.prefill(self.ids)
            self.assert_served(other, WHOLE)

    def test_unknown_attention(self):
        """One that is not known to be exact has KV of its own; the exact ones share theirs."""
        AttentionInterface.register("sdpa_of_a_test", sdpa_attention_forward)
        self.cache(model_of(), self.address).prefill(self.ids)
        self.assert_all(self.cache(model_of(TINY, "eager"), self.address))
        self.assert_none(self.cache(changed_config(_attn_implementation="sdpa_of_a_test"), self.address))

    def test_control_identity_without_weights(self):
        """With the weights left out of the identity another model's KV is found, and changes the answer."""
        other = model_of(dataclasses.replace(TINY, seed=1))
        with unittest.mock.patch.object(transformers_model, "weights_digest", lambda *unused, **also: "same"):
            self.cache(model_of(), self.address).prefill(self.ids)
            wrong = self.cache(other, self.address)
            out = wrong.generate(self.ids, **GREEDY)
        self.assert_served(wrong, WHOLE)
        self.assertFalse(torch.equal(out, answer(other, self.ids)))

    def test_answers_do_not_cross(self):
        """Two random models of one shape take turns with one prompt; each answers as it does alone."""
        pair = [model_of(), model_of(dataclasses.replace(TINY, seed=1))]
        self.assertFalse(torch.equal(answer(pair[0], self.ids), answer(pair[1], self.ids)))
        caches = [self.cache(model, self.address) for model in pair]
        for _ in range(2):
            for model, cache in zip(pair, caches):
                self.assertTrue(torch.equal(cache.generate(self.ids, **GREEDY), answer(model, self.ids)))
        self.assert_served(caches[1], WHOLE)


if __name__ == "__main__":
    unittest.main()
