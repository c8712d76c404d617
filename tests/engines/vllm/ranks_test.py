"""Two tensor-parallel ranks, each with its own part of every block: a hit needs both parts."""
import unittest

import models
import prompts
from engine import BLOCK_TOKENS, Engine, kvtier_connector
from kvtierd import kvtierd

BLOCKS = 9
TWO_RANKS = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp", "multiprocess": True,
             "extra_environment": {"GLOO_SOCKET_IFNAME": "lo"}}


class RanksTest(unittest.TestCase):

    def test_two_ranks(self):
        """A hit from kvtier is the same bits as a local hit; one rank alone hits none of two ranks' blocks."""
        prefix, prompt = prompts.split(seed=61, blocks=BLOCKS, rest=12)
        with kvtierd() as daemon:
            connector = kvtier_connector(daemon.address, lookup_budget=2.0)
            with Engine(models.model(), connector, **TWO_RANKS) as engine:
                engine.generate([prefix])
                daemon.wait_blocks(BLOCKS)
                local, = engine.generate([prompt])
                self.assertEqual(engine.metrics()["vllm:external_prefix_cache_hits"], 0)
                engine.forget()
                answer, = engine.generate([prompt])
                self.assertEqual(answer.cached, BLOCKS * BLOCK_TOKENS)
                self.assertEqual(engine.metrics()["vllm:external_prefix_cache_hits"], BLOCKS * BLOCK_TOKENS)
                self.assertEqual(answer.says(), local.says())
                engine.stop()
            with Engine(models.model(), connector) as engine:
                alone, = engine.generate([prompt])
                self.assertEqual(alone.cached, 0)
                self.assertEqual(alone.tokens, local.tokens)


if __name__ == "__main__":
    unittest.main()
