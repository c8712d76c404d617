"""A daemon that is dead, slow, full or draining costs bounded time and never the answer. Each fault has
its control: before it, and after it is over, the same prompt is served from kvtier."""
from __future__ import annotations

import contextlib
import threading
import time
import unittest

import grpc
import torch
from grpc_proxy import Fault, Gate, GrpcProxy
from support import GREEDY, PATIENT, EngineTest, answer, ids_of, kvtier, model_of, planted

from kvtier.engines import transformers
from kvtier.engines.transformers import CallReport, KvtierCache, Timeouts

TOKENS = 100
WHOLE = 96
# What a call costs beside its timeouts: the client gives a stuck call up a quarter of a second late, and the
# machine is shared.
SLACK_SECONDS = 1.0


class FaultsTest(EngineTest):
    def setUp(self):
        super().setUp()
        self.model = model_of()
        self.ids = ids_of("faults", TOKENS)
        self.expected = answer(self.model, self.ids)

    def generate(self, cache, ids=None):
        ids = self.ids if ids is None else ids
        out = cache.generate(ids, **GREEDY)
        expected = self.expected if ids is self.ids else answer(self.model, ids)
        self.assertTrue(torch.equal(out, expected))
        return cache.last_call

    def assert_hit(self, cache):
        self.generate(cache)
        self.assert_served(cache, WHOLE)

    def assert_hit_soon(self, cache, seconds=20.0):
        """The breaker lets a probe through now and then; one of them finds the daemon well again."""
        idle, end = threading.Event(), time.monotonic() + seconds
        while self.generate(cache).loaded_tokens != WHOLE:
            self.assertLess(time.monotonic(), end, cache.last_call)
            idle.wait(0.05)

    def assert_failed(self, call, *kinds):
        self.assertIsInstance(call.failure, kinds)
        self.assertEqual((call.loaded_tokens, call.stored_blocks), (0, 0))
        self.assertEqual(call.prefill_positions, TOKENS)

    def test_no_daemon(self):
        """Constructed and used without one; when it comes, it is used."""
        with self.assertLogs("kvtier.engines.transformers", "WARNING") as logged:
            cache = self.cache(self.model, f"unix:{self.folder}/data/kvtier.sock", timeouts=Timeouts())
            for _ in range(5):
                self.assert_failed(self.generate(cache), kvtier.Unavailable, kvtier.DeadlineExceeded)
                self.assertLess(cache.last_call.lookup_seconds, Timeouts().lookup + SLACK_SECONDS)
        self.assertEqual(len(logged.output), 1)
        self.start()
        self.assert_hit_soon(cache)

    def test_killed_between_calls(self):
        kvtierd = self.start("--ssd-bytes", "64MiB")
        cache = self.cache(self.model, kvtierd.address)
        self.generate(cache)
        self.assert_hit(cache)
        kvtierd.kill()
        self.assert_failed(self.generate(cache), kvtier.Unavailable, kvtier.DeadlineExceeded)
        self.start("--ssd-bytes", "64MiB")
        self.assert_hit_soon(cache)

    def test_control_a_failure_that_is_not_taken_for_a_miss(self):
        """Without the connector's care a dead daemon would end the generation."""
        kvtierd = self.start()
        cache = self.cache(self.model, kvtierd.address)
        self.generate(cache)
        kvtierd.kill()
        with planted(cache, "_as_misses", lambda *unused: contextlib.nullcontext()):
            with self.assertRaises(kvtier.Error):
                cache.generate(self.ids, **GREEDY)

    def test_killed_during_a_fetch(self):
        self.killed_during("Fetch")

    def test_killed_during_a_store(self):
        self.killed_during("Store", cold=True)

    def killed_during(self, method, cold=False):
        kvtierd = self.start()
        with GrpcProxy(kvtierd.address) as proxy:
            cache = self.cache(self.model, proxy.address)
            if not cold:
                self.generate(cache)
                self.assert_hit(cache)
            fault = proxy.inject(Fault(method, gate=Gate()))
            calls: list[CallReport] = []
            worker = threading.Thread(target=lambda: calls.append(self.generate(cache)))
            worker.start()
            fault.gate.wait_arrived(1)
            kvtierd.kill()
            fault.gate.open()
            worker.join(60)
            self.assertEqual(len(calls), 1, "the call ended, with the right answer")
            self.assert_failed(calls[0], kvtier.Unavailable, kvtier.DeadlineExceeded, kvtier.NotFound)
            proxy.clear()
            proxy.retarget(self.start().address)
            self.assert_hit_soon(cache)

    def test_cut_in_the_middle_of_a_fetch(self):
        """What came before the cut is verified and may be used or not; the answer is the same."""
        with GrpcProxy(self.start().address) as proxy:
            cache = self.cache(self.model, proxy.address)
            ids = ids_of("cut", 2000)  # 2 MiB, so more than one message
            self.generate(cache, ids)
            proxy.inject(Fault("Fetch", cut=1, times=100))
            call = self.generate(cache, ids)
            self.assertIsInstance(call.failure, kvtier.Error)
            self.assertLess(call.loaded_tokens, 1999)
            proxy.clear()
            self.assertEqual(self.generate(cache, ids).loaded_tokens, 1999)

    def test_slow(self):
        """One second per call: a call costs the lookup's time, and after three of them nothing."""
        with GrpcProxy(self.start().address) as proxy:
            self.generate(self.cache(self.model, proxy.address))
            cache = self.cache(self.model, proxy.address, timeouts=Timeouts())
            self.assert_hit_soon(cache)
            proxy.inject(Fault(delay=1.0))
            for _ in range(3):
                call = self.generate(cache)
                self.assert_failed(call, kvtier.DeadlineExceeded, kvtier.Unavailable)
                spent = call.load_seconds + call.store_seconds
                self.assertLess(spent, Timeouts().lookup + SLACK_SECONDS)
            open_now = self.generate(cache)
            self.assert_failed(open_now, kvtier.Unavailable, kvtier.DeadlineExceeded)
            print(f"slow daemon: {spent:.3f} s in kvtier, with the breaker open "
                  f"{open_now.load_seconds:.6f} s")
            proxy.clear()
            self.assert_hit_soon(cache)

    def test_slow_fetch(self):
        with GrpcProxy(self.start().address) as proxy:
            self.generate(self.cache(self.model, proxy.address))
            limits = Timeouts(lookup=PATIENT.lookup, fetch=0.3, store=0.3)
            cache = self.cache(self.model, proxy.address, timeouts=limits)
            fault = proxy.inject(Fault("Fetch", gate=Gate()))
            call = self.generate(cache)
            self.assert_failed(call, kvtier.DeadlineExceeded)
            self.assertLess(call.fetch_seconds, limits.fetch + SLACK_SECONDS)
            self.assertEqual(call.store_seconds, 0.0)
            fault.gate.open()
            proxy.clear()
            self.assert_hit_soon(cache)

    def test_slow_release(self):
        """Of four rows only the first one's lease is waited for; the KV is there and is used."""
        with GrpcProxy(self.start().address) as proxy:
            ids = torch.cat([ids_of(f"release {row}", TOKENS) for row in range(4)])
            self.generate(self.cache(self.model, proxy.address), ids)
            cache = self.cache(self.model, proxy.address, timeouts=PATIENT)  # and the client's own deadline
            fault = proxy.inject(Fault("Release", gate=Gate()))
            call = self.generate(cache, ids)
            self.assertEqual(call.loaded_tokens, 4 * WHOLE)
            self.assertIsInstance(call.failure, kvtier.DeadlineExceeded)
            self.assertEqual(proxy.calls("Release"), 1)
            fault.gate.open()
            proxy.clear()
            patient = self.cache(self.model, proxy.address)
            self.assertEqual(self.generate(patient, ids).loaded_tokens, 4 * WHOLE)
            self.assertEqual(proxy.calls("Release"), 1 + 4)

    def test_slow_store(self):
        with GrpcProxy(self.start().address) as proxy:
            limits = Timeouts(lookup=PATIENT.lookup, fetch=PATIENT.fetch, store=0.3)
            cache = self.cache(self.model, proxy.address, timeouts=limits)
            fault = proxy.inject(Fault("Store", gate=Gate()))
            call = self.generate(cache)
            self.assert_failed(call, kvtier.DeadlineExceeded)
            self.assertLess(call.store_seconds, limits.store + SLACK_SECONDS)
            fault.gate.open()
            proxy.clear()
            self.assert_hit_soon(cache)

    def test_refusing(self):
        for code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED,
                     grpc.StatusCode.INTERNAL, grpc.StatusCode.INVALID_ARGUMENT):
            with self.subTest(code=code.name), GrpcProxy(self.start_again()) as proxy:
                cache = self.cache(self.model, proxy.address)
                self.generate(cache)
                self.assert_hit(cache)
                for method in ("Lookup", "Fetch"):
                    proxy.inject(Fault(method, refuse=code))
                    self.assert_failed(self.generate(cache), kvtier.Error)
                    proxy.clear()
                    self.assert_hit_soon(cache)

    def start_again(self):
        if not hasattr(self, "kvtierd"):
            self.kvtierd = self.start()
        return self.kvtierd.address

    def test_full(self):
        """A prompt larger than the daemon's memory: its beginning is kept, the answer is right."""
        cache = self.cache(self.model, self.start(ram="1MiB").address)
        ids = ids_of("full", 2000)
        self.generate(cache, ids)
        again = self.generate(cache, ids)
        self.assertIsInstance(again.failure, kvtier.ResourceExhausted)
        self.assertGreater(again.loaded_tokens, 0)
        self.assertLess(again.loaded_tokens, 1999)

    def test_a_store_that_raises(self):
        """Whatever it raises, the answer comes back, and is said not to be kept."""
        def raising(*unused):
            raise RuntimeError("no memory for the staging")
        cache = self.cache(self.model, self.start().address)
        with planted(transformers, "export_blocks", raising), \
                self.assertLogs("kvtier.engines.transformers", "WARNING") as logged:
            self.assert_failed(self.generate(cache), kvtier.Internal)
            self.assertTrue(torch.isfinite(cache.prefill(self.ids).logits).all())
            self.assert_failed(cache.last_call, kvtier.Internal)
            with self.assertRaisesRegex(RuntimeError, "staging"):  # which has no answer to lose
                cache.store(self.ids, self.model(input_ids=self.ids).past_key_values)
        self.assertEqual(len(logged.output), 1)
        self.assertIn("no memory for the staging", logged.output[0])
        self.assertEqual(self.generate(cache).loaded_tokens, 0)
        self.assert_hit(cache)

    def test_longer_than_the_daemon_allows(self):
        """INVALID_ARGUMENT while a prompt is served is no reason not to answer it."""
        cache = self.cache(self.model, self.start("--max-tokens", "64").address)
        self.assert_failed(self.generate(cache), kvtier.InvalidArgument)

    def test_a_prompt_that_the_constructor_cannot_register(self):
        with self.assertRaisesRegex(kvtier.InvalidArgument, "block_tokens"):
            KvtierCache(self.model, self.start().address, block_tokens=0)

    def test_no_lease_is_left(self):
        import daemon
        kvtierd = self.start()
        cache = self.cache(self.model, kvtierd.address)
        self.generate(cache)
        self.assert_hit(cache)
        with daemon.Client(kvtierd.admin_address) as admin:
            self.assertEqual(admin.admin("GetStatus", daemon.adm.GetStatusRequest()).leases, 0)


if __name__ == "__main__":
    unittest.main()
