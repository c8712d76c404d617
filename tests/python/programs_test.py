"""The package's programs run as a user runs them: the examples, and the benchmark."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from package import SOURCE, Daemon  # noqa: E402

EXAMPLES = SOURCE / "client/python/examples"
NEEDS = {"numpy_pages.py": "numpy"}
ELSEWHERE = {"transformers_generate.py"}  # needs an engine: tests/engines/transformers/scripts_test.py
RUN_SECONDS = 240
README = SOURCE / "client/python/README.md"


def run(*command):
    path = {} if os.environ.get("KVTIER_INSTALLED") else {"PYTHONPATH": str(SOURCE / "client/python")}
    return subprocess.run(
        [sys.executable, *command],
        env={**os.environ, **path},
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )


class ProgramsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="kvtier_programs_")
        self.addCleanup(folder.cleanup)
        daemon = Daemon(folder.name + "/data", "--ram-bytes", "512MiB")
        self.addCleanup(daemon.close)
        self.address = daemon.address

    def test_examples(self):
        examples = sorted(path for path in EXAMPLES.glob("*.py") if path.name not in ELSEWHERE)
        self.assertGreaterEqual(len(examples), 4)
        for example in examples:
            with self.subTest(example.name):
                needed = NEEDS.get(example.name)
                if needed and run("-c", f"import {needed}").returncode:
                    print(f"{example.name} was left out: no {needed} here")
                    continue
                done = run(example, self.address)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                again = run(example, self.address)  # with its own blocks held already
                self.assertEqual((again.returncode, again.stderr), (0, ""))
                bare = run(example)
                self.assertEqual((bare.returncode, bare.stdout), (1, ""))
                self.assertRegex(bare.stderr, example.name + " ADDRESS .*unix:")
                self.assertNotIn("Traceback", bare.stderr)

    def test_the_readmes_program(self):
        """For a prompt of some blocks, then with them held; and for one that is shorter than a block."""
        program = README.read_text().split("```python\n")[1].split("```")[0]
        self.assertIn("unix:/tmp/kvtier/kvtier.sock", program)
        program = program.replace("unix:/tmp/kvtier/kvtier.sock", self.address)
        for count, hits in ((100, 0), (100, 6), (3, 0)):
            with self.subTest(count=count, hits=hits):
                done = run("-c", f"tokens = range({count})\n{program}\nprint(hit)")
                self.assertEqual((done.returncode, done.stdout), (0, f"{hits}\n"), done.stderr)

    def test_an_example_with_no_daemon_says_so(self):
        done = run(EXAMPLES / "sync_client.py", "unix:/nowhere/kvtierd.sock")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("kvtier.errors.Unavailable: RegisterModel", done.stderr)

    def test_benchmark(self):
        done = run("-m", "kvtier.bench", "--server", self.address, "--rounds", "1", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)
        rows = {row["name"]: row for row in report["rows"]}
        self.assertEqual(report["bench"], "python")
        for name, unit in (
            ("fetch_python", "GB/s"),
            ("store_python", "GB/s"),
            ("lookup_512_hit_python", "us"),
        ):
            row = rows[name]
            self.assertEqual(row["unit"], unit)
            self.assertAlmostEqual(row["ratio"], row["value"] / row["limit"])
            self.assertTrue(row["limit_name"])
        self.assertGreater(rows["memcpy_python"]["value"], 0)
        bad = run("-m", "kvtier.bench", "--server", "unix:/nowhere/kvtierd.sock")
        self.assertEqual((bad.returncode, bad.stdout), (1, ""))
        self.assertIn("kvtier.bench: RegisterModel", bad.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
