"""The fake engine of tests/support behaves like one, and notices whatever a connector does wrong."""
import dataclasses
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from fake_engine import FakeEngine, FakeRequest, Loaded, NoConnector, Slots, WrongKv, tokens_of  # noqa: E402
from fake_kv import Owner, Shape, SlotPool, namespace_root, owner, part  # noqa: E402

BLOCK = 16


@dataclasses.dataclass(frozen=True)
class DictPlan:
    loads: list  # (request id, slots, keys)
    saves: list  # (slots, keys)


class DictWorker:
    """Loads and saves at once, in a dictionary."""

    def __init__(self, memory, store, fault):
        self.memory = memory
        self.store = store
        self.fault = fault

    def before_compute(self, plan):
        if self.fault == "saves early":
            self.save(plan)
        for _, slots, keys in plan.loads:
            for slot, key in zip(slots, keys):
                self.load(slot, key)

    def load(self, slot, key):
        if self.fault == "loads nothing":
            return
        kept = self.store[key, 0 if self.fault == "one rank for all" else self.memory.rank]
        at = 0
        for segment in self.memory.segments(slot):
            segment[:] = kept[at:at + len(segment)]
            at += len(segment)

    def after_compute(self, plan):
        if self.fault != "saves early":
            self.save(plan)
        if self.fault == "rank dies" and self.memory.rank == 1:
            raise ConnectionError("planted")
        return [Loaded(name) for name, _, _ in plan.loads]

    def save(self, plan):
        for slots, keys in plan.saves:
            for slot, key in zip(slots, keys):
                self.store.setdefault((key, self.memory.rank), self.memory.read(slot))


class DictConnector:
    """Right unless a fault is planted. Keys are of namespace and tokens."""

    def __init__(self, slots, store, fault=""):
        self.store = store
        self.fault = fault
        self.loads = []
        self.workers = [DictWorker(memory, store, fault) for memory in slots.memory]

    def key(self, request, block):
        root = b"" if self.fault == "drops the salt" else namespace_root(request.tenant, request.salt)
        return root + request.hashes[block]

    def match(self, request, local_blocks, max_blocks):
        if self.fault == "claims all":
            return max_blocks
        blocks = 0
        while blocks < max_blocks and (self.key(request, local_blocks + blocks), 0) in self.store:
            blocks += 1
        return blocks

    def allocated(self, request, local_blocks, external_blocks):
        blocks = range(local_blocks, local_blocks + external_blocks)
        if external_blocks:
            self.loads.append((request.id, [request.slots[i] for i in blocks],
                               [self.key(request, i) for i in blocks]))

    def plan(self, after_step):
        loads, self.loads = self.loads, []
        saves = [(request.slots[:tokens // BLOCK],
                  [self.key(request, i) for i in range(tokens // BLOCK)]) for request, tokens in after_step]
        return DictPlan(loads, saves)

    def absorb(self, reports):
        return reports[0]

    def finished(self, request): ...
    def preempted(self, request): ...
    def wait(self, seconds): ...


def run(requests, fault="", *, shape=Shape(), store=None, slots=32, local_cache=False, **options):
    """(engine after the run, the store)."""
    store = {} if store is None else store
    memory = Slots(shape, slots)
    with FakeEngine(memory, DictConnector(memory, store, fault), local_cache=local_cache,
                    **options) as engine:
        for request in requests:
            engine.add(request)
        engine.run()
    return engine, store


def plain(request, shape=Shape()):
    """The tokens of an engine without a connector."""
    slots = Slots(shape)
    with FakeEngine(slots, NoConnector(shape.ranks)) as engine:
        engine.add(request)
        engine.run()
        engine.must_be_clean()
    return request.output


class FakeEngineTest(unittest.TestCase):
    def test_a_hit_computes_the_rest_only_and_answers_the_same(self):
        for ranks in (1, 4):
            shape = Shape(ranks=ranks)
            expected = plain(FakeRequest("r", tokens_of(1, 40), max_new=3), shape)
            cold = FakeRequest("cold", tokens_of(1, 40), max_new=3)
            engine, store = run([cold], shape=shape)
            engine.must_be_clean()
            warm = FakeRequest("warm", tokens_of(1, 40), max_new=3)
            engine, _ = run([warm], shape=shape, store=store)
            engine.must_be_clean()
            self.assertEqual((cold.output, warm.output), (expected, expected))
            self.assertEqual((cold.tokens_computed, warm.tokens_computed), (42, 10))

    def test_the_local_cache_hits_without_a_connector(self):
        slots = Slots(Shape())
        with FakeEngine(slots, NoConnector()) as engine:
            for name in ("a", "b"):
                engine.add(FakeRequest(name, tokens_of(1, 48), max_new=1))
                engine.run()
            self.assertEqual(engine.finished["b"].tokens_computed, 16)
            engine.must_be_clean()

    def test_requests_that_do_not_fit_together_preempt_and_all_end_right(self):
        requests = [FakeRequest(f"r{i}", tokens_of(i, 60), max_new=30) for i in range(4)]
        expected = [plain(FakeRequest("x", tokens_of(i, 60), max_new=30)) for i in range(4)]
        engine, _ = run(requests, slots=10)
        engine.must_be_clean()
        self.assertGreater(engine.preemptions, 0)
        self.assertEqual([request.output for request in requests], expected)

    def test_notices_a_match_without_a_load(self):
        expected = plain(FakeRequest("r", tokens_of(1, 40), max_new=2))
        request = FakeRequest("r", tokens_of(1, 40), max_new=2)
        _, store = run([FakeRequest("first", tokens_of(1, 40))])
        engine, _ = run([request], "loads nothing", store=store)
        with self.assertRaises(WrongKv):
            engine.must_be_clean()
        self.assertEqual(engine.wrong[0].owner, Owner("poison"))
        self.assertNotEqual(request.output, expected)

    def test_notices_a_save_before_the_kv_is_there(self):
        _, store = run([FakeRequest("first", tokens_of(1, 40))], "saves early")
        self.assertEqual({owner(data, Shape()).kind for data in store.values()}, {"poison"})
        engine, _ = run([FakeRequest("second", tokens_of(1, 40))], store=store)
        self.assertEqual(len(engine.wrong), 2)

    def test_notices_another_ranks_bytes(self):
        shape = Shape(ranks=2)
        _, store = run([FakeRequest("first", tokens_of(1, 40))], shape=shape)
        engine, _ = run([FakeRequest("second", tokens_of(1, 40))], "one rank for all", shape=shape,
                        store=store)
        self.assertEqual({(one.rank, one.owner.rank) for one in engine.wrong}, {(1, 0)})

    def test_notices_another_tenants_bytes(self):
        for fault, wrong in (("", 0), ("drops the salt", 2)):
            _, store = run([FakeRequest("first", tokens_of(1, 40), salt=b"1")], fault)
            engine, _ = run([FakeRequest("second", tokens_of(1, 40), salt=b"2")], fault, store=store)
            self.assertEqual(len(engine.wrong), wrong)
            if wrong:
                theirs = FakeRequest("x", tokens_of(1, 40), salt=b"1")
                self.assertEqual(engine.wrong[0].owner.prefixes, tuple(theirs.block_prefixes(0, BLOCK)))

    def test_notices_a_match_beyond_the_last_token_but_one(self):
        for length in (15, 16, 17, 31, 32, 33, 48):
            request = FakeRequest("r", tokens_of(1, length))
            engine, store = run([FakeRequest("first", tokens_of(1, length))])
            run([request], store=store)
            self.assertEqual(request.tokens_computed, length - (length - 1) // BLOCK * BLOCK)

    def test_a_rank_that_dies_is_no_deadlock(self):
        with self.assertRaises(ConnectionError):
            run([FakeRequest("r", tokens_of(1, 40))], "rank dies", shape=Shape(ranks=2))


class OwnerTest(unittest.TestCase):
    def test_tells_whose_bytes_these_are(self):
        shape = Shape(ranks=3)
        prefixes = FakeRequest("r", tokens_of(1, BLOCK)).prefixes
        whole = part(prefixes, 2, shape)
        self.assertEqual(owner(whole, shape), Owner("kv", 2, tuple(prefixes)))
        self.assertEqual(owner(bytes([0xDB]) * shape.part_bytes, shape), Owner("poison"))
        self.assertEqual(owner(bytes(shape.part_bytes), shape), Owner("none"))
        for at in (0, 20, 40, shape.page_bytes, shape.part_bytes - 1):
            flipped = bytearray(whole)
            flipped[at] ^= 1
            self.assertEqual(owner(flipped, shape), Owner("none"), at)
        self.assertEqual(owner(whole[:-64], shape), Owner("none"))

    def test_a_block_filled_in_part_is_still_somebodys(self):
        slots = Slots(Shape(), 1)
        prefixes = FakeRequest("r", tokens_of(1, 5)).prefixes
        slots.memory[0].write(0, 0, prefixes)
        self.assertEqual(slots.memory[0].owner(0), Owner("kv", 0, tuple(prefixes)))


class SlotPoolTest(unittest.TestCase):
    def test_a_slot_is_reused_only_without_users(self):
        reused = []
        pool = SlotPool(2, reused.append)
        first = pool.allocate(2)
        self.assertIsNone(pool.allocate(1))
        pool.touch(first[:1])
        pool.release(first)
        self.assertEqual((pool.free, pool.pins), (1, 1))
        self.assertEqual(pool.allocate(1), first[1:])
        pool.release(first[:1])
        with self.assertRaises(AssertionError):
            pool.release(first[:1])

    def test_a_key_is_found_until_its_slot_is_taken(self):
        pool = SlotPool(2, lambda slot: None)
        slots = pool.allocate(2)
        for slot, key in zip(slots, (b"a", b"b")):
            pool.cache(slot, key)
        pool.release(slots)
        self.assertEqual(pool.cached_prefix([b"a", b"b", b"c"]), slots)
        self.assertEqual(pool.allocate(1), slots[1:])
        self.assertEqual(pool.cached_prefix([b"a", b"b"]), slots[:1])


if __name__ == "__main__":
    unittest.main(verbosity=2)
