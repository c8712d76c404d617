"""The scheduler's and the worker's half, each alone, with a client that does what a test says: no daemon."""
import os
import pathlib
import sys
import threading
import time
import types
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import package  # noqa: E402,F401  (the package of this tree)

import kvtier  # noqa: E402
from kvtier.engines import paged  # noqa: E402

BLOCK = 16
LONG = 30.0  # seconds; nothing here waits that long unless it fails


class ScriptedClient:
    """Finds the first `held` blocks of every prompt, and notes what it is asked."""

    def __init__(self, held: int = 0) -> None:
        self.held = held
        self.lookups: list[kvtier.Prompt] = []
        self.fetched: list[int] = []
        self.stored: list[tuple[int, int]] = []
        self.released: list[tuple[int, int]] = []
        self.all_released = threading.Event()
        self.go_on = threading.Event()  # while it is not set, calls do not end
        self.go_on.set()
        self.answered = threading.Event()
        self.leases = 0

    def register_model(self, spec):
        return types.SimpleNamespace(id=spec.id())

    def lookup(self, prompt, *, lease, timeout):
        self.go_on.wait(LONG)
        self.lookups.append(prompt)
        self.answered.set()
        blocks = min(self.held, len(prompt.engine_hashes))
        if blocks == 0:
            return types.SimpleNamespace(blocks=0, lease=None, runs=(), failure=None)
        self.leases += 1
        number = self.leases
        runs = (kvtier.TierSpan(kvtier.Tier.RAM, 1, 0.0), kvtier.TierSpan(kvtier.Tier.SSD, blocks - 1, 0.0))
        lease = types.SimpleNamespace(detach=lambda: number, end=None)
        return types.SimpleNamespace(blocks=blocks, lease=lease, runs=runs, failure=None)

    def fetch_into(self, lease_id, buffers, *, first_block, part, lease_end, timeout):
        self.go_on.wait(LONG)
        self.fetched.append(lease_id)
        return kvtier.FetchReport([True] * len(buffers), len(buffers))

    def store_from(self, prompt, buffers, *, first_block, part, first_missing, timeout):
        self.go_on.wait(LONG)
        self.stored.append((first_block, len(buffers)))
        done = kvtier.StoredBlock(kvtier.StoreVerdict.STORED)
        return kvtier.StoreReport([done] * len(buffers), sent=len(buffers))

    def release(self, lease_id, verified_blocks, *, shared_bytes, shared_seconds):
        self.released.append((lease_id, verified_blocks))
        if len(self.released) == self.leases:
            self.all_released.set()
        return kvtier.Done()


def hashes(count: int, of: int = 0) -> list[bytes]:
    return [bytes([of]) + i.to_bytes(15, "little") for i in range(count)]


class HalvesTest(unittest.TestCase):

    def halves(self, client, lookup_budget=LONG, lookup_wait=LONG, lease_seconds=LONG, inline=True):
        model = paged.ModelHandle(client, package.opaque_spec(part_bytes=64))
        scheduler = paged.SchedulerHalf(
            client, model, block_tokens=BLOCK, pinner=paged.NoPins(),
            options=paged.SchedulerOptions(lookup_budget=lookup_budget, lookup_wait=lookup_wait,
                                           lease_seconds=lease_seconds))
        pages = paged.HostPages([memoryview(bytearray(64 * 64))], [64])
        worker = paged.WorkerHalf(client, model, kvtier.Part(), pages,
                                  options=paged.WorkerOptions(inline=inline))
        self.addCleanup(worker.close)
        self.addCleanup(scheduler.close)
        return scheduler, worker

    def step(self, scheduler, worker, *steps):
        plan = scheduler.plan(steps)
        worker.start(plan)
        progress = worker.poll()
        scheduler.absorb(progress.report)
        return progress

    def match_until(self, scheduler, view, done):
        deadline = time.monotonic() + LONG
        while not done(matched := scheduler.match(view, 3 * BLOCK, 0)):
            self.assertLess(time.monotonic(), deadline)
            os.sched_yield()
        return matched

    def test_at_least_one_token_is_left_to_compute(self):
        for tokens, expected in ((15, 0), (16, 0), (17, 1), (31, 1), (32, 1), (33, 2), (48, 2)):
            scheduler, _ = self.halves(ScriptedClient(held=99))
            view = paged.RequestView("r", hashes(tokens // BLOCK))
            self.assertEqual(scheduler.match(view, tokens, 0), expected, tokens)

    def test_what_was_loaded_is_not_stored_by_the_next_request_that_has_it_locally(self):
        client = ScriptedClient(held=3)
        scheduler, worker = self.halves(client)
        first = paged.RequestView("first", hashes(4))
        self.assertEqual(scheduler.match(first, 4 * BLOCK + 1, 0), 3)
        scheduler.allocated("first", [1, 2, 3, 4], 3)
        self.assertEqual(self.step(scheduler, worker).loaded, {"first"})
        self.step(scheduler, worker, paged.RequestStep(first, [1, 2, 3, 4], 4 * BLOCK))
        self.assertEqual(client.stored, [(3, 1)])
        second = paged.RequestView("second", hashes(4))
        self.assertEqual(scheduler.match(second, 4 * BLOCK + 1, 4 * BLOCK), 0)
        self.step(scheduler, worker, paged.RequestStep(second, [1, 2, 3, 4], 4 * BLOCK))
        self.assertEqual(client.stored, [(3, 1)])
        other = paged.RequestView("other", hashes(4, of=1))  # the control: nobody has these
        self.assertEqual(scheduler.match(other, 4 * BLOCK + 1, 4 * BLOCK), 0)
        self.step(scheduler, worker, paged.RequestStep(other, [5, 6, 7, 8], 4 * BLOCK))
        self.assertEqual(client.stored, [(3, 1), (0, 4)])

    def test_what_a_lookup_misses_is_stored_again(self):
        client = ScriptedClient()
        scheduler, worker = self.halves(client)
        for name in ("first", "second"):  # between the two kvtier has lost what the first stored
            view = paged.RequestView(name, hashes(2))
            self.assertEqual(scheduler.match(view, 3 * BLOCK, 0), 0)
            self.step(scheduler, worker, paged.RequestStep(view, [1, 2], 2 * BLOCK))
            scheduler.finished(name)
        self.assertEqual(client.stored, [(0, 2), (0, 2)])

    def test_a_load_cancelled_in_its_own_step_is_reported_and_does_not_count(self):
        for abort in (True, False):
            client = ScriptedClient(held=2)
            scheduler, worker = self.halves(client)
            view = paged.RequestView("r", hashes(2))
            self.assertEqual(scheduler.match(view, 3 * BLOCK, 0), 2)
            scheduler.allocated("r", [1, 2], 2)
            if abort:
                scheduler.finished("r")
            progress = self.step(scheduler, worker)
            self.assertEqual(progress.loaded, {"r"})
            self.assertEqual(progress.failed_blocks, {1, 2} if abort else frozenset())
            self.assertEqual(client.fetched, [] if abort else [1])
            self.assertFalse(scheduler.busy())
            self.assertTrue(client.all_released.wait(LONG))
            self.assertEqual(client.released, [(1, 0 if abort else 2)])

    def test_a_late_answer_is_a_miss_and_its_lease_is_given_back(self):
        client = ScriptedClient(held=2)
        client.go_on.clear()
        scheduler, _ = self.halves(client, lookup_budget=0.01, lookup_wait=0.02)
        view = paged.RequestView("r", hashes(2))
        self.assertEqual(scheduler.match(view, 3 * BLOCK, 0), 0)
        self.assertEqual(scheduler.match(view, 3 * BLOCK, 0), 0)
        self.assertEqual(scheduler.counters().lookup_misses_forced, 1)
        client.go_on.set()
        self.assertTrue(client.all_released.wait(LONG))

    def test_an_answer_that_is_not_there_yet_is_asked_for_again(self):
        client = ScriptedClient(held=2)
        client.go_on.clear()
        scheduler, _ = self.halves(client, lookup_wait=0.001)
        view = paged.RequestView("r", hashes(2))
        self.assertIsNone(scheduler.match(view, 3 * BLOCK, 0))
        self.assertIsNone(scheduler.match(view, 3 * BLOCK, 0))
        client.go_on.set()
        found = None
        while found is None:
            scheduler.plan([])
            found = scheduler.match(view, 3 * BLOCK, 0)
        self.assertEqual((found, len(client.lookups)), (2, 1))

    def test_sources_are_those_of_the_blocks_that_are_loaded(self):
        scheduler, _ = self.halves(ScriptedClient(held=3))
        view = paged.RequestView("r", hashes(4))
        self.assertEqual(scheduler.match(view, 5 * BLOCK, 0), 3)
        scheduler.allocated("r", [1, 2, 3, 4], 3)
        self.assertEqual(scheduler.sources("r", 3), {kvtier.Tier.RAM: 1, kvtier.Tier.SSD: 2})
        with self.assertLogs("kvtier", "WARNING"):
            self.assertEqual(scheduler.sources("nobody", 3), {})

    def test_after_a_reset_nothing_old_is_found_and_nothing_old_is_saved(self):
        client = ScriptedClient()
        scheduler, worker = self.halves(client)
        view = paged.RequestView("old", hashes(2))
        scheduler.match(view, 3 * BLOCK, 0)
        self.assertTrue(scheduler.reset())
        self.step(scheduler, worker, paged.RequestStep(view, [1, 2], 2 * BLOCK))
        self.assertEqual(client.stored, [])
        scheduler.match(paged.RequestView("new", hashes(2)), 3 * BLOCK, 0)
        before, after = (prompt.namespace for prompt in client.lookups)
        self.assertNotEqual(before, after)
        new = paged.RequestView("new", hashes(2))
        self.step(scheduler, worker, paged.RequestStep(new, [1, 2], 2 * BLOCK))
        self.assertEqual(client.stored, [(0, 2)])

    def test_after_a_reset_adapters_of_any_length_are_apart(self):
        client = ScriptedClient()
        scheduler, worker = self.halves(client)
        self.assertTrue(scheduler.reset())
        adapters = ["", "a", "a" * 256, "b" * 256]
        for adapter in adapters:
            view = paged.RequestView(adapter, hashes(2), kvtier.Namespace(adapter=adapter))
            self.assertEqual(scheduler.match(view, 3 * BLOCK, 0), 0)
            self.step(scheduler, worker, paged.RequestStep(view, [1, 2], 2 * BLOCK))
        self.assertEqual(len({prompt.namespace for prompt in client.lookups}), len(adapters))
        self.assertEqual(client.stored, [(0, 2)] * len(adapters))

    def test_a_fault_in_the_half_is_a_miss(self):
        scheduler, _ = self.halves(ScriptedClient(held=2))
        with self.assertLogs("kvtier", "WARNING"):
            self.assertEqual(scheduler.match(paged.RequestView("r", None), 3 * BLOCK, 0), 0)
        self.assertEqual(scheduler.match(paged.RequestView("s", hashes(2)), 3 * BLOCK, 0), 2)

    def test_an_idle_worker_waits_for_its_saves_and_for_its_loads(self):
        """It is told of the end by the job, not by its patience running out."""
        for held, job in ((0, "saves"), (2, "loads")):
            client = ScriptedClient(held)
            scheduler, worker = self.halves(client, inline=False)
            view = paged.RequestView("r", hashes(2))
            scheduler.match(view, 3 * BLOCK, 0)
            steps = [paged.RequestStep(view, [1, 2], 2 * BLOCK)] if job == "saves" else []
            if job == "loads":
                scheduler.allocated("r", [1, 2], 2)
            client.go_on.clear()
            worker.start(scheduler.plan(steps, idle=True))
            self.assertFalse(worker.poll().report)
            began = time.monotonic()
            self.assertFalse(worker.poll(wait=0.2).report)
            self.assertGreaterEqual(time.monotonic() - began, 0.2)
            client.go_on.set()
            report = worker.poll(wait=LONG).report
            self.assertEqual(len(getattr(report, job)), 1)
            scheduler.absorb(report)
            self.assertFalse(scheduler.busy() or worker.busy())
            began = time.monotonic()
            self.assertFalse(worker.poll(wait=LONG).report)  # nothing is under way, so there is no wait
            self.assertLess(time.monotonic() - began, LONG / 2)

    def test_an_answer_that_leaves_nothing_to_load_is_asked_for_once(self):
        client = ScriptedClient(held=1)
        scheduler, _ = self.halves(client)
        view = paged.RequestView("r", hashes(4))
        for _ in range(5):
            self.assertEqual(scheduler.match(view, 4 * BLOCK + 1, 2 * BLOCK), 0)
        self.assertEqual(len(client.lookups), 1)
        # Of two local blocks the engine has lost both: what kvtier has is of use now, and its lease is gone.
        self.assertEqual(scheduler.match(view, 4 * BLOCK + 1, 0), 1)
        self.assertEqual(len(client.lookups), 2)

    def test_an_answer_that_is_older_than_half_its_lease_is_told_once(self):
        """Else an engine with slow steps, or a daemon that answers late, would ask for ever."""
        client = ScriptedClient(held=2)
        scheduler, _ = self.halves(client, lookup_wait=0.0, lease_seconds=0.001)
        view = paged.RequestView("r", hashes(2))
        for lookups in (1, 2):
            client.answered.clear()
            client.go_on.clear()
            self.match_until(scheduler, view, lambda matched: matched is None)  # asked, once more in turn two
            old = time.monotonic() + 0.01
            self.match_until(scheduler, view, lambda matched: time.monotonic() > old)
            client.go_on.set()
            self.assertTrue(client.answered.wait(LONG))
            told = self.match_until(scheduler, view, lambda matched: matched is not None)
            self.assertEqual(told, 2)
            self.assertEqual(len(client.lookups), lookups)

    def test_an_id_that_goes_to_another_prompt_is_another_request(self):
        """Without finished() in between; else it would load the first one's blocks as its own."""
        tenant = kvtier.Namespace(tenant="other")
        first = paged.RequestView("r", hashes(4))
        for second, lookups in (
            (paged.RequestView("r", hashes(4, of=1)), 2),
            (paged.RequestView("r", hashes(4), tenant), 2),
            (paged.RequestView("r", hashes(3)), 2),
            (paged.RequestView("r", hashes(5)), 1),  # the control: it has grown
            (first, 1),
        ):
            client = ScriptedClient(held=2)
            scheduler, worker = self.halves(client)
            self.assertEqual(scheduler.match(first, 5 * BLOCK + 1, 0), 2)
            self.assertEqual(scheduler.match(second, 5 * BLOCK + 1, 0), 2)
            self.assertEqual(len(client.lookups), lookups)
            self.assertEqual(client.lookups[-1].namespace, second.namespace)
            self.assertEqual(client.lookups[-1].engine_hashes[:3], tuple(second.hashes[:3]))
            scheduler.allocated("r", [1, 2, 3, 4], 2)
            self.step(scheduler, worker)
            self.assertEqual(client.fetched, [lookups])  # the lease of the last lookup
            self.assertTrue(client.all_released.wait(LONG))

    def test_what_an_id_has_loaded_or_saved_does_not_count_for_another_prompt(self):
        client = ScriptedClient()
        scheduler, worker = self.halves(client)
        for of in (0, 1):
            view = paged.RequestView("r", hashes(2, of))
            self.assertEqual(scheduler.match(view, 3 * BLOCK, 0), 0)
            self.step(scheduler, worker, paged.RequestStep(view, [1, 2], 2 * BLOCK))
        self.assertEqual(client.stored, [(0, 2), (0, 2)])

    def test_block_ids_that_cannot_be_are_loads_that_failed(self):
        for block_ids, good in (([1, 2], True), ([5, 5], False), ([-1, 2], False), ([3], False), ([1, 99], False)):
            client = ScriptedClient(held=2)
            scheduler, worker = self.halves(client)
            view = paged.RequestView("r", hashes(2))
            self.assertEqual(scheduler.match(view, 3 * BLOCK, 0), 2)
            scheduler.allocated("r", block_ids, 2)
            progress = self.step(scheduler, worker)
            self.assertEqual(progress.loaded, {"r"})
            self.assertEqual(progress.failed_blocks, frozenset() if good else frozenset(block_ids))
            self.assertTrue(client.all_released.wait(LONG))

    def test_pages_have_limits(self):
        pages = paged.HostPages([memoryview(bytearray(100)), memoryview(bytearray(40))], [10, 5], [20, 10])
        self.assertEqual([len(layer) for layer in pages.block(3)], [10, 5])
        for block_id in (-1, 4):
            with self.assertRaisesRegex(ValueError, f"block id is {block_id}, the limits are 0 and 3"):
                pages.block(block_id)
        for words, layers, page_bytes in (("page_bytes.0. is 20", [bytearray(10)], [20]),
                                          ("page_bytes.0. is 0", [bytearray(10)], [0]),
                                          ("layers is empty", [], [])):
            with self.assertRaisesRegex(ValueError, words):
                paged.HostPages([memoryview(layer) for layer in layers], page_bytes)

    def test_nothing_raises_into_the_engines_scheduler(self):
        scheduler, _ = self.halves(ScriptedClient(held=2))
        view = paged.RequestView("r", hashes(8))
        with self.assertLogs("kvtier", "WARNING"):
            for steps in (None, 5, (1 // 0 for _ in range(1)), [1]):
                self.assertEqual(scheduler.plan(steps), paged.StepPlan())
            scheduler.preempted([])
            self.assertEqual(scheduler.match(view, 9 * BLOCK, -3 * BLOCK), 0)
        self.assertEqual(scheduler.match(view, 9 * BLOCK, 0), 2)

    def test_what_the_halves_are_made_of_fits_together(self):
        client = ScriptedClient()

        def scheduler(spec, **options):
            model = paged.ModelHandle(client, spec)
            paged.SchedulerHalf(client, model, pinner=paged.NoPins(), **options).close()

        def worker(spec, part=kvtier.Part(), **options):
            model = paged.ModelHandle(client, spec)
            pages = paged.HostPages([memoryview(bytearray(64 * 64))], [64])
            paged.WorkerHalf(client, model, part, pages, **options).close()

        opaque = kvtier.PackOrder.OPAQUE
        spec = package.opaque_spec(part_bytes=64)
        scheduler(spec, block_tokens=16)
        scheduler(spec, block_tokens=16, hash_tokens=8)
        worker(spec)
        worker(package.opaque_spec(part_bytes=64, ranks=2), kvtier.Part(0, 1))
        refused = (
            ("block_tokens 8 must be that of the model's spec, 16", lambda: scheduler(spec, block_tokens=8)),
            ("pages have 64 bytes per block, Part.layer_group=0, rank=0. of the model's spec has 128",
             lambda: worker(package.opaque_spec(part_bytes=128))),
            ("1 layer groups and 1 ranks", lambda: worker(spec, kvtier.Part(0, 1))),
            ("1 layer groups and 1 ranks", lambda: worker(spec, kvtier.Part(1, 0))),
            ("layout_fingerprint is empty",
             lambda: worker(kvtier.ModelSpec("x", explicit_part_bytes=[64], pack_order=opaque))),
            ("pack_order is UNSPECIFIED",
             lambda: worker(kvtier.ModelSpec("x", explicit_part_bytes=[64], layout_fingerprint=b"l"))),
            ("name has 0 bytes", lambda: worker(package.opaque_spec("", part_bytes=64))),
            ("namespace is a str", lambda: paged.RequestView("r", hashes(1), "tenant")),
        )
        for words, make in refused:
            with self.subTest(words), self.assertRaisesRegex((ValueError, kvtier.InvalidArgument), words):
                make()

    def test_options_out_of_range_are_refused(self):
        for words, make in (
            ("lease_seconds is 601, the limits are 0.001 and 600",
             lambda: paged.SchedulerOptions(lease_seconds=601)),
            ("lookup_budget is 0,", lambda: paged.SchedulerOptions(lookup_budget=0)),
            ("load_budget is nan", lambda: paged.WorkerOptions(load_budget=float("nan"))),
            ("load_threads is 0,", lambda: paged.WorkerOptions(load_threads=0)),
        ):
            with self.subTest(words), self.assertRaisesRegex(ValueError, words):
                make()

    def test_wrong_sizes_are_refused(self):
        model = paged.ModelHandle(ScriptedClient(), package.opaque_spec())
        for words, options in (("hash_tokens 5", {"block_tokens": 16, "hash_tokens": 5}),
                               ("ranks 0", {"block_tokens": 16, "ranks": 0})):
            with self.assertRaisesRegex(ValueError, words):
                paged.SchedulerHalf(ScriptedClient(), model, pinner=paged.NoPins(), **options)


if __name__ == "__main__":
    unittest.main(verbosity=2)
