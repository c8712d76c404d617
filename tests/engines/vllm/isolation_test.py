"""What keeps blocks apart, through vLLM: change any one thing, nothing hits; change nothing, all does."""
import dataclasses
import pathlib
import shutil
import tempfile
import unittest

import models
import prompts
import tiny_model
from engine import BLOCK_TOKENS, Engine, kvtier_connector, prompt_of
from kvtierd import kvtierd

BLOCKS = 9
ALL = BLOCKS * BLOCK_TOKENS


class IsolationTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls) -> None:
        _, cls.tokens = prompts.split(seed=31, blocks=BLOCKS, rest=12)

    def cached(self, engine: Engine, **how) -> int:
        """Tokens of the prompt that come from kvtier; the engine itself has none."""
        engine.forget()
        answer, = engine.generate([prompt_of(self.tokens, **how)])
        return answer.cached

    def check(self, engine: Engine, daemon, **how) -> None:
        """Nothing the first time, although the same tokens are held under another name; all the second."""
        held = daemon.status().blocks
        self.assertEqual(self.cached(engine, **how), 0)
        daemon.wait_blocks(held + BLOCKS)
        self.assertEqual(self.cached(engine, **how), ALL)

    def engine(self, daemon, model, extra: dict | None = None, **arguments) -> Engine:
        connector = kvtier_connector(daemon.address, lookup_budget=2.0, **(extra or {}))
        return Engine(model, connector, **arguments)

    def test_salt_and_adapter(self):
        one, other = (str(models.adapter(seed=seed)) for seed in (1, 2))
        ways = ({}, {"cache_salt": "tenant-a"}, {"cache_salt": "tenant-b"}, {"adapter": ("one", 1, one)},
                {"adapter": ("other", 2, other)}, {"adapter": ("one", 1, one), "cache_salt": "tenant-a"})
        with kvtierd() as daemon, self.engine(daemon, models.model(), enable_lora=True, max_lora_rank=8,
                                              max_loras=2) as engine:
            for how in ways:
                with self.subTest(**how):
                    self.check(engine, daemon, **how)
            for how in ways:
                with self.subTest("again", **how):
                    self.assertEqual(self.cached(engine, **how), ALL)

    def test_an_adapter_that_is_being_written(self):
        """vLLM answers with what it has loaded; nothing is found or kept until the file is whole again."""
        with tempfile.TemporaryDirectory(prefix="kvtier_adapter_") as folder:
            shutil.copytree(models.adapter(seed=1), folder, dirs_exist_ok=True)
            file = pathlib.Path(folder, "adapter_model.safetensors")
            whole, how = file.read_bytes(), {"adapter": ("one", 1, folder)}
            with kvtierd() as daemon, self.engine(daemon, models.model(), enable_lora=True, max_lora_rank=8,
                                                  multiprocess=True) as engine:
                self.check(engine, daemon, **how)
                held = daemon.status().blocks
                file.write_bytes(whole[:100])
                self.assertEqual([self.cached(engine, **how) for _ in range(2)], [0, 0])
                self.assertEqual(self.cached(engine), 0)  # of a request without, all is as ever
                daemon.wait_blocks(held + BLOCKS)
                self.assertEqual(daemon.status().blocks, held + BLOCKS)
                file.write_bytes(whole)
                self.assertEqual(self.cached(engine, **how), ALL)

    def test_model_dtype_revision(self):
        """Engines of one shape, each in a process of its own; the first one hits again at the end."""
        tiny = models.model()
        variants = {
            "the model": (tiny, {}),
            "another model of the same shape":
                (models.model(dataclasses.replace(tiny_model.TINY, seed=7)), {}),
            "the model in bf16": (tiny, {"dtype": "bfloat16"}),
            "another revision": (tiny, {"extra": {"revision": "second"}}),
            "another tenant": (tiny, {"extra": {"tenant": "second"}}),
        }
        with kvtierd() as daemon:
            for what, (model, arguments) in variants.items():
                with self.subTest(what), self.engine(daemon, model, **arguments) as engine:
                    self.assertEqual(self.cached(engine), 0)
                    engine.stop()
            for what in ("the model", "another revision"):
                model, arguments = variants[what]
                with self.subTest(what + " again"), self.engine(daemon, model, **arguments) as engine:
                    self.assertEqual(self.cached(engine), ALL)


if __name__ == "__main__":
    unittest.main()
