"""The proxy of tests/support is transparent without a fault, and each fault is what it says."""
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from daemon import (Client, Daemon, collect, grpc, kv, opaque_spec, payload_of, prompt,  # noqa: E402
                    store_requests, tokens_of)
from grpc_proxy import Fault, Gate, GrpcProxy  # noqa: E402

PART_BYTES = 512 << 10
BLOCKS = 6


class GrpcProxyTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="kvtier_proxy_test_")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.daemon = self.enterContext(Daemon(self.folder + "/data", "--ram-bytes", "64MiB"))
        self.proxy = self.enterContext(GrpcProxy(self.daemon.address))
        self.client = self.enterContext(Client(self.proxy.address))
        self.payloads = [payload_of("p", i, PART_BYTES) for i in range(BLOCKS)]
        self.who = self.register()

    def register(self):
        spec = opaque_spec(name="m", part_bytes=PART_BYTES)
        model = self.client.unary("RegisterModel", kv.RegisterModelRequest(spec=spec))
        return prompt(model.model_id, tokens_of(1, BLOCKS))

    def store(self, who=None):
        outcomes = self.client.store(store_requests(who or self.who, 0, self.payloads)).outcomes
        return [outcome.status for outcome in outcomes]

    def fetch(self, **options):
        return collect(self.client.fetch(kv.FetchRequest(prompt=self.who, last_block=BLOCKS), **options))

    def must_fail(self, code, call):
        with self.assertRaises(grpc.RpcError) as failed:
            call()
        self.assertEqual(failed.exception.code(), code)
        return failed.exception

    def lookup(self, **options):
        return self.client.unary("Lookup", kv.LookupRequest(prompt=self.who), **options).blocks

    def test_is_transparent(self):
        self.assertEqual(self.store(), [kv.STORE_STATUS_STORED] * BLOCKS)
        self.assertEqual(self.lookup(), BLOCKS)
        self.assertEqual(self.fetch(), dict(enumerate(self.payloads)))
        self.assertEqual([self.proxy.calls(m) for m in ("RegisterModel", "Store", "Lookup", "Fetch")],
                         [1, 1, 1, 1])
        error = self.must_fail(grpc.StatusCode.NOT_FOUND,
                               lambda: self.client.unary("Release", kv.ReleaseRequest(lease_id=7)))
        self.assertIn("lease", error.details())
        self.assertIn("kvtier-request-id", dict(error.initial_metadata()))

    def test_refuses_so_often_and_no_more(self):
        self.proxy.inject(Fault("Lookup", refuse=grpc.StatusCode.RESOURCE_EXHAUSTED, retry_delay_ms=20,
                                times=1))
        error = self.must_fail(grpc.StatusCode.RESOURCE_EXHAUSTED, self.lookup)
        self.assertIn(("retry-delay-ms", "20"), list(error.trailing_metadata()))
        self.assertEqual(self.lookup(), 0)

    def test_drops_one_call_in_two(self):
        self.proxy.inject(Fault("Lookup", drop=True, every=2))
        for _ in range(2):
            self.must_fail(grpc.StatusCode.DEADLINE_EXCEEDED, lambda: self.lookup(timeout=0.2))
            self.assertEqual(self.lookup(), 0)
        self.assertEqual(self.proxy.struck(), 2)

    def test_delays(self):
        self.proxy.inject(Fault(delay=5))
        self.must_fail(grpc.StatusCode.DEADLINE_EXCEEDED, lambda: self.lookup(timeout=0.1))
        self.proxy.clear()
        self.proxy.inject(Fault(delay=0.01))
        self.assertEqual(self.lookup(), 0)

    def test_cuts_a_fetch_in_the_middle(self):
        self.store()
        self.proxy.inject(Fault("Fetch", cut=1, times=1))
        got = []
        request = kv.FetchRequest(prompt=self.who, last_block=BLOCKS)
        self.must_fail(grpc.StatusCode.UNAVAILABLE, lambda: got.extend(self.client.fetch(request)))
        self.assertEqual(len(got), 1)
        self.assertEqual(self.fetch(), dict(enumerate(self.payloads)))

    def test_cuts_a_store_in_the_middle(self):
        self.proxy.inject(Fault("Store", cut=2, times=1))  # after the header and a message
        self.must_fail(grpc.StatusCode.UNAVAILABLE, self.store)
        self.assertLess(self.lookup(), BLOCKS)
        self.store()
        self.assertEqual(self.lookup(), BLOCKS)

    def test_flips_a_byte_of_payload(self):
        self.proxy.inject(Fault("Store", flip=1, times=1))
        self.assertIn(kv.STORE_STATUS_REJECTED, self.store())
        self.store()
        self.proxy.inject(Fault("Fetch", flip=0, times=1))
        with self.assertRaises(AssertionError):
            self.fetch()
        self.assertEqual(self.fetch(), dict(enumerate(self.payloads)))

    def test_a_gate_holds_until_it_is_opened(self):
        self.store()
        gates = Gate(), Gate()
        self.proxy.inject(Fault("Fetch", gate=gates[0], stall=gates[1]))
        call = self.client.fetch(kv.FetchRequest(prompt=self.who, last_block=BLOCKS))
        gates[0].wait_arrived()
        self.assertEqual(gates[1].arrived, 0)
        gates[0].open()
        gates[1].wait_arrived()
        gates[1].open()
        self.assertEqual(collect(call), dict(enumerate(self.payloads)))

    def test_the_daemon_sees_the_end_of_a_caller_that_leaves_a_gate(self):
        self.store()
        gate = Gate()
        self.proxy.inject(Fault("Fetch", stall=gate))
        call = self.client.fetch(kv.FetchRequest(prompt=self.who, last_block=BLOCKS))
        gate.wait_arrived()
        call.cancel()
        self.proxy.clear()
        self.assertEqual(self.fetch(), dict(enumerate(self.payloads)))

    def test_goes_on_with_another_daemon(self):
        self.store()
        self.daemon.kill()
        self.must_fail(grpc.StatusCode.UNAVAILABLE, self.lookup)
        with Daemon(self.folder + "/other") as other:
            self.proxy.retarget(other.address)
            self.who = self.register()
            self.assertEqual(self.lookup(), 0)
            self.store()
            self.assertEqual(self.lookup(), BLOCKS)


if __name__ == "__main__":
    unittest.main(verbosity=2)
