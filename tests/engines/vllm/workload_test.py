"""50 prompts with shared prefixes, all at once: the same greedy answers with kvtier as without."""
import dataclasses
import unittest

import models
import prompts
import tiny_model
from engine import Engine, kvtier_connector
from kvtierd import kvtierd

ANSWER_TOKENS = 40
EXTERNAL_HITS = "vllm:external_prefix_cache_hits"
# Prompts come in pieces of 64 tokens; and 40 blocks for 8 running requests that end with 5 to 12 each.
CROWDED = {"max_num_batched_tokens": 64, "num_gpu_blocks_override": 40, "max_num_seqs": 8,
           "max_model_len": 1024}


class WorkloadCases:

    dtype: str

    @classmethod
    def setUpClass(cls) -> None:
        cls.model = models.model(dataclasses.replace(tiny_model.TINY, dtype=cls.dtype))
        cls.prompts = prompts.shared_prefixes(seed=1)
        with Engine(cls.model) as engine:
            cls.plain = [answer.tokens for answer in cls.ask(engine)]
        if len(set(cls.plain)) < len(cls.plain) - 2:
            raise AssertionError("the model hardly tells the prompts apart: the comparison is worth nothing")

    @classmethod
    def ask(cls, engine: Engine) -> list:
        return engine.generate(cls.prompts, max_tokens=ANSWER_TOKENS, logprobs=None)

    def check(self, **arguments) -> dict[str, float]:
        """Cold, then with the engine's own cache dropped, so that all prefixes come from kvtier."""
        with kvtierd() as daemon, Engine(
                self.model, kvtier_connector(daemon.address, lookup_budget=2.0), **arguments) as engine:
            self.assertEqual([answer.tokens for answer in self.ask(engine)], self.plain)
            daemon.wait_idle()
            engine.forget()
            before = engine.metrics()[EXTERNAL_HITS]
            answers = self.ask(engine)
            self.assertEqual([answer.tokens for answer in answers], self.plain)
            self.assertEqual({answer.finish for answer in answers}, {"length"})
            metrics = engine.metrics()
            # Each prompt's whole prefix, at least 3 blocks, was there; the rest is the scheduler's order.
            self.assertGreaterEqual(metrics[EXTERNAL_HITS] - before, 5 * 3 * 32)
            engine.stop()
            daemon.wait_idle()
            return metrics

    def test_all_at_once(self):
        self.check()

    def test_chunked_prefill_and_preemption(self):
        metrics = self.check(**CROWDED)
        self.assertGreater(metrics["vllm:num_preemptions"], 0)


class Fp32Test(WorkloadCases, unittest.TestCase):

    dtype = "float32"


class Bf16Test(WorkloadCases, unittest.TestCase):

    dtype = "bfloat16"


if __name__ == "__main__":
    unittest.main()
