"""kvtierd as operators meet it: bad input, signals, restarts, metrics, administration."""
import os
import pathlib
import queue
import re
import signal
import socket
import sys
import tempfile
import threading
import time
import unittest
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from daemon import (SOURCE, Client, Daemon, adm, collect, grpc, kv, opaque_spec,  # noqa: E402
                    payload_of, prompt, run_to_end, store_requests, tokens_of)

EXIT_FAILED = 1
EXIT_REFUSED = 2


class DaemonTestCase(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="kvtier_e2e_")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.data = str(self.folder / "data")
        self.addCleanup(self.show_logs)

    def show_logs(self):
        """Of a test that failed: what its daemons said."""
        result = self._outcome.result
        if any(test is self for test, _ in result.errors + result.failures):
            for log in sorted(self.folder.glob("*.log")):
                print(f"--- {log}\n{log.read_text()[-4000:]}", file=sys.stderr)

    def start(self, *flags, **options):
        return self.enterContext(Daemon(self.data, *flags, **options))

    def client(self, address):
        return self.enterContext(Client(address))

    def assert_fails(self, code, fragments, *flags, env=None):
        """The daemon ends with this code, nothing on stdout and one line that has all fragments."""
        got, out, err = run_to_end("--data-dir", self.data, "--ram-bytes", "16MiB", *flags, env=env)
        self.assertEqual((got, out), (code, ""), err)
        lines = [line for line in err.splitlines() if line.startswith("kvtierd: ")]
        self.assertEqual(len(lines), 1, err)
        for fragment in fragments:
            self.assertIn(fragment, lines[0])

    def poll(self, condition):
        """Until it holds; each turn is a call, so there is nothing to wait for in between."""
        deadline = time.monotonic() + 30
        while not condition():
            self.assertLess(time.monotonic(), deadline)

    def assert_code(self, code, call):
        with self.assertRaises(grpc.RpcError) as error:
            call()
        self.assertEqual(error.exception.code(), code, error.exception.details())
        return error.exception.details()


def register(client, **shape):
    return client.unary("RegisterModel", kv.RegisterModelRequest(spec=opaque_spec(**shape))).model_id


def store_blocks(client, who, seed, blocks, size=4096):
    payloads = [payload_of(seed, i, size) for i in range(blocks)]
    outcomes = client.store(store_requests(who, 0, payloads)).outcomes
    assert [o.status for o in outcomes] == [kv.STORE_STATUS_STORED] * blocks, outcomes
    return payloads


def lookup(client, who, **options):
    return client.unary("Lookup", kv.LookupRequest(prompt=who, **options))


class BadInputTest(DaemonTestCase):
    def test_unknown_names(self):
        file = self.folder / "c.toml"
        file.write_text("ram-bytes = 1048576\nram-byte = 1\n")
        self.assert_fails(EXIT_REFUSED, ["c.toml", "line 2", "'ram-byte'"], "--config", str(file))
        self.assert_fails(EXIT_REFUSED, ["KVTIER_RAM_BYTE"], env={"KVTIER_RAM_BYTE": "1"})
        self.assert_fails(EXIT_REFUSED, ["--ram-byte"], "--ram-byte=1")

    def test_bad_values(self):
        self.assert_fails(EXIT_REFUSED, ["max-lease-ms", "'0'", "1 to 86400000"],
                          "--max-lease-ms", "0")
        self.assert_fails(EXIT_REFUSED, ["environment", "drain-ms", "'soon'"],
                          env={"KVTIER_DRAIN_MS": "soon"})
        self.assert_fails(EXIT_REFUSED, ["no-such.toml"], "--config", "/no-such.toml")

    def test_more_than_host_or_build_can_serve(self):
        self.assert_fails(EXIT_REFUSED, ["ssd-bytes", "1MiB", "at least 16MiB"], "--ssd-bytes", "1MiB")
        code, _, err = run_to_end("--data-dir", self.data, "--ram-bytes", "8TiB")
        self.assertEqual(code, EXIT_REFUSED)
        self.assertRegex(err, r"ram-bytes: 8TiB \(8796093022208 bytes\) is more than 90 % of .* bytes")

    def test_only_loopback_unless_told(self):
        self.assert_fails(EXIT_REFUSED, ["'0.0.0.0:0'", "--insecure-listen"], "--listen", "0.0.0.0:0")
        daemon = self.start("--listen", "0.0.0.0:0", "--insecure-listen")
        self.assertRegex(daemon.address, r"^0\.0\.0\.0:[1-9]")

    def test_data_directory_that_cannot_be_written(self):
        (self.folder / "data").write_text("a file")
        self.assert_fails(EXIT_FAILED, [self.data, "Not a directory"])
        self.data += "/below"
        self.assert_fails(EXIT_FAILED, [self.data, "Not a directory"])

    def test_second_daemon_on_the_directory(self):
        first = self.start()
        self.assert_fails(EXIT_FAILED, [self.data, f"in use by process {first.process.pid}"])
        self.assertTrue(self.client(first.address).serving())

    def test_address_in_use(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            self.assert_fails(EXIT_FAILED, ["listen", address], "--listen", address)
            self.assert_fails(EXIT_FAILED, ["admin-listen", address], "--admin-listen", address)
            self.assert_fails(EXIT_FAILED, ["metrics-listen", address], "--metrics-listen", address)
        first = self.start("--listen", "127.0.0.1:0")
        self.data += "2"
        self.assert_fails(EXIT_FAILED, [first.address], "--listen", first.address)

    def test_socket_of_somebody_else(self):
        path = str(self.folder / "s.sock")
        self.start("--listen", "unix:" + path)
        self.data += "2"
        self.assert_fails(EXIT_FAILED, [path, "in use"], "--listen", "unix:" + path)
        (self.folder / "file").write_text("precious")
        self.assert_fails(EXIT_FAILED, ["no socket"], "--listen", f"unix:{self.folder}/file")
        self.assertEqual((self.folder / "file").read_text(), "precious")


class OutputTest(DaemonTestCase):
    def test_version_help_and_configuration(self):
        code, out, _ = run_to_end("--version")
        self.assertEqual(code, 0)
        self.assertRegex(out, r"^kvtierd \d+\.\d+\.\d+\n$")
        code, out, _ = run_to_end("--help")
        self.assertEqual(code, 0)
        self.assertIn("--ram-bytes", out)
        code, out, _ = run_to_end("--print-config", "--data-dir", self.data,
                                  env={"KVTIER_RAM_BYTES": "3MiB"})
        self.assertEqual(code, 0)
        self.assertIn('ram-bytes = "3MiB"  # environment\n', out)
        self.assertIn(f'data-dir = "{self.data}"  # flag\n', out)
        self.assertFalse(os.path.exists(self.data))

    def test_example_file_is_valid_and_complete(self):
        example = SOURCE / "deploy" / "kvtierd.toml"
        code, out, err = run_to_end("--config", str(example), "--print-config")
        self.assertEqual(code, 0, err)
        text = example.read_text()
        for name in re.findall(r"^([a-z-]+) = ", out, re.MULTILINE):
            self.assertRegex(text, rf"(?m)^#?\s*{name}\s*=", name)

    def test_stdout_has_the_ready_line_alone(self):
        daemon = self.start()
        self.assertEqual(daemon.ready["listen"], f"unix:{self.data}/kvtier.sock")
        self.assertEqual(daemon.ready["admin"], f"unix:{self.data}/admin.sock")
        self.assertEqual(daemon.ready["data_dir"], self.data)
        self.assertEqual(daemon.ready["ram"], str(16 << 20))
        for name in ("kvtier.sock", "admin.sock"):
            self.assertEqual(os.stat(f"{self.data}/{name}").st_mode & 0o777, 0o600)
        self.assertEqual(os.stat(self.data).st_mode & 0o777, 0o700)
        self.assertEqual(daemon.stop(), 0)
        self.assertEqual(daemon.rest_of_stdout(), "")

    def test_gpu_tier_is_there_or_says_why_not(self):
        daemon = self.start("--gpu-bytes", "64MiB")
        status = self.client(daemon.admin_address).admin("GetStatus", adm.GetStatusRequest())
        gpu = {tier.tier: tier for tier in status.tiers}[kv.TIER_GPU]
        if gpu.capacity_bytes == 0:
            self.assertNotEqual(gpu.note, "")
            self.assertIn("GPU tier is off", daemon.log())
        else:
            self.assertEqual((gpu.capacity_bytes, gpu.note), (64 << 20, ""))


class StopTest(DaemonTestCase):
    def hold_a_store(self, daemon, client):
        """A Store that the server has taken on and waits for: the rest goes into the queue."""
        who = prompt(register(client), tokens_of(1, 1))
        requests = list(store_requests(who, 0, [payload_of(1, 0, 4096)]))
        feed = queue.Queue()
        self.addCleanup(feed.put, None)
        feed.put(requests[0])
        answer = client.store_future(iter(feed.get, None))
        admin = self.client(daemon.admin_address)
        self.poll(lambda: admin.admin("GetStatus", adm.GetStatusRequest()).open_streams == 1)
        return feed, requests[1:], answer

    def test_calls_in_flight_finish_and_new_ones_are_refused(self):
        daemon = self.start()
        client = self.client(daemon.address)
        feed, rest, answer = self.hold_a_store(daemon, client)
        self.assertTrue(client.serving())
        daemon.send(signal.SIGTERM)
        self.poll(lambda: not client.serving())
        self.assert_code(grpc.StatusCode.UNAVAILABLE,
                         lambda: client.unary("Release", kv.ReleaseRequest(lease_id=1)))
        for request in rest:
            feed.put(request)
        feed.put(None)
        self.assertEqual(answer.result().outcomes[0].status, kv.STORE_STATUS_STORED)
        self.assertEqual(daemon.wait(), 0)
        self.assertEqual(sorted(os.listdir(self.data)), ["lock", "models"])

    def test_drain_has_an_end(self):
        daemon = self.start("--drain-ms", "100")
        client = self.client(daemon.address)
        _, _, answer = self.hold_a_store(daemon, client)
        self.assertEqual(daemon.stop(), 0)
        self.assertIn(answer.code(), (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED))
        self.assertIn("calls are ended before their time", daemon.log())

    def test_second_signal_ends_at_once(self):
        daemon = self.start("--drain-ms", "3600000")
        client = self.client(daemon.address)
        _, _, answer = self.hold_a_store(daemon, client)
        daemon.send(signal.SIGTERM)
        self.poll(lambda: not client.serving())
        daemon.send(signal.SIGTERM)
        self.assertEqual(daemon.wait(), -signal.SIGTERM)
        self.assertEqual(answer.code(), grpc.StatusCode.UNAVAILABLE)  # a dropped answer cancels

    def test_stop_under_load_is_clean_every_time(self):
        for cycle in range(5):
            with self.subTest(cycle=cycle), Daemon(self.data) as daemon:
                self.stop_under_load(daemon)

    def stop_under_load(self, daemon):
        problems, started = [], threading.Semaphore(0)
        clean = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)

        def work(number):
            with Client(daemon.address) as client:
                turn = 0
                try:
                    model = register(client, part_bytes=300_000)
                    while True:
                        seed = number * 1000 + turn % 5
                        who = prompt(model, tokens_of(seed, 4))
                        payloads = [payload_of(seed, i, 300_000) for i in range(4)]
                        client.store(store_requests(who, 0, payloads))
                        request = kv.FetchRequest(prompt=who, last_block=4, allow_gaps=True)
                        for block, got in collect(client.fetch(request)).items():
                            if got is not None and got != payloads[block]:
                                problems.append(f"foreign bytes in block {block}")
                        turn += 1
                        started.release()
                except grpc.RpcError as error:
                    if error.code() not in clean:
                        problems.append(f"{error.code()}: {error.details()}")
                finally:
                    started.release()

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(12):
            self.assertTrue(started.acquire(timeout=60))
        self.assertEqual(daemon.stop(), 0, daemon.log()[-2000:])
        for thread in threads:
            thread.join()
        self.assertEqual(problems, [])

    def test_models_survive_stop_and_kill(self):
        daemon = self.start()
        kept = register(self.client(daemon.address), name="kept")
        dropped = register(self.client(daemon.address), name="dropped")
        self.client(daemon.admin_address).admin("UnregisterModel",
                                                adm.UnregisterModelRequest(model_id=dropped))
        for end in (daemon.stop, None):
            if end is None:
                self.assertEqual(daemon.kill(), -signal.SIGKILL)
                self.assertTrue(os.path.exists(self.data + "/kvtier.sock"))  # stale
            else:
                self.assertEqual(end(), 0)
                self.assertFalse(os.path.exists(self.data + "/kvtier.sock"))
            daemon = self.start()
            self.assertEqual(daemon.ready["models"], "1")
            models = self.client(daemon.admin_address).admin("ListModels", adm.ListModelsRequest())
            self.assertEqual([m.model_id for m in models.models], [kept])
            client = self.client(daemon.address)
            who = prompt(kept, tokens_of(1, 2))
            self.assertEqual(lookup(client, who).blocks, 0)  # memory only: cold after a restart
            store_blocks(client, who, 1, 2)
            self.assertEqual(lookup(client, who).blocks, 2)
            self.assert_code(grpc.StatusCode.NOT_FOUND,
                             lambda: lookup(client, prompt(dropped, tokens_of(1, 2))))

    def test_damaged_models_are_set_aside_once(self):
        with Daemon(self.data) as daemon, Client(daemon.address) as client:
            register(client)
            self.assertEqual(daemon.stop(), 0)
        models = pathlib.Path(self.data, "models")
        content = bytearray(models.read_bytes())
        content[20] ^= 1
        models.write_bytes(content)
        with Daemon(self.data) as daemon:
            self.assertEqual(daemon.ready["models"], "0")
            self.assertEqual(daemon.log().count("set aside"), 1)
            self.assertEqual(daemon.stop(), 0)
        self.assertEqual(pathlib.Path(self.data, "models.damaged").read_bytes(), bytes(content))
        with Daemon(self.data) as daemon:
            self.assertEqual(daemon.log().count("set aside"), 1)  # the log is appended to


class MetricsTest(DaemonTestCase):
    def scrape(self, daemon):
        with urllib.request.urlopen(f"http://{daemon.ready['metrics']}/metrics", timeout=30) as page:
            text = page.read().decode()
        return {name: float(value) for name, value in re.findall(r"^(kvtier\S+) (\S+)$", text, re.M)}

    def test_counts_are_exact(self):
        daemon = self.start("--metrics-listen", "127.0.0.1:0")
        client = self.client(daemon.address)
        model = register(client)
        for seed in range(3):
            store_blocks(client, prompt(model, tokens_of(seed, 8)), seed, 8)
        for seed in range(3):  # 3 whole hits, 3 half hits, 4 misses
            full = prompt(model, tokens_of(seed, 8))
            half = prompt(model, tokens_of(seed, 8)[:64] + tokens_of(50 + seed, 8)[64:])
            self.assertEqual(lookup(client, full).blocks, 8)
            self.assertEqual(lookup(client, half).blocks, 4)
        for seed in range(4):
            self.assertEqual(lookup(client, prompt(model, tokens_of(100 + seed, 8))).blocks, 0)
        request = kv.FetchRequest(prompt=prompt(model, tokens_of(0, 8)), last_block=8)
        self.assertEqual(len(collect(client.fetch(request))), 8)
        self.assert_code(grpc.StatusCode.NOT_FOUND,
                         lambda: client.unary("Release", kv.ReleaseRequest(lease_id=1)))
        self.assert_code(grpc.StatusCode.NOT_FOUND,
                         lambda: lookup(client, prompt(b"0" * 16, tokens_of(0, 8))))
        seen = self.scrape(daemon)
        expected = {
            "kvtier_lookups_total": 10, "kvtier_lookup_blocks_total": 80,
            "kvtier_hit_blocks_total": 36, "kvtier_models": 1, "kvtier_blocks": 24,
            "kvtier_stored_blocks_total": 24, "kvtier_fetched_blocks_total": 8,
            "kvtier_fetch_missed_blocks_total": 0, "kvtier_open_streams": 0, "kvtier_draining": 0,
            'kvtier_tier_hits_total{tier="ram"}': 36, 'kvtier_tier_misses_total{tier="ram"}': 44,
            'kvtier_tier_blocks{tier="ram"}': 24, 'kvtier_tier_capacity_bytes{tier="ram"}': 16 << 20,
            'kvtier_tier_used_bytes{tier="ram"}': 24 * 4096,
            'kvtier_tier_written_bytes_total{tier="ram"}': 24 * 4096,
            'kvtier_tier_read_bytes_total{tier="ram"}': 8 * 4096,
            'kvtier_tier_capacity_bytes{tier="gpu"}': 0,
            'kvtier_rpc_seconds_count{rpc="Lookup"}': 11,
            'kvtier_rpc_seconds_count{rpc="Store"}': 3, 'kvtier_rpc_seconds_count{rpc="Fetch"}': 1,
            'kvtier_rpc_errors_total{rpc="Lookup",code="NOT_FOUND"}': 1,
            'kvtier_rpc_errors_total{rpc="Release",code="NOT_FOUND"}': 1,
        }
        self.assertEqual({name: seen.get(name) for name in expected}, expected)
        self.assertNotIn('kvtier_rpc_errors_total{rpc="Store"', "".join(seen))

        status = self.client(daemon.admin_address).admin("GetStatus", adm.GetStatusRequest())
        self.assertEqual((status.counters.lookups, status.counters.lookup_blocks,
                          status.counters.hit_blocks), (10, 80, 36))
        again = self.scrape(daemon)
        for name, value in seen.items():
            if name.split("{")[0].endswith("_total"):
                self.assertGreaterEqual(again[name], value, name)


class AdminTest(DaemonTestCase):
    def test_capacity_changes_live_and_within_the_host(self):
        daemon = self.start("--ram-bytes", "64MiB")
        client, admin = self.client(daemon.address), self.client(daemon.admin_address)
        who = prompt(register(client, part_bytes=1 << 20), tokens_of(1, 40))
        payloads = store_blocks(client, who, 1, 40, 1 << 20)

        def resize(tier, capacity):
            return admin.admin("SetTierCapacity", adm.SetTierCapacityRequest(
                tier=tier, capacity_bytes=capacity))

        smaller = resize(kv.TIER_RAM, 32 << 20)
        self.assertEqual(smaller.previous_bytes, 64 << 20)
        self.assertEqual(smaller.evicted_blocks, 8)
        self.assertLessEqual(smaller.backed_bytes, 32 << 20)
        self.assertEqual(lookup(client, who).blocks, 32)
        self.assertEqual(resize(kv.TIER_RAM, 64 << 20).previous_bytes, 32 << 20)
        request = kv.FetchRequest(prompt=who, last_block=32)
        self.assertEqual(collect(client.fetch(request)), dict(enumerate(payloads[:32])))

        details = self.assert_code(grpc.StatusCode.INVALID_ARGUMENT,
                                   lambda: resize(kv.TIER_RAM, 1 << 43))
        self.assertRegex(details, r"^capacity_bytes: 8TiB .* \[request [0-9a-f]+\]$")
        request_id = details.split()[-1].rstrip("]")
        self.assertIn(f"admin call failed rpc=SetTierCapacity request_id={request_id}", daemon.log())
        self.assert_code(grpc.StatusCode.FAILED_PRECONDITION, lambda: resize(kv.TIER_SSD, 1 << 20))
        details = self.assert_code(grpc.StatusCode.INVALID_ARGUMENT, lambda: resize(0, 1 << 20))
        self.assertIn("tier: 0", details)
        status = admin.admin("GetStatus", adm.GetStatusRequest())
        self.assertEqual({t.tier: t.capacity_bytes for t in status.tiers},
                         {kv.TIER_GPU: 0, kv.TIER_RAM: 64 << 20, kv.TIER_SSD: 0})

    def test_reset_of_one_namespace_leaves_the_other(self):
        daemon = self.start()
        client, admin = self.client(daemon.address), self.client(daemon.admin_address)
        model = register(client)
        mine = prompt(model, tokens_of(1, 3), tenant="mine")
        theirs = prompt(model, tokens_of(1, 3), tenant="theirs")
        hashed = kv.Prompt(model_id=model, namespace=kv.Namespace(tenant="mine"),
                           engine_hashes=[bytes([i]) * 32 for i in range(2)])
        for who, blocks in ((mine, 3), (theirs, 3), (hashed, 2)):
            store_blocks(client, who, "x", blocks)

        def reset(**what):
            return admin.admin("Reset", adm.ResetRequest(model_id=model, **what)).dropped_blocks

        self.assertEqual(reset(namespace=kv.Namespace(tenant="mine")), 5)
        self.assertEqual([lookup(client, who).blocks for who in (mine, theirs, hashed)], [0, 3, 0])
        self.assertEqual(reset(namespace=kv.Namespace(tenant="mine")), 0)
        store_blocks(client, mine, "y", 3)
        self.assertEqual(reset(), 6)
        self.assertEqual([lookup(client, who).blocks for who in (mine, theirs)], [0, 0])
        self.assert_code(grpc.StatusCode.NOT_FOUND, lambda: admin.admin(
            "Reset", adm.ResetRequest(model_id=b"1" * 16)))
        details = self.assert_code(grpc.StatusCode.INVALID_ARGUMENT, lambda: admin.admin(
            "Reset", adm.ResetRequest(model_id=b"short")))
        self.assertIn("model_id: 5 bytes, must be 16", details)

    def test_status_and_models_tell_what_is_there(self):
        daemon = self.start(env={"KVTIER_MAX_LEASES_PER_CLIENT": "7"})
        client, admin = self.client(daemon.address), self.client(daemon.admin_address)
        spec = opaque_spec()
        answer = client.unary("RegisterModel", kv.RegisterModelRequest(spec=spec))
        self.assertEqual([(t.tier, t.blocks, t.tokens) for t in answer.tiers],
                         [(kv.TIER_RAM, 4096, 4096 * 16)])
        who = prompt(answer.model_id, tokens_of(1, 2))
        store_blocks(client, who, 1, 2)
        self.assertNotEqual(lookup(client, who, lease_ms=60000).lease_id, 0)
        status = admin.admin("GetStatus", adm.GetStatusRequest())
        self.assertEqual((status.models, status.blocks, status.leases, status.pinned_blocks,
                          status.draining), (1, 2, 1, 2, False))
        self.assertGreater(status.process_memory_bytes, 16 << 20)
        settings = {s.name: (s.value, s.source) for s in status.settings}
        self.assertEqual(settings["max-leases-per-client"], ("7", "environment"))
        self.assertEqual(settings["ram-bytes"], ("16MiB", "flag"))
        models = admin.admin("ListModels", adm.ListModelsRequest()).models
        self.assertEqual(len(models), 1)
        self.assertEqual(models[0].spec.name, spec.name)
        self.assertEqual(models[0].block_bytes, 4096)
        self.assertEqual([(t.tier, t.blocks, t.capacity_tokens) for t in models[0].tiers],
                         [(kv.TIER_RAM, 2, 4096 * 16)])

    def test_drain_refuses_data_calls_and_keeps_the_daemon(self):
        daemon = self.start()
        client, admin = self.client(daemon.address), self.client(daemon.admin_address)
        who = prompt(register(client), tokens_of(1, 1))
        self.assertEqual(lookup(client, who).blocks, 0)
        admin.admin("Drain", adm.DrainRequest())
        self.assertFalse(client.serving())
        self.assert_code(grpc.StatusCode.UNAVAILABLE, lambda: lookup(client, who))
        self.assertTrue(admin.admin("GetStatus", adm.GetStatusRequest()).draining)
        self.assertEqual(daemon.stop(), 0)


class LimitsTest(DaemonTestCase):
    @unittest.skipIf(os.environ.get("KVTIER_SANITIZE"), "a sanitizer's own memory counts too")
    def test_memory_stays_within_capacity_while_20_times_as_much_flows_through(self):
        capacity, allowance, part, blocks = 64 << 20, 256 << 20, 2 << 20, 8
        daemon = self.start("--ram-bytes", str(capacity))
        client, admin = self.client(daemon.address), self.client(daemon.admin_address)
        model = register(client, part_bytes=part)
        highest = 0
        stores = 20 * capacity // (part * blocks)
        for seed in range(stores):
            who = prompt(model, tokens_of(seed, blocks))
            payloads = store_blocks(client, who, seed, blocks, part)
            request = kv.FetchRequest(prompt=who, last_block=blocks)
            self.assertEqual(collect(client.fetch(request)), dict(enumerate(payloads)))
            status = admin.admin("GetStatus", adm.GetStatusRequest())
            highest = max(highest, status.process_memory_bytes)
            self.assertLessEqual(highest, capacity + allowance)
            ram = {tier.tier: tier for tier in status.tiers}[kv.TIER_RAM]
            self.assertLessEqual(max(ram.used_bytes, ram.backed_bytes), capacity)
        print(f"process memory: at most {highest >> 20} MiB for a tier of {capacity >> 20} MiB")
        self.assertEqual(ram.blocks, capacity // part)
        self.assertEqual(ram.evictions, stores * blocks - ram.blocks)
        self.poll(lambda: admin.admin("GetStatus", adm.GetStatusRequest()).pinned_blocks == 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
