"""One process stores, another hits: the same bits as a hit in vLLM's own prefix cache at the same split."""
import dataclasses
import unittest

import models
import prompts
import tiny_model
from engine import BLOCK_TOKENS, Engine, kvtier_connector
from kvtierd import kvtierd
from waiting import wait_until

EXTERNAL_HITS = "vllm:external_prefix_cache_hits"
PREFIX_BLOCKS = 9
TURN_TOKENS = 44  # the answer's tokens fill a block of their own


def conversation(seed: int, first_answer: tuple[int, ...]) -> list[int]:
    """What the user sends after the first answer: all that was said, and 20 tokens more."""
    prefix, _ = prompts.split(seed, PREFIX_BLOCKS, 12)
    return prefix + list(first_answer) + prompts.tokens(seed + 500, 20)


class HitCases:
    """For each dtype; the subclasses say which."""

    dtype: str

    @classmethod
    def setUpClass(cls) -> None:
        """What vLLM says by itself; and the first process, which stores the prefix and its own answer."""
        cls.model = models.model(dataclasses.replace(tiny_model.TINY, dtype=cls.dtype))
        cls.prefix, cls.prompt = prompts.split(seed=11, blocks=PREFIX_BLOCKS, rest=12)
        with Engine(cls.model) as engine:
            first, = engine.generate([cls.prefix], max_tokens=TURN_TOKENS)
            cls.turn = conversation(11, first.tokens)
            cls.local = engine.generate([cls.prompt, cls.prefix, cls.turn], max_tokens=24, one_by_one=True)
        cls.daemon = cls.enterClassContext(kvtierd("--ssd-bytes", "1GiB"))
        with cls.engine() as engine:
            stored, = engine.generate([cls.prefix], max_tokens=TURN_TOKENS)
            assert stored.cached == 0 and stored.says() == first.says(), "storing changed the answer"
            cls.daemon.wait_blocks(PREFIX_BLOCKS + 1)
            engine.stop()

    @classmethod
    def engine(cls, **arguments) -> Engine:
        return Engine(cls.model, kvtier_connector(cls.daemon.address, lookup_budget=2.0), **arguments)

    def check(self, engine: Engine, unknown_seed: int) -> None:
        """A prompt that goes on, the same prompt again, the conversation's next turn; and a miss."""
        for prompt, local, blocks in zip((self.prompt, self.prefix, self.turn), self.local, (9, 8, 10)):
            with self.subTest(tokens=len(prompt)):
                engine.forget()
                before = engine.metrics()[EXTERNAL_HITS]
                answer, = engine.generate([prompt], max_tokens=24)
                self.assertEqual(local.cached, blocks * BLOCK_TOKENS)
                self.assertEqual(answer.cached, blocks * BLOCK_TOKENS)
                self.assertEqual(engine.metrics()[EXTERNAL_HITS] - before, blocks * BLOCK_TOKENS)
                self.assertEqual(answer.says(), local.says())
        before = engine.metrics()[EXTERNAL_HITS]
        unknown, = engine.generate([prompts.tokens(unknown_seed, count=50)])
        self.assertEqual(unknown.cached, 0)
        self.assertEqual(engine.metrics()[EXTERNAL_HITS], before)

    def test_a_second_process_answers_from_the_first_ones_blocks(self):
        with self.engine() as engine:
            self.check(engine, unknown_seed=12)
            self.daemon.wait_idle()
            with self.subTest("kvtierd restarted: the blocks come from the SSD"):
                self.daemon.process.stop()
                self.daemon.process.close()
                self.daemon.start()
                self.assertGreaterEqual(self.daemon.status().blocks, PREFIX_BLOCKS + 1)
                wait_until(lambda: self.hits(engine), "a hit after the restart")
                self.check(engine, unknown_seed=13)
            engine.stop()

    def hits(self, engine: Engine) -> bool:
        """The client connects again by itself, at the latest after its breaker's pause."""
        engine.forget()
        answer, = engine.generate([self.prefix])
        return answer.cached > 0


class Fp32Test(HitCases, unittest.TestCase):

    dtype = "float32"

    def test_with_the_engine_core_in_a_process_of_its_own(self):
        """As vLLM's server runs: scheduler and worker away from the caller, loads between steps."""
        with self.engine(multiprocess=True) as engine:
            self.check(engine, unknown_seed=14)
            engine.stop()


class Bf16Test(HitCases, unittest.TestCase):

    dtype = "bfloat16"


if __name__ == "__main__":
    unittest.main()
