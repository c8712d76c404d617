"""What the other tests rest on, shown without kvtier: vLLM answers the same bits for the same split.

A local prefix-cache hit in one process equals the same hit in another, token for token and bit for bit
of the log probabilities; the model tells prompts apart; and a connector that loads nothing is noticed.
"""
import unittest

import models
import prompts
from engine import BLOCK_TOKENS, Engine

LIAR = {"kv_connector": "LiarConnector", "kv_connector_module_path": "liar", "kv_role": "kv_both"}
BLOCKS = 9


class OracleTest(unittest.TestCase):

    def test_local_hits_are_the_same_bits_in_every_process(self):
        """The oracle of all other tests: prefix first, then the prompt that hits it."""
        prefix, prompt = prompts.split(seed=1, blocks=BLOCKS, rest=12)
        other = [prompt[0] ^ 1, *prompt[1:]]
        seen = []
        for _ in range(2):
            with Engine(models.model()) as engine:
                engine.generate([prefix])
                answer, = engine.generate([prompt])
                self.assertEqual(answer.cached, BLOCKS * BLOCK_TOKENS)
                changed, = engine.generate([other])
                self.assertNotEqual(answer.logprobs, changed.logprobs)
                seen.append(answer)
        self.assertEqual(seen[0].says(), seen[1].says())
        # Control: equal answers elsewhere prove that the right KV was loaded.
        with Engine(models.model(), connector=LIAR) as engine:
            false, = engine.generate([prompt])
        self.assertEqual(false.cached, BLOCKS * BLOCK_TOKENS)
        self.assertNotEqual(seen[0].tokens, false.tokens)


if __name__ == "__main__":
    unittest.main()
