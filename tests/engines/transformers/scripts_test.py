"""The example and the measurement run, and show what they say."""
from __future__ import annotations

import json
import pathlib
import re
import subprocess
import sys
import unittest

from support import EngineTest

ROOT = pathlib.Path(__file__).resolve().parents[3]


class ScriptsTest(EngineTest):
    def run_script(self, path, *flags):
        done = subprocess.run([sys.executable, ROOT / path, *flags], capture_output=True, text=True,
                              timeout=300, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("maximum length", done.stderr)  # what transformers says of a prompt too long
        return done.stdout

    def test_example(self):
        server = self.start().address
        seen = []
        for _ in range(2):
            out = self.run_script("client/python/examples/transformers_generate.py", "--server", server)
            self.assertEqual(out.count("failure: None"), 2, out)
            seen += [tuple(map(int, found))
                     for found in re.findall(r"(\d+) from kvtier, (\d+) computed", out)]
        cold, second, again, _ = seen
        self.assertEqual(cold[0], 0)
        self.assertGreater(second[0], 10 * second[1])
        self.assertGreater(again[0], 10 * again[1])  # in another process

    def test_time_to_first_token(self):
        out = self.run_script("tests/engines/transformers/ttft.py", "--tokens", "600", "--rounds", "3",
                              "--layers", "4", "--hidden", "256", "--json")
        rows = {row["name"]: row for row in json.loads(out)["rows"]}
        self.assertEqual(rows["computed_cold_float32"]["value"], 600)
        self.assertEqual(rows["computed_cached_float32"]["value"], 600 - 592)
        print(f"cached of cold {rows['ttft_cached_float32']['ratio']:.3f}, of it in kvtier "
              f"{rows['kvtier_share_float32']['ratio']:.3f}")


if __name__ == "__main__":
    unittest.main()
