#!/usr/bin/env python3
"""Every command of the kvtier program against the real kvtierd.

Environment: KVTIER (the program) and what tests/support/daemon.py needs.
"""
import io
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import unittest
import xml.etree.ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import daemon as support  # noqa: E402

KVTIER = os.environ["KVTIER"]
COMMANDS = ["status", "models", "curve", "advise", "set-capacity", "reset", "unregister", "drain",
            "size", "inspect", "replay"]
SECONDS = 120


def kvtier(*arguments, env=None):
    done = subprocess.run([KVTIER, *arguments], env=support.environment(env), capture_output=True,
                          text=True, timeout=SECONDS, check=False)
    return done.returncode, done.stdout, done.stderr


def texts(path):
    """All text of a page or picture; fails unless it is well-formed XML."""
    return " ".join(xml.etree.ElementTree.parse(path).getroot().itertext())


def one_document(text):
    """The JSON document that is all of `text`."""
    document, end = json.JSONDecoder().raw_decode(text)
    assert text[end:].strip() == "", text[end:]
    return document


class WithoutDaemon(unittest.TestCase):
    def test_help_teaches(self):
        code, out, _ = kvtier("--help")
        self.assertEqual(code, 0)
        for command in COMMANDS:
            self.assertIn(f"  {command} ", out)
            code, text, _ = kvtier(command, "--help")
            self.assertEqual(code, 0)
            self.assertIn("--json", text)
            self.assertIn("Example:\n  kvtier " + command, text)

    def test_version(self):
        self.assertRegex(kvtier("--version")[1], r"^kvtier \d+\.\d+\.\d+\n$")

    def test_wrong_usage_is_told_apart(self):
        for arguments in ([], ["nonsense"], ["size", "--nonsense"], ["replay"], ["set-capacity"],
                          ["replay", "--block-bytes", "64", "--convention", "some"],
                          ["size", "--preset", "llama-7b", "--layers", "3"]):
            code, out, err = kvtier(*arguments)
            self.assertEqual((code, out), (2, ""), arguments)
            self.assertNotEqual(err, "")

    def test_nobody_answers(self):
        for command in (["status"], ["models"], ["drain"], ["record", "start"],
                        ["record", "stop"], ["record", "status"],
                        ["set-capacity", "--tier", "ram", "--bytes", "1GiB"],
                        ["reset", "--model", "0" * 32], ["unregister", "--model", "0" * 32]):
            code, out, err = kvtier(*command, "--json", env={"KVTIER_ADMIN": "unix:/no/where"})
            self.assertEqual(code, 1)
            error = one_document(out)["error"]
            self.assertEqual(error["code"], "UNAVAILABLE")
            self.assertIn("cannot reach kvtierd at unix:/no/where: is it running?",
                          error["message"])
            self.assertIn(error["message"], err)

    def test_nothing_to_inspect(self):
        with tempfile.TemporaryDirectory() as folder:
            for arguments, error in (([], "NOT_FOUND"), (["--block", "xyz"], "INVALID_ARGUMENT")):
                code, out, _ = kvtier("inspect", "--data-dir", folder, "--json", *arguments)
                self.assertEqual((code, one_document(out)["error"]["code"]), (1, error))
            self.assertEqual(os.listdir(folder), [])

    def test_size_worked_case(self):
        arguments = ["size", "--preset", "llama-3-70b", "--gpu-memory", "640GB", "--usable", "0.9",
                     "--weights", "140GB", "--bandwidth", "26.8TB/s"]
        code, out, _ = kvtier(*arguments, "--context", "8192", "--json")
        self.assertEqual(code, 0)
        answer = one_document(out)
        self.assertEqual(answer["bytes_per_token"], 327680)
        self.assertEqual(answer["batch_limit"], 162)
        self.assertEqual(answer["kv_budget_bytes"] >> 30, 406)
        _, out, _ = kvtier(*arguments, "--context", "131072", "--json")
        self.assertEqual(one_document(out)["batch_limit"], 10)
        _, out, _ = kvtier(*arguments, "--context", "8192")
        self.assertIn("162 sequences", out)

    def test_size_free_shapes_and_overrides(self):
        def per_token(*arguments):
            code, out, err = kvtier("size", *arguments, "--json")
            self.assertEqual(code, 0, err)
            return one_document(out)["bytes_per_token"]
        self.assertEqual(per_token("--layers", "32", "--kv-heads", "8", "--head-dim", "128"), 131072)
        self.assertEqual(per_token("--layers", "32", "--kv-heads", "8", "--head-dim", "128",
                                   "--dtype", "fp8"), 65536)
        self.assertEqual(per_token("--layers", "61", "--kv-lora-rank", "512",
                                   "--rope-head-dim", "64"), 70272)
        self.assertEqual(per_token("--preset", "llama-3-70b", "--kv-heads", "64"), 2621440)
        self.assertEqual(per_token("--preset", "llama-3-70b", "--tp", "16"), 655360)

    def test_size_windows(self):
        shape = ["size", "--layers", "10", "--kv-heads", "1", "--head-dim", "1", "--dtype", "int8",
                 "--context", "1000", "--json", "--window", "100"]
        self.assertEqual(one_document(kvtier(*shape)[1])["bytes_per_sequence"], 10 * 2 * 100)
        mixed = one_document(kvtier(*shape, "--window-layers", "4")[1])
        self.assertEqual(mixed["bytes_per_sequence"], 4 * 2 * 100 + 6 * 2 * 1000)
        code, out, _ = kvtier(*shape, "--window-layers", "11")
        self.assertEqual(code, 1)
        self.assertIn("window-layers is 11", one_document(out)["error"]["message"])

    def test_size_reads_a_configuration(self):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump({"model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32,
                       "num_key_value_heads": 8, "hidden_size": 4096, "torch_dtype": "bfloat16"},
                      file)
            file.flush()
            code, out, _ = kvtier("size", "--hf-config", file.name, "--json")
        self.assertEqual(code, 0)
        self.assertEqual(one_document(out)["bytes_per_token"], 131072)
        code, out, _ = kvtier("size", "--hf-config", "/no/such/file", "--json")
        self.assertEqual(code, 1)
        self.assertEqual(one_document(out)["error"]["code"], "NOT_FOUND")

    def test_size_lists_its_presets(self):
        names = {p["preset"] for p in one_document(kvtier("size", "--list", "--json")[1])["presets"]}
        self.assertLessEqual({"llama-7b", "llama-3-8b", "llama-3-70b", "deepseek-v3", "qwen2.5-7b"},
                             names)
        for name in names:
            self.assertEqual(kvtier("size", "--preset", name)[0], 0, name)

    def test_sizes_that_are_none(self):
        code, out, _ = kvtier("size", "--preset", "llama-7b", "--gpu-memory", "lots", "--weights",
                              "1GB", "--json")
        self.assertEqual(code, 1)
        self.assertIn("gpu-memory: 'lots'", one_document(out)["error"]["message"])


class TwoTiers(unittest.TestCase):
    """simulate --tiers on a tar of sessions that Python's tarfile wrote."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.trace = os.path.join(self.folder.name, "sessions")

    def write(self, form, sessions):
        with tarfile.open(self.trace, "w", format=form) as archive:
            for name, session in sessions:
                text = json.dumps(session).encode()
                member = tarfile.TarInfo(name)
                member.size = len(text)
                archive.addfile(member, io.BytesIO(text))

    @staticmethod
    def session(turns):
        return {"block_size": 64, "hash_id_scope": "local",
                "requests": [{"t": 9 * i, "in": 512 * (i + 1), "out": 1,
                              "hash_ids": list(range(8 * (i + 1)))} for i in range(turns)]}

    def simulate(self, *arguments):
        code, out, _ = kvtier("simulate", "--trace", self.trace, "--convention", "all", "--json",
                              *arguments)
        return code, one_document(out)

    def test_rows(self):
        name = "a" * 120 + ".json"
        for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
            names = (name, "b.json") if form != tarfile.USTAR_FORMAT else ("d/" + name[30:], "b")
            self.write(form, [(names[0], self.session(3)), (names[1], self.session(2))])
            code, report = self.simulate("--tiers", "exclusive,inclusive,lazy,log", "--capacity",
                                         "100", "--ssd-capacity", "200,400")
            self.assertEqual((code, report["requests"], report["blocks_all"]), (0, 5, 9))
            self.assertEqual(report["distinct_blocks"], 5)
            rows = report["rows"]
            self.assertEqual([(row["tiers"], row["ssd_capacity_blocks"]) for row in rows],
                             [(way, ssd) for ssd in (200, 400)
                              for way in ("exclusive", "inclusive", "lazy", "log")])
            for row in rows:
                self.assertAlmostEqual(row["hit_ratio_all"], 4 / 9)
                self.assertAlmostEqual(row["hit_ratio_ram_all"], 4 / 9)
                self.assertIsNone(row["hit_ratio_ram_full"])
                self.assertAlmostEqual(row["ssd_writes_per_block_all"],
                                       5 / 9 if row["tiers"] == "inclusive" else 0)

    def test_what_is_refused(self):
        self.write(tarfile.PAX_FORMAT, [("good", self.session(2)), ("bad", {"requests": []})])
        sizes = ["--capacity", "10", "--ssd-capacity", "20"]
        for arguments, reason in (
                (["--tiers", "lazy", *sizes], "member bad: session: block_size is missing"),
                (["--tiers", "eager", *sizes], "tiers is 'eager', must be of: exclusive, "),
                (["--tiers", "lazy", "--segment-blocks", "3", *sizes], "segment-blocks is 3")):
            code, report = self.simulate(*arguments)
            self.assertEqual(code, 1)
            self.assertIn(reason, report["error"]["message"])
        code, report = self.simulate("--tiers", "log", "--segment-blocks", "3", "--skip-bad-lines",
                                     *sizes)
        self.assertEqual((code, report["skipped_lines"], report["requests"]), (0, 1, 2))


    def test_report_and_plot(self):
        self.trace = os.path.join(self.folder.name, "a<&>.tar")
        self.write(tarfile.PAX_FORMAT, [("a", self.session(3)), ("b", self.session(2))])
        page, plot = self.trace + ".html", self.trace + ".svg"
        for arguments in (["--policy", "lru", "--capacity", "1,2,100"],
                          ["--tiers", "log,lazy", "--capacity", "100", "--ssd-capacity", "200"]):
            code, _ = self.simulate(*arguments, "--report", page, "--plot", plot)
            self.assertEqual(code, 0)
            self.assertIn("a<&>.tar", texts(page))
            self.assertIn("--capacity", texts(page))
            self.assertIn("hit ratio", texts(plot))
        self.assertEqual(sorted(os.listdir(self.folder.name)),
                         ["a<&>.tar", "a<&>.tar.html", "a<&>.tar.svg"])

    def test_a_report_that_cannot_be_written_is_told_first(self):
        no_such = os.path.join(self.folder.name, "no", "such.html")
        folder = os.path.join(self.folder.name, "folder.html")
        os.mkdir(folder)
        for arguments, reason in (
                (["--report", no_such], f"cannot write {no_such}: No such file or directory"),
                (["--report", folder], "it is no regular file"),
                (["--plot", "a.png"], "plot is 'a.png', its name must end in .svg"),
                (["--report", self.trace], f"report is '{self.trace}', its name must end in .html")):
            code, report = self.simulate("--capacity", "1", *arguments)  # there is no trace either
            self.assertEqual(code, 1)
            self.assertIn(reason, report["error"]["message"])


class DaemonTestCase(unittest.TestCase):
    FLAGS = ()

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.start()

    def start(self):
        self.daemon = support.Daemon(os.path.join(self.folder.name, "data"), *self.FLAGS)

    def tearDown(self):
        self.daemon.close()
        self.folder.cleanup()

    def admin(self, *arguments, code=0):
        got, out, err = kvtier(*arguments, "--admin", self.daemon.admin_address, "--json")
        self.assertEqual(got, code, err)
        return one_document(out)

    def replay(self, *arguments, code=0, requests=300):
        got, out, err = kvtier("replay", "--server", self.daemon.address, "--admin",
                               self.daemon.admin_address, "--json", "--requests", str(requests),
                               "--block-bytes", "16KiB", *arguments)
        self.assertEqual(got, code, err)
        return one_document(out)


class WithDaemon(DaemonTestCase):
    FLAGS = ("--ram-bytes", "64MiB")

    def test_replay_then_look_then_reset(self):
        first = self.replay()
        self.assertEqual(first["requests"], 300)
        self.assertGreater(first["hit_ratio_all"], 0.3)
        self.assertEqual(first["hit_ratio_ram"], first["hit_ratio_all"])
        self.assertIsNone(first["hit_ratio_full"])
        self.assertEqual((first["wrong_blocks"], first["ssd_writes_per_block"]), (0, 0))
        self.assertEqual(first["verified_blocks"], first["hit_blocks"])
        self.assertEqual(first["latency_us"]["lookup"]["count"], 300)
        self.assertEqual(sum(s["requests"] for s in first["slices"]), 300)
        self.assertEqual(sum(s["blocks"] for s in first["slices"]), first["blocks"])
        self.assertEqual(sum(s["hit_blocks_ram"] for s in first["slices"]), first["hit_blocks"])
        page, plot = (os.path.join(self.folder.name, name) for name in ("a.html", "a.svg"))
        self.assertEqual(self.replay("--report", page, "--plot", plot)["hit_ratio_all"], 1)
        self.assertIn("so far: 1.0000", texts(page))
        self.assertIn("Latency by call", texts(plot))

        status = self.admin("status")
        self.assertEqual(status["models"], 1)
        self.assertEqual(status["blocks"], first["stored_blocks"])
        self.assertIsNone(status["ssd"])
        ram = next(t for t in status["tiers"] if t["tier"] == "ram")
        self.assertEqual(ram["capacity_bytes"], 64 << 20)
        self.assertIn("ram-bytes", {s["name"] for s in status["settings"]})

        model = self.admin("models")["models"][0]
        self.assertEqual(model["name"], "kvtier-replay")
        self.assertEqual(model["block_bytes"], 16384)

        other = self.admin("reset", "--model", model["model_id"], "--tenant", "nobody")
        self.assertEqual((other["scope"], other["dropped_blocks"]), ("namespace", 0))
        mine = self.admin("reset", "--model", model["model_id"], "--tenant", "kvtier-replay")
        self.assertEqual(mine["dropped_blocks"], first["stored_blocks"])
        self.assertEqual(self.replay()["hit_blocks"], first["hit_blocks"])
        whole = self.admin("reset", "--model", model["model_id"])
        self.assertEqual((whole["scope"], whole["dropped_blocks"]), ("model", first["stored_blocks"]))
        self.admin("unregister", "--model", model["model_id"])
        self.assertEqual(self.admin("models")["models"], [])

    def test_curve(self):
        empty = self.admin("curve")
        self.assertEqual((empty["lookups"], empty["hit_ratio"]), (0, 0))
        run = self.replay(requests=600)
        curve = self.admin("curve")
        self.assertEqual((curve["lookups"], curve["lookup_blocks"], curve["hit_blocks"]),
                         (run["requests"], run["blocks"], run["hit_blocks"]))
        self.assertEqual(curve["sampling_rate"], 1)
        ram = curve["tiers"][0]
        self.assertEqual(ram["tier"], "ram")
        ratios = [point["hit_ratio"] for point in ram["points"]]
        self.assertEqual(ratios, sorted(ratios))
        self.assertEqual([round(p["scale"], 2) for p in ram["points"]],
                         [0.25, 0.35, 0.5, 0.71, 1, 1.41, 2, 2.83, 4, 5.66, 8, 11.31, 16])
        now = next(point for point in ram["points"] if point["scale"] == 1)
        self.assertEqual(now["capacity_bytes"], ram["capacity_bytes"])
        # All that was stored fits, so what was found is what the largest size would find.
        self.assertAlmostEqual(now["hit_ratio"], run["hit_blocks"] / run["blocks"], delta=1e-6)
        self.assertAlmostEqual(ratios[-1], now["hit_ratio"], delta=1e-6)

        model = self.admin("models")["models"][0]["model_id"]
        self.assertEqual(self.admin("curve", "--model", model, "--since-start"), curve)
        unknown = self.admin("curve", "--model", "0" * 32, code=1)
        self.assertEqual(unknown["error"]["code"], "NOT_FOUND")
        self.assertGreater(self.admin("status")["hit_curve"]["ghost_blocks"], 100)
        _, text, _ = kvtier("curve", "--admin", self.daemon.admin_address)
        self.assertRegex(text, r"ram, now .*: hits in this tier")
        self.assertRegex(text, r"1\.00x +[0-9.]+ ?.iB +0\.[0-9]{3} +\|#+ *\|")

    def test_hit_funnel(self):
        first = self.replay("--prefill-rate", "10000")
        status = self.admin("status")
        funnel = status["funnel"]
        self.assertEqual(funnel["looked_up_blocks"], first["blocks"])
        self.assertEqual(funnel["found_blocks"], first["hit_blocks"])
        self.assertEqual(funnel["found_by_tier"], {"gpu": 0, "ram": first["hit_blocks"], "ssd": 0})
        self.assertEqual(funnel["fetched_by_tier"], funnel["found_by_tier"])
        self.assertEqual(funnel["verified_blocks"], first["verified_blocks"])
        self.assertEqual(funnel["served_bytes"], first["fetched_bytes"])
        self.assertAlmostEqual(funnel["prefill_seconds"],
                               first["verified_blocks"] * first["block_tokens"] / 10000, 3)
        self.assertGreater(funnel["fetch_seconds"], 0)
        self.assertLess(funnel["fetch_seconds"], first["seconds"] + 0.1)
        self.assertAlmostEqual(funnel["saved_seconds"],
                               funnel["prefill_seconds"] - funnel["fetch_seconds"], 6)
        self.assertIsNone(funnel["ssd_written_per_byte_served"])
        ram = next(t for t in status["tiers"] if t["tier"] == "ram")
        self.assertGreater(ram["measured_bytes_per_second"], 1e6)
        code, out, _ = kvtier("status", "--admin", self.daemon.admin_address)
        self.assertEqual(code, 0)
        self.assertRegex(out, r"verified by clients +[\d,]+ +\d+\.\d %\nprefill time saved: \d")
        # Who does not tell a rate verifies all the same.
        second = self.replay()
        after = self.admin("status")["funnel"]
        self.assertEqual(after["verified_blocks"],
                         first["verified_blocks"] + second["verified_blocks"])
        self.assertEqual(after["prefill_seconds"], funnel["prefill_seconds"])

    def test_advise(self):
        code, text, _ = kvtier("advise", "--admin", self.daemon.admin_address)
        self.assertEqual((code, text), (0, "no lookups yet: nothing to advise on\n"))
        run = self.replay(requests=600)
        advice = self.admin("advise", "--prefill-rate", "8000")
        self.assertEqual((advice["blocks"], advice["hit_blocks"]),
                         (run["blocks"], run["hit_blocks"]))
        self.assertEqual([row["what"] for row in advice["sizes"]],
                         ["now", "RAM /2", "RAM x2", "RAM x4"])
        self.assertEqual((advice["block_tokens"], advice["block_bytes"]), (512, 16384))
        # All that was stored fits, so more RAM finds nothing more.
        now, half, twice, _ = advice["sizes"]
        self.assertAlmostEqual(now["hit_ratio"], run["hit_blocks"] / run["blocks"], delta=1e-6)
        self.assertAlmostEqual(twice["hit_ratio"], now["hit_ratio"], delta=1e-6)
        self.assertLessEqual(half["hit_ratio"], now["hit_ratio"])
        self.assertGreater(now["saved_seconds_per_1000_requests"], 0)
        self.assertEqual(advice["costs"][0]["tier"], "RAM")
        self.assertEqual(self.admin("advise")["prefill_tokens_per_second"], 0)
        _, text, _ = kvtier("advise", "--admin", self.daemon.admin_address)
        self.assertIn("More RAM buys less than half a point, even at x4: leave it.", text)
        wrong = self.admin("advise", "--prefill-rate", "-1", code=1)
        self.assertIn("prefill-rate is -1, the limits are 0 and 1e9", wrong["error"]["message"])

    def test_reset_with_a_salt(self):
        salt = os.path.join(self.folder.name, "salt")
        pathlib.Path(salt).write_bytes(b"\x00secret\n")
        with support.Client(self.daemon.address) as client:
            model = client.unary("RegisterModel", support.kv.RegisterModelRequest(
                spec=support.opaque_spec())).model_id
            who = support.prompt(model, support.tokens_of(1, 2), tenant="t", salt=b"\x00secret\n")
            client.store(support.store_requests(
                who, 0, [support.payload_of(1, i, 4096) for i in range(2)]))
        missed = self.admin("reset", "--model", model.hex(), "--tenant", "t")
        self.assertEqual(missed["dropped_blocks"], 0)
        hit = self.admin("reset", "--model", model.hex(), "--tenant", "t", "--salt-file", salt)
        self.assertEqual(hit["dropped_blocks"], 2)
        error = self.admin("reset", "--model", model.hex(), "--salt-file", "/no/file", code=1)
        self.assertEqual(error["error"]["code"], "NOT_FOUND")

    def test_resize_while_a_replay_runs(self):
        result = {}
        worker = threading.Thread(
            target=lambda: result.update(self.replay("--clients", "2", requests=3000)))
        worker.start()
        resizes = 0
        while worker.is_alive():
            for size in ("4MiB", "64MiB"):
                reply = self.admin("set-capacity", "--tier", "ram", "--bytes", size)
                resizes += 1
            self.assertEqual(reply["capacity_bytes"], 64 << 20)
        worker.join()
        self.assertGreater(resizes, 1)
        self.assertEqual(result["wrong_blocks"], 0)
        self.assertEqual(result["verified_blocks"], result["hit_blocks"])
        self.assertGreater(result["hit_blocks"], 0)

    def test_refusals_come_through(self):
        def error(*arguments):
            return self.admin(*arguments, code=1)["error"]
        self.assertEqual(error("reset", "--model", "0" * 32)["code"], "NOT_FOUND")
        self.assertEqual(error("unregister", "--model", "0" * 32)["code"], "NOT_FOUND")
        self.assertIn("32 hex digits", error("reset", "--model", "xyz")["message"])
        self.assertIn("tier is 'disk'",
                      error("set-capacity", "--tier", "disk", "--bytes", "1")["message"])
        self.assertEqual(error("set-capacity", "--tier", "ssd", "--bytes", "1GiB")["code"],
                         "FAILED_PRECONDITION")

    def test_tables(self):
        self.replay()
        for command, expected in ((["status"], "serving"), (["models"], "kvtier-replay")):
            code, out, _ = kvtier(*command, "--admin", self.daemon.admin_address)
            self.assertEqual(code, 0)
            self.assertIn(expected, out)
        code, out, _ = kvtier("replay", "--server", self.daemon.address, "--requests", "10",
                              "--block-bytes", "16KiB")
        self.assertEqual(code, 0)
        self.assertRegex(out.splitlines()[-1], r"^hit ratio, all blocks +1\.0000$")

    def test_trace_file(self):
        trace = os.path.join(self.folder.name, "trace.jsonl")
        lines = [{"timestamp": i, "input_length": 600, "output_length": 1, "hash_ids": [0, i + 1]}
                 for i in range(4)]
        with open(trace, "w", encoding="utf-8") as file:
            for line in lines:
                file.write(json.dumps(line) + "\n")
            file.write("not a request\n")
        arguments = ["replay", "--server", self.daemon.address, "--block-bytes", "64", "--json",
                     "--trace", trace]
        code, out, _ = kvtier(*arguments)
        self.assertEqual(code, 1)
        self.assertIn(trace + ":5: not a JSON object", one_document(out)["error"]["message"])
        code, out, _ = kvtier(*arguments, "--skip-bad-lines", "--tenant", "b")
        self.assertEqual(code, 0)
        report = one_document(out)
        self.assertEqual((report["blocks"], report["hit_blocks"], report["skipped_lines"]), (8, 3, 1))
        code, out, _ = kvtier(*arguments, "--skip-bad-lines", "--tenant", "c", "--convention",
                              "full", "--speed", "2")
        report = one_document(out)
        self.assertEqual((report["blocks"], report["hit_blocks"]), (4, 3))
        self.assertEqual(report["hit_ratio_full"], 0.75)

    def test_a_recording_simulated_hits_what_was_hit(self):
        self.assertFalse(self.admin("record", "status")["on"])
        self.replay("--tenant", "unrecorded", requests=20)
        started = self.admin("record", "start")
        self.assertEqual((started["on"], started["requests"], started["max_files"]), (True, 0, 4))
        self.assertEqual(self.admin("record", "start", code=1)["error"]["code"],
                         "FAILED_PRECONDITION")
        live = self.replay("--tenant", "recorded")
        self.assertTrue(self.admin("status")["recording"]["on"])
        ended = self.admin("record", "stop")
        self.assertEqual((ended["on"], ended["requests"], ended["dropped"], ended["models"]),
                         (False, 300, 0, 1))
        self.replay("--tenant", "unrecorded", requests=20)
        self.assertEqual(self.admin("record", "status"), ended)
        self.assertEqual(self.admin("record", "stop", code=1)["error"]["code"],
                         "FAILED_PRECONDITION")

        simulate = ["simulate", "--trace", ended["files"][0], "--capacity", "4096", "--convention",
                    "all", "--json"]
        code, out, err = kvtier(*simulate)
        self.assertEqual(code, 0, err)
        leaf_first = [row for row in one_document(out)["rows"] if row["policy"] == "lru"]
        self.assertAlmostEqual(leaf_first[0]["hit_ratio_all"], live["hit_ratio_all"], places=6)
        again = self.replay_trace(ended["files"][0], "--model", "1")
        self.assertEqual(again["hit_blocks"], live["hit_blocks"])
        self.assertEqual(again["blocks"], live["blocks"])
        self.assertEqual(self.replay_trace(ended["files"][0], "--model", "2", code=1)["blocks"], 0)
        code, out, _ = kvtier(*simulate, "--block-tokens", "16")
        self.assertEqual(code, 1)
        self.assertIn(":1: block_tokens is 512 of model 1", one_document(out)["error"]["message"])

    def replay_trace(self, trace, *arguments, code=0):
        got, out, err = kvtier("replay", "--server", self.daemon.address, "--json", "--trace",
                               trace, "--block-bytes", "16KiB", "--tenant", "again", *arguments)
        self.assertEqual(got, code, err)
        return one_document(out)

    def test_a_recording_is_off_after_a_restart(self):
        self.admin("record", "start", "--max-files", "2")
        self.replay(requests=10)
        self.daemon.close()
        self.start()
        self.assertFalse(self.admin("record", "status")["on"])
        second = self.admin("record", "start", "--max-files", "2")
        folder = os.path.join(self.folder.name, "data", "recordings")
        self.assertEqual(sorted(os.listdir(folder)), ["recording-000001-000001.jsonl",
                                                      "recording-000002-000001.jsonl"])
        with open(os.path.join(folder, "recording-000001-000001.jsonl"), encoding="utf-8") as file:
            self.assertEqual(len(file.readlines()), 10)
        self.assertEqual(os.path.basename(second["files"][0]), "recording-000002-000001.jsonl")

    def test_a_recording_outlives_a_kill(self):
        """kill -9 in the middle: every whole line is a request, whatever comes after the last."""
        recorded = 0
        for life in range(1, 5):
            path = self.admin("record", "start")["files"][0]
            self.assertTrue(path.endswith(f"recording-{life:06d}-000001.jsonl"), path)
            replay = subprocess.Popen(
                [KVTIER, "replay", "--server", self.daemon.address, "--requests", "100000",
                 "--block-bytes", "64", "--json"], env=support.environment(),
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            end = time.monotonic() + SECONDS
            while os.path.getsize(path) < life * 5000:
                self.assertIsNone(replay.poll())
                self.assertLess(time.monotonic(), end)
            self.daemon.kill()
            self.daemon.close()
            replay.wait(timeout=SECONDS)
            with open(path, "rb") as file:
                lines = file.read().split(b"\n")
            for line in lines[:-1]:
                self.assertGreater(len(json.loads(line)["hash_ids"]), 0)
            code, out, err = kvtier("simulate", "--trace", path, "--capacity", "1000", "--json",
                                    "--policy", "lru", "--skip-bad-lines")
            self.assertEqual(code, 0, err)
            simulated = one_document(out)
            self.assertEqual(simulated["requests"], len(lines) - 1)
            recorded += simulated["requests"]
            self.start()
            self.assertFalse(self.admin("record", "status")["on"])
        self.assertGreater(recorded, 100)

    def test_limits_of_a_recording_are_named(self):
        error = self.admin("record", "start", "--max-file-bytes", "1KiB", code=1)["error"]
        self.assertIn("max_file_bytes is 1024, the limits are 65536", error["message"])
        error = self.admin("record", "start", "--max-files", "0", code=1)["error"]
        self.assertIn("max-files 0", error["message"])

    def test_load(self):
        arguments = ["bench", "load", "--server", self.daemon.address, "--block-bytes", "4KiB",
                     "--clients", "2", "--json"]
        code, out, err = kvtier(*arguments, "--requests", "300")
        self.assertEqual(code, 0, err)
        closed = one_document(out)
        rows = {row["operation"]: row for row in closed["operations"]}
        self.assertEqual(list(rows), ["lookup", "fetch", "store", "total"])
        self.assertEqual((closed["loop"], closed["sent_late_us"]), ("closed", None))
        self.assertEqual(rows["total"]["count"], 300)
        self.assertGreater(min(row["blocks"] for row in rows.values()), 0)
        self.assertEqual((rows["total"]["errors"], rows["total"]["wrong_blocks"]), (0, 0))
        latency = rows["lookup"]["latency_us"]
        self.assertEqual(sorted(latency.values()), list(latency.values()))
        code, out, err = kvtier(*arguments, "--rate", "200", "--duration", "1", "--mix", "lookup=1")
        self.assertEqual(code, 0, err)
        opened = one_document(out)
        self.assertEqual(opened["operations"][3]["count"], 200)
        self.assertGreater(opened["seconds"], 0.99)
        self.assertGreater(opened["sent_late_us"]["max"], 0)
        for wrong, text in ((["--mix", "reads=1"], "mix names 'reads'"),
                            (["--rate", "-1"], "rate is -1"),
                            (["--duration", "-1"], "duration is -1")):
            code, out, _ = kvtier(*arguments, *wrong)
            self.assertEqual(code, 1)
            self.assertIn(text, one_document(out)["error"]["message"])

    def test_drain(self):
        self.assertEqual(self.admin("drain"), {"draining": True})
        self.assertTrue(self.admin("status")["draining"])
        self.assertIn("error", self.replay(code=1))

    def test_health_knows_no_ssd(self):
        with support.Client(self.daemon.address) as client:
            self.assertTrue(client.serving("kvtier.v1.KvCache"))
            with self.assertRaises(support.grpc.RpcError) as unknown:
                client.serving("kvtier.ssd")
        self.assertEqual(unknown.exception.code(), support.grpc.StatusCode.NOT_FOUND)


class WithSsd(DaemonTestCase):
    """RAM is small, so that most blocks go to SSD; that is large enough for all."""
    FLAGS = ("--ram-bytes", "8MiB", "--ssd-bytes", "256MiB")

    def restart(self):
        self.assertEqual(self.daemon.stop(), 0)
        self.daemon.close()
        self.start()

    def ssd(self):
        status = self.admin("status")
        return status["ssd"], next(t for t in status["tiers"] if t["tier"] == "ssd")

    def until(self, condition):
        """Each look at the daemon is a call, so this does not spin."""
        end = time.monotonic() + SECONDS
        while not condition():
            self.assertLess(time.monotonic(), end)

    def inspect(self, *arguments, code=0):
        got, out, err = kvtier("inspect", "--data-dir", self.daemon.data_dir, "--json", *arguments)
        self.assertEqual(got, code, err)
        return one_document(out)

    def payload_files(self):
        return sorted(pathlib.Path(self.daemon.data_dir, "ssd").glob("*.sst"),
                      key=lambda file: file.stat().st_size)

    def test_status_says_what_was_written(self):
        report = self.replay()
        self.assertGreater(report["ssd_writes_per_block"], 0)
        self.assertEqual(report["wrong_blocks"], 0)
        ssd, tier = self.ssd()
        self.assertEqual((ssd["state"], ssd["why"], tier["note"]), ("serving", "", ""))
        self.assertGreater(ssd["files"], 0)
        self.assertGreaterEqual(ssd["live_records"], tier["blocks"])
        self.assertEqual(ssd["payload_bytes_written"],
                         16384 * (tier["demotions"] + ssd["carried_blocks"]))
        self.assertEqual(ssd["write_amplification"],
                         ssd["file_bytes_written"] / ssd["payload_bytes_written"])
        self.assertGreater(ssd["write_amplification"], 1)
        self.assertEqual((ssd["write_errors"], ssd["limited_blocks"], ssd["restored_blocks"]),
                         (0, 0, 0))
        self.assertLessEqual(report["ssd_writes_per_block"] * report["blocks"],
                             tier["demotions"] + ssd["carried_blocks"] + 0.5)
        code, out, _ = kvtier("status", "--admin", self.daemon.admin_address)
        self.assertEqual(code, 0)
        self.assertRegex(out, r"\nSSD state +serving\n")
        self.assertRegex(out, r"\nread p99, at most +\d+\.\d\d ms\n")

    def test_replay_finds_the_admin_socket(self):
        def writes(*arguments, env=None):
            code, out, err = kvtier("replay", "--server", self.daemon.address, "--json", "--requests",
                                    "20", "--block-bytes", "16KiB", *arguments, env=env)
            self.assertEqual(code, 0)
            known = {s["ssd_written_blocks"] for s in one_document(out)["slices"]}
            self.assertEqual(known, {0} if "SSD writes are unknown" not in err else {None})
            return one_document(out)["ssd_writes_per_block"], "SSD writes are unknown" in err
        self.assertEqual(writes(), (0, False))
        self.assertEqual(writes("--admin", "unix:/no/where"), (None, True))
        self.assertEqual(writes(env={"KVTIER_ADMIN": "unix:/no/where"}), (None, True))

    def test_restart_brings_back_all_but_what_was_reset(self):
        first = self.replay()
        self.restart()
        self.assertEqual(self.ssd()[0]["restored_blocks"], first["stored_blocks"])
        again = self.replay()
        self.assertEqual((again["hit_ratio_all"], again["wrong_blocks"]), (1, 0))
        self.assertGreater(again["hit_ratio_ssd"], 0)
        model = self.admin("models")["models"][0]["model_id"]
        dropped = self.admin("reset", "--model", model, "--tenant", "kvtier-replay")
        self.assertEqual(dropped["dropped_blocks"], first["stored_blocks"])
        self.restart()
        self.assertEqual(self.ssd()[0]["restored_blocks"], 0)
        self.assertEqual(self.replay()["hit_blocks"], first["hit_blocks"])

    def test_set_capacity_is_live(self):
        first = self.replay(requests=700)
        before = self.ssd()[1]
        small = 16 << 20
        self.assertGreater(before["used_bytes"], small)
        reply = self.admin("set-capacity", "--tier", "ssd", "--bytes", "16MiB")
        self.assertEqual(reply["previous_bytes"], 256 << 20)
        self.assertGreater(reply["evicted_blocks"], 0)
        after = self.ssd()[1]
        self.assertEqual(after["capacity_bytes"], small)
        self.assertLessEqual(after["used_bytes"], small)
        self.assertLess(after["blocks"], before["blocks"])
        self.assertGreater(after["blocks"], 0)
        self.admin("set-capacity", "--tier", "ssd", "--bytes", "256MiB")
        again = self.replay(requests=700)
        self.assertEqual(again["wrong_blocks"], 0)
        self.assertLess(again["hit_blocks"], again["blocks"])
        self.assertEqual(self.replay(requests=700)["hit_blocks"], first["blocks"])

    def test_read_only_is_shown_and_passes(self):
        """With a file where its folder for new files should be the tier cannot write, nor make the folder."""
        staging = pathlib.Path(self.daemon.data_dir, "ssd", "staging")
        staging.rmdir()
        staging.touch()
        report = self.replay()
        self.assertEqual((report["wrong_blocks"], report["missed_blocks"]), (0, 0))
        ssd, tier = self.ssd()
        self.assertEqual(ssd["state"], "read-only")
        self.assertIn("cannot write", ssd["why"])
        self.assertEqual(tier["note"], ssd["why"])
        self.assertGreater(ssd["write_errors"], 0)
        self.assertGreater(ssd["skipped_blocks"], 0)
        with support.Client(self.daemon.address) as client:
            self.until(lambda: not client.serving("kvtier.ssd"))
            self.assertTrue(client.serving("kvtier.v1.KvCache") and client.serving())
            staging.unlink()
            self.until(lambda: client.serving("kvtier.ssd"))
        self.assertEqual(self.ssd()[0]["state"], "serving")
        self.replay()
        self.assertGreater(self.ssd()[1]["blocks"], 0)

    def test_inspect_what_is_there(self):
        stored = self.replay()["stored_blocks"]
        refused = self.inspect(code=1)["error"]
        self.assertEqual(refused["code"], "FAILED_PRECONDITION")
        self.assertIn(f"in use by process {self.daemon.process.pid}", refused["message"])
        self.assertEqual(self.daemon.stop(), 0)

        def there():
            return {(file.name, file.stat().st_size, file.stat().st_mtime_ns)
                    for file in pathlib.Path(self.daemon.data_dir, "ssd").rglob("*")}
        before = there()
        found = self.inspect("--verify")
        self.assertEqual(there(), before)
        self.assertEqual(found["files"], len(self.payload_files()))
        self.assertGreaterEqual(found["bytes"], sum(f.stat().st_size for f in self.payload_files()))
        self.assertEqual([m["blocks"] for m in found["models"]], [stored])
        self.assertEqual(found["models"][0]["payload_bytes"], stored * 16384)
        self.assertEqual(found["verified"]["bad"], [])
        self.assertEqual(found["verified"]["records"], found["records"])
        self.assertGreaterEqual(found["oldest_age_seconds"], found["newest_age_seconds"])
        self.assertIsNone(self.inspect()["verified"])

    def test_inspect_finds_a_flipped_byte(self):
        self.replay()
        self.assertEqual(self.daemon.stop(), 0)
        largest = self.payload_files()[-1]
        content = bytearray(largest.read_bytes())
        content[len(content) // 2] ^= 1
        largest.write_bytes(content)
        code, out, err = kvtier("inspect", "--data-dir", self.daemon.data_dir, "--verify", "--json")
        self.assertEqual(code, 1)
        self.assertRegex(err, r"verifying \[#+\] [\d,]+ of [\d,]+\n")
        bad = one_document(out)["verified"]["bad"]
        self.assertNotEqual(bad, [])
        self.assertIn(f"file {bad[0]['file']}, block {bad[0]['key']}", err)

        shown = self.inspect("--block", bad[0]["key"])["records"]
        live = [record for record in shown if record["state"] == "live"]
        self.assertEqual(len(live), 1)
        self.assertIn(bad[0]["file"], {record["file"] for record in shown})
        self.assertEqual((live[0]["key"], live[0]["payload_bytes"]), (bad[0]["key"], 16384))
        self.assertEqual(len(self.inspect("--block", bad[0]["key"], "--verify", code=1)
                             ["verified"]["bad"]), 1)
        self.assertEqual(self.inspect("--block", "0" * 32, code=1)["error"]["code"], "NOT_FOUND")
        self.assertEqual(self.inspect()["unreadable_files"], 0)


if __name__ == "__main__":
    unittest.main()
