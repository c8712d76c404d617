"""The package against the real daemon: what is stored comes back byte for byte, or it is a miss."""

import array
import contextlib
import gc
import os
import pathlib
import random
import signal
import sys
import threading
import time
import unittest
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from package import (  # noqa: E402
    DaemonCase,
    both,
    kvtier,
    opaque_spec,
    payloads_of,
    tokens_of,
)

try:
    import numpy
except ImportError:
    numpy = None

MIB = 1 << 20
SIZES = (1, 7, 4096, MIB - 1, MIB, MIB + 1, 3 * MIB - 5)
STORED, PRESENT = kvtier.StoreVerdict.STORED, kvtier.StoreVerdict.ALREADY_PRESENT


def verdicts(report):
    return [outcome.verdict for outcome in report.outcomes]


def resized(buffer, seconds=10):
    """Whether nobody holds it any more; gRPC's thread may come to the end of a call a little later."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(BufferError):
            buffer.append(0)
            buffer.pop()
            return True
        os.sched_yield()
    return False


@both
class TransferCases(DaemonCase):
    def model(self, name="m", size=4096, **other):
        return self.client.register_model(opaque_spec(name, size, **other))

    def test_every_size_goes_there_and_back(self):
        for size in SIZES:
            with self.subTest(size=size):
                model = self.model(f"m{size}", size)
                self.assertEqual((model.part_bytes, model.block_bytes), ((size,), size))
                prompt = kvtier.Prompt(model.id, tokens_of(1, 3, rest=5))
                payloads = payloads_of(size, 3, size)
                self.assertEqual(self.client.lookup(prompt).blocks, 0)
                report = self.client.store_from(prompt, payloads)
                self.assertEqual((verdicts(report), report.sent, report.failure), ([STORED] * 3, 3, None))
                with self.client.lookup(prompt, lease=60) as found:
                    self.assertEqual((found.blocks, found.tokens, found.group_blocks), (3, 48, (3,)))
                    self.assertEqual([(r.tier, r.blocks) for r in found.runs], [(kvtier.Tier.RAM, 3)])
                    for what in (prompt, found.lease, found.lease.id):
                        self.assertEqual(self.fetched(what, 3, size)[1], payloads)
                    self.assertEqual(self.fetched(found.lease, 2, size, first_block=1)[1], payloads[1:])
                again = self.client.store_from(prompt, payloads)
                self.assertEqual((verdicts(again), again.sent), ([PRESENT] * 3, 0))

    def test_small_parts_share_messages(self):
        model = self.model("small", 100)
        prompt = kvtier.Prompt(model.id, tokens_of(2, 700))
        payloads = payloads_of(2, 700, 100)
        self.assertEqual(self.client.store_from(prompt, payloads).held, 700)
        self.assertEqual(self.fetched(prompt, 700, 100)[1], payloads)

    def test_segments_are_gathered_and_scattered(self):
        size = 2 * MIB + 100
        model = self.model("segments", size)
        prompt = kvtier.Prompt(model.id, tokens_of(3, 2))
        payloads = payloads_of(3, 2, size)
        # Cuts in odd places: within a message, at a message's end, an empty one.
        cuts = [0, 1, 1000, 1000, MIB, MIB + 1, 2 * MIB, size]
        cut = [[memoryview(p)[a:b] for a, b in zip(cuts, cuts[1:])] for p in payloads]
        self.assertEqual(self.client.store_from(prompt, cut).held, 2)
        self.assertEqual(self.fetched(prompt, 2, size)[1], payloads)
        into = [tuple(bytearray(b - a) for a, b in zip(cuts, cuts[1:])) for _ in payloads]
        self.assertEqual(self.client.fetch_into(prompt, into).ok, [True, True])
        self.assertEqual([b"".join(segments) for segments in into], payloads)

    def test_any_buffer_will_do(self):
        model = self.model("buffers", 4096)
        prompt = kvtier.Prompt(model.id, tokens_of(4, 1))
        payload = payloads_of(4, 1, 4096)[0]
        self.assertTrue(self.client.store_from(prompt, [array.array("d", payload)]).held)
        for buffer in (bytearray(4096), memoryview(bytearray(5000))[4:4100], array.array("f", bytes(4096))):
            self.assertEqual(self.client.fetch_into(prompt, [buffer]).ok, [True])
            self.assertEqual(bytes(buffer), payload)

    @unittest.skipIf(numpy is None, "no numpy here")
    def test_numpy(self):
        model = self.model("numpy", 4096)
        tokens = numpy.arange(40, dtype=numpy.uint32)
        prompt = kvtier.Prompt(model.id, tokens)
        kv = numpy.random.default_rng(5).standard_normal((2, 2, 8, 64), dtype=numpy.float32)
        self.assertEqual(self.client.store_from(prompt, [kv[0], [kv[1, 0], kv[1, 1]]]).held, 2)
        into = numpy.zeros_like(kv)
        same = kvtier.Prompt(model.id, tokens.astype(numpy.int64))
        self.assertEqual(self.client.fetch_into(same, [[into[0, 0], into[0, 1]], into[1]]).ok, [True, True])
        self.assertTrue((into == kv).all())
        with self.assertRaisesRegex(kvtier.InvalidArgument, r"buffers\[0\] is not contiguous"):
            self.client.fetch_into(same, [into[:, :, :, 0]])

    def test_partial_hit_gaps_and_misses(self):
        model = self.model("partial")
        prompt = kvtier.Prompt(model.id, tokens_of(6, 4))
        payloads = payloads_of(6, 4, 4096)
        self.client.store_from(prompt, payloads)
        longer = kvtier.Prompt(model.id, tokens_of(6, 4) + tokens_of(7, 2))
        self.assertEqual(self.client.lookup(longer).blocks, 4)
        self.assertEqual(self.fetched(longer, 6, 4096)[1], payloads + [None, None])
        self.assertEqual(self.fetched(longer, 6, 4096, allow_gaps=True)[0].leading, 4)
        more = payloads_of(7, 2, 4096)
        stored = self.client.store_from(longer, payloads + more)
        self.assertEqual((verdicts(stored), stored.sent), ([PRESENT] * 4 + [STORED] * 2, 2))
        self.assertEqual(self.fetched(longer, 6, 4096)[1], payloads + more)
        other = kvtier.Prompt(model.id, tokens_of(8, 4))
        report, blocks = self.fetched(other, 4, 4096)
        self.assertEqual((blocks, report.leading, report.failure), ([None] * 4, 0, None))

    def test_a_block_without_its_parent_is_rejected(self):
        model = self.model("parent")
        prompt = kvtier.Prompt(model.id, tokens_of(9, 3))
        payloads = payloads_of(9, 3, 4096)
        report = self.client.store_from(prompt, payloads[1:], first_block=1)
        self.assertEqual(
            report.outcomes[0],
            kvtier.StoredBlock(kvtier.StoreVerdict.REJECTED, kvtier.StoreRefusal.NO_PARENT),
        )
        self.assertEqual((report.held, report.failure), (0, None))
        self.assertEqual(self.client.store_from(prompt, payloads).held, 3)

    def test_parts_make_a_block_only_together(self):
        model = self.model("ranks", 1000, ranks=2)
        prompt = kvtier.Prompt(model.id, tokens_of(10, 1))
        halves = [payloads_of(f"rank{rank}", 1, 1000) for rank in range(2)]
        self.client.store_from(prompt, halves[0], part=kvtier.Part(0, 0))
        self.assertEqual(self.client.lookup(prompt).blocks, 0)
        self.client.store_from(prompt, halves[1], part=kvtier.Part(0, 1))
        with self.client.lookup(prompt, lease=60) as found:
            self.assertEqual(found.blocks, 1)
            for rank in range(2):
                self.assertEqual(
                    self.fetched(found.lease, 1, 1000, part=kvtier.Part(0, rank))[1], halves[rank]
                )

    def test_engine_hashes(self):
        model = self.model("hashes")
        hashes = [bytes([i]) * 32 for i in range(3)]
        prompt = kvtier.Prompt(model.id, engine_hashes=hashes)
        payloads = payloads_of(11, 3, 4096)
        self.assertEqual(self.client.store_from(prompt, payloads).held, 3)
        self.assertEqual(self.fetched(prompt, 3, 4096)[1], payloads)
        other = kvtier.Prompt(model.id, engine_hashes=hashes[:2] + [b"x" * 32])
        self.assertEqual(self.client.lookup(other).blocks, 2)

    def test_leases_pin_end_and_are_counted(self):
        model = self.model("leases")
        prompt = kvtier.Prompt(model.id, tokens_of(12, 3))
        payloads = payloads_of(12, 3, 4096)
        self.client.store_from(prompt, payloads)
        verified = []
        protocol = getattr(self.client, "inner", self.client)._protocol
        release = protocol.release
        protocol.release = lambda lease, use, *rest: (
            verified.append(use.verified_blocks) or release(lease, use, *rest)
        )
        with self.client.lookup(prompt, lease=60) as found:
            lease_id = found.lease.id
            self.assertTrue(found.lease)
            self.assertTrue(found.lease.renew(60))
            self.fetched(found.lease, 2, 4096)
            self.fetched(found.lease, 2, 4096, first_block=1)
        self.assertEqual(verified, [3])
        self.assertFalse(found.lease)
        report, blocks = self.fetched(lease_id, 3, 4096)
        self.assertEqual(blocks, [None] * 3)
        self.assertIsInstance(report.failure, kvtier.NotFound)
        self.assertIsInstance(self.fetched(found.lease, 3, 4096)[0].failure, kvtier.NotFound)
        self.assertIsInstance(found.lease.renew(1).failure, kvtier.NotFound)
        self.assertFalse(self.client.release(lease_id))
        detached = self.client.lookup(prompt, lease=60).lease.detach()
        self.assertEqual(self.fetched(detached, 3, 4096)[1], payloads)
        self.assertTrue(self.client.renew(detached, 1.5))
        self.assertTrue(self.client.release(detached, 3))

    def test_close_releases_what_is_held(self):
        model = self.model("close")
        prompt = kvtier.Prompt(model.id, tokens_of(13, 1))
        self.client.store_from(prompt, payloads_of(13, 1, 4096))
        other = self.connect()
        held = other.lookup(prompt, lease=60).lease
        lease_id = held.id
        self.assertTrue(self.client.renew(lease_id, 60))
        other.close()
        self.assertIsInstance(self.client.renew(lease_id, 60).failure, kvtier.NotFound)
        held.inner.detach() if hasattr(held, "inner") else held.detach()

    def test_durable_needs_the_ssd(self):
        model = self.model("durable")
        prompt = kvtier.Prompt(model.id, tokens_of(14, 1))
        report = self.client.store_from(prompt, payloads_of(14, 1, 4096), durable=True)
        self.assertIsInstance(report.failure, kvtier.FailedPrecondition)
        self.assertEqual(verdicts(report), [kvtier.StoreVerdict.REJECTED])

    def test_a_full_daemon_rejects_and_keeps_the_head(self):
        model = self.model("full", 4 * MIB)
        prompt = kvtier.Prompt(model.id, tokens_of(15, 20))
        payloads = [bytes(4 * MIB)] * 20
        report = self.client.store_from(prompt, payloads)
        self.assertTrue(0 < report.held < 20, report.held)
        self.assertEqual(report.outcomes[-1].refusal, kvtier.StoreRefusal.NO_SPACE)
        with self.client.lookup(prompt, lease=60) as found:  # pins all of RAM
            self.assertEqual(found.blocks, report.held)
            other = kvtier.Prompt(model.id, tokens_of(16, 1))
            refused = self.client.store_from(other, payloads[:1])
            self.assertIsInstance(refused.failure, kvtier.ResourceExhausted)
        self.assertEqual(self.client.store_from(other, payloads[:1]).held, 1)

    def test_bad_input_is_named(self):
        model = self.model("bad", 4096)
        prompt = kvtier.Prompt(model.id, tokens_of(17, 2))
        good = bytearray(4096)
        cases = [
            (
                "buffers[1] has 4095 bytes, the part has 4096",
                lambda: self.client.fetch_into(prompt, [good, bytearray(4095)]),
            ),
            ("buffers[0] has 4097 bytes", lambda: self.client.store_from(prompt, [[bytes(4096), b"x"]])),
            ("buffers[0] is read-only", lambda: self.client.fetch_into(prompt, [bytes(4096)])),
            ("buffers[0] is a int", lambda: self.client.store_from(prompt, [4096])),
            ("buffers[0][1] is a str", lambda: self.client.store_from(prompt, [[good, "x"]])),
            (
                "buffers[0] is not contiguous",
                lambda: self.client.store_from(prompt, [memoryview(bytes(8192))[::2]]),
            ),
            (
                "part.rank is 1, the limits are 0 and 0",
                lambda: self.client.fetch_into(prompt, [good], part=kvtier.Part(0, 1)),
            ),
            ("lease is 601 s", lambda: self.client.lookup(prompt, lease=601)),
            ("timeout is 0 s", lambda: self.client.lookup(prompt, timeout=0)),
            (
                "prefill_tokens_per_second is -1",
                lambda: self.client.lookup(prompt, prefill_tokens_per_second=-1),
            ),
            ("lease_id is 0", lambda: self.client.fetch_into(0, [good])),
            ("lease is 0 s, the limits are 0.001 and 600", lambda: self.client.lookup(prompt, lease=0)),
            ("lease is '1', it must be a number", lambda: self.client.lookup(prompt, lease="1")),
            ("lease is 0 s", lambda: self.client.renew(1, 0)),
            ("timeout is '1', it must be a number", lambda: self.client.lookup(prompt, timeout="1")),
            *((f"timeout is {bad} s, ", lambda bad=bad, call=call: call(timeout=bad))
              for bad in (-1, float("inf"), float("nan"), 1e10)
              for call in (lambda timeout: self.client.lookup(prompt, timeout=timeout),
                           lambda timeout: self.client.fetch_into(prompt, [good], timeout=timeout),
                           lambda timeout: self.client.store_from(prompt, [good], timeout=timeout),
                           lambda timeout: self.client.register_model(opaque_spec(), timeout=timeout))),
            ("promote_to is a str", lambda: self.client.lookup(prompt, promote_to="x")),
            ("prefill_tokens_per_second is 'x'",
             lambda: self.client.lookup(prompt, prefill_tokens_per_second="x")),
            ("first_missing is '1'", lambda: self.client.store_from(prompt, [good], first_missing="1")),
            ("buffers is a int", lambda: self.client.fetch_into(prompt, 5)),
            ("buffers is a NoneType", lambda: self.client.store_from(prompt, None)),
            ("lease_id is -1", lambda: self.client.fetch_into(-1, [good])),
            ("lease_id is 18446744073709551616", lambda: self.client.fetch_into(2**64, [good])),
            ("part is a tuple, it must be a Part", lambda: self.client.store_from(prompt, [good], part=(0, 0))),
            ("prompt is a list, it must be a Prompt", lambda: self.client.lookup([1, 2])),
            ("prompt is a list, it must be a Prompt", lambda: self.client.store_from([1, 2], [good])),
            ("what is a list", lambda: self.client.fetch_into([1, 2], [good])),
            ("first_block is 1.5, it must be an integer",
             lambda: self.client.store_from(prompt, [good], first_block=1.5)),
            ("allow_gaps is a str, it must be a bool",
             lambda: self.client.fetch_into(prompt, [good], allow_gaps="no")),
            ("allow_gaps is a int, it must be a bool",
             lambda: self.client.fetch_into(prompt, [good], allow_gaps=1)),
            ("allow_gaps is a NoneType", lambda: self.client.fetch_views(1, 1, lease_end=0, allow_gaps=None)),
            ("durable is a str, it must be a bool",
             lambda: self.client.store_from(prompt, [good], durable="no")),
            ("lease_end is 'x', it must be a time in seconds",
             lambda: self.client.fetch_into(1, [good], lease_end="x")),
            ("lease_end is nan", lambda: self.client.fetch_into(1, [good], lease_end=float("nan"))),
            ("lease_end is []", lambda: self.client.fetch_views(1, 1, lease_end=[])),
            ("what is a Prompt, it must be a Lease or a lease's id", lambda: self.client.fetch_views(prompt, 1)),
            ("lease_id is 0", lambda: self.client.fetch_views(0, 1)),
            ("blocks is 1.5, it must be an integer", lambda: self.client.fetch_views(1, 1.5)),
            ("shared_seconds is 'x', it must be a number", lambda: self.client.release(1, shared_seconds="x")),
            ("shared_seconds is -1 s", lambda: self.client.release(1, shared_seconds=-1)),
            ("shared_bytes is 1.5, it must be an integer", lambda: self.client.release(1, shared_bytes=1.5)),
            ("verified_blocks is None", lambda: self.client.release(1, None)),
            ("lease_id is 'x', it must be an integer", lambda: self.client.renew("x", 1)),
            ("lease is None, it must be a number", lambda: self.client.renew(1, None)),
            # These only the daemon can know.
            ("first_block", lambda: self.client.store_from(prompt, [good], first_block=2, first_missing=0)),
        ]
        for text, call in cases:
            with self.subTest(text), self.assertRaises(kvtier.InvalidArgument) as raised:
                call()
            self.assertIn(text, str(raised.exception))
        self.assertEqual(self.client.store_from(prompt, [good, good]).held, 2)

    def test_items_that_are_pointers_are_refused(self):
        try:
            import numpy
        except ImportError:
            self.skipTest("no numpy, and nothing else has such a buffer")
        model = self.model("pointers", 4096)
        prompt = kvtier.Prompt(model.id, tokens_of(21, 1))
        for refused, dtype in ((True, object), (False, float)):
            buffer = numpy.zeros(512, dtype)
            for call in (self.client.store_from, self.client.fetch_into):
                with self.subTest(dtype=dtype):
                    if refused:
                        with self.assertRaisesRegex(kvtier.InvalidArgument, "items of format 'O'"):
                            call(prompt, [buffer])
                    else:
                        self.assertIsNone(call(prompt, [buffer]).failure)

    def test_a_failure_does_not_hold_the_buffers(self):
        model = self.model("held", 4096)
        prompt = kvtier.Prompt(model.id, tokens_of(20, 1))
        buffer = bytearray(4096)
        for report in (self.client.fetch_into(12345, [buffer]),
                       self.client.store_from(kvtier.Prompt(bytes(16), tokens_of(20, 1)), [buffer])):
            self.assertIsInstance(report.failure, kvtier.NotFound)
            self.assertIsNone(report.failure.__traceback__)
            self.assertIsNone(report.failure.__context__)
        if self.CLIENT == "sync":  # asyncio's tasks go with the garbage collector
            gc.disable()
            self.addCleanup(gc.enable)
            for call in (lambda: self.client.fetch_into(12345, [buffer]),
                         lambda: self.client.store_from(kvtier.Prompt(bytes(16), tokens_of(20, 1)), [buffer],
                                                        first_missing=0)):
                failed = call()
                self.assertIsInstance(failed.failure, kvtier.NotFound)
                self.assertTrue(resized(buffer), "the buffer is still held")
        self.assertEqual(self.client.store_from(prompt, [buffer]).held, 1)

    def test_no_buffers_are_no_fault(self):
        """A prompt shorter than a block has none."""
        model = self.model("none", 4096)
        prompt = kvtier.Prompt(model.id, tokens_of(19, 0, 3))
        calls = self.client.counters().calls
        stored = self.client.store_from(prompt, [], durable=True)
        fetched = self.client.fetch_into(prompt, [])
        self.assertEqual((stored, fetched), (kvtier.StoreReport([]), kvtier.FetchReport([], 0)))
        self.assertEqual((stored.held, self.client.counters().calls), (0, calls))
        with self.client.lookup(prompt, lease=10.0) as found:
            self.assertEqual((found.blocks, found.failure), (0, None))
            self.assertIn("nothing was found", str(self.client.fetch_into(found.lease, []).failure))

    def test_what_the_daemon_says_names_its_request_once(self):
        failure = self.client.fetch_into(12345, [bytearray(1)]).failure
        self.assertIsInstance(failure, kvtier.NotFound)
        self.assertRegex(str(failure), r"^Fetch: lease_id is unknown .*\[request [0-9a-f]+\]$")

    def test_models_are_checked_and_unknown_ones_are_misses(self):
        with self.assertRaises(kvtier.InvalidArgument):
            self.client.register_model(opaque_spec("x", 65 * MIB))
        unknown = kvtier.Prompt(bytes(16), tokens_of(18, 1))
        for failure in (
            self.client.lookup(unknown).failure,
            self.client.store_from(unknown, [b"x"]).failure,
            self.client.fetch_into(unknown, [bytearray(1)]).failure,
        ):
            self.assertIsInstance(failure, kvtier.NotFound)

    def test_random_spec_ids_are_the_daemons(self):
        seed = random.randrange(1 << 32)
        print(f"seed {seed}")
        rng = random.Random(seed)
        for i in range(20):
            ranks = rng.choice((1, 2, 4))
            groups = [
                kvtier.LayerGroup(
                    rng.choice(
                        (
                            kvtier.GroupedAttention(
                                4 * rng.randint(1, 3), rng.randint(1, 64), rng.choice((0, 16))
                            ),
                            kvtier.LatentAttention(rng.randint(1, 64), rng.randint(0, 8)),
                            kvtier.StateLayers(rng.randint(1, 99) * 4),
                        )
                    ),
                    rng.randint(1, 5),
                )
                for _ in range(rng.randint(1, 4))
            ]
            spec = kvtier.ModelSpec(
                f"m{i}\u00e9",
                f"r{rng.random()}",
                rng.randint(1, 64),
                rng.choice(list(kvtier.DType)[1:]),
                groups,
                ranks,
                rng.choice(list(kvtier.PackOrder)),
                rng.randbytes(rng.randint(0, 64)),
            )
            model = self.client.register_model(spec)  # compares ids and part sizes
            self.assertEqual((model.id, model.part_bytes), (spec.id(), spec.part_bytes()))

    def test_counters(self):
        model = self.model("counted")
        before = self.client.counters()
        self.client.lookup(kvtier.Prompt(model.id, tokens_of(19, 1)))
        after = self.client.counters()
        self.assertEqual(after.calls - before.calls, 1)
        self.assertEqual(
            (after.failures, after.retries, after.checksum_failures, after.refused_by_breaker), (0, 0, 0, 0)
        )


class SyncOnlyTest(DaemonCase, unittest.TestCase):
    def test_threads_share_a_client(self):
        model = self.client.register_model(opaque_spec("threads", 70000))
        wrong = []

        def work(seed):
            prompt = kvtier.Prompt(model.id, tokens_of(seed, 4))
            payloads = payloads_of(seed, 4, 70000)
            for _ in range(5):
                self.client.store_from(prompt, payloads)
                with self.client.lookup(prompt, lease=60) as found:
                    if self.fetched(found.lease, 4, 70000)[1] != payloads:
                        wrong.append(seed)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(20, 28)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    def test_a_dropped_lease_warns(self):
        model = self.client.register_model(opaque_spec("dropped"))
        prompt = kvtier.Prompt(model.id, tokens_of(30, 1))
        self.client.store_from(prompt, payloads_of(30, 1, 4096))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.client.lookup(prompt, lease=1)
        self.assertEqual([w.category for w in caught], [ResourceWarning])

    def test_a_client_does_not_cross_a_fork(self):
        model = self.client.register_model(opaque_spec("fork"))
        prompt = kvtier.Prompt(model.id, tokens_of(31, 1))
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                self.client.lookup(prompt)
                os.write(write, b"looked up")
            except kvtier.InvalidArgument as error:
                os.write(write, str(error).encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        self.assertIn(b"make a new one after fork()", os.read(read, 1000))
        self.assertIsNone(self.client.lookup(prompt).failure)


@both
class RestartCases(DaemonCase):
    FLAGS = ("--ram-bytes", "64MiB", "--ssd-bytes", "64MiB")

    def test_durable_blocks_survive_kill_and_the_client_comes_back_by_itself(self):
        client = self.client = self.connect(lookup_deadline=2.0)
        model = client.register_model(opaque_spec("restart", 100_000))
        prompt = kvtier.Prompt(model.id, tokens_of(40, 5))
        payloads = payloads_of(40, 5, 100_000)
        self.assertEqual(client.store_from(prompt, payloads, durable=True).held, 5)
        lease = client.lookup(prompt, lease=60).lease
        self.daemon.send(signal.SIGKILL)
        self.daemon.wait()
        found = client.lookup(prompt)
        self.assertEqual(found.blocks, 0)
        self.assertIsInstance(found.failure, kvtier.Unavailable)
        for _ in range(5):
            self.assertIsInstance(client.lookup(prompt).failure, kvtier.Unavailable)
        self.assertGreater(client.counters().breaker_opened, 0)
        self.assertIsInstance(self.fetched(prompt, 5, 100_000)[0].failure, kvtier.Unavailable)
        self.assertIsInstance(
            client.store_from(prompt, payloads, first_missing=0).failure, kvtier.Unavailable
        )
        self.daemon = self.start()
        self.assertEqual(self.blocks_in_the_end(client, prompt), 5)
        self.assertEqual(self.fetched(prompt, 5, 100_000)[1], payloads)
        self.assertIsInstance(self.fetched(lease.detach(), 5, 100_000)[0].failure, kvtier.NotFound)

    def test_a_forgotten_model_is_registered_again(self):
        model = self.client.register_model(opaque_spec("forgotten"))
        prompt = kvtier.Prompt(model.id, tokens_of(41, 2))
        payloads = payloads_of(41, 2, 4096)
        stranger = self.connect()
        self.daemon.stop()
        self.data_dir += "_other"  # another daemon, at the address of the first
        listen = ("--listen", self.daemon.address, *self.FLAGS)
        self.daemon = self.start(*listen)
        self.assertIsInstance(stranger.lookup(prompt).failure, kvtier.NotFound)  # it never had the spec
        self.assertEqual(self.blocks_in_the_end(self.client, prompt), 0)
        self.assertEqual(self.client.store_from(prompt, payloads).held, 2)
        self.assertEqual(self.fetched(prompt, 2, 4096)[1], payloads)

    def blocks_in_the_end(self, client, prompt):
        """Of the first lookup that the breaker lets through and the daemon answers."""
        never = threading.Event()
        for _ in range(600):
            found = client.lookup(prompt)
            if found.failure is None:
                return found.blocks
            self.assertIsInstance(found.failure, (kvtier.Unavailable, kvtier.DeadlineExceeded))
            never.wait(0.05)  # the breaker's backoff
        self.fail(f"no answer: {found.failure}")


if __name__ == "__main__":
    unittest.main(verbosity=2)
