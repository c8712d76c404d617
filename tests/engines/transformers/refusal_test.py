"""Models and calls that the connector cannot serve are refused with a reason, before anything is wrong."""
from __future__ import annotations

import copy
import unittest

import torch
import transformers
from support import BLOCK, GREEDY, EngineTest, answer, go_on, ids_of, kvtier, model_of

from kvtier.engines.transformers import KvtierCache, Timeouts, UnsupportedModel

# No daemon listens there: all of it happens before one is asked.
NOWHERE = "unix:/nonexistent/kvtier.sock"
SMALL = dict(vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=4096,
             initializer_range=0.2, bos_token_id=0, eos_token_id=1, pad_token_id=None)


def made(family, **values):
    torch.manual_seed(0)
    config = getattr(transformers, family + "Config")(**{**SMALL, **values})
    return transformers.AutoModelForCausalLM.from_config(config).eval()


class RefusedModels(unittest.TestCase):
    def refused(self, model, reason):
        with self.assertRaisesRegex(UnsupportedModel, reason):
            KvtierCache(model, NOWHERE)

    def test_sliding_window(self):
        self.refused(made("Mistral", sliding_window=32), "DynamicSlidingWindowLayer")

    def test_windows_on_some_layers(self):
        self.refused(made("Gemma3Text" if hasattr(transformers, "Gemma3TextForCausalLM") else "Gemma2",
                          sliding_window=32), "DynamicSlidingWindowLayer")

    def test_recurrent(self):
        torch.manual_seed(0)
        config = transformers.MambaConfig(vocab_size=512, hidden_size=32, num_hidden_layers=2, state_size=4)
        self.refused(transformers.MambaForCausalLM(config).eval(), "cache")

    def test_latent_attention(self):
        torch.manual_seed(0)
        config = transformers.DeepseekV3Config(
            vocab_size=512, hidden_size=64, intermediate_size=64, moe_intermediate_size=32,
            num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, n_routed_experts=4,
            num_experts_per_tok=2, n_group=2,
            topk_group=1, kv_lora_rank=16, q_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8,
            v_head_dim=16,
            first_k_dense_replace=1)
        self.refused(transformers.DeepseekV3ForCausalLM(config).eval(), "latent attention")

    def test_encoder_decoder(self):
        torch.manual_seed(0)
        config = transformers.T5Config(vocab_size=512, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
        self.refused(transformers.T5ForConditionalGeneration(config).eval(), "encoder-decoder")

    def test_rope_by_length(self):
        for rope in ({"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4},
                     {"rope_type": "longrope", "factor": 2.0, "rope_theta": 1e4, "short_factor": [1.0] * 8,
                      "long_factor": [2.0] * 8, "original_max_position_embeddings": 2048}):
            with self.subTest(rope=rope["rope_type"]):
                self.refused(made("Llama", rope_parameters=rope), f"rope type '{rope['rope_type']}'")

    def test_training_mode(self):
        self.refused(made("Llama").train(), "training mode")

    def test_adapters(self):
        model = made("Llama")
        model._hf_peft_config_loaded = True
        with self.assertRaisesRegex(ValueError, "namespace.adapter"):
            KvtierCache(model, NOWHERE)
        KvtierCache(model, NOWHERE, namespace=kvtier.Namespace(adapter="lora@1")).close()

    def test_not_causal(self):
        """Attention that looks ahead makes KV that depends on what follows."""
        model = made("Llama", attn_implementation="eager")

        def looking_ahead(module, inputs, output):
            return output + output.mean(dim=1, keepdim=True)
        model.model.embed_tokens.register_forward_hook(looking_ahead)
        self.refused(model, "depends on later ones")

    def test_namespace(self):
        for namespace in ("tenant", None):
            with self.assertRaisesRegex(kvtier.InvalidArgument, "namespace is a "):
                KvtierCache(made("Llama"), NOWHERE, namespace=namespace)

    def test_rate(self):
        for rate in (-1, float("nan"), "x"):
            with self.assertRaisesRegex(kvtier.InvalidArgument, "prefill_tokens_per_second is "):
                KvtierCache(made("Llama"), NOWHERE, prefill_tokens_per_second=rate)

    def test_timeouts(self):
        with self.assertRaisesRegex(ValueError, "timeouts.fetch: 0"):
            Timeouts(fetch=0)


class RefusedCalls(EngineTest):
    def setUp(self):
        super().setUp()
        self.model = model_of()
        self.made = self.cache(self.model, self.start().address)
        self.ids = ids_of("refused", 40)

    def test_generate(self):
        other = transformers.GenerationConfig(num_beams=4)
        cases = {
            "num_beams: 4; must be 1": {"num_beams": 4},
            "num_beams: 4": {"generation_config": other},
            "num_return_sequences: 2": {"num_return_sequences": 2, "do_sample": True},
            "cache_implementation: static": {"cache_implementation": "static"},
            "use_cache: False": {"use_cache": False},
            "prefill_chunk_size: 16": {"prefill_chunk_size": 16},
            "prompt_lookup_num_tokens: 3": {"prompt_lookup_num_tokens": 3},
            "past_key_values: not an argument": {"past_key_values": transformers.DynamicCache()},
            "pixel_values: not an argument": {"pixel_values": torch.zeros(1)},
            "inputs_embeds: not an argument": {"inputs_embeds": torch.zeros(1, 40, 128)},
            "position_ids: not an argument": {"position_ids": self.ids},
            "inputs: not an argument": {"inputs": self.ids},
        }
        for reason, arguments in cases.items():
            with self.subTest(reason), self.assertRaisesRegex(ValueError, reason):
                self.made.generate(self.ids, **arguments)
        self.made.generate(self.ids, **GREEDY)  # the control

    def test_shapes(self):
        ones = torch.ones_like(self.ids)
        hole, behind = ones.clone(), ones.clone()
        hole[0, 7] = 0
        behind[0, -1] = 0
        cases = {
            "input_ids: ": (self.ids[0], None),
            "input_ids: is a list": (self.ids.tolist(), None),
            "attention_mask: is a list": (self.ids, ones.tolist()),
            "at least one row and one token": (self.ids[:, :0], None),
            r"input_ids: \(0, 5\)": (self.ids[:0, :5], None),
            "must be integers": (self.ids.float(), None),
            "input_ids: -[0-9]+; must be at least 0": (self.ids - 600, None),
            "attention_mask: .* must be": (self.ids, ones[:, 1:]),
            "row 0 must be zeros in front": (self.ids, hole),
            "attention_mask: row 0": (self.ids, behind),
            "then ones to the end": (self.ids, torch.zeros_like(ones)),
        }
        for reason, (ids, mask) in cases.items():
            for entry in (self.made.generate, self.made.prefill, self.made.load):
                with self.subTest(reason, entry=entry.__name__), self.assertRaisesRegex(ValueError, reason):
                    entry(ids, mask)
        self.made.prefill(self.ids, ones)

    def test_a_closed_client(self):
        """Its own, or the caller's: it would compute on, and never find nor keep anything again."""
        address = self.made._client._protocol.address
        own = KvtierCache(self.model, address)
        theirs = kvtier.Client(address)
        for cache, closes in ((own, own), (KvtierCache(self.model, theirs), theirs)):
            cache.prefill(self.ids)
            closes.close()
            for entry in (cache.generate, cache.prefill, cache.load):
                with self.assertRaisesRegex(ValueError, "client: is closed"):
                    entry(self.ids)

    def test_mask_values(self):
        """The model adds the mask up to positions: with another value it would store, under the name of the
        plain prompt, KV of other positions."""
        ones = torch.ones_like(self.ids)
        later = ones.clone()
        later[0, 20:] = 5
        wrong = {"2": 2 * ones, "0.5": 0.5 * ones, "-1": -ones, "5": later, "nan": ones * float("nan"),
                 "255": torch.full_like(ones, 255, dtype=torch.uint8)}
        for value, mask in wrong.items():
            for entry in (self.made.generate, self.made.prefill, self.made.load):
                with self.subTest(value, entry=entry.__name__), \
                        self.assertRaisesRegex(ValueError, f"attention_mask: {value}; must be 0, where"):
                    entry(self.ids, mask)
        self.made.load(self.ids)
        self.assert_served(self.made, 0)
        expected = answer(self.model, self.ids)
        for dtype in (torch.bool, torch.uint8, torch.int64, torch.float32, torch.bfloat16):
            with self.subTest(dtype=dtype):
                self.assertTrue(torch.equal(self.made.generate(self.ids, ones.to(dtype), **GREEDY), expected))
        self.assert_served(self.made, 32)

    def test_padding_without_a_mask(self):
        model = copy.deepcopy(self.model)
        model.generation_config.pad_token_id = int(self.ids[0, 5])
        cache = self.cache(model, self.made._client, revision="padded")
        with self.assertRaisesRegex(ValueError, "attention_mask: is None"):
            cache.prefill(self.ids)
        cache.prefill(self.ids, torch.ones_like(self.ids))

    def test_state_of_the_model(self):
        model = copy.deepcopy(self.model)
        cache = self.cache(model, self.made._client)
        cache.prefill(self.ids)
        with self.assertRaisesRegex(ValueError, "autocast"), torch.autocast("cpu", torch.bfloat16):
            cache.prefill(self.ids)
        model.train()
        with self.assertRaisesRegex(ValueError, "training mode"):
            cache.prefill(self.ids)
        model.eval()
        model._hf_peft_config_loaded = True
        with self.assertRaisesRegex(ValueError, "namespace.adapter"):
            cache.prefill(self.ids)

    def test_changed_after_construction(self):
        """Refused before anything is computed, for a prompt that is held and one that is not."""
        def drop_layer(model):
            model.model.layers.pop(-1)
            model.config.num_hidden_layers = 1
        changes = {"bfloat16": lambda model: model.to(torch.bfloat16),
                   "float64": lambda model: model.double(),
                   "gone": drop_layer, "600": lambda model: model.resize_token_embeddings(600)}
        for seen, change in changes.items():
            model = copy.deepcopy(self.model)
            cache = self.cache(model, self.made._client)
            cache.prefill(self.ids)
            change(model)
            for ids in (self.ids, ids_of("new", 40)):
                for entry in (cache.generate, cache.prefill, cache.load):
                    with self.subTest(seen, entry=entry.__name__), \
                            self.assertRaisesRegex(ValueError, f"model: its parameter .*{seen}.*, and was "):
                        entry(ids)
        self.made.prefill(self.ids)
        self.assert_served(self.made, 32)

    def test_one_adapter_more(self):
        """Parameters that an adapter adds, and the names it gives to those it wraps, are no change."""
        model = copy.deepcopy(self.model)
        cache = self.cache(model, self.made._client, namespace=kvtier.Namespace(adapter="lora@1"))
        attention = model.model.layers[0].self_attn
        wrapped = torch.nn.Module()
        wrapped.base_layer, wrapped.lora = attention.k_proj, torch.nn.Linear(2, 2)
        wrapped.forward = wrapped.base_layer.forward
        attention.k_proj = wrapped
        cache.prefill(self.ids)
        cache.prefill(self.ids)
        self.assert_served(cache, 32)

    def test_defaults_of_the_model_count(self):
        """generate takes from the model's own settings what the caller's leave open; so must the check."""
        model = copy.deepcopy(self.model)
        model.generation_config.num_beams = 3
        cache = self.cache(model, self.made._client)
        for arguments in ({}, {"generation_config": transformers.GenerationConfig(max_new_tokens=2)}):
            with self.subTest(**arguments), self.assertRaisesRegex(ValueError, "num_beams: 3"):
                cache.generate(self.ids, **arguments)
        cache.generate(self.ids, num_beams=1, **GREEDY)

    def test_cache_of_another_kind(self):
        """A cache of other dtype or heads is not converted into what other processes would load."""
        past = self.model(input_ids=self.ids, use_cache=True).past_key_values  # with gradients, which is fine
        for change in (lambda tensor: tensor.half(), lambda tensor: tensor[:, :1]):
            other = transformers.DynamicCache()
            for number, layer in enumerate(past.layers):
                other.update(change(layer.keys), change(layer.values), number)
            with self.assertRaisesRegex(ValueError, "past_key_values: KvShape"):
                self.made.store(self.ids, other)
        self.made.store(self.ids, past)
        self.assertEqual(self.made.last_call.stored_blocks, 2)
        self.made.load(self.ids)
        self.assert_served(self.made, 32)

    def test_cache_that_does_not_cover(self):
        past, _ = self.made.prefill(self.ids[:, :20])
        with self.assertRaisesRegex(ValueError, "past_key_values: 20 columns"):
            self.made.store(self.ids, past)


class Families(EngineTest):
    """What a model must have is in its cache, not in its name."""

    def test_families(self):
        address = self.start().address
        families = {
            "Llama": {}, "Mistral": {"sliding_window": None}, "Qwen2": {}, "Qwen3": {}, "Gemma": {},
            "Phi": {},
            "Mixtral": {"num_local_experts": 4}, "Olmo2": {}, "StableLm": {}, "Cohere": {},
            "GPT2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512},
            "GPTNeoX": {}, "OPT": {"ffn_dim": 128, "word_embed_proj_dim": 64, "pad_token_id": 1},
            "Bloom": {"n_layer": 2, "n_head": 4},
            "Llama yarn": {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}},
            "Llama llama3": {"rope_parameters": {
                "rope_type": "llama3", "factor": 8.0, "rope_theta": 5e5, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 1024}},
        }
        served = []
        for family, values in families.items():
            with self.subTest(family=family):
                model = made(family.split()[0], **values)
                cache = self.cache(model, address)
                ids = ids_of(family, 60)
                past, _ = cache.prefill(ids)
                _, logits = cache.prefill(ids, logits_to_keep=0)
                self.assert_served(cache, 3 * BLOCK)
                self.assert_bits(logits, go_on(model, ids, past, 3 * BLOCK))
                self.assertTrue(torch.equal(cache.generate(ids, **GREEDY), answer(model, ids)))
                served.append(family)
        print("served:", ", ".join(served))


if __name__ == "__main__":
    unittest.main()
