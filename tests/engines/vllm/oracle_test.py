"""What the other tests rest on, shown without a connector: vLLM answers the same bits for the same split.

A local prefix-cache hit in one process equals the same hit in another, token for token and bit for bit
of the log probabilities; and the model is wide enough for another prompt to be answered otherwise.
"""
import unittest

import models
import prompts
from engine import BLOCK_TOKENS, Engine


class OracleTest(unittest.TestCase):

    def test_local_hits_are_the_same_bits_in_every_process(self):
        """The oracle of all other tests: prefix first, then the prompt that hits it."""
        prefix, prompt = prompts.split(seed=1, blocks=9, rest=12)
        seen = []
        for _ in range(2):
            with Engine(models.model()) as engine:
                engine.generate([prefix])
                answer, = engine.generate([prompt])
                self.assertEqual(answer.cached, 9 * BLOCK_TOKENS)
                seen.append(answer.says())
        self.assertEqual(seen[0], seen[1])

    def test_the_model_tells_prompts_apart(self):
        """Else equal answers would prove nothing: one token changed early changes the answer."""
        prompt = prompts.tokens(seed=2, count=300)
        other = [prompt[0] ^ 1, *prompt[1:]]
        with Engine(models.model()) as engine:
            first, second = engine.generate([prompt, other], one_by_one=True)
        self.assertNotEqual(first.tokens, second.tokens)


if __name__ == "__main__":
    unittest.main()
