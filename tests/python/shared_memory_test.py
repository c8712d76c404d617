"""Shared memory in the Python clients: hits, misses, fallbacks, leases that end, faults, what is left behind."""
import asyncio
import contextlib
import ctypes
import gc
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from package import DaemonCase, both, daemon, kvtier, opaque_spec, payloads_of, poisoned, tokens_of

import grpc  # noqa: E402
import grpc_proxy  # noqa: E402

from kvtier import leases, shared_session, shared_transfer, store_ring  # noqa: E402
from kvtier.v1 import kvtier_pb2 as pb  # noqa: E402

PATIENCE_SECONDS = 30
MIB = 1 << 20
NO_BREAK = kvtier.BreakerOptions(first_backoff=0.001, longest_backoff=0.01)
SEED = int(os.environ.get("KVTIER_SEED", time.time_ns() % 1_000_000))


def until(condition, what):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not after {PATIENCE_SECONDS} s: {what}")


def maps():
    """Of kvtierd's memory in this process."""
    with open("/proc/self/maps", encoding="ascii") as lines:
        return sum("memfd:" in line for line in lines)


def descriptors():
    """Of sockets, memory and files; not gRPC's pollers, which it keeps."""
    out = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            out.append(os.readlink(f"/proc/self/fd/{name}").split(":")[0])
    return sum(kind in ("socket", "/memfd") for kind in out)


class Recorder:
    """A region_listener: what is mapped, and whether calls come as they must."""

    def __init__(self):
        self.now = {}
        self.ever = []
        self.wrong = []

    def mapped(self, address, size, writable):
        if address in self.now:
            self.wrong.append(f"{address:x} told twice")
        ctypes.string_at(address, 1)  # would fault if it were not mapped
        self.now[address] = size
        self.ever.append((size, writable))

    def unmapping(self, address, size):
        if self.now.pop(address, None) != size:
            self.wrong.append(f"{address:x}, {size} bytes: never told, or unmapped twice")
        ctypes.string_at(address + size - 1, 1)

    def of_ram(self):
        return [size for size, writable in self.ever if not writable]


class Failing:
    def __init__(self):
        self.calls = 0

    def mapped(self, address, size, writable):
        self.calls += 1
        raise RuntimeError("mapped")

    def unmapping(self, address, size):
        self.calls += 1
        raise RuntimeError("unmapping")


class SharedCase(DaemonCase):
    SIZE = MIB
    BLOCKS = 8

    def setUp(self):
        super().setUp()
        self.admin = self.enterContext(daemon.Client(self.daemon.admin_address))
        self.model = self.client.register_model(opaque_spec(part_bytes=self.SIZE))

    def prompt(self, seed, blocks=None):
        return kvtier.Prompt(self.model.id, tokens_of(seed, blocks or self.BLOCKS))

    def payloads(self, seed, blocks=None):
        return payloads_of(seed, blocks or self.BLOCKS, self.SIZE)

    def stored(self, seed, blocks=None, **named):
        prompt = self.prompt(seed, blocks)
        report = self.client.store_from(prompt, self.payloads(seed, blocks), **named)
        self.assertEqual(report.held, blocks or self.BLOCKS, report.failure)
        return prompt

    def status(self):
        return self.admin.admin("GetStatus", daemon.adm.GetStatusRequest())

    def churn(self, seeds, client=None):
        """Other blocks take the room of those that nobody pins."""
        for seed in seeds:
            report = (client or self.client).store_from(self.prompt(seed), self.payloads(seed), first_missing=0)
            self.assertEqual(report.held, self.BLOCKS, report.failure)

    def until_no_lease(self):
        until(lambda: self.status().leases == 0, "the lease ends")

    def hit(self, seed, **options):
        with self.client.lookup(self.prompt(seed), lease=30.0) as found:
            self.assertEqual(found.blocks, self.BLOCKS)
            report, got = self.fetched(found.lease, found.blocks, self.SIZE, **options)
        self.assertEqual(got, self.payloads(seed))
        return report


@both
class TransferCases(SharedCase):
    def test_hits_and_misses(self):
        self.stored(1)
        with self.client.lookup(self.prompt(1), lease=30.0) as found:
            report, got = self.fetched(found.lease, self.BLOCKS, self.SIZE)
            self.assertEqual((report.leading, report.shared, report.failure), (self.BLOCKS, self.BLOCKS, None))
            self.assertEqual(got, self.payloads(1))
            some, got = self.fetched(found.lease, 3, self.SIZE, first_block=2)
            self.assertEqual((some.shared, got), (3, self.payloads(1)[2:5]))
        with self.client.lookup(self.prompt(2), lease=30.0) as found:
            self.assertEqual(found.blocks, 0)
        counters = self.client.counters()
        self.assertEqual(counters.shared_fetched_blocks, self.BLOCKS + 3)
        self.assertEqual(counters.shared_stored_blocks, self.BLOCKS)
        status = self.status().shared_memory
        self.assertEqual((status.sessions, status.fetched_blocks, status.stored_blocks),
                         (1, self.BLOCKS + 3, self.BLOCKS))

    def test_by_prompt_over_grpc(self):
        prompt = self.stored(1)
        report, got = self.fetched(prompt, self.BLOCKS, self.SIZE)
        self.assertEqual((report.shared, got), (0, self.payloads(1)))

    def test_any_size_and_any_segments(self):
        """Each in a store and a fetch of its own, cut at random places."""
        print("seed", SEED)
        rng = random.Random(SEED)
        for size in (1, 63, 4096, 65_536, 65_537, 524_288, 524_289, 1_500_001, 9 * MIB):
            with self.subTest(size=size):
                model = self.client.register_model(opaque_spec(f"size {size}", size))
                prompt = kvtier.Prompt(model.id, tokens_of(7, 2))
                data = payloads_of(size, 2, size)
                cuts = sorted({0, size, *(rng.randrange(size + 1) for _ in range(5))})
                spans = list(zip(cuts, cuts[1:]))
                sources = [bytearray(data[0]), [bytearray(data[1][a:b]) for a, b in spans]]
                report = self.client.store_from(prompt, sources)
                self.assertEqual((report.held, report.shared), (2, 2), report.failure)
                targets = [[bytearray(b - a) for a, b in spans], bytearray(size)]
                with self.client.lookup(prompt, lease=30.0) as found:
                    report = self.client.fetch_into(found.lease, targets)
                self.assertEqual((report.leading, report.shared), (2, 2), report.failure)
                self.assertEqual([b"".join(targets[0]), bytes(targets[1])], data)

    def test_a_buffer_of_another_size_is_the_callers_bug(self):
        self.stored(1)
        with self.client.lookup(self.prompt(1), lease=30.0) as found:
            with self.assertRaises(kvtier.InvalidArgument):
                self.client.fetch_into(found.lease.id, poisoned(1, self.SIZE - 1), lease_end=time.monotonic() + 9)
            self.fetched(found.lease, 1, self.SIZE)

    def test_larger_than_the_store_region(self):
        """It streams through."""
        model = self.client.register_model(opaque_spec("large", 17 * MIB))
        prompt = kvtier.Prompt(model.id, tokens_of(7, 1))
        data = payloads_of(1, 1, 17 * MIB)
        report = self.client.store_from(prompt, data)
        self.assertEqual((report.held, report.shared), (1, 1))
        with self.client.lookup(prompt, lease=30.0) as found:
            report, got = self.fetched(found.lease, 1, 17 * MIB)
        self.assertEqual((report.shared, got), (1, data))

    def test_present_blocks_and_other_bytes(self):
        self.stored(1, first_missing=0)
        other = [bytes([9]) * self.SIZE for _ in range(self.BLOCKS)]
        report = self.client.store_from(self.prompt(1), other, first_missing=0)
        self.assertEqual([one.verdict for one in report.outcomes],
                         [kvtier.StoreVerdict.ALREADY_PRESENT] * self.BLOCKS)
        self.assertEqual(report.checksum_mismatches, self.BLOCKS)
        self.hit(1)

    def test_without_their_parent_all_are_rejected(self):
        report = self.client.store_from(self.prompt(3), self.payloads(3)[1:], first_block=1, first_missing=1)
        self.assertEqual([one.refusal for one in report.outcomes],
                         [kvtier.StoreRefusal.NO_PARENT] * (self.BLOCKS - 1))

    def test_two_stores_at_a_time(self):
        """Of two stores of one client one has the region at a time."""
        blocks, done = 20, {}

        def store(seed):
            done[seed] = self.client.store_from(self.prompt(seed, blocks), self.payloads(seed, blocks))

        threads = [threading.Thread(target=store, args=(seed,)) for seed in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
        for seed in (1, 2):
            self.assertEqual((done[seed].held, done[seed].shared), (blocks, blocks))
            with self.client.lookup(self.prompt(seed, blocks), lease=30.0) as found:
                self.assertEqual(self.fetched(found.lease, blocks, self.SIZE)[1], self.payloads(seed, blocks))

    def test_many_small_ones_round_the_ring(self):
        """More lines than the ring has, of parts that end in the middle of one."""
        size, blocks = 10_001, 1500
        model = self.client.register_model(opaque_spec("small", size))
        prompt, data = kvtier.Prompt(model.id, tokens_of(3, blocks)), payloads_of(3, blocks, size)
        report = self.client.store_from(prompt, data)
        self.assertEqual((report.held, report.shared), (blocks, blocks), report.failure)
        with self.client.lookup(prompt, lease=30.0) as found:
            report, got = self.fetched(found.lease, blocks, size)
        self.assertEqual((report.shared, got), (blocks, data))

    def test_bytes_that_went_wrong_on_the_way_are_refused(self):
        """By the checksum of what was meant; without it they would be stored."""
        real = shared_transfer.SharedFiller._copy

        def slip(filler, at, view):
            real(filler, at, view)
            if view[0] == data[2][0] and bytes(view) == data[2][:view.nbytes]:
                filler._region.view[at + 5] ^= 1

        for verify in (True, False):
            client = self.connect(verify_shared=verify)
            client.register_model(opaque_spec(part_bytes=self.SIZE))
            data = self.payloads(60 + verify)
            with unittest.mock.patch.object(shared_transfer.SharedFiller, "_copy", slip):
                report = client.store_from(self.prompt(60 + verify), data)
            self.assertEqual(report.failure, None)
            refusals = [one.refusal for one in report.outcomes]
            self.assertEqual(report.held, 2 if verify else self.BLOCKS, refusals)
            self.assertEqual(refusals[2], kvtier.StoreRefusal.CHECKSUM if verify else kvtier.StoreRefusal.NONE)

    def test_elsewhere_than_on_x86_stores_go_over_grpc(self):
        for machine, shared in (("aarch64", 0), ("x86_64", self.BLOCKS)):
            with unittest.mock.patch("platform.machine", lambda: machine):
                prompt = self.prompt(70 + shared)
                report = self.client.store_from(prompt, self.payloads(70 + shared))
            self.assertEqual((report.held, report.shared), (self.BLOCKS, shared))
            self.assertEqual(self.hit(70 + shared).shared, self.BLOCKS)

    def test_what_the_call_did_not_do_is_done_over_grpc(self):
        """And is not accounted for twice: the daemon does not know the session, or it has another call; and a
        call that broke is not made again, as its stream is gone."""
        client = self.connect()
        client.register_model(opaque_spec(part_bytes=self.SIZE))
        inner = client if self.CLIENT == "sync" else client.inner
        inner._protocol.shared_memory.session.id = b"x" * 16
        report = client.store_from(self.prompt(1), self.payloads(1))
        self.assertEqual((report.held, report.sent, report.shared), (self.BLOCKS, self.BLOCKS, 0), report.failure)
        self.assertEqual(client.counters().shared_stored_blocks, 0)
        self.assertIsNotNone(inner._protocol.shared_memory.session)
        client.close()
        for status in (grpc.StatusCode.ABORTED, grpc.StatusCode.UNAVAILABLE):
            proxy = self.enterContext(grpc_proxy.GrpcProxy(self.daemon.address, shared_memory=True))
            client = self.connect(proxy.address)
            client.register_model(opaque_spec(part_bytes=self.SIZE))
            for number, shared in ((2, 0), (3, self.BLOCKS)):
                seed = number * 10 + status.value[0]
                if not shared:
                    proxy.inject(grpc_proxy.Fault("StoreShared", refuse=status, times=1))
                report = client.store_from(self.prompt(seed), self.payloads(seed))
                self.assertEqual((report.held, report.shared), (self.BLOCKS, shared), report.failure)
                inner = client if self.CLIENT == "sync" else client.inner
                # Lost with a call that may still read, until the next one needs it.
                self.assertEqual(inner._protocol.shared_memory.session is not None, shared > 0)
                self.assertEqual(self.hit(seed).shared, self.BLOCKS)
            self.assertEqual(proxy.calls("StoreShared"), 2)
            client.close()

    def test_a_client_that_is_late_stores_over_grpc(self):
        """The daemon has given its stream up, as when nothing of this process ran for 2 s: that is no failure of
        the daemon's, and there is time left."""
        given_up, real = threading.Event(), shared_transfer.SharedFiller.stop

        def stop(filler):
            real(filler)
            given_up.set()

        def late(filler):
            given_up.wait(PATIENCE_SECONDS)

        with unittest.mock.patch.multiple(shared_transfer.SharedFiller, stop=stop, fill=late):
            report = self.client.store_from(self.prompt(1), self.payloads(1))
        self.assertEqual((report.held, report.shared), (self.BLOCKS, 0), report.failure)
        self.assertEqual(self.client.counters().failures, 0)
        self.assertEqual(self.hit(1).shared, self.BLOCKS)

    def test_a_full_pool(self):
        """What is leased cannot be evicted: what fits is held, the rest is refused, as over gRPC."""
        reports = []
        for options in ({}, {"shared_memory": False}):
            with tempfile.TemporaryDirectory(prefix="kvtier_py_") as folder, \
                    daemon.Daemon(folder + "/data", "--ram-bytes", "16MiB") as small:
                client = self.connect(small.address, **options)
                client.register_model(opaque_spec(part_bytes=self.SIZE))
                first = self.prompt(1, 8)
                self.assertEqual(client.store_from(first, self.payloads(1, 8)).held, 8)
                with client.lookup(first, lease=60.0) as found:
                    self.assertEqual(found.blocks, 8)
                    report = client.store_from(self.prompt(2, 20), self.payloads(2, 20))
                    self.assertTrue(0 < report.held < 20, report)
                    reports.append((report.held, {one.refusal for one in report.outcomes[report.held:]}))
                    self.assertEqual(report.shared > 0, not options)
                client.close()
        self.assertEqual(reports[0], reports[1])

    def test_a_wrong_checksum_is_a_miss_and_counted(self):
        self.stored(1)
        real = shared_transfer.SharedReader.read

        def lie(reader, part):
            real(reader, part._replace(checksum=part.checksum ^ (part.index == 3)))

        with self.client.lookup(self.prompt(1), lease=30.0) as found:
            with unittest.mock.patch.object(shared_transfer.SharedReader, "read", lie):
                report, _ = self.fetched(found.lease, self.BLOCKS, self.SIZE)
        self.assertEqual([i for i, ok in enumerate(report.ok) if not ok], [3])
        self.assertEqual((report.leading, self.client.counters().checksum_failures), (3, 1))

    def test_many_bytes_are_copied_by_two_threads(self):
        """Both at the same time; one alone where no other is to be had; a failure of the second is the fetch's."""
        self.stored(1)
        real, copiers, both_copy = shared_transfer.SharedReader._copy, set(), threading.Barrier(2)

        def copy(reader, part, block):
            name = threading.current_thread().name
            if name not in copiers:
                copiers.add(name)
                both_copy.wait(PATIENCE_SECONDS)
            if planted and name == "kvtier-copy":
                raise shared_transfer.Stopped("planted")
            return real(reader, part, block)

        for planted in (False, True):
            copiers.clear()
            with unittest.mock.patch.object(shared_transfer.SharedReader, "_copy", copy), \
                    self.client.lookup(self.prompt(1), lease=30.0) as found:
                report, got = self.fetched(found.lease, self.BLOCKS, self.SIZE)
            self.assertEqual(len(copiers), 2)
            self.assertEqual(report.ok, [not planted] * self.BLOCKS)
            self.assertEqual(report.failure is not None, planted)
        start = threading.Thread.start

        def refuse(thread):
            if thread.name == "kvtier-copy":
                raise RuntimeError("can't start new thread")
            start(thread)

        with unittest.mock.patch.object(threading.Thread, "start", refuse):
            self.assertEqual(self.hit(1).shared, self.BLOCKS)

    def test_a_client_may_turn_verification_off(self):
        client = self.connect(verify_shared=False)
        client.register_model(opaque_spec(part_bytes=self.SIZE))
        self.assertEqual(client.store_from(self.prompt(5), self.payloads(5)).shared, self.BLOCKS)
        with client.lookup(self.prompt(5), lease=30.0) as found:
            buffers = poisoned(self.BLOCKS, self.SIZE)
            self.assertEqual(client.fetch_into(found.lease, buffers).shared, self.BLOCKS)
            self.assertEqual([bytes(buffer) for buffer in buffers], self.payloads(5))
        self.assertEqual(self.hit(5).shared, self.BLOCKS)  # with the daemon's own checksums

    def test_views(self):
        self.stored(1)
        with self.client.lookup(self.prompt(1), lease=30.0) as found:
            with self.client.fetch_views(found.lease.id, 3, first_block=1) as views:
                self.assertEqual([bytes(view) for view in views.blocks], self.payloads(1)[1:4])
                self.assertEqual((views.leading, views.failure, views.expired()), (3, None, False))
                self.assertTrue(all(view.readonly for view in views.blocks))
                self.assertTrue(all(views.verify(i) for i in range(3)))
                views._checksums[1] ^= 1
                self.assertFalse(views.verify(1))
                one = views.blocks[0]
            with self.assertRaises(ValueError):
                one[0]
            self.assertEqual(views.blocks, [None] * 3)
        self.assertTrue(views.expired())
        gone = self.client.fetch_views(found.lease_id, 3)
        self.assertIsInstance(gone.failure, kvtier.FailedPrecondition)
        self.assertTrue(gone.expired())
        self.assertEqual(gone.blocks, [None] * 3)

    def test_the_daemon_learns_how_fast_it_is(self):
        """By the release of a lease: it cannot see the copies."""
        self.stored(1)
        for known in (False, True):
            with self.client.lookup(self.prompt(1), lease=30.0) as found:
                self.assertEqual(found.runs[0].load_seconds > 0, known)
                report, _ = self.fetched(found.lease, self.BLOCKS, self.SIZE)
                self.assertGreater(report.shared_seconds, 0)
        with self.assertRaises(kvtier.InvalidArgument):
            self.client.release(1, shared_seconds=2e6)

    def test_a_lease_of_another_client(self):
        """Shared memory only when it is told when the lease ends."""
        self.stored(1)
        other = self.connect()
        other.register_model(opaque_spec(part_bytes=self.SIZE))
        with self.client.lookup(self.prompt(1), lease=30.0) as found:
            for end, shared in ((None, 0), (found.lease.end, self.BLOCKS)):
                buffers = poisoned(self.BLOCKS, self.SIZE)
                report = other.fetch_into(found.lease.id, buffers, lease_end=end)
                self.assertEqual((report.leading, report.shared), (self.BLOCKS, shared))
                self.assertEqual([bytes(buffer) for buffer in buffers], self.payloads(1))

    def test_what_cannot_be_had_is_done_over_grpc(self):
        self.stored(1)
        with self.subTest("the daemon offers none"), tempfile.TemporaryDirectory() as folder, \
                daemon.Daemon(folder + "/data", "--shared-memory=false") as plain:
            self.plain(self.connect(plain.address))
        with self.subTest("the client wants none"):
            self.plain(self.connect(shared_memory=False))
        with self.subTest("not over TCP"), tempfile.TemporaryDirectory() as folder, \
                daemon.Daemon(folder + "/data", "--listen", "127.0.0.1:0") as far:
            self.plain(self.connect(far.address))
        self.assertEqual(self.hit(1).shared, self.BLOCKS)

    def plain(self, client):
        client.register_model(opaque_spec(part_bytes=self.SIZE))
        report = client.store_from(self.prompt(8), self.payloads(8))
        self.assertEqual((report.held, report.shared), (self.BLOCKS, 0))
        with client.lookup(self.prompt(8), lease=30.0) as found:
            buffers = poisoned(self.BLOCKS, self.SIZE)
            report = client.fetch_into(found.lease.id, buffers)
            self.assertEqual((report.leading, report.shared), (self.BLOCKS, 0))
            self.assertEqual([bytes(buffer) for buffer in buffers], self.payloads(8))
            views = client.fetch_views(found.lease.id, 1)
            self.assertIsInstance(views.failure, kvtier.Unavailable)
        client.close()


@both
class SsdCases(SharedCase):
    FLAGS = ("--ram-bytes", "16MiB", "--ssd-bytes", "256MiB")

    def test_blocks_on_ssd_are_brought_to_ram(self):
        prompt = self.stored(1, durable=True)
        self.daemon.stop()
        self.daemon = self.start()
        self.client = self.connect()
        self.model = self.client.register_model(opaque_spec(part_bytes=self.SIZE))
        with self.client.lookup(prompt, lease=30.0) as found:
            self.assertEqual([run.tier for run in found.runs], [kvtier.Tier.SSD])
            report, got = self.fetched(found.lease, self.BLOCKS, self.SIZE)
        self.assertEqual((report.shared, got), (self.BLOCKS, self.payloads(1)))

    def test_what_ram_has_no_room_for_comes_over_grpc(self):
        prompt = self.stored(1, 24, durable=True)
        with self.client.lookup(prompt, lease=30.0) as found:
            self.assertEqual(found.blocks, 24)
            for named in ({}, {"allow_gaps": True}):
                report, got = self.fetched(found.lease, 24, self.SIZE, **named)
                self.assertEqual(got, self.payloads(1, 24))
                self.assertTrue(0 < report.shared < 24, report)
            views = self.client.fetch_views(found.lease.id, 24)
            self.assertTrue(any(views.not_shared))
            views.release()
        self.assertGreater(self.status().shared_memory.not_shared_blocks, 0)


@both
class LeaseEndCases(SharedCase):
    """A reader that is held up past its lease, while the pool's memory is used anew."""

    FLAGS = ("--ram-bytes", "16MiB")

    def held_up(self, lease, target, method, **options):
        """The report of a fetch whose reader stands after three blocks until the lease is over and all its
        memory has others' bytes; and what it read."""
        other = self.connect(shared_memory=False)
        other.register_model(opaque_spec(part_bytes=self.SIZE))
        client = self.connect(**options)
        client.register_model(opaque_spec(part_bytes=self.SIZE))
        real, calls = getattr(target, method), []

        def hold_up(reader, message):
            calls.append(message)
            if len(calls) == 4:
                if lease < 1:
                    self.until_no_lease()
                self.churn(range(100, 104), other)
            real(reader, message)

        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(calls) < 4:  # on a loaded machine the lease may be over before the fetch has begun
            self.assertLess(time.monotonic(), deadline)
            calls.clear()
            with client.lookup(self.prompt(1), lease=lease) as found:
                self.assertEqual(found.blocks, self.BLOCKS)
                buffers = poisoned(self.BLOCKS, self.SIZE)
                with unittest.mock.patch.object(target, method, hold_up):
                    report = client.fetch_into(found.lease.id, buffers)
        return report, [bytes(buffer) for buffer in buffers], client.counters()

    def test_fetch_into_reports_it(self):
        self.stored(1)
        report, _, counters = self.held_up(0.2, shared_transfer.SharedReader, "read")
        self.assertEqual((report.ok, report.leading), ([False] * self.BLOCKS, 0))
        self.assertIsInstance(report.failure, kvtier.NotFound)
        self.assertGreaterEqual(counters.ended_leases, 1)

    def test_in_time_it_is_right(self):
        self.stored(1)
        report, got, counters = self.held_up(60.0, shared_transfer.SharedReader, "read")
        self.assertEqual((report.shared, got), (self.BLOCKS, self.payloads(1)))
        self.assertEqual(counters.ended_leases, 0)

    def test_without_the_clock_wrong_bytes_would_be_used(self):
        """The planted fault: nobody looks at the time, nor at the checksums; and with these it is a miss."""
        for verify in (False, True):
            self.stored(1)
            with unittest.mock.patch.object(leases.LeaseWatch, "over", False):
                report, got, _ = self.held_up(0.2, shared_transfer.SharedReader, "read", verify_shared=verify)
            self.assertNotEqual(got, self.payloads(1))
            self.assertEqual(all(report.ok), not verify)
            right = [a == b for a, b in zip(got, self.payloads(1))]
            self.assertTrue(not verify or all(good for ok, good in zip(report.ok, right) if ok))

    def test_grpc_streams_go_on(self):
        self.stored(1)
        report, got, _ = self.held_up(0.2, kvtier.transfer.FetchAssembler, "add", shared_memory=False)
        self.assertEqual((report.leading, got), (self.BLOCKS, self.payloads(1)))

    def test_views_tell(self):
        self.stored(1)
        for lease, right in ((60.0, True), (0.2, False)):
            found, views = self.viewed(lease)
            with found, views:
                if lease < 1:
                    self.until_no_lease()
                self.churn(range(100, 104))
                self.assertEqual(views.expired(), not right)
                same = [bytes(view) for view in views.blocks] == self.payloads(1)
                self.assertEqual(same, right)

    def viewed(self, lease):
        """On a loaded machine the lease may be over before the views are had."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            found = self.client.lookup(self.prompt(1), lease=lease)
            self.assertEqual(found.blocks, self.BLOCKS)
            views = self.client.fetch_views(found.lease.id, self.BLOCKS)
            if views.leading == self.BLOCKS:
                return found, views
            found.lease.release()
        raise AssertionError("no views in time")

    def test_renewed_in_time(self):
        self.stored(1)
        with self.client.lookup(self.prompt(1), lease=5.0) as found:
            end = found.lease.end
            self.assertTrue(self.client.renew(found.lease.id, 60.0))
            self.assertGreater(found.lease.end, end + 50)
            self.assertEqual(self.fetched(found.lease, 2, self.SIZE)[0].shared, 2)


@both
class LifeCases(SharedCase):
    def test_a_daemon_that_dies_in_the_middle_of_a_store(self):
        """Whoever fills stops, though nobody takes any more; the next daemon shares again."""
        client = self.client = self.connect(breaker=NO_BREAK, transfer_deadline=2 * PATIENCE_SECONDS)
        client.register_model(opaque_spec(part_bytes=self.SIZE))
        real, copies = shared_transfer.SharedFiller._copy, []

        def die(filler, at, view):
            copies.append(1)
            if len(copies) == 30:
                self.daemon.kill()
            real(filler, at, view)

        began = time.monotonic()
        with unittest.mock.patch.object(shared_transfer.SharedFiller, "_copy", die):
            report = client.store_from(self.prompt(1, 32), self.payloads(1, 32), first_missing=0)
        self.assertLess(time.monotonic() - began, PATIENCE_SECONDS)
        self.assertGreaterEqual(len(copies), 30)
        self.assertLess(len(copies), 128)  # it did not go round a ring that nobody empties
        self.assertEqual((report.held, report.shared), (0, 0))
        self.assertIsInstance(report.failure, kvtier.Unavailable)
        self.daemon = self.start()

        def shares():
            stored = client.store_from(self.prompt(2), self.payloads(2), first_missing=0)
            with client.lookup(self.prompt(2), lease=30.0) as found:
                report, got = self.fetched(found.lease, self.BLOCKS, self.SIZE)
            self.assertTrue(report.leading < self.BLOCKS or got == self.payloads(2))
            return (stored.shared, report.shared) == (self.BLOCKS, self.BLOCKS)

        until(shares, "a store and a fetch through shared memory")

    def test_a_daemon_that_comes_back_shares_again(self):
        self.stored(1)
        client = self.client = self.connect(breaker=NO_BREAK)
        client.register_model(opaque_spec(part_bytes=self.SIZE))
        self.assertEqual(self.hit(1).shared, self.BLOCKS)
        self.daemon.kill()
        self.assertEqual(client.lookup(self.prompt(1), lease=1.0).blocks, 0)
        self.daemon = self.start()

        def shares():
            report = client.store_from(self.prompt(2), self.payloads(2), first_missing=0)
            return report.shared == self.BLOCKS

        until(shares, "a store through shared memory")
        self.assertEqual(self.hit(2).shared, self.BLOCKS)

    def test_nothing_is_left(self):
        self.client.close()
        gc.collect()
        until(lambda: maps() == 0, "no maps at the start")
        # gRPC's own come with the first client and stay.
        before, threads = descriptors(), threading.active_count()
        for _ in range(5):
            self.client = self.connect()
            self.client.register_model(opaque_spec(part_bytes=self.SIZE))
            self.stored(1)
            self.hit(1)
            self.assertGreater(maps(), 0)
            self.client.close()
            gc.collect()
            self.assertEqual(maps(), 0)
        until(lambda: descriptors() <= before, "descriptors back to the start")
        until(lambda: threading.active_count() <= threads, "threads back to the start")
        until(lambda: self.status().shared_memory.sessions == 0, "no session left")

    def test_a_view_outlives_the_client_and_then_goes(self):
        self.stored(1)
        found = self.client.lookup(self.prompt(1), lease=30.0)
        views = self.client.fetch_views(found.lease.id, 1)
        found.lease.release()
        piece = views.blocks[0][10:20]
        self.client.close()
        views.release()
        gc.collect()
        self.assertEqual(maps(), 1)
        self.assertEqual(bytes(piece), self.payloads(1)[0][10:20])  # nobody has taken the memory since
        piece.release()
        del piece
        gc.collect()
        self.assertEqual(maps(), 0)

    def test_a_region_that_is_given_up_is_let_go(self):
        """At once; one that is in use when that is over."""
        self.churn(range(20, 27))
        with self.client.lookup(self.prompt(26), lease=30.0) as found:
            views = self.client.fetch_views(found.lease.id, self.BLOCKS)
            self.assertEqual(views.leading, self.BLOCKS)
        self.assertGreater(self.status().shared_memory.open_regions, 0)
        resize = daemon.adm.SetTierCapacityRequest
        self.admin.admin("SetTierCapacity", resize(tier=daemon.kv.TIER_RAM, capacity_bytes=0))
        until(lambda: self.status().shared_memory.retired_regions > 0, "the view keeps its region")
        self.assertEqual(views.blocks[0].nbytes, self.SIZE)
        views.release()
        until(lambda: self.status().shared_memory.retired_regions == 0, "nobody has it any more")


class ProcessTest(SharedCase, unittest.TestCase):
    """Other processes."""

    CHILD = """
import os, sys
sys.path.insert(0, sys.argv[1])
import kvtier
client = kvtier.Client(sys.argv[2], kvtier.ClientOptions(register_deadline=10.0, lookup_deadline=10.0))
model = client.register_model(kvtier.ModelSpec("test", block_tokens=16, pack_order=kvtier.PackOrder.OPAQUE,
    layout_fingerprint=b"layout", explicit_part_bytes=[int(sys.argv[3])]))
data = [bytes([i]) * int(sys.argv[3]) for i in range(8)]
buffers = [bytearray(len(one)) for one in data]
print("ready", flush=True)
for turn in range(1_000_000):
    prompt = kvtier.Prompt(model.id, [int(sys.argv[4]) * 1_000_000 + turn] + list(range(8 * 16 - 1)))
    client.store_from(prompt, data, first_missing=0)
    with client.lookup(prompt, lease=1.0) as found:
        report = client.fetch_into(found.lease, buffers[:found.blocks]) if found.blocks else None
    if report is not None and report.leading == 8:
        assert buffers == data and report.shared == 8, report
        print("turn", flush=True)
"""

    def child(self, number):
        process = subprocess.Popen(
            [sys.executable, "-c", self.CHILD, os.path.dirname(os.path.dirname(kvtier.__file__)),
             self.daemon.address, str(self.SIZE), str(number)], stdout=subprocess.PIPE, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.assertEqual(process.stdout.readline(), "ready\n")
        return process

    def test_killed_clients_leave_nothing(self):
        rng = random.Random(SEED)
        print("seed", SEED)
        self.stored(1)
        started = self.status().shared_memory.store_bytes
        for number in range(6):
            process = self.child(number)
            for _ in range(rng.randint(1, 4)):
                self.assertEqual(process.stdout.readline(), "turn\n")
            process.send_signal(signal.SIGKILL)  # somewhere in a store or a fetch
            process.wait()
        until(lambda: self.status().shared_memory.sessions == 1, "only this session is left")
        until(lambda: self.status().leases == 0, "their leases end")
        until(lambda: self.status().shared_memory.store_bytes == started, "their regions go with their last calls")
        until(lambda: self.status().pinned_blocks == 0, "and what these had pinned")
        self.stored(2)
        self.assertEqual(self.hit(2).shared, self.BLOCKS)

    def test_a_fork_leaves_the_parents_session_alone(self):
        self.stored(1)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                self.client.lookup(self.prompt(1))
            except kvtier.InvalidArgument:
                code = 0 if self.client._protocol.shared_memory.session is None else 2
            os._exit(code)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(self.hit(1).shared, self.BLOCKS)
        self.assertEqual(self.status().shared_memory.sessions_total, 1)

    def listening(self, listener, **options):
        client = self.connect(region_listener=listener, **options)
        client.register_model(opaque_spec(part_bytes=self.SIZE))
        return client

    def fetch_by(self, client, seed):
        with client.lookup(self.prompt(seed), lease=30.0) as found:
            self.assertEqual(found.blocks, self.BLOCKS)
            buffers = poisoned(self.BLOCKS, self.SIZE)
            return client.fetch_into(found.lease, buffers)

    def test_a_listener_is_told_of_each_map_and_its_end(self):
        self.stored(1)
        recorder = Recorder()
        client = self.listening(recorder)
        self.assertEqual(self.fetch_by(client, 1).shared, self.BLOCKS)
        maps_now = len(recorder.now)
        self.assertEqual(self.fetch_by(client, 1).shared, self.BLOCKS)
        self.assertEqual((len(recorder.ever), len(recorder.now)), (maps_now, maps_now), "they are mapped")
        self.assertEqual(len(recorder.of_ram()), maps_now - 1, "one is the store region")
        self.assertGreater(maps_now, 1)
        client.close()
        del client
        gc.collect()
        until(lambda: not recorder.now, "all are told of")
        self.assertEqual(recorder.wrong, [])

    def test_views_keep_a_region_for_the_listener(self):
        self.stored(1)
        recorder = Recorder()
        client = self.listening(recorder)
        with client.lookup(self.prompt(1), lease=30.0) as found:
            views = client.fetch_views(found.lease, self.BLOCKS)
            kept = views.blocks[0]
            del views
        client.close()
        del client, found
        gc.collect()
        until(lambda: len(recorder.now) == 1, "the one with the view")
        self.assertEqual(bytes(kept), self.payloads(1)[0])
        del kept
        gc.collect()
        self.assertEqual((recorder.now, recorder.wrong), ({}, []))

    def test_over_grpc_nothing_is_mapped(self):
        self.stored(1)
        recorder = Recorder()
        client = self.listening(recorder, shared_memory=False)
        self.assertEqual(self.fetch_by(client, 1).shared, 0)
        self.assertEqual(recorder.ever, [])

    def test_a_fork_tells_the_listener_nothing(self):
        self.stored(1)
        recorder = Recorder()
        client = self.listening(recorder)
        self.fetch_by(client, 1)
        mapped = len(recorder.now)
        child = os.fork()
        if child == 0:
            client._protocol.shared_memory.close(wait=False)
            client._protocol = None
            gc.collect()
            os._exit(0 if len(recorder.now) == mapped else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)

    def test_a_listener_that_raises_is_logged_once(self):
        self.stored(1)
        failing = Failing()
        with self.assertLogs("kvtier", "WARNING") as logs:
            client = self.listening(failing)
            self.assertEqual(self.fetch_by(client, 1).shared, self.BLOCKS)
            client.close()
            del client
            gc.collect()
            until(lambda: failing.calls >= 4, "two maps came and went")
        self.assertEqual(["region listener" in line for line in logs.output], [True])

    @unittest.skipIf(os.getuid() != 0, "needs root to become somebody else")
    def test_another_user_is_refused(self):
        """By the daemon, not by the socket's mode, which is opened here."""
        path = self.status().shared_memory.socket
        os.chmod(self.data_dir, 0o755)
        os.chmod(os.path.dirname(self.data_dir), 0o755)
        os.chmod(path, 0o666)
        for user, code in ((0, 0), (65534, 1)):
            child = os.fork()
            if child == 0:
                os.setuid(user)
                try:
                    shared_session.SharedSession(path, PATIENCE_SECONDS)
                    os._exit(0)
                except ConnectionError:
                    os._exit(1)
                except OSError as error:
                    os._exit(1 if "hung up" in str(error) else 2)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), code)
        self.assertEqual(self.status().shared_memory.refused_total, 1)


class FakeSocket:
    """A daemon's socket that says what a test wants."""

    def __init__(self, case):
        folder = case.enterContext(tempfile.TemporaryDirectory(prefix="kvtier_py_"))
        self.path = folder + "/shm.sock"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        case.addCleanup(self._listener.close)
        self._listener.bind(self.path)
        self._listener.listen()
        self.peer = None

    def open(self, case, *packets, listening=None):
        """A session with whoever says these packets: (message or bytes, size of its descriptor)."""
        thread = threading.Thread(target=self._serve, args=(packets,))
        thread.start()
        try:
            session = shared_session.SharedSession(self.path, 0.5, listening)
        finally:
            thread.join()
            case.addCleanup(self.peer.close)
        case.addCleanup(session.join)
        case.addCleanup(session.end)
        return session

    def _serve(self, packets):
        self.peer, _ = self._listener.accept()
        self.peer.settimeout(PATIENCE_SECONDS)
        for packet in packets:
            self.say(*packet)

    def say(self, packet, size=0):
        data = packet if isinstance(packet, bytes) else packet.SerializeToString()
        fds = []
        if size:
            fds = [os.memfd_create("test")]
            os.ftruncate(fds[0], size)
        socket.send_fds(self.peer, [data], fds)
        for fd in fds:
            os.close(fd)

    def heard(self):
        return pb.SharedMemoryRequest.FromString(self.peer.recv(65536))


def welcome(size=MIB):
    return pb.SharedMemoryMessage(welcome=pb.SharedWelcome(session_id=b"s" * 16, store_region_bytes=size))


def region(number, size):
    return pb.SharedMemoryMessage(region=pb.SharedRegion(region=number, bytes=size))


class SessionTest(unittest.TestCase):
    def setUp(self):
        if sys.version_info < (3, 11):
            self.enterContext = types.MethodType(DaemonCase.enterContext, self)
        self.fake = FakeSocket(self)

    def test_what_is_no_welcome(self):
        self.fake.open(self, (welcome(), MIB))
        for packets in ([], [(b"",)], [(b"\xff\xff",)], [(region(1, 4096), 4096)], [(welcome(), 4096)],
                        [(welcome(),)], [(welcome(0), 4096)]):
            with self.subTest(packets=packets), self.assertRaises(OSError):
                self.fake.open(self, *packets)

    def test_a_region_is_asked_for_once_and_let_go_once(self):
        session = self.fake.open(self, (welcome(), MIB))
        found = []
        threads = [threading.Thread(target=lambda: found.append(session.map(7))) for _ in range(3)]
        for thread in threads:
            thread.start()
        self.assertEqual(self.fake.heard().open_region, 7)
        self.fake.say(region(7, 8192), 8192)
        for thread in threads:
            thread.join()
        self.assertEqual({one.size for one in found}, {8192})
        self.assertTrue(found[0].view.readonly)
        self.fake.say(pb.SharedMemoryMessage(retired=pb.SharedRetired(regions=[9, 7])))
        self.assertEqual(list(self.fake.heard().released.regions), [9])  # not here
        view = found[0].view[:10]
        found.clear()
        gc.collect()
        self.assertEqual(bytes(view), bytes(10))
        del view
        gc.collect()
        self.assertEqual(list(self.fake.heard().released.regions), [7])

    def test_a_listener_is_told_of_a_retired_region(self):
        recorder = Recorder()
        session = self.fake.open(self, (welcome(), MIB), listening=shared_session.Listening(recorder))
        found = []
        thread = threading.Thread(target=lambda: found.append(session.map(7)))
        thread.start()
        self.assertEqual(self.fake.heard().open_region, 7)
        self.fake.say(region(7, 8192), 8192)
        thread.join()
        del thread
        self.assertEqual(recorder.ever, [(MIB, True), (8192, False)])
        self.fake.say(pb.SharedMemoryMessage(retired=pb.SharedRetired(regions=[7, 9])))
        self.assertEqual(list(self.fake.heard().released.regions), [9])
        self.assertIn(8192, recorder.now.values(), "it is in use")
        found.clear()
        gc.collect()
        self.assertEqual(list(self.fake.heard().released.regions), [7])
        self.assertEqual((list(recorder.now.values()), recorder.wrong), ([MIB], []))

    def test_a_region_that_is_gone(self):
        session = self.fake.open(self, (welcome(), MIB), (region(3, 0),))
        answers = []
        thread = threading.Thread(target=lambda: answers.append(session.map(4)))
        thread.start()
        self.assertEqual(self.fake.heard().open_region, 4)
        self.fake.say(region(4, 0))
        thread.join()
        self.assertEqual(answers, [None])

    def test_what_ends_a_session(self):
        for packet in ((b"\xff\xff",), (region(4, 8192), 4096), (region(4, 8192),), None):
            with self.subTest(packet=packet):
                session = self.fake.open(self, (welcome(), MIB))
                if packet is None:
                    self.fake.peer.shutdown(socket.SHUT_RDWR)
                else:
                    self.fake.say(*packet)
                until(lambda: session.ended, "the session ends")
                with self.assertRaises(shared_session.SessionLost):
                    session.map(4)

    def test_an_answer_that_does_not_come_ends_it(self):
        session = self.fake.open(self, (welcome(), MIB))
        with unittest.mock.patch.object(shared_session, "_ANSWER_SECONDS", 0.05):
            with self.assertRaises(shared_session.SessionLost):
                session.map(4)
        self.assertTrue(session.ended)

    def test_the_store_region_has_one_user(self):
        session = self.fake.open(self, (welcome(), MIB))
        self.assertTrue(session.take_store_region())
        self.assertFalse(session.take_store_region())
        session.give_back_store_region()
        self.assertTrue(session.take_store_region())


class RingTest(unittest.TestCase):
    """The client's side of the store region against a daemon's in Python."""

    def setUp(self):
        if sys.version_info < (3, 11):
            self.enterContext = types.MethodType(DaemonCase.enterContext, self)

    def region(self, lines):
        fd = os.memfd_create("test")
        self.addCleanup(os.close, fd)
        size = 4096 + lines * 64
        os.ftruncate(fd, size)
        return shared_session.Mapping(fd, size, writable=True)

    def ring(self, region, seconds=PATIENCE_SECONDS):
        return store_ring.StoreRing(region, time.monotonic() + seconds)

    def take(self, region, sizes, out):
        """What kvtierd does, at its leisure: spans of these sizes, each from a line on."""
        counters = region.view[:4096].cast("I")
        lines = (region.size - 4096) // 64
        line = 0
        for size in sizes:
            got = bytearray()
            while len(got) < size:
                until(lambda: self.filled(region, counters, line), "the client fills")
                at = 4096 + line % lines * 64
                got += region.view[at:at + min(64, size - len(got))]
                line += 1
                counters[16] = line
                store_ring._wake(store_ring._SYS_FUTEX, region.address + 64, store_ring._FUTEX_WAKE, 1, None, None, 0)
            out.append(bytes(got))

    @staticmethod
    def filled(region, counters, line):
        """Beyond this line; sleeps a little if it is not."""
        nap = ctypes.addressof(store_ring._NAP)
        store_ring._sleep(store_ring._SYS_FUTEX, region.address, store_ring._FUTEX_WAIT, line, nap, None, 0)
        return counters[0] != line

    def test_spans_of_any_size_round_rings_of_any_size(self):
        print("seed", SEED)
        rng = random.Random(SEED)
        for lines in (1, 2, 7, 64):
            region = self.region(lines)
            spans = [rng.randbytes(rng.randint(1, 1000)) for _ in range(60)]
            taken = []
            thread = threading.Thread(target=self.take, args=(region, [len(one) for one in spans], taken))
            ring = self.ring(region)
            thread.start()
            for span in spans:
                while span:
                    at, size = ring.room(len(span))
                    self.assertGreater(size, 0)
                    region.view[at:at + size] = span[:size]
                    ring.fill(size)
                    span = span[size:]
            ring.flush()
            thread.join()
            self.assertEqual(taken, spans)

    def test_the_counters_go_round(self):
        region = self.region(4)
        ring = self.ring(region)
        counters = region.view[:4096].cast("I")
        ring._next = ring._told = (1 << 32) - 2
        counters[0] = counters[16] = (1 << 32) - 2
        at, size = ring.room(1 << 20)
        self.assertEqual((at, size), (4096 + 2 * 64, 128))  # up to the ring's end
        ring.fill(size)
        ring.flush()
        self.assertEqual(counters[0], 0)
        self.assertEqual(ring.room(1 << 20), (4096, 128))
        ring.fill(128)
        ring.flush()
        self.assertEqual(counters[0], 2)
        counters[16] = 1
        self.assertEqual(ring.room(64), (4096 + 2 * 64, 64))

    def test_a_full_ring_is_waited_for_until_it_is_stopped_or_time_is_up(self):
        region = self.region(2)
        ring = self.ring(region, 0)
        self.assertEqual(ring.room(128), (4096, 128))
        ring.fill(128)
        self.assertEqual(region.view[0], 0)  # not yet a piece
        self.assertEqual(ring.room(1), (0, 0))
        ring = self.ring(region)
        ring.fill(128)
        rooms = []
        waiter = threading.Thread(target=lambda: rooms.append(ring.room(1)))
        waiter.start()
        until(lambda: region.view[0] == 2, "the other side is told before the wait")
        ring.stop()
        waiter.join(PATIENCE_SECONDS)
        self.assertEqual(rooms, [(0, 0)])
        region.view[64] = 1
        self.assertEqual(ring.room(1), (0, 0))  # for good
        ring = self.ring(region)
        ring.fill(128)
        region.view[64] = 1
        self.assertEqual(ring.room(1), (4096, 1))

    def test_regions_without_a_ring(self):
        self.assertTrue(store_ring.usable(self.region(1)))
        self.assertFalse(store_ring.usable(types.SimpleNamespace(size=4096)))


class ReplyTest(unittest.TestCase):
    """What a FetchShared says, taken apart."""

    def setUp(self):
        view = memoryview(bytes(range(100)))
        mapping = types.SimpleNamespace(view=view, size=100, holds=lambda at, size: at + size <= 100)
        self.session = types.SimpleNamespace(map=lambda number: mapping if number == 1 else None)
        self.parts = []

    def statuses(self, *blocks, count=4):
        reply = shared_transfer.SharedReply(self.session, 10, count, self.parts.append)
        for block in blocks:
            reply.add(pb.FetchSharedResponse(blocks=[pb.SharedBlock(**block)]).SerializeToString())
        return reply.statuses()

    def ok(self, block, **named):
        return {"block": block, "status": shared_transfer.OK, "region": 1, "bytes": 10, **named}

    def test_gaps_and_ends(self):
        ok, miss, not_shared = shared_transfer.OK, shared_transfer.MISS, shared_transfer.NOT_SHARED
        self.assertEqual(self.statuses(self.ok(10), {"block": 11, "status": miss}, self.ok(12), self.ok(13)),
                         [ok, miss, ok, ok])
        self.assertEqual([part.index for part in self.parts], [0, 2, 3])
        self.assertEqual(self.statuses(self.ok(10), {"block": 11, "status": not_shared}),
                         [ok, not_shared, not_shared, not_shared])
        self.assertEqual(self.statuses(self.ok(10)), [ok, miss, miss, miss])
        self.assertEqual(self.statuses(self.ok(10, region=2), self.ok(11), count=2), [not_shared, ok])

    def test_what_breaks_the_protocol(self):
        for blocks in ([self.ok(11)], [self.ok(10), self.ok(10)], [self.ok(9)], [self.ok(10, status=0)],
                       [self.ok(10, bytes=0)], [self.ok(10, offset=91)], [self.ok(10, bytes=101)],
                       [self.ok(10, offset=(1 << 64) - 5)], [self.ok(10 + i) for i in range(5)]):
            with self.subTest(blocks=blocks), self.assertRaises(kvtier.Internal):
                self.statuses(*blocks)
        with self.assertRaises(kvtier.Internal):
            shared_transfer.SharedReply(self.session, 0, 1, self.parts.append).add(b"\xff")


class LeaseTimesTest(unittest.TestCase):
    def setUp(self):
        self.now = 100.0
        self.times = leases.LeaseTimes(lambda: self.now)

    def over(self, lease_id, end=None):
        return leases.LeaseWatch(self.times, lease_id, end).over

    def test_open_renew_close(self):
        self.times.open(1, 110.0)
        self.assertFalse(self.over(1))
        self.now = 110.0
        self.assertTrue(self.over(1))
        self.now = 105.0
        renewal = self.times.begin_renew(1, 60.0)
        self.now = 111.0
        self.assertTrue(self.over(1))  # not before the daemon has said so
        self.times.end_renew(1, renewal, True)
        self.assertFalse(self.over(1))
        self.now = 165.0
        self.assertTrue(self.over(1))
        self.now = 106.0
        self.times.close(1)
        self.assertTrue(self.over(1))
        self.assertFalse(leases.LeaseWatch(self.times, 1, None).known)

    def test_a_shorter_or_failed_renewal_counts_at_once(self):
        self.times.open(1, 200.0)
        renewal = self.times.begin_renew(1, 5.0)
        self.assertEqual(self.times.end(1), 105.0)
        self.times.end_renew(1, renewal, False)
        self.assertEqual(self.times.end(1), 105.0)

    def test_renewals_that_overlap(self):
        self.times.open(1, 110.0)
        long, short = self.times.begin_renew(1, 60.0), self.times.begin_renew(1, 20.0)
        self.times.end_renew(1, short, True)
        self.assertEqual(self.times.end(1), 110.0)
        self.times.end_renew(1, long, True)
        self.assertEqual(self.times.end(1), 120.0)

    def test_of_another_client(self):
        self.assertTrue(self.over(5))
        self.assertFalse(self.over(5, end=101.0))
        self.times.open(5, 100.5)
        self.now = 100.7
        self.assertTrue(self.over(5, end=101.0))  # the earlier one counts
        renewal = self.times.begin_renew(6, 10.0)
        self.times.end_renew(6, renewal, False)
        self.assertIsNone(self.times.end(6))

    def test_leases_that_were_passed_on_are_forgotten_once_over(self):
        for lease_id in range(1, 1001):
            self.now += 1
            self.times.open(lease_id, self.now + 10)
        self.assertLess(len(self.times._leases), 200)
        self.assertEqual(self.times.end(1000), self.now + 10)


class CancelledTest(SharedCase, unittest.TestCase):
    """A coroutine that is cancelled while a thread copies for it."""

    CLIENT = "async"

    def test_a_store_that_is_cancelled_ends_its_session(self):
        """Where the daemon may still read. The event loop runs while a thread fills."""
        arrived, go_on, copies = threading.Event(), threading.Event(), []
        real = shared_transfer.SharedFiller._copy

        def copy(filler, at, view):
            copies.append(1)
            if len(copies) == 3:
                arrived.set()
                go_on.wait(PATIENCE_SECONDS)
            real(filler, at, view)

        async def cancelled():
            task = asyncio.create_task(self.client.inner.store_from(self.prompt(1), self.payloads(1)))
            await asyncio.get_running_loop().run_in_executor(None, arrived.wait, PATIENCE_SECONDS)
            task.cancel()
            asyncio.get_running_loop().call_later(0.05, go_on.set)
            with self.assertRaises(asyncio.CancelledError):
                await task
            self.assertTrue(go_on.is_set())  # the thread has ended before the task

        session = self.client.inner._protocol.shared_memory.session
        with unittest.mock.patch.object(shared_transfer.SharedFiller, "_copy", copy):
            self.client._loop.run(cancelled())
        self.assertEqual(len(copies), 3)
        self.assertTrue(session.ended)
        self.assertFalse(session._storing)
        self.stored(1)
        self.assertEqual(self.hit(1).shared, self.BLOCKS)

    def test_the_callers_memory_is_left_alone(self):
        self.stored(1)
        arrived, go_on, pieces = threading.Event(), threading.Event(), []
        real = shared_transfer.SharedReader._copy_piece

        def copy_piece(reader, *arguments):
            pieces.append(1)
            if len(pieces) >= 3:  # whoever copies
                arrived.set()
                go_on.wait(PATIENCE_SECONDS)
            real(reader, *arguments)

        async def cancelled(lease, buffers):
            task = asyncio.create_task(self.client.inner.fetch_into(lease.id, buffers))
            await asyncio.get_running_loop().run_in_executor(None, arrived.wait, PATIENCE_SECONDS)
            task.cancel()
            asyncio.get_running_loop().call_later(0.05, go_on.set)
            with self.assertRaises(asyncio.CancelledError):
                await task
            self.assertTrue(go_on.is_set())  # the thread has ended before the task
            return [bytes(buffer) for buffer in buffers]

        found = self.client.lookup(self.prompt(1), lease=30.0)
        buffers = poisoned(self.BLOCKS, self.SIZE)
        with unittest.mock.patch.object(shared_transfer.SharedReader, "_copy_piece", copy_piece):
            then = self.client._loop.run(cancelled(found.lease.inner, buffers))
        found.lease.release()
        self.assertEqual([bytes(buffer) for buffer in buffers], then)
        self.assertEqual(then[-1], bytes(poisoned(1, self.SIZE)[0]))
        self.assertEqual(self.hit(1).shared, self.BLOCKS)


if __name__ == "__main__":
    unittest.main(verbosity=2)
