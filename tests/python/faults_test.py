"""The package against servers that fail, lie, hang or do not exist. Each lie is paired with the truth."""

import concurrent.futures
import contextlib
import pathlib
import signal
import socket
import sys
import tempfile
import threading
import time
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from package import (  # noqa: E402
    CLIENTS,
    DaemonCase,
    both,
    daemon,
    kvtier,
    opaque_spec,
    payloads_of,
    poisoned,
    tokens_of,
)

import grpc  # noqa: E402
import xxhash  # noqa: E402
from kvtier import breaker, transfer  # noqa: E402
from kvtier.v1 import kvtier_pb2 as pb  # noqa: E402

SIZE = 5000
SPEC = opaque_spec("faults", SIZE)
PAYLOADS = payloads_of("faults", 2, SIZE)
OK = grpc.StatusCode


def speak_http1(listener):
    """Until it is shut down."""
    with contextlib.suppress(OSError):
        while True:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1)
                connection.sendall(b"HTTP/1.1 505 no\r\n\r\n")


class FakeServer:
    """Answers what it is told to. ``replies[rpc]`` is a list of what each call gets in turn, the last for all
    that follow: bytes, a list of bytes (Fetch), or a function of the call's context that returns either."""

    def __init__(self):
        self.replies = {}
        self.calls = []
        self.closing = threading.Event()
        self._pool = concurrent.futures.ThreadPoolExecutor(8)
        self._server = grpc.server(self._pool)
        self._folder = tempfile.TemporaryDirectory(prefix="kvtier_fake_")
        self.address = f"unix:{self._folder.name}/fake.sock"
        self._server.add_insecure_port(self.address)
        make = {"Fetch": grpc.unary_stream_rpc_method_handler, "Store": grpc.stream_unary_rpc_method_handler}
        handlers = {
            rpc: make.get(rpc, grpc.unary_unary_rpc_method_handler)(
                getattr(self, f"_{rpc.lower()}", None) or self._unary(rpc)
            )
            for rpc in ("RegisterModel", "Lookup", "Fetch", "Store", "Release", "Renew")
        }
        self._server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler("kvtier.v1.KvCache", handlers)]
        )
        self._server.start()

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.closing.set()
        self._server.stop(None).wait()
        self._pool.shutdown()
        self._folder.cleanup()

    def _reply(self, rpc, context):
        self.calls.append(rpc)
        replies = self.replies[rpc]
        reply = replies.pop(0) if len(replies) > 1 else replies[0]
        return reply(context) if callable(reply) else reply

    def _unary(self, rpc):
        return lambda request, context: self._reply(rpc, context)

    def _fetch(self, request, context):
        yield from self._reply("Fetch", context)

    def _store(self, requests, context):
        for _ in requests:
            pass
        return self._reply("Store", context)


def fails(code, text="told to", **trailing):
    def reply(context):
        context.set_trailing_metadata([(k.replace("_", "-"), v) for k, v in trailing.items()])
        context.abort(code, text)

    return reply


def model_reply(spec=SPEC, **changed):
    fields = {
        "model_id": spec.id(),
        "part_bytes": spec.part_bytes(),
        "block_bytes": spec.block_bytes(),
        "layer_groups": 1,
        "tensor_parallel": 1,
    }
    return pb.RegisterModelResponse(**{**fields, **changed}).SerializeToString()


def found_reply(blocks, **other):
    return pb.LookupResponse(blocks=blocks, tokens=16 * blocks, **other).SerializeToString()


def stored_reply(*statuses):
    return pb.StoreResponse(outcomes=[pb.BlockOutcome(status=s) for s in statuses]).SerializeToString()


def piece(block, **changed):
    payload = PAYLOADS[block]
    fields = {
        "block": block,
        "status": pb.BLOCK_STATUS_OK,
        "part_bytes": SIZE,
        "payload": payload,
        "checksum": xxhash.xxh3_64_intdigest(payload),
    }
    return pb.FetchResponse(pieces=[pb.Piece(**{**fields, **changed})]).SerializeToString()


class FakeCase:
    CLIENT = "sync"

    def setUp(self):
        self.server = self.enterContext(FakeServer())
        self.server.replies = {
            "RegisterModel": [model_reply()],
            "Lookup": [found_reply(2)],
            "Fetch": [[piece(0), piece(1)]],
            "Store": [stored_reply(1, 1)],
            "Release": [b""],
            "Renew": [b""],
        }
        self.client = self.connect()
        self.prompt = kvtier.Prompt(SPEC.id(), tokens_of(1, 2))

    def connect(self, address=None, **options):
        options.setdefault("lookup_deadline", 10.0)
        options = kvtier.ClientOptions(**options)
        return self.enterContext(CLIENTS[self.CLIENT](address or self.server.address, options))

    def fetch(self, client=None, **named):
        self.buffers = poisoned(2, SIZE)
        return (client or self.client).fetch_into(self.prompt, self.buffers, **named)

    if sys.version_info < (3, 11):
        enterContext = DaemonCase.enterContext


@both
class LieCases(FakeCase):
    def test_the_truth(self):
        self.assertEqual(self.client.register_model(SPEC).id, SPEC.id())
        self.assertEqual(self.client.lookup(self.prompt).blocks, 2)
        self.assertEqual((self.fetch().ok, [bytes(b) for b in self.buffers]), ([True, True], PAYLOADS))
        self.assertEqual(self.client.store_from(self.prompt, PAYLOADS, first_missing=0).held, 2)

    def test_a_wrong_checksum_is_a_miss_and_counted(self):
        self.server.replies["Fetch"] = [[piece(0, checksum=1), piece(1)]]
        report = self.fetch()
        self.assertEqual((report.ok, report.leading, report.failure), ([False, True], 0, None))
        self.assertEqual(self.client.counters().checksum_failures, 1)
        flipped = bytearray(PAYLOADS[1])
        flipped[-1] ^= 0x80
        self.server.replies["Fetch"] = [[piece(0), piece(1, payload=bytes(flipped))]]
        self.assertEqual(self.fetch().ok, [True, False])
        self.assertEqual(self.client.counters().checksum_failures, 2)

    def test_without_the_checksum_wrong_bytes_would_be_noticed(self):
        wrong = bytes(SIZE)
        claimed = xxhash.xxh3_64_intdigest(PAYLOADS[0])
        self.server.replies["Fetch"] = [[piece(0, payload=wrong), piece(1)]]
        with mock.patch.object(transfer.xxhash, "xxh3_64_intdigest", lambda data: claimed):
            self.assertEqual((self.fetch().ok[0], bytes(self.buffers[0])), (True, wrong))
        self.assertEqual(self.fetch().ok, [False, True])

    def test_replies_that_break_the_protocol_are_raised(self):
        lies = [
            ("RegisterModel", model_reply(model_id=bytes(16)), lambda: self.client.register_model(SPEC)),
            ("RegisterModel", model_reply(part_bytes=[SIZE + 1]), lambda: self.client.register_model(SPEC)),
            ("RegisterModel", b"\xff", lambda: self.client.register_model(SPEC)),
            ("Lookup", b"\x0a\xff", lambda: self.client.lookup(self.prompt)),
            ("Lookup", b"\x0a\xff", lambda: self.client.store_from(self.prompt, PAYLOADS)),
            (
                "Store",
                stored_reply(1),
                lambda: self.client.store_from(self.prompt, PAYLOADS, first_missing=0),
            ),
            ("Store", b"\x0a\xff", lambda: self.client.store_from(self.prompt, PAYLOADS, first_missing=0)),
            ("Fetch", [b"\x0a\xff"], self.fetch),
            ("Fetch", [piece(1), piece(0)], self.fetch),
            ("Fetch", [piece(0), piece(0)], self.fetch),
            ("Fetch", [piece(0, payload=PAYLOADS[0][:-1])], self.fetch),
            ("Fetch", [piece(0, offset=1)], self.fetch),
        ]
        for rpc, lie, call in lies:
            truth = self.server.replies[rpc]
            self.server.replies[rpc] = [lie]
            with self.subTest(rpc=rpc, lie=lie[:20]), self.assertRaises(kvtier.Internal):
                call()
            self.server.replies[rpc] = truth
        self.test_the_truth()

    def test_a_load_time_that_is_nonsense_is_not_measured(self):
        run = pb.TierRun(tier=9, blocks=2, load_seconds=float("inf"))
        self.server.replies["Lookup"] = [found_reply(2, runs=[run])]
        self.assertEqual(
            self.client.lookup(self.prompt).runs, (kvtier.TierSpan(kvtier.Tier.UNKNOWN, 2, 0.0),)
        )

    def test_codes_become_failures(self):
        for code, kind in (
            (OK.NOT_FOUND, kvtier.NotFound),
            (OK.FAILED_PRECONDITION, kvtier.FailedPrecondition),
            (OK.RESOURCE_EXHAUSTED, kvtier.ResourceExhausted),
            (OK.UNKNOWN, kvtier.Error),
            (OK.PERMISSION_DENIED, kvtier.Error),
        ):
            for rpc in ("Lookup", "Fetch", "Store", "Release", "Renew"):
                self.server.replies[rpc] = [fails(code, retry_delay_ms="1500")]
            failures = [
                self.client.lookup(self.prompt).failure,
                self.fetch().failure,
                self.client.store_from(self.prompt, PAYLOADS).failure,
                self.client.store_from(self.prompt, PAYLOADS, first_missing=0).failure,
                self.client.release(5).failure,
                self.client.renew(5, 1).failure,
            ]
            with self.subTest(code):
                self.assertEqual([type(f) for f in failures], [kind] * 6)
                self.assertEqual([f.code for f in failures], [code.value[0]] * 6)
                self.assertIn("told to", str(failures[0]))
                if kind is kvtier.ResourceExhausted:
                    self.assertEqual([f.retry_delay for f in failures], [1.5] * 6)
        for code, kind in ((OK.INVALID_ARGUMENT, kvtier.InvalidArgument), (OK.INTERNAL, kvtier.Internal)):
            self.server.replies["Lookup"] = [fails(code)]
            with self.assertRaises(kind):
                self.client.lookup(self.prompt)
        self.server.replies["RegisterModel"] = [fails(OK.RESOURCE_EXHAUSTED)]
        with self.assertRaises(kvtier.ResourceExhausted):
            self.client.register_model(SPEC)

    def test_unavailable_is_tried_again_while_nothing_has_arrived(self):
        down = fails(OK.UNAVAILABLE)
        self.server.replies["Lookup"] = [down, down, found_reply(2)]
        self.assertEqual(self.client.lookup(self.prompt).blocks, 2)
        self.assertEqual((self.client.counters().retries, self.client.counters().failures), (2, 0))
        self.server.replies["Store"] = [down, stored_reply(1, 1)]
        self.assertEqual(self.client.store_from(self.prompt, PAYLOADS, first_missing=0).held, 2)
        self.server.replies["Fetch"] = [down, [piece(0), piece(1)]]
        self.assertEqual(self.fetch().ok, [True, True])
        self.server.replies["Lookup"] = [down]
        self.server.calls.clear()
        self.assertIsInstance(self.client.lookup(self.prompt).failure, kvtier.Unavailable)
        self.assertEqual(len(self.server.calls), 3)

        def breaks(context):
            yield piece(0)
            context.abort(OK.UNAVAILABLE, "in the middle")

        self.server.replies["Fetch"] = [breaks]
        self.server.calls.clear()
        report = self.fetch()
        self.assertEqual((report.ok, report.leading, self.server.calls), ([False, False], 0, ["Fetch"]))
        self.assertIsInstance(report.failure, kvtier.Unavailable)

    def test_a_forgotten_model_is_registered_once(self):
        lost = fails(OK.NOT_FOUND, "model")
        self.client.register_model(SPEC)
        self.server.replies["Lookup"] = [lost, found_reply(2)]
        self.server.calls.clear()
        self.assertEqual(self.client.lookup(self.prompt).blocks, 2)
        self.assertEqual(self.server.calls, ["Lookup", "RegisterModel", "Lookup"])
        self.server.replies["Fetch"] = [lost]
        self.server.calls.clear()
        self.assertIsInstance(self.fetch().failure, kvtier.NotFound)
        self.assertEqual(self.server.calls, ["Fetch", "RegisterModel", "Fetch"])

    def test_a_server_of_another_kind_is_told_apart(self):
        with socket.create_server(("127.0.0.1", 0)) as other:
            answers = threading.Thread(target=speak_http1, args=(other,), daemon=True)
            answers.start()
            self.addCleanup(answers.join)
            client = self.connect(address="127.0.0.1:%d" % other.getsockname()[1])
            failure = client.lookup(self.prompt).failure
            client.close()
            other.shutdown(socket.SHUT_RDWR)
        self.assertIsInstance(failure, kvtier.Unavailable)
        self.assertIn("is this an address that kvtierd listens on?", str(failure))

    def test_a_slow_daemon_costs_its_deadline_then_nothing(self):
        self.server.replies["Lookup"] = [lambda context: self.server.closing.wait(60) and b""]
        client = self.connect(lookup_deadline=0.1, breaker=kvtier.BreakerOptions(first_backoff=60))
        began = time.monotonic()
        for _ in range(3):
            failure = client.lookup(self.prompt).failure
            self.assertIsInstance(failure, kvtier.DeadlineExceeded)
            self.assertEqual(str(failure), "Lookup: no answer within 0.1 s")
        self.assertGreater(time.monotonic() - began, 0.25)
        self.server.calls.clear()
        for _ in range(100):
            self.assertIsInstance(client.lookup(self.prompt).failure, kvtier.Unavailable)
        self.assertEqual(self.server.calls, [])
        counters = client.counters()
        self.assertEqual(
            (counters.calls, counters.failures, counters.refused_by_breaker, counters.breaker_opened),
            (3, 3, 100, 1),
        )

    def test_a_timeout_of_the_call_goes_before(self):
        self.server.replies["Fetch"] = [lambda context: [piece(0), self.server.closing.wait(60) and b""]]
        report = self.fetch(timeout=0.2)
        self.assertIsInstance(report.failure, kvtier.DeadlineExceeded)
        self.assertEqual(report.ok, [False, False])

    def test_an_interrupt_within_grpc_does_not_break_the_client(self):
        """A signal's handler raises when gRPC has just taken a lock, and it is never let go."""
        if self.CLIENT != "sync":
            self.skipTest("asyncio does not let handlers raise within its calls")
        client = self.connect()
        client.register_model(SPEC)
        enter, main = threading.Condition.__enter__, threading.get_ident()
        for rpc, call in (
            ("Lookup", lambda: client.lookup(self.prompt, timeout=10)),
            ("Fetch", lambda: self.fetch(client, timeout=10)),
            ("Store", lambda: client.store_from(self.prompt, PAYLOADS, first_missing=0, timeout=10)),
        ):
            for wide in (False, True):  # a Lookup of some size takes another way through gRPC
                struck = []

                def interrupted(condition):
                    result = enter(condition)
                    caller = sys._getframe(1).f_code.co_filename
                    if threading.get_ident() == main and "grpc" in caller and not struck:
                        struck.append(caller)
                        raise KeyboardInterrupt
                    return result

                lane = mock.patch.object(client._lane, "enter", return_value=not wide)
                with self.subTest(rpc, wide=wide):
                    with lane, mock.patch.object(threading.Condition, "__enter__", interrupted):
                        with contextlib.suppress(KeyboardInterrupt):
                            call()
                    done = []
                    after = threading.Thread(target=lambda: done.append(call()), daemon=True)
                    after.start()
                    after.join(20)
                    self.assertTrue(done, "a call after it did not end")
                    self.assertIsNone(done[0].failure)
                    self.assertTrue(struck)

    def test_calls_under_way_when_the_client_is_closed_are_misses(self):
        for rpc, call in (
            ("Lookup", lambda client: client.lookup(self.prompt)),
            ("Fetch", lambda client: self.fetch(client)),
            ("Store", lambda client: client.store_from(self.prompt, PAYLOADS, first_missing=0)),
        ):
            entered = threading.Event()

            def hang(context, entered=entered):
                entered.set()
                self.server.closing.wait(60)
                return b""

            truth, self.server.replies[rpc] = self.server.replies[rpc], [hang]
            client = self.connect(lookup_deadline=60.0)
            with self.subTest(rpc), concurrent.futures.ThreadPoolExecutor(1) as pool:
                under_way = pool.submit(call, client)
                self.assertTrue(entered.wait(60))
                client.close()
                self.assertIsInstance(under_way.result(30).failure, kvtier.Unavailable)
                if self.CLIENT == "sync":  # the other's loop is gone, too
                    with self.assertRaisesRegex(kvtier.InvalidArgument, "the client is closed"):
                        call(client)
            self.server.replies[rpc] = truth

    def test_nobody_and_somebody_else(self):
        with (
            tempfile.TemporaryDirectory() as folder,
            CLIENTS[self.CLIENT](
                f"unix:{folder}/nobody.sock", kvtier.ClientOptions(lookup_deadline=5)
            ) as client,
        ):
            self.assertIsInstance(client.lookup(self.prompt).failure, kvtier.Unavailable)
            with self.assertRaises(kvtier.Unavailable):
                client.register_model(SPEC)
        other = grpc.server(concurrent.futures.ThreadPoolExecutor(1))
        with tempfile.TemporaryDirectory() as folder:
            other.add_insecure_port(f"unix:{folder}/other.sock")
            other.start()
            with CLIENTS[self.CLIENT](f"unix:{folder}/other.sock") as client:
                with self.assertRaisesRegex(kvtier.Error, "nobody serves kvtier's data API at this address"):
                    client.register_model(SPEC, timeout=10)
            other.stop(None).wait()


class GivenUpTest(FakeCase, unittest.TestCase):
    CLIENT = "async"

    def test_a_cancelled_coroutine_ends_its_call_and_says_nothing_of_the_daemon(self):
        import asyncio

        entered, ended = threading.Event(), threading.Event()

        def hang(context):
            context.add_callback(ended.set)
            entered.set()
            self.server.closing.wait(60)
            return b""

        self.server.replies["Lookup"] = [hang, found_reply(2)]

        async def cancel():
            lookup = asyncio.ensure_future(self.client.inner.lookup(self.prompt))
            await asyncio.get_running_loop().run_in_executor(None, entered.wait, 60)
            lookup.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await lookup

        self.client._loop.run(cancel())
        self.assertTrue(ended.wait(60))
        self.assertEqual(self.client.lookup(self.prompt).blocks, 2)
        self.assertEqual(self.client.counters().failures, 0)


@both
class StandstillCases(DaemonCase):
    """A daemon that is stopped (SIGSTOP): its socket takes what fits and answers nothing."""

    def stand_still(self):
        self.daemon.send(signal.SIGSTOP)
        tasks = pathlib.Path(f"/proc/{self.daemon.process.pid}/task")
        for _ in range(1000):  # it takes a moment to reach every thread
            if all(stat.read_text().rpartition(")")[2].split()[0] == "T" for stat in tasks.glob("*/stat")):
                return
            threading.Event().wait(0.01)
        self.fail("kvtierd did not stop")

    def test_calls_end_soon_after_their_deadline(self):
        model = self.client.register_model(opaque_spec("stopped", 4 << 20))
        prompt = kvtier.Prompt(model.id, tokens_of(1, 2))
        payloads = payloads_of(1, 2, 4 << 20)
        self.assertEqual(self.client.store_from(prompt, payloads).held, 2)
        client = self.connect(breaker=kvtier.BreakerOptions(failures_to_open=0))
        self.assertEqual(client.lookup(prompt, timeout=10).blocks, 2)
        self.stand_still()
        try:
            other = kvtier.Prompt(model.id, tokens_of(2, 2))
            calls = [
                lambda: client.store_from(other, payloads, first_missing=0, timeout=0.5),  # fills the socket
                lambda: client.lookup(prompt, timeout=0.5),
                lambda: client.fetch_into(prompt, poisoned(2, 4 << 20), timeout=0.5),
                lambda: client.store_from(other, payloads, first_missing=0, timeout=0.5),
                lambda: client.store_from(other, payloads, timeout=0.5),
            ]
            for i, call in enumerate(calls):
                began = time.monotonic()
                with self.subTest(i):
                    self.assertIsInstance(call().failure, (kvtier.DeadlineExceeded, kvtier.Unavailable))
                    # Deadline and grace are 0.75 s; the rest is for the machine.
                    self.assertLess(time.monotonic() - began, 5)
        finally:
            self.daemon.send(signal.SIGCONT)
        self.assertEqual(client.lookup(prompt, timeout=30).blocks, 2)
        buffers = poisoned(2, 4 << 20)
        report = client.fetch_into(prompt, buffers)
        for _ in range(100):  # gRPC may have given its connection up meanwhile
            if report.failure is None:
                break
            self.assertIsInstance(report.failure, kvtier.Unavailable)
            threading.Event().wait(0.05)
            report = client.fetch_into(prompt, buffers)
        self.assertEqual(report.ok, [True, True])
        self.assertEqual([bytes(b) for b in buffers], payloads)

    def test_many_small_calls_and_large_ones_end_too(self):
        model = self.client.register_model(opaque_spec("many"))
        client = self.connect(breaker=kvtier.BreakerOptions(failures_to_open=0), retries=0)
        prompts = [
            kvtier.Prompt(model.id, tokens_of(seed, blocks))
            for seed, blocks in [(10 + i, 400) for i in range(24)]
            + [(50, 20_000)]
            + [(60 + i, 400) for i in range(24)]
        ]
        self.assertEqual([client.lookup(prompt, timeout=20).failure for prompt in prompts[:2]], [None, None])
        self.stand_still()
        try:
            with concurrent.futures.ThreadPoolExecutor(12) as pool:
                began = time.monotonic()
                failures = list(pool.map(lambda prompt: client.lookup(prompt, timeout=0.3).failure, prompts))
            for failure in failures:
                self.assertIsInstance(failure, (kvtier.DeadlineExceeded, kvtier.Unavailable))
            self.assertLess(time.monotonic() - began, 20)  # five rounds of 0.55 s
        finally:
            self.daemon.send(signal.SIGCONT)
        self.assertEqual(
            [client.lookup(prompt, timeout=20).failure for prompt in prompts], [None] * len(prompts)
        )

    def test_a_draining_daemon_is_a_miss(self):
        model = self.client.register_model(opaque_spec("drains"))
        prompt = kvtier.Prompt(model.id, tokens_of(3, 1))
        self.client.store_from(prompt, payloads_of(3, 1, 4096))
        self.assertEqual(self.client.lookup(prompt).blocks, 1)
        go_on = threading.Event()

        def open_stream():  # holds the drain up
            yield daemon.kv.StoreRequest(
                header=daemon.kv.StoreHeader(prompt=daemon.prompt(model.id, tokens_of(4, 1)), block_count=1)
            )
            go_on.wait(60)

        with daemon.Client(self.daemon.address) as raw:
            stream = raw.store_future(open_stream())
            self.daemon.send(signal.SIGTERM)
            for _ in range(200):  # the signal takes a moment
                found = self.client.lookup(prompt)
                if found.failure is not None:
                    break
                go_on.wait(0.02)
            self.assertIsInstance(found.failure, kvtier.Unavailable)
            self.assertEqual(found.blocks, 0)
            go_on.set()
            stream.exception()
        self.assertEqual(self.daemon.wait(), 0)


class BreakerTest(unittest.TestCase):
    def setUp(self):
        self.now = 0.0
        self.breaker = breaker.CircuitBreaker(kvtier.BreakerOptions(3, 0.1, 0.3), "here", lambda: self.now)

    def call(self, failed):
        self.breaker.admit()
        self.breaker.record(failed)

    def assert_open_for(self, seconds):
        self.now += seconds - 0.001
        with self.assertRaises(kvtier.Unavailable):
            self.breaker.admit()
        self.now += 0.002

    def test_failures_in_a_row_open_it(self):
        for failed in (True, True, False, True, True):
            self.call(failed)
        self.call(True)
        with self.assertRaisesRegex(
            kvtier.Unavailable, "after 3 failed calls in a row, next attempt in 100 ms"
        ):
            self.breaker.admit()
        self.assertEqual((self.breaker.opened, self.breaker.refused), (1, 1))

    def test_one_probe_at_a_time_and_twice_the_wait_after_each(self):
        for _ in range(3):
            self.call(True)
        for backoff in (0.1, 0.2, 0.3, 0.3):  # doubles up to the longest
            self.assert_open_for(backoff)
            self.breaker.admit()
            with self.assertRaises(kvtier.Unavailable):
                self.breaker.admit()
            self.breaker.record(True)
        self.assert_open_for(0.3)
        self.call(False)
        self.call(True)  # closed: goes through
        self.assertEqual(self.breaker.opened, 5)

    def test_a_probe_that_was_withdrawn_leaves_room_for_the_next(self):
        for _ in range(3):
            self.call(True)
        self.assert_open_for(0.1)
        self.breaker.admit()
        self.breaker.withdraw()
        self.call(False)
        self.breaker.admit()

    def test_failures_under_way_change_nothing_and_0_is_no_breaker(self):
        for _ in range(5):
            self.breaker.admit()
        for _ in range(5):
            self.breaker.record(True)
        self.assertEqual(self.breaker.opened, 1)
        never = breaker.CircuitBreaker(kvtier.BreakerOptions(failures_to_open=0))
        for _ in range(10):
            never.admit()
            never.record(True)


if __name__ == "__main__":
    unittest.main(verbosity=2)
