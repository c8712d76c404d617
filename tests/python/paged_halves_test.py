"""The scheduler's and the worker's half, each alone, with a client that does what a test says: no daemon."""
import pathlib
import sys
import threading
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
        self.go_on = threading.Event()
        self.go_on.set()
        self.leases = 0

    def register_model(self, spec):
        return types.SimpleNamespace(id=spec.id())

    def lookup(self, prompt, *, lease, timeout):
        self.go_on.wait(LONG)
        self.lookups.append(prompt)
        blocks = min(self.held, len(prompt.engine_hashes))
        if blocks == 0:
            return types.SimpleNamespace(blocks=0, lease=None, runs=(), failure=None)
        self.leases += 1
        number = self.leases
        runs = (kvtier.TierSpan(kvtier.Tier.RAM, 1, 0.0), kvtier.TierSpan(kvtier.Tier.SSD, blocks - 1, 0.0))
        lease = types.SimpleNamespace(detach=lambda: number)
        return types.SimpleNamespace(blocks=blocks, lease=lease, runs=runs, failure=None)

    def fetch_into(self, lease_id, buffers, *, first_block, part, timeout):
        self.fetched.append(lease_id)
        return kvtier.FetchReport([True] * len(buffers), len(buffers))

    def store_from(self, prompt, buffers, *, first_block, part, first_missing, timeout):
        self.stored.append((first_block, len(buffers)))
        done = kvtier.StoredBlock(kvtier.StoreVerdict.STORED)
        return kvtier.StoreReport([done] * len(buffers), sent=len(buffers))

    def release(self, lease_id, verified_blocks=0):
        self.released.append((lease_id, verified_blocks))
        if len(self.released) == self.leases:
            self.all_released.set()
        return kvtier.Done()


def hashes(count: int, of: int = 0) -> list[bytes]:
    return [bytes([of]) + i.to_bytes(15, "little") for i in range(count)]


class HalvesTest(unittest.TestCase):

    def halves(self, client, lookup_budget=LONG, lookup_wait=LONG):
        model = paged.ModelHandle(client, package.opaque_spec(part_bytes=64))
        scheduler = paged.SchedulerHalf(
            client, model, block_tokens=BLOCK, pinner=paged.NoPins(),
            options=paged.SchedulerOptions(lookup_budget=lookup_budget, lookup_wait=lookup_wait))
        pages = paged.HostPages([memoryview(bytearray(64 * 64))], [64])
        worker = paged.WorkerHalf(client, model, kvtier.Part(), pages,
                                  options=paged.WorkerOptions(inline=True))
        self.addCleanup(worker.close)
        self.addCleanup(scheduler.close)
        return scheduler, worker

    def step(self, scheduler, worker, *steps):
        plan = scheduler.plan(steps)
        worker.start(plan)
        progress = worker.poll()
        scheduler.absorb(progress.report)
        return progress

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

    def test_a_fault_in_the_half_is_a_miss(self):
        scheduler, _ = self.halves(ScriptedClient(held=2))
        with self.assertLogs("kvtier", "WARNING"):
            self.assertEqual(scheduler.match(paged.RequestView("r", None), 3 * BLOCK, 0), 0)
        self.assertEqual(scheduler.match(paged.RequestView("s", hashes(2)), 3 * BLOCK, 0), 2)

    def test_wrong_sizes_are_refused(self):
        model = paged.ModelHandle(ScriptedClient(), package.opaque_spec())
        for words, options in (("hash_tokens 5", {"block_tokens": 16, "hash_tokens": 5}),
                               ("ranks 0", {"block_tokens": 16, "ranks": 0})):
            with self.assertRaisesRegex(ValueError, words):
                paged.SchedulerHalf(ScriptedClient(), model, pinner=paged.NoPins(), **options)


if __name__ == "__main__":
    unittest.main(verbosity=2)
