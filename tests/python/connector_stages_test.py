"""Requests that end, lose their slots or their daemon at every stage, and bounds on what a bad daemon costs.

As in connector_faults_test.py each scenario holds for the connector, and fails without the protection.
Stages are reached by gates in the proxy, never by waiting a while.
"""
import dataclasses
import itertools
import pathlib
import sys
import threading
import time
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from connector_case import BLOCK, ConnectorCase  # noqa: E402
from daemon import grpc  # noqa: E402
from fake_engine import FakeRequest, Stage, Stuck, WrongKv, tokens_of  # noqa: E402
from fake_kv import Shape  # noqa: E402
from grpc_proxy import Fault, Gate  # noqa: E402
from paged_connector import PATIENCE_SECONDS, Pins, Planted, Rig  # noqa: E402
import kvtier  # noqa: E402
from kvtier.engines import paged  # noqa: E402

LARGE = Shape(row_bytes=16 << 10)  # parts of 512 KiB: two in a message
FOREVER = 600.0
BRISK = kvtier.ClientOptions(
    lookup_deadline=10.0, breaker=kvtier.BreakerOptions(first_backoff=0.01, longest_backoff=0.05),
    shared_memory=False)
BRISK_AND_SHARING = dataclasses.replace(BRISK, shared_memory=True)


def steps_until(engine, condition, most=20_000):
    for _ in range(most):
        if condition():
            return
        engine.step()
    raise AssertionError(f"not after {most} steps")


class Aborts(ConnectorCase):
    def test_queued(self):
        """Hashes, but no slots yet."""
        with Rig() as rig, rig.engine(slots=8, step_tokens=16) as engine:
            first = engine.add(FakeRequest("first", tokens_of(1, 7 * BLOCK), max_new=5))
            steps_until(engine, lambda: len(first.slots) == 7)
            queued = engine.add(FakeRequest("queued", tokens_of(2, 4 * BLOCK)))
            for _ in range(3):
                engine.step()
            self.assertEqual((queued.stage, queued.slots), (Stage.WAITING, []))
            engine.abort(queued)
            engine.run()
            engine.settle()
            self.check(engine, rig, first)
            rig.must_hold_right(first, 7)
            rig.must_hold_right(queued, 0)

    def test_before_its_first_step(self):
        with Rig() as rig, rig.engine() as engine:
            engine.abort(engine.add(FakeRequest("r", tokens_of(1, 40))))
            engine.settle()
            self.check(engine, rig)

    def test_looked_up(self):
        """The answer brings a lease for a request that is gone."""
        with Rig() as rig:
            rig.run(FakeRequest("first", tokens_of(1, 49)))
            with rig.engine() as engine:
                gate = Gate()
                engine.inject(Fault("Lookup", gate=gate, times=1))
                request = engine.add(FakeRequest("r", tokens_of(1, 49)))
                engine.step()
                gate.wait_arrived()
                engine.abort(request)
                gate.open()
                again = engine.add(FakeRequest("again", tokens_of(1, 49)))
                engine.run()
                engine.settle()
                self.check(engine, rig, again, computed=1)

    def test_matched_and_waiting_for_room(self):
        with Rig() as rig:
            rig.run(FakeRequest("first", tokens_of(1, 49)))
            with rig.engine(slots=8) as engine:
                taken = engine.pool.allocate(8)
                for turn in range(20):
                    request = engine.add(FakeRequest(f"r{turn}", tokens_of(1, 49)))
                    steps_until(engine, lambda: rig.status().leases == 1)
                    engine.abort(request)
                    rig.must_be_idle()
                engine.pool.release(taken)
                again = engine.add(FakeRequest("again", tokens_of(1, 49)))
                engine.run()
                engine.settle()
                self.check(engine, rig, again, computed=1)

    def loading(self, keeps_loading):
        """Its slots are another's only when nothing writes to them any more."""
        with Rig("--ram-bytes", "32MiB", shape=LARGE) as rig:
            rig.run(FakeRequest("first", tokens_of(1, 8 * BLOCK + 1)))
            worker = paged.WorkerOptions(load_budget=60)
            with rig.engine(slots=10, keeps_loading=keeps_loading, worker=worker) as engine:
                gate = Gate()
                engine.inject(Fault("Fetch", stall=gate, times=1))
                request = engine.add(FakeRequest("r", tokens_of(1, 8 * BLOCK + 1)))
                steps_until(engine, lambda: gate.arrived)
                engine.abort(request)
                other = engine.add(FakeRequest("other", tokens_of(2, 9 * BLOCK), max_new=15))
                for _ in range(5):
                    engine.step()
                self.assertEqual(other.computed > 0, not keeps_loading)
                gate.open()
                engine.paged.workers[0].settle()
                engine.run()
                engine.settle()
                self.check(engine, rig, other)

    def test_loading(self):
        self.loading(keeps_loading=True)
        with self.assertRaises(WrongKv):
            self.loading(keeps_loading=False)

    def storing(self, planted, take_away):
        """A save is queued behind one that stands still; the slots it has to read are free meanwhile."""
        worker = paged.WorkerOptions(save_budget=60)
        with Rig() as rig, rig.engine(planted, slots=8, step_tokens=256, worker=worker) as engine:
            gate = Gate()
            engine.inject(Fault("Store", gate=gate, times=1))
            engine.add(FakeRequest("first", tokens_of(1, 17)))
            engine.run()
            gate.wait_arrived()
            request = engine.add(FakeRequest("r", tokens_of(2, 33), max_new=10))
            steps_until(engine, lambda: request.computed >= 33)
            take_away(engine, request)
            other = engine.add(FakeRequest("other", tokens_of(3, 8 * BLOCK - 1), commit_tokens=0))
            for _ in range(40):
                engine.step()
            self.assertEqual(other.computed > 0, planted.pins_nothing)
            gate.open()
            engine.run()
            engine.settle()
            self.check(engine, rig, other)
            rig.must_hold_right(FakeRequest("r", tokens_of(2, 33)), 2)

    def test_storing(self):
        self.holds(self.storing, Planted(pins_nothing=True), WrongKv, lambda engine, r: engine.abort(r))

    def test_preempted_while_storing(self):
        self.holds(self.storing, Planted(pins_nothing=True), WrongKv, lambda engine, r: engine.preempt(r))

    def test_ended(self):
        with Rig() as rig, rig.engine() as engine:
            request = engine.add(FakeRequest("r", tokens_of(1, 40)))
            engine.run()
            engine.abort(request)
            engine.settle()
            self.check(engine, rig, request)
            rig.must_hold_right(request, 2)

    def test_an_id_that_is_used_again(self):
        """Jobs of the first request of that name are still under way."""
        with Rig() as rig:
            rig.run(FakeRequest("r", tokens_of(1, 49)))
            with rig.engine() as engine:
                gate = Gate()
                engine.inject(Fault("Store", gate=gate))
                for turn in range(4):
                    request = engine.add(FakeRequest("r", tokens_of(1, 49) + tokens_of(2 + turn, 40)))
                    steps_until(engine, lambda: request.computed >= 64)
                    engine.abort(request)
                gate.open()
                engine.settle()
                last = engine.add(FakeRequest("r", tokens_of(1, 49) + tokens_of(2, 40)))
                engine.run()
                engine.settle()
                self.check(engine, rig, last)
                rig.must_hold_right(last, 5)


class Preemption(ConnectorCase):
    def test_requests_that_do_not_fit_together(self):
        with Rig("--ram-bytes", "32MiB") as rig:
            requests = [FakeRequest(f"r{i}", tokens_of(i % 3, 48) + tokens_of(10 + i, 30), max_new=40)
                        for i in range(6)]
            for turn in range(2):
                with rig.engine(slots=16) as engine:
                    run = [engine.add(FakeRequest(one.id, one.tokens[:78], max_new=40)) for one in requests]
                    engine.run()
                    engine.settle()
                    self.assertGreater(engine.preemptions, 0)
                    self.check(engine, rig, *run)
                    self.assertEqual(turn == 1, all(one.tokens_computed < 117 for one in run))

    def test_a_loaded_request_is_preempted_and_loads_again(self):
        with Rig() as rig:
            rig.run(FakeRequest("first", tokens_of(1, 49)))
            with rig.engine() as engine:
                request = engine.add(FakeRequest("r", tokens_of(1, 49), max_new=30))
                for turn in range(3):
                    steps_until(engine, lambda: request.stage is Stage.RUNNING)
                    engine.preempt(request)
                engine.run()
                engine.settle()
                self.assertEqual(request.loads, 4)
                self.check(engine, rig, request)


class Reset(ConnectorCase):
    def test_while_loading_and_storing(self):
        """What was under way belongs to the old weights: it is not used, nor found later."""
        with Rig() as rig:
            rig.run(FakeRequest("first", tokens_of(1, 49)))
            with rig.engine() as engine:
                gates = Gate(), Gate()
                engine.inject(Fault("Store", gate=gates[0], times=1))
                engine.add(FakeRequest("storing", tokens_of(2, 49)))
                engine.run()
                gates[0].wait_arrived()
                engine.inject(Fault("Fetch", gate=gates[1], times=1))
                loading = engine.add(FakeRequest("loading", tokens_of(1, 49), weights="2"))
                steps_until(engine, lambda: gates[1].arrived)
                self.assertFalse(engine.scheduler.reset())
                for gate in gates:
                    gate.open()
                engine.run()
                engine.settle()
                self.assertTrue(engine.scheduler.reset())
                new = [engine.add(FakeRequest(f"new{i}", tokens_of(i, 49), weights="2")) for i in (1, 2)]
                engine.run()
                engine.settle()
                self.check(engine, rig, loading, *new, computed=49)
                again = [engine.add(FakeRequest(f"again{i}", tokens_of(i, 49), weights="2")) for i in (1, 2)]
                engine.run()
                engine.settle()
                self.check(engine, rig, *again, computed=1)
            rig.must_hold_right(FakeRequest("first", tokens_of(1, 49)), 3)


class Restarts(ConnectorCase):
    def restart_at(self, method, point, flags=(), kill=True, client=BRISK):
        """The daemon ends while a call of a method stands at a gate."""
        with Rig("--ram-bytes", "32MiB", *flags, shape=LARGE) as rig:
            rig.run(FakeRequest("first", tokens_of(1, 8 * BLOCK + 1)))
            with rig.engine(client=client) as engine:
                gate = Gate()
                engine.inject(Fault(method, **{point: gate}, times=1))
                request = engine.add(FakeRequest("r", tokens_of(1, 8 * BLOCK + 1) + tokens_of(2, 40)))
                steps_until(engine, lambda: gate.arrived)
                rig.restart(kill=kill)
                gate.open()
                engine.run()
                engine.settle()
                self.check(engine, rig, request)
                self.works_again(engine, rig)

    def works_again(self, engine, rig):
        """By itself: each request that misses is stored, until one hits."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        for turn in itertools.count():
            request = engine.add(FakeRequest(f"again{turn}", tokens_of(9, 49)))
            engine.run()
            engine.settle()
            if request.tokens_computed == 1 or time.monotonic() > deadline:
                break
        self.check(engine, rig, request, computed=1)

    def test_between_lookup_and_fetch(self):
        self.restart_at("Fetch", "gate")

    def test_in_the_middle_of_a_fetch(self):
        self.restart_at("Fetch", "stall")

    def test_in_the_middle_of_a_store(self):
        self.restart_at("Store", "stall")

    def test_in_a_lookup(self):
        self.restart_at("Lookup", "gate")

    def test_before_a_fetch_from_shared_memory(self):
        self.restart_at("FetchShared", "gate", client=BRISK_AND_SHARING)

    def test_in_a_store_through_shared_memory(self):
        self.restart_at("StoreShared", "gate", client=BRISK_AND_SHARING)

    def test_what_is_on_ssd_is_a_hit_afterwards(self):
        for flags, computed in ((("--ssd-bytes", "64MiB"), 1), ((), 49)):
            with Rig(*flags) as rig:
                rig.run(FakeRequest("first", tokens_of(1, 49)))
                rig.restart(kill=False)
                request = FakeRequest("r", tokens_of(1, 49))
                self.check(rig.run(request, client=BRISK), rig, request, computed=computed)

    def test_gone_for_long_and_back(self):
        with Rig() as rig:
            rig.run(FakeRequest("first", tokens_of(1, 49)))
            with rig.engine(client=BRISK) as engine:
                rig.stop()
                for turn in range(10):
                    request = engine.add(FakeRequest(f"r{turn}", tokens_of(1, 49)))
                    engine.run()
                    engine.settle()
                    engine.must_be_clean()
                    self.assertEqual(request.tokens_computed, 49)
                rig.start()
                self.works_again(engine, rig)
        self.assertLess(len(self.log.getvalue().splitlines()), 40, self.log.getvalue())


class Budgets(ConnectorCase):
    """A daemon that does not answer costs a bounded time, then nothing."""

    def lookup(self, budget):
        with Rig() as rig:
            rig.run(FakeRequest("first", tokens_of(1, 49)))
            options = paged.SchedulerOptions(lookup_budget=budget)
            with rig.engine(scheduler=options) as engine:
                engine.inject(Fault("Lookup", drop=True))
                requests = [engine.add(FakeRequest(f"r{i}", tokens_of(1, 49))) for i in range(4)]
                engine.run(max_steps=400)
                self.assertEqual(engine.scheduler.counters().lookup_misses_forced, 4)
                engine.clear()
                engine.settle()
                self.check(engine, rig, *requests, computed=49)

    def test_lookup(self):
        self.lookup(0.1)
        with self.assertRaises(Stuck):
            self.lookup(FOREVER)

    def load(self, budget, fault):
        with Rig(shape=LARGE) as rig:
            rig.run(FakeRequest("first", tokens_of(1, 8 * BLOCK + 1)))
            options = paged.WorkerOptions(load_budget=budget)
            with rig.engine(worker=options) as engine:
                engine.inject(fault)
                request = engine.add(FakeRequest("r", tokens_of(1, 8 * BLOCK + 1)))
                engine.run(max_steps=400)
                engine.clear()
                engine.settle()
                self.check(engine, rig, request)
                self.assertGreater(request.tokens_computed, 1)

    def test_load(self):
        self.load(0.2, Fault("Fetch", stall=Gate()))
        self.load(0.2, Fault("Fetch", drop=True))
        with self.assertRaises(Stuck):
            self.load(FOREVER, Fault("Fetch", drop=True))

    def save(self, budget):
        """A store that stands still in the middle keeps slots for so long; then another can store."""
        with Rig(shape=LARGE) as rig:
            options = paged.WorkerOptions(save_budget=budget)
            with rig.engine(worker=options) as engine:
                engine.inject(Fault("Store", stall=Gate()))
                request = engine.add(FakeRequest("r", tokens_of(1, 8 * BLOCK + 1)))
                engine.run()
                self.assertGreater(engine.pool.pins, 0)
                engine.settle(seconds=3)
                self.check(engine, rig, request)
            other = FakeRequest("other", tokens_of(1, 8 * BLOCK + 1))
            self.check(rig.run(other), rig, other)
            rig.must_hold_right(other, 8)

    def test_save(self):
        self.save(0.3)
        with self.assertRaises(Stuck):
            self.save(FOREVER)

    def test_a_daemon_that_refuses(self):
        for code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED,
                     grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.INTERNAL,
                     grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNKNOWN):
            with self.subTest(code=code), Rig() as rig:
                rig.run(FakeRequest("first", tokens_of(1, 49)))
                with rig.engine(client=BRISK) as engine:
                    engine.inject(Fault(refuse=code))
                    request = engine.add(FakeRequest("r", tokens_of(1, 49)))
                    engine.run()
                    engine.settle()
                    self.check(engine, rig, request, computed=49)

    def vanished(self, planted):
        """What a lookup finds and no fetch ever brings is tried once per request, not for ever."""
        with Rig(shape=Shape(row_bytes=32 << 10)) as rig:  # a block is a message
            rig.run(FakeRequest("first", tokens_of(1, 49)))
            with rig.engine(planted) as engine:
                engine.inject(Fault("Fetch", flip=0))
                requests = [engine.add(FakeRequest(f"r{i}", tokens_of(1, 49))) for i in range(3)]
                engine.run(max_steps=400)
                engine.settle()
                self.check(engine, rig, *requests, computed=49)
                self.assertEqual([one.loads for one in requests], [1, 1, 1])
                self.assertEqual(engine.calls("Fetch"), 3)

    def test_a_block_that_cannot_be_fetched_is_no_livelock(self):
        self.holds(self.vanished, Planted(forgets_failures=True), Stuck)

    def drains(self, planted):
        """32 saves, then no request at all: pins go by themselves."""
        with Rig("--ram-bytes", "32MiB") as rig, rig.engine(planted, slots=128) as engine:
            gate = Gate()
            engine.inject(Fault("Store", gate=gate, times=1))
            requests = [engine.add(FakeRequest(f"r{i}", tokens_of(i, 49))) for i in range(32)]
            engine.run()
            self.assertGreater(engine.pool.pins, 32)
            gate.open()
            engine.settle(seconds=5)
            self.check(engine, rig, *requests)

    def test_pins_go_without_new_work(self):
        self.holds(self.drains, Planted(reports_with_work=True), Stuck)


class Leases(ConnectorCase):
    def ends_early(self, planted):
        """The lease is over and its blocks are evicted before the fetch that uses it."""
        with Rig("--ram-bytes", "4MiB", shape=LARGE) as rig:  # seven blocks
            rig.run(FakeRequest("first", tokens_of(1, 3 * BLOCK + 1)))
            options = paged.SchedulerOptions(lookup_budget=5, lease_seconds=1.0)
            with rig.engine(planted, scheduler=options, poison=False) as engine:
                gate = Gate()
                engine.inject(Fault("Fetch", gate=gate, times=1))
                request = engine.add(FakeRequest("r", tokens_of(1, 3 * BLOCK + 1)))
                steps_until(engine, lambda: gate.arrived)
                rig.until(lambda now: now.counters.expired_leases, "a lease has ended")
                evicting = FakeRequest("other", tokens_of(2, 6 * BLOCK + 1))
                rig.run(evicting)
                self.assertLess(rig.held(FakeRequest("r", tokens_of(1, 3 * BLOCK + 1))), 3)
                gate.open()
                engine.run()
                engine.settle()
                self.check(engine, rig, request, computed=3 * BLOCK + 1)

    def test_a_fetch_after_the_lease_is_a_miss(self):
        self.holds(self.ends_early, Planted(trusts_loads=True), WrongKv)

    def test_a_fetch_that_outlasts_its_lease_is_right(self):
        with Rig("--ram-bytes", "8MiB", shape=LARGE) as rig:
            rig.run(FakeRequest("first", tokens_of(1, 8 * BLOCK + 1)))
            options = paged.SchedulerOptions(lookup_budget=5, lease_seconds=1.0)
            with rig.engine(scheduler=options) as engine:
                gate = Gate()
                engine.inject(Fault("Fetch", stall=gate, times=1))
                request = engine.add(FakeRequest("r", tokens_of(1, 8 * BLOCK + 1)))
                steps_until(engine, lambda: gate.arrived)
                rig.until(lambda now: now.counters.expired_leases, "a lease has ended")
                rig.run(FakeRequest("other", tokens_of(2, 14 * BLOCK + 1)))
                gate.open()
                engine.run()
                engine.settle()
                self.check(engine, rig, request)

    def test_a_lease_is_renewed_while_its_request_waits(self):
        with Rig() as rig:
            rig.run(FakeRequest("first", tokens_of(1, 49)))
            options = paged.SchedulerOptions(lookup_budget=5, lease_seconds=0.5)
            with rig.engine(slots=8, scheduler=options) as engine:
                taken = engine.pool.allocate(8)
                request = engine.add(FakeRequest("r", tokens_of(1, 49)))
                steps_until(engine, lambda: engine.calls("Lookup") >= 4)
                engine.pool.release(taken)
                engine.run()
                engine.settle()
                self.check(engine, rig, request, computed=1)


class Exceptions(ConnectorCase):
    """Something within a half raises: a miss, or a block that is not saved; said once, and no engine ends."""

    def planted(self, method, loaded, saved):
        with Rig() as rig:
            rig.run(FakeRequest("first", tokens_of(1, 49)))
            with rig.engine() as engine, \
                    unittest.mock.patch.object(paged.HostPages, method, side_effect=RuntimeError("planted")):
                requests = [engine.add(FakeRequest(f"{turn}/{i}", tokens_of(i, 49)))
                            for turn in range(3) for i in (1, 2)]
                engine.run()
                engine.settle()
                self.check(engine, rig, *requests)
                self.assertEqual(engine.scheduler.counters().blocks_loaded > 0, loaded)
            rig.must_hold_right(FakeRequest("new", tokens_of(2, 49)), 3 if saved else 0)
            self.assertEqual(self.log.getvalue().count("RuntimeError: planted"), 1, self.log.getvalue())

    def test_before_a_load(self):
        self.planted("targets", loaded=False, saved=True)

    def test_after_a_load(self):
        self.planted("written", loaded=False, saved=True)

    def test_before_a_save(self):
        self.planted("gather", loaded=True, saved=False)

    def test_in_a_pinner(self):
        with Rig() as rig:
            requests = [FakeRequest(f"r{i}", tokens_of(i, 49)) for i in range(3)]
            with unittest.mock.patch.object(Pins, "pin", side_effect=RuntimeError("planted")):
                self.check(rig.run(*requests), rig, *requests)
            rig.must_hold_right(requests[0], 0)
            again = FakeRequest("again", tokens_of(0, 49))
            self.check(rig.run(again), rig, again, computed=49)
            rig.must_hold_right(again, 3)


class RanksInStep(ConnectorCase):
    """Ranks with unlike daemons: they agree on each load, and come to every collective."""

    def test_unlike_latencies_and_one_rank_that_fails(self):
        with Rig("--ram-bytes", "64MiB", shape=Shape(ranks=4)) as rig, \
                rig.engine(slots=64, watchdog=10) as engine:
            for rank, proxy in enumerate(engine.transfers):
                proxy.inject(Fault("Fetch", delay=0.004 * rank, every=2))
            engine.transfers[2].inject(Fault("Fetch", flip=0, every=3))
            engine.transfers[1].inject(Fault("Store", cut=1, every=5))
            requests = []
            for turn in range(10):
                requests += [engine.add(FakeRequest(f"{turn}/{i}", tokens_of(i, 40), max_new=2))
                             for i in range(20)]
                engine.run()
            engine.settle()
            self.check(engine, rig, *requests)
            counters = engine.scheduler.counters()
            self.assertGreater(counters.blocks_loaded, 0)
            self.assertGreater(counters.blocks_failed, 0)

    def alone(self, planted):
        with Rig("--ram-bytes", "32MiB", shape=Shape(ranks=4)) as rig:
            rig.run(FakeRequest("first", tokens_of(1, 49)))
            worker = paged.WorkerOptions(load_budget=3)
            with rig.engine(planted, watchdog=1, worker=worker) as engine:
                gate = Gate()
                engine.transfers[2].inject(Fault("Fetch", gate=gate))
                loading = engine.add(FakeRequest("loading", tokens_of(1, 49)))
                steps_until(engine, lambda: loading.stage is Stage.LOADING)
                other = engine.add(FakeRequest("other", tokens_of(2, 49)))
                steps_until(engine, lambda: other.stage is Stage.ENDED)
                self.assertIs(loading.stage, Stage.LOADING)
                gate.open()
                engine.run()
                engine.settle()
                self.check(engine, rig, loading, other)

    def test_no_rank_waits_alone(self):
        self.holds(self.alone, Planted(loads_alone=2), threading.BrokenBarrierError)


if __name__ == "__main__":
    unittest.main(verbosity=2)
