"""One engine through its life (life.py): cold, warm, a second turn, kvtierd restarted with its SSD, changed
weights, requests aborted at every stage; with loads within the step and between steps."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import daemon
import engine
import models

HERE = pathlib.Path(__file__).resolve().parent
FLAGS = ("--ram-bytes", "64MiB", "--ssd-bytes", "256MiB")
PREFIX = 288  # of 300 prompt tokens, in blocks of 32
WITH_ANSWER = 320  # of 300 + 40 tokens, the last of which has no KV


class LifeTest(unittest.TestCase):

    def live(self, load: str) -> dict:
        with tempfile.TemporaryDirectory(prefix="kvtier_life_") as folder:
            kvtierd = daemon.Daemon(f"{folder}/data", *FLAGS)
            try:
                life = subprocess.Popen(
                    [sys.executable, HERE / "life.py", models.model(), kvtierd.address, load],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                    env=engine.environment(VLLM_LOGGING_LEVEL="WARNING"))
                with life:
                    self.addCleanup(life.kill)
                    self.assertEqual(life.stdout.readline(), "at restart\n")
                    kvtierd.stop()
                    kvtierd.close()
                    kvtierd = daemon.Daemon(f"{folder}/data", *FLAGS)
                    life.stdin.write("\n")
                    life.stdin.flush()
                    seen = json.loads(life.stdout.readline())
                self.assertEqual(life.returncode, 0)
                return seen
            finally:
                kvtierd.close()

    def check(self, seen: dict) -> None:
        stages = seen["stages"]
        self.assertEqual(stages["cold"]["cached"], 0)
        for stage in ("warm", "restarted", "reset", "reset again", "aborts"):
            self.assertTrue(stages[stage]["same"], stage)
        self.assertEqual((stages["warm"]["cached"], stages["warm"]["sources"]), (PREFIX, {"host": PREFIX}))
        self.assertEqual(stages["second turn"]["cached"], WITH_ANSWER)
        restarted = stages["restarted"]
        self.assertEqual((restarted["cached"], restarted["sources"]), (PREFIX, {"disk": PREFIX}))
        self.assertEqual(stages["reset"]["cached"], 0)
        self.assertEqual(stages["reset again"]["cached"], PREFIX)
        self.assertEqual(stages["aborts"]["cached"], PREFIX)
        self.assertEqual((seen["in_use"], seen["pinned"]), (0, 0))

    def test_loads_within_the_step(self):
        self.check(self.live("sync"))

    def test_loads_between_steps(self):
        self.check(self.live("async"))


if __name__ == "__main__":
    unittest.main()
