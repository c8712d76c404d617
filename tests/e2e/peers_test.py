"""bench/peers without any peer: the harness runs, says what it measured, and prints no rate beside a failure.

Environment: KVTIERD (the binary; kvtier and kvtier_peer_arm lie beside it).
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ["KVTIERD"]).parent
PEERS = SOURCE / "bench/peers"
OPERATIONS = {"put", "get", "lookup_hit", "lookup_miss", "lookup_partial"}

sys.path.insert(0, str(PEERS))
import report  # noqa: E402

# The real client, but for what it says after a get over the Unix socket.
FAILING_ARM = """#!/bin/sh
case "$1 $2" in
  "kvtier unix:"*) ;;
  *) exec {arm} "$@" ;;
esac
while read -r command rest; do
  if [ "$command" = get ]; then echo '{{"error": "DATA_LOSS: planted"}}'; exit 1; fi
  echo '{{"model": "", "start": 1, "end": 2}}'
done
"""


def run(*flags, bin_folder=BIN):
    return subprocess.run([sys.executable, PEERS / "peers.py", "--only", "kvtier", "--quick", "--rounds", "1",
                           "--bin", bin_folder, *flags], capture_output=True, text=True, timeout=200, check=False)


def systems_of(document):
    return {row["system"] for row in document["rows"]}


class PeersTest(unittest.TestCase):
    def test_kvtier_alone_fills_every_row(self):
        done = run("--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        document = json.loads(done.stdout)
        self.assertEqual(document["not_run"], [])
        self.assertEqual(systems_of(document), {"kvtier_unix", "kvtier_shared", "kvtier_tcp", "raw_unix",
                                               "raw_tcp", "grpc_unix"})
        for row in document["rows"]:
            self.assertGreater(row["value"], 0, row)
            self.assertEqual(row["cpu_seconds_per_gb"] is None, row["operation"].startswith("lookup"), row)
        for name in ("kvtier_unix", "kvtier_shared", "kvtier_tcp"):
            rows = [row for row in document["rows"] if row["system"] == name]
            self.assertEqual({row["operation"] for row in rows}, OPERATIONS)
            self.assertEqual({row["clients"] for row in rows}, {1, 2})
            self.assertTrue(all(row["limit"] > 0 and "XXH3" in row["verified"] for row in rows), rows)
        # Nobody to compare with.
        self.assertFalse(any("ratio" in cell for cell in document["cells"]), document["cells"])

    def test_table_names_the_arms(self):
        done = run()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("kvtier_unix: 0.", done.stdout)
        self.assertIn("put 64 KiB x 64", done.stdout)

    def test_one_failed_operation_prints_no_rate(self):
        with tempfile.TemporaryDirectory(prefix="kvtier_peers_") as folder:
            for program in ("kvtierd", "kvtier"):
                (pathlib.Path(folder) / program).symlink_to(BIN / program)
            arm = pathlib.Path(folder) / "kvtier_peer_arm"
            arm.write_text(FAILING_ARM.format(arm=BIN / "kvtier_peer_arm"))
            arm.chmod(0o755)
            done = run("--json", bin_folder=folder)
        self.assertEqual(done.returncode, 1, done.stderr)
        document = json.loads(done.stdout)
        self.assertEqual(document["not_run"], [{"system": "kvtier_unix", "reason": "DATA_LOSS: planted"}])
        self.assertNotIn("kvtier_unix", systems_of(document))
        self.assertIn("kvtier_tcp", systems_of(document))

    def test_bad_arguments_are_named(self):
        for flags, fragment in ((("--only", "memcached"), "--only: 'memcached'"), (("--rounds", "0"), "--rounds: 0"),
                                (("--bin", "/nowhere"), "--bin: /nowhere")):
            done = run(*flags)
            self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
            self.assertIn(fragment, done.stderr)


class Named:
    def __init__(self, name):
        self.name = name


class Arm:
    def __init__(self, name, system, transport):
        self.name, self.system, self.transport = name, Named(system), transport


class RatioTest(unittest.TestCase):
    """Above 1 is ahead, for rates and for latencies; by round; bare sockets and bare gRPC are nobody's peer."""

    def ratio(self, operation, samples, transport=None):
        results = report.Results()
        key = (operation, 1, 1, 1)
        for (name, system, over), values in samples.items():
            for value in values:
                results.add(key, Arm(name, system, over), {"value": value})
        return report.ratio(results, key, transport)

    OURS = ("kvtier_unix", "kvtier", "unix")
    OURS_TCP = ("kvtier_tcp", "kvtier", "tcp")
    RAW = ("raw_unix", "raw", "unix")
    GRPC = ("grpc_unix", "grpc", "unix")
    ONE = ("one", "redis", "unix")
    OTHER = ("other", "mooncake", "tcp")

    def test_rates_and_latencies(self):
        samples = {self.RAW: [9, 9, 9], self.GRPC: [8, 8, 8], self.OURS: [2, 4, 6], self.ONE: [1, 4, 2], self.OTHER: [1, 1, 1]}
        self.assertEqual(self.ratio("put", samples), ("kvtier_unix", "one", 2))
        self.assertEqual(self.ratio("lookup_hit", samples), ("kvtier_unix", "other", 1 / 4))

    def test_over_one_transport(self):
        samples = {self.OURS: [9], self.OURS_TCP: [3], self.ONE: [8], self.OTHER: [2]}
        self.assertEqual(self.ratio("get", samples), ("kvtier_unix", "one", 9 / 8))
        self.assertEqual(self.ratio("get", samples, "tcp"), ("kvtier_tcp", "other", 1.5))

    def test_nobody_to_compare_with(self):
        self.assertIsNone(self.ratio("get", {self.OURS: [1], self.RAW: [1]}))


if __name__ == "__main__":
    unittest.main()
