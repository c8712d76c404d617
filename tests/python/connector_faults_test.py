"""Wrong KV, as other connectors have served it: each fault is provoked and must be a miss or right bytes.

Every scenario is a method that takes what is planted; it holds for the connector as it is, and fails for
one without the protection in question, so it would be seen. Runs on a real kvtierd, no engine.
"""
import contextlib
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from connector_case import BLOCK, ConnectorCase  # noqa: E402
from daemon import grpc  # noqa: E402
from fake_engine import FakeRequest, WrongKv, tokens_of  # noqa: E402
from fake_kv import Shape  # noqa: E402
from grpc_proxy import Fault  # noqa: E402
from paged_connector import NOTHING, Planted, Rig  # noqa: E402
from kvtier.engines import paged  # noqa: E402

LARGE = Shape(row_bytes=16 << 10)  # parts of 512 KiB: two in a message


class LoadsThatFail(ConnectorCase):
    """A load that failed is taken for one that went well, and the slots' last KV is used."""

    FAULTS = (  # and the most blocks of 8 that can be good
        (Fault("Fetch", flip=0), 1), (Fault("Fetch", flip=1), 3), (Fault("Fetch", flip=3), 7),
        (Fault("Fetch", cut=0), 0), (Fault("Fetch", cut=1), 2), (Fault("Fetch", cut=3), 6),
        (Fault("Fetch", refuse=grpc.StatusCode.UNAVAILABLE), 0),
        (Fault("Fetch", refuse=grpc.StatusCode.NOT_FOUND), 0),
        (Fault("Fetch", refuse=grpc.StatusCode.INTERNAL), 0),
        (Fault("Fetch", drop=True), 0))

    def failed_load(self, planted, rig, fault, most):
        before = rig.status().counters.verified_blocks
        worker = paged.WorkerOptions(load_budget=0.3, load_floor=1e12)
        with rig.engine(planted, slots=10, poison=False, worker=worker) as engine:
            # Its KV is in every slot, and not stored.
            engine.add(FakeRequest("b", tokens_of(2, 10 * BLOCK - 1), commit_tokens=0))
            engine.run()
            engine.inject(fault)
            request = engine.add(FakeRequest("a", tokens_of(1, 8 * BLOCK + 1)))
            engine.run()
            engine.settle()
            counters = engine.scheduler.counters()
        self.check(engine, rig, request)
        loaded = counters.blocks_loaded
        self.assertEqual(request.loads, 1)
        self.assertLessEqual(loaded, most)
        self.assertEqual(counters.blocks_failed, 8 - loaded)
        self.assertEqual(request.tokens_computed, (8 - loaded) * BLOCK + 1)
        self.assertEqual(rig.status().counters.verified_blocks - before, loaded)

    def test_is_computed_from_the_first_failed_block(self):
        with Rig("--ram-bytes", "64MiB", shape=LARGE) as rig:
            rig.run(FakeRequest("a", tokens_of(1, 8 * BLOCK + 1)))
            for fault, most in self.FAULTS:
                with self.subTest(fault=fault):
                    self.holds(self.failed_load, Planted(trusts_loads=True), WrongKv, rig, fault, most)

    def test_and_without_a_fault_it_is_a_hit(self):
        with Rig(shape=LARGE) as rig:
            rig.run(FakeRequest("a", tokens_of(1, 8 * BLOCK + 1)))
            request = FakeRequest("a", tokens_of(1, 8 * BLOCK + 1))
            self.check(rig.run(request, slots=10, poison=False), rig, request, computed=1)

    def test_a_damaged_store_is_no_block_and_is_made_good_by_the_next(self):
        with Rig(shape=LARGE) as rig:
            with rig.engine() as engine:
                engine.inject(Fault("Store", flip=2, times=1))  # the header is message 0
                engine.add(FakeRequest("a", tokens_of(1, 8 * BLOCK + 1)))
                engine.run()
                engine.settle()
            self.assertLess(rig.held(FakeRequest("a", tokens_of(1, 8 * BLOCK + 1))), 8)
            request = FakeRequest("b", tokens_of(1, 8 * BLOCK + 1))
            self.check(rig.run(request), rig, request)
            rig.must_hold_right(request, 8)


class SavesOfUnfinishedKv(ConnectorCase):
    """A save that reads a block before its KV is computed, or after its slot has gone to another."""

    def late_producer(self, planted):
        """The ranks compute 20 ms after the step has begun, or as soon as a save was sent."""
        with Rig() as rig:
            requests = [FakeRequest(f"r{i}", tokens_of(i, 16 * BLOCK + 1)) for i in range(4)]

            def producer(rank):
                with contextlib.suppress(AssertionError):
                    proxy = engine.transfers[rank]
                    proxy.wait_calls("Store", proxy.calls("Store") + 1, seconds=0.02)

            with rig.engine(planted, on_compute=producer) as engine:
                for request in requests:
                    engine.add(request)
                    engine.run()
                engine.settle()
            self.check(engine, rig)
            for request in requests:
                rig.must_hold_right(request, 16)

    def test_a_save_waits_for_the_producer(self):
        self.holds(self.late_producer, Planted(saves_early=True), WrongKv)

    def uncommitted(self, planted, commit, blocks):
        """96 tokens have KV, the engine commits to fewer; all slots go to others at once."""
        with Rig() as rig:
            request = FakeRequest("r", tokens_of(1, 60), max_new=37, commit_tokens=commit)
            others = [FakeRequest(f"o{i}", tokens_of(2 + i, 100), commit_tokens=0) for i in range(3)]
            engine = rig.run(request, *others, planted=planted, slots=8)
            self.check(engine, rig, request)
            self.assertEqual(request.computed, 96)
            rig.must_hold_right(request, blocks)
            rig.must_hold_right(others[0], 0)

    def test_nothing_is_stored_beyond_what_the_engine_commits_to(self):
        for commit, blocks in ((40, 2), (0, 0), (15, 0), (16, 1), (1000, 6)):
            with self.subTest(commit=commit):
                self.uncommitted(NOTHING, commit, blocks)
        with self.assertRaises(AssertionError):
            self.uncommitted(Planted(saves_uncommitted=True), 40, 2)


class HashesOfOtherUnits(ConnectorCase):
    """The engine hashes every 4 tokens and a block has 16: hash i is not block i's."""

    def shared(self, planted, hash_unit, shared, expected):
        with Rig(hash_unit=hash_unit) as rig:
            a = FakeRequest("a", tokens_of(1, shared) + tokens_of(2, 48), hash_unit=hash_unit)
            b = FakeRequest("b", tokens_of(1, shared) + tokens_of(3, 48), hash_unit=hash_unit)
            self.check(rig.run(a, planted=planted), rig, a)
            engine = rig.run(b, planted=planted)
            self.check(engine, rig, b, computed=shared + 48 - expected * BLOCK)

    def test_only_blocks_that_are_shared_whole_are_hit(self):
        fault = Planted(one_hash_per_block=True)
        self.holds(self.shared, fault, WrongKv, 4, 16, 1)
        self.holds(self.shared, fault, WrongKv, 4, 4, 0)
        self.shared(NOTHING, 16, 16, 1)
        self.shared(NOTHING, 8, 40, 2)


class Boundaries(ConnectorCase):
    """Exact multiples of a block, local hits, and blocks that are filled in part."""

    def boundary(self, planted, tokens):
        with Rig() as rig:
            cold, warm = (FakeRequest(name, tokens_of(1, tokens)) for name in ("cold", "warm"))
            self.check(rig.run(cold, planted=planted), rig, cold, computed=tokens)
            rig.must_hold_right(cold, tokens // BLOCK)
            matched = (tokens - 1) // BLOCK * BLOCK
            self.check(rig.run(warm, planted=planted), rig, warm, computed=tokens - matched)

    def test_the_last_token_is_always_computed(self):
        for tokens in (15, 16, 17, 31, 32, 33, 48):
            with self.subTest(tokens=tokens):
                self.boundary(NOTHING, tokens)
        for tokens in (32, 48):
            with self.assertRaises(AssertionError):
                self.boundary(Planted(matches_last_token=True), tokens)

    def match(self, engine, request, local_tokens):
        """What the scheduler's half says, when it says something."""
        view = paged.RequestView(request.id, request.hashes)
        while (found := engine.scheduler.match(view, len(request.tokens), local_tokens)) is None:
            engine.step()
        return found

    def test_a_local_hit_and_ours_leave_a_token_and_never_overlap(self):
        with Rig() as rig:
            for tokens in (17, 32, 33, 48):
                request = FakeRequest(f"r{tokens}", tokens_of(tokens, tokens))
                rig.run(FakeRequest("first", tokens_of(tokens, tokens)))
                with rig.engine() as engine:
                    for local in sorted({0, 16, tokens - 16, tokens - 1, tokens}):
                        found = self.match(engine, request, local)
                        expected = max(0, (tokens - 1) // BLOCK - local // BLOCK) if local % BLOCK == 0 else 0
                        self.assertEqual(found, expected, (tokens, local))
                        self.assertLessEqual(local + found * BLOCK, max(tokens - 1, local))
                    engine.scheduler.finished(request.id)
                    engine.settle()
            rig.must_be_idle()

    def test_a_local_cache_and_ours_together(self):
        with Rig() as rig:
            rig.run(FakeRequest("first", tokens_of(1, 100)))
            with rig.engine(local_cache=True) as engine:
                engine.add(FakeRequest("short", tokens_of(1, 40)))
                engine.run()
                loaded = engine.scheduler.counters().blocks_loaded
                request = engine.add(FakeRequest("long", tokens_of(1, 100)))
                engine.run()
                engine.settle()
                self.assertEqual(loaded, 2)
                self.assertEqual(engine.scheduler.counters().blocks_loaded, 6)
            self.check(engine, rig, request, computed=4)

    def test_a_block_filled_in_part_is_neither_stored_nor_written_to(self):
        with Rig() as rig:
            first, request = (FakeRequest(name, tokens_of(1, 20)) for name in ("first", "r"))
            rig.run(first)
            rig.must_hold_right(first, 1)
            with rig.engine() as engine:
                self.assertEqual(self.match(engine, request, 18), 0)
                slots = engine.pool.allocate(2)
                before = [engine.memory[0].read(slot) for slot in slots]
                engine.scheduler.allocated(request.id, slots, 0)
                engine.step()
                engine.settle()
                self.assertEqual([engine.memory[0].read(slot) for slot in slots], before)
                self.assertEqual(engine.calls("Fetch"), 0)
                engine.scheduler.finished(request.id)
            longer = FakeRequest("longer", tokens_of(1, 20) + tokens_of(2, 20))
            self.check(rig.run(longer), rig, longer, computed=24)


class Isolation(ConnectorCase):
    """Equal tokens, and equal engine hashes, of somebody else."""

    SALT = b"a-secret-salt"
    SPACES = ({}, {"tenant": "a"}, {"tenant": "b"}, {"salt": SALT}, {"salt": b"2"}, {"adapter": "a"},
              {"adapter": "b"}, {"tenant": "a", "salt": SALT, "adapter": "a"})

    def spaces(self, planted):
        with Rig() as rig:
            for turn, computed in enumerate((49, 1)):
                for number, space in enumerate(self.SPACES):
                    request = FakeRequest(f"{turn}/{number}", tokens_of(1, 49), **space)
                    self.check(rig.run(request, planted=planted), rig, request, computed=computed)
            self.assertNotIn(self.SALT.decode(), rig.log() + self.log.getvalue())

    def test_each_namespace_hits_its_own_and_no_other(self):
        self.holds(self.spaces, Planted(drops_namespace=True), WrongKv)

    def test_one_engine_stores_for_each_of_its_namespaces(self):
        with Rig() as rig:
            requests = [FakeRequest(f"r{i}", tokens_of(1, 49), **space)
                        for i, space in enumerate(self.SPACES)]
            self.check(rig.run(*requests, slots=48), rig, *requests, computed=49)
            for request in requests:
                rig.must_hold_right(request, 3)

    def test_another_revision_hits_nothing(self):
        with Rig() as rig:
            for revision, computed in (("1", 49), ("2", 49), ("1", 1), ("2", 1)):
                rig.revision = revision
                request = FakeRequest("r", tokens_of(1, 49), weights=revision)
                self.check(rig.run(request), rig, request, computed=computed)

    def changed_weights(self, planted_reset):
        """The engine's weights change under one model name; whatever was stored before is not found, and
        what was on its way is not found later."""
        with Rig() as rig:
            with rig.engine() as engine:
                gate = engine.transfers[0]
                old = engine.add(FakeRequest("old", tokens_of(1, 49), weights="1"))
                engine.run()
                engine.settle()
                late = engine.add(FakeRequest("late", tokens_of(2, 49), weights="1"))
                engine.step()  # its lookup
                while not late.computed:
                    engine.step()
                if planted_reset:
                    engine.scheduler.reset()
                engine.run()
                requests = [engine.add(FakeRequest(f"new{i}", tokens_of(i, 49), weights="2"))
                            for i in (1, 2)]
                engine.run()
                engine.settle()
                again = engine.add(FakeRequest("again", tokens_of(1, 49), weights="2"))
                engine.run()
                engine.settle()
            self.check(engine, rig, old, late, *requests, again)
            self.assertEqual([one.tokens_computed for one in (*requests, again)], [49, 49, 1])
            self.assertGreater(gate.calls("Store"), 0)

    def test_a_reset_hides_what_was_stored_before(self):
        self.changed_weights(True)
        with self.assertRaises(WrongKv):
            self.changed_weights(False)


class Ranks(ConnectorCase):
    """Parts of ranks: each its own, and a hit needs all."""

    SHAPE = Shape(row_bytes=16 << 10, ranks=4)

    def own_part(self, planted):
        with Rig("--ram-bytes", "32MiB", shape=Shape(ranks=4)) as rig:
            cold, warm = (FakeRequest(name, tokens_of(1, 49)) for name in ("cold", "warm"))
            self.check(rig.run(cold, planted=planted), rig, cold, computed=49)
            self.check(rig.run(warm, planted=planted), rig, warm, computed=1)
            rig.must_hold_right(warm, 3)

    def test_each_rank_gets_its_own_part(self):
        self.holds(self.own_part, Planted(one_part_for_all=True), WrongKv)

    def test_a_hit_ends_where_one_rank_lacks_a_part(self):
        for lacking in (None, 3):
            with self.subTest(lacking=lacking), Rig("--ram-bytes", "32MiB", shape=self.SHAPE) as rig:
                cold, warm = (FakeRequest(name, tokens_of(1, 4 * BLOCK + 1)) for name in ("cold", "warm"))
                with rig.engine(step_tokens=128) as engine:
                    if lacking is not None:  # its part of blocks 0 and 1 arrives: one message
                        engine.transfers[lacking].inject(Fault("Store", cut=2))
                    engine.add(cold)
                    engine.run()
                    engine.settle()
                blocks = 4 if lacking is None else 2
                rig.must_hold_right(cold, blocks)
                self.check(rig.run(warm), rig, warm, computed=(4 - blocks) * BLOCK + 1)
                rig.must_hold_right(warm, 4)

    def one_rank_fails(self, planted):
        with Rig("--ram-bytes", "32MiB", shape=Shape(ranks=4)) as rig:
            rig.run(FakeRequest("cold", tokens_of(1, 49)))
            warm = FakeRequest("warm", tokens_of(1, 49))
            with rig.engine(planted) as engine:
                engine.transfers[2].inject(Fault("Fetch", refuse=grpc.StatusCode.UNAVAILABLE))
                engine.add(warm)
                engine.run()
                engine.settle()
            self.check(engine, rig, warm, computed=49)

    def test_a_load_is_as_good_as_the_rank_that_has_least(self):
        self.holds(self.one_rank_fails, Planted(believes_rank_0=True), WrongKv)

    def test_another_split_hits_nothing(self):
        with Rig("--ram-bytes", "32MiB", shape=Shape(ranks=4)) as rig:
            for ranks, computed in ((4, 49), (2, 49), (4, 1), (2, 1)):
                rig.shape = Shape(ranks=ranks)
                request = FakeRequest("r", tokens_of(1, 49))
                self.check(rig.run(request), rig, request, computed=computed)

    def test_what_all_ranks_have_alike_is_stored_once_and_read_by_all(self):
        with Rig(shape=Shape(ranks=4, replicated=True)) as rig:
            cold, warm = (FakeRequest(name, tokens_of(1, 49)) for name in ("cold", "warm"))
            self.check(rig.run(cold), rig, cold, computed=49)
            self.assertEqual(rig.status().counters.stored_blocks, 3)
            self.check(rig.run(warm), rig, warm, computed=1)
            rig.must_hold_right(warm, 3)


if __name__ == "__main__":
    unittest.main(verbosity=2)
