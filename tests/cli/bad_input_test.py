#!/usr/bin/env python3
"""What an operator gets wrong, and what goes wrong around the kvtier program: it says so and fails.

Environment: KVTIER (the program) and what tests/support/daemon.py needs.
"""
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import daemon as support  # noqa: E402

KVTIER = os.environ["KVTIER"]
SECONDS = 60
LINE = '{"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [1, 2]}\n'


def kvtier(*arguments, **more):
    """Exit code, the JSON document that is all of stdout (None: nothing), stderr."""
    done = subprocess.run([KVTIER, *arguments], env=support.environment(), capture_output=True,
                          text=True, timeout=SECONDS, check=False, **more)
    return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr


def kvtier_when_ready(data_dir):
    """The first status that a starting daemon gives."""
    end = time.monotonic() + SECONDS
    while True:
        answer = kvtier("status", "--json", "--admin", f"unix:{data_dir}/admin.sock")
        if answer[0] == 0 or time.monotonic() > end:
            return answer


class Traces(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.trace = self.write("trace.jsonl", LINE * 2)

    def write(self, name, text):
        path = os.path.join(self.folder.name, name)
        pathlib.Path(path).write_text(text, encoding="utf-8")
        return path

    def simulate(self, *arguments, trace=None, **more):
        code, report, _ = kvtier("simulate", "--json", "--trace", trace or self.trace, *arguments,
                                 **more)
        return code, report

    def refused(self, reason, *arguments, **more):
        code, report = self.simulate(*arguments, **more)
        self.assertEqual(code, 1)
        self.assertIn(reason, report["error"]["message"])

    def test_a_pipe_is_read_once(self):
        code, report = self.simulate("--capacity", "8", trace="/dev/stdin", input=LINE * 2)
        self.assertEqual((code, report["requests"]), (0, 2))
        self.assertEqual(report["rows"][0]["hit_ratio_all"], 0.5)
        for arguments in (["--capacity", "100%"], ["--capacity", "8", "--policy", "lru,min"],
                          ["--capacity", "8", "--tiers", "log", "--ssd-capacity", "100%"]):
            self.refused("trace is '/dev/stdin', which is no regular file", *arguments,
                         trace="/dev/stdin", input=LINE * 2)
        fifo = os.path.join(self.folder.name, "fifo")
        os.mkfifo(fifo)
        self.refused("no regular file", "--capacity", "100%", trace=fifo)
        code, report = self.simulate("--capacity", "100%")
        self.assertEqual((code, report["rows"][0]["hit_ratio_all"]), (0, 0.5))

    def test_a_trace_without_a_block(self):
        empty, garbage = self.write("empty", ""), self.write("garbage", "what\nis\nthis\n")
        for arguments in (["--capacity", "8"], ["--capacity", "8%"], ["--curve"],
                          ["--capacity", "8", "--policy", "min"]):
            self.refused("empty: no request has a block", *arguments, trace=empty)
        self.refused("garbage: no request has a block; lines passed over: 3", "--capacity", "8",
                     "--skip-bad-lines", trace=garbage)
        self.refused("no request has a block and is of model 7", "--capacity", "8", "--model", "7")
        self.refused(": Is a directory", "--capacity", "8", trace=self.folder.name)

    def test_a_tar_of_sessions_tells_how_far_it_is(self):
        trace = os.path.join(self.folder.name, "sessions.tar")
        session = json.dumps({"block_size": 512, "hash_id_scope": "local", "requests": [
            {"t": 0, "in": 512, "out": 1, "hash_ids": [1]}]}).encode()
        with tarfile.open(trace, "w") as archive:
            for number in range(201):
                member = tarfile.TarInfo(f"{number}.json")
                member.size = len(session)
                archive.addfile(member, io.BytesIO(session))
        code, report, err = kvtier("simulate", "--json", "--trace", trace, "--capacity", "8")
        self.assertEqual((code, report["requests"]), (0, 201))
        for sessions in (100, 200):
            self.assertIn(f"trace: {sessions} sessions of the archive are read\n", err)

    def test_times_are_a_table(self):
        command = [KVTIER, "simulate", "--trace", self.trace, "--capacity", "8", "--timing"]
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        self.assertRegex(out, r"\ntime +capacity, blocks +seconds +ns per reference")
        self.assertRegex(out, r"\nlru +8 +0\.0")
        self.assertNotIn("{", out)

    def test_sizes_out_of_range(self):
        tiers = ["--tiers", "log", "--capacity", "8", "--ssd-capacity", "8"]
        self.refused("segment-blocks is 65537, the limit is 65536", *tiers, "--segment-blocks",
                     "65537")
        code, _ = self.simulate(*tiers, "--segment-blocks", "65536")
        self.assertEqual(code, 0)
        self.refused("capacity is '4000000001', must be", "--capacity", "4000000001")
        self.refused("ssd-capacity: capacity is '0'", "--tiers", "log", "--capacity", "8",
                     "--ssd-capacity", "0")
        self.refused("ssd-capacity: capacity is 0 blocks", "--tiers", "log", "--capacity", "8",
                     "--ssd-capacity", "0.1%")

    def test_a_report_never_takes_the_place_of_a_trace(self):
        self.refused("its name must end in .html", "--capacity", "8", "--report", self.trace)
        self.assertEqual(pathlib.Path(self.trace).read_text(encoding="utf-8"), LINE * 2)


class WithDaemon(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.daemon = support.Daemon(self.folder.name + "/data")
        self.addCleanup(self.daemon.close)

    def error(self, *arguments):
        code, document, _ = kvtier(*arguments, "--json")
        self.assertEqual(code, 1)
        return document["error"]["message"]

    def test_blocks_too_small_for_what_tells_them_apart(self):
        for command in (["bench", "load"], ["replay"]):
            arguments = command + ["--server", self.daemon.address, "--requests", "3",
                                   "--block-bytes"]
            self.assertEqual(self.error(*arguments, "31"), "block-bytes is 31, the least is 32")
            self.assertIn("block-bytes: 'much' is not a size", self.error(*arguments, "much"))
            self.assertEqual(kvtier(*arguments, "32", "--json")[0], 0)
        admin = ["--admin", self.daemon.admin_address]
        self.assertIn("max-file-bytes: 'much' is not a size",
                      self.error("record", "start", *admin, "--max-file-bytes", "much"))

    def test_a_pace_begins_with_the_first_request(self):
        trace = os.path.join(self.folder.name, "late.jsonl")
        late = LINE.replace("0,", "1000000000000,", 1)
        pathlib.Path(trace).write_text(late * 2, encoding="utf-8")
        code, report, _ = kvtier("replay", "--server", self.daemon.address, "--trace", trace,
                                 "--block-bytes", "64", "--speed", "1", "--json")
        self.assertEqual((code, report["requests"]), (0, 2))

    def test_a_daemon_that_stands_still(self):
        admin = ["--admin", self.daemon.admin_address]
        self.daemon.send(signal.SIGSTOP)
        self.assertIn(f"kvtierd at {self.daemon.admin_address} gave no answer in 10 s: it stands",
                      self.error("status", *admin))
        self.daemon.send(signal.SIGCONT)
        self.assertEqual(kvtier("status", *admin, "--json")[0], 0)


class Streams(unittest.TestCase):
    def shell(self, command):
        return subprocess.run(["sh", "-c", command], env=support.environment({"KVTIER": KVTIER}),
                              capture_output=True, text=True, timeout=SECONDS, check=False)

    def test_an_answer_that_nobody_gets_is_a_failure(self):
        for command in ("--help", "--version", "simulate --help",
                        "size --preset llama-3-70b --json"):
            self.assertEqual(self.shell(f'"$KVTIER" {command}').returncode, 0)
            for nowhere in (">/dev/full", ">&-"):
                done = self.shell(f'"$KVTIER" {command} {nowhere}')
                self.assertEqual((done.returncode, done.stderr),
                                 (1, "kvtier: cannot write to standard output\n"), command)

    def test_an_answer_goes_into_no_other_file(self):
        """A closed descriptor's number is the next file's, here one of the daemon's connection."""
        with tempfile.TemporaryDirectory() as folder, support.Daemon(folder + "/data") as daemon:
            load = f"bench load --requests 10 --block-bytes 64 --json --server {daemon.address}"
            self.assertEqual(self.shell(f'"$KVTIER" {load}').returncode, 0)
            done = self.shell(f'"$KVTIER" {load} >&-')
            self.assertEqual(done.returncode, 1)
            self.assertIn("cannot write to standard output", done.stderr)

    def test_a_daemon_prints_into_no_file_of_its_own(self):
        with tempfile.TemporaryDirectory() as folder:
            daemon = subprocess.Popen(  # its streams are closed, so only its socket tells that it serves
                ["sh", "-c", 'exec "$KVTIERD" --data-dir "$1" --ram-bytes 16MiB <&- >&- 2>&-', "sh",
                 folder], env=support.environment({"KVTIERD": os.environ["KVTIERD"]}))
            try:
                self.assertEqual(kvtier_when_ready(folder)[0], 0)
                lock = pathlib.Path(folder, "lock").read_text(encoding="utf-8")
                self.assertEqual(lock.strip(), str(daemon.pid))
            finally:
                daemon.terminate()
                self.assertEqual(daemon.wait(SECONDS), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
