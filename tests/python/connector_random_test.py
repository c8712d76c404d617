"""Random life of two engines that share a kvtierd.

Arrivals with shared prefixes, aborts, preemptions, faults, evictions, resets, engines and daemons that end
and come back. KV that is used is always the right one; in the end every answer is that of an engine without
a cache, and nothing is left behind.

Environment: KVTIER_SEED (default: from the clock; it is printed), KVTIER_STEPS (default 1000).
"""
import dataclasses
import os
import pathlib
import random
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from connector_case import ConnectorCase, plain  # noqa: E402
from daemon import grpc  # noqa: E402
from fake_engine import FakeRequest, WrongKv, tokens_of  # noqa: E402
from fake_kv import Shape  # noqa: E402
from grpc_proxy import Fault  # noqa: E402
from paged_connector import NOTHING, Planted, Rig  # noqa: E402
import kvtier  # noqa: E402
from kvtier.engines import paged  # noqa: E402

SEED = int(os.environ.get("KVTIER_SEED", time.time_ns() % 1_000_000))
STEPS = int(os.environ.get("KVTIER_STEPS", "1000"))
FAMILIES = 6         # of prompts that begin alike
WAITING_AT_MOST = 6  # requests of an engine
SHARING = kvtier.ClientOptions(breaker=kvtier.BreakerOptions(first_backoff=0.01, longest_backoff=0.05))
NOT_SHARING = dataclasses.replace(SHARING, shared_memory=False)  # what the proxies do to payload reaches it
# Short leases: one whose release a fault has eaten ends by itself.
SCHEDULER = paged.SchedulerOptions(lookup_budget=0.1, lease_seconds=3)
WORKER = paged.WorkerOptions(load_budget=0.3, save_budget=0.3)
CODES = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INTERNAL,
         grpc.StatusCode.NOT_FOUND, grpc.StatusCode.DEADLINE_EXCEEDED)


class Life:
    """The world, one random event at a time. `ended`: the requests that were answered."""

    ENGINES = 2

    def __init__(self, rig, seed, planted):
        self.rig = rig
        self.rng = random.Random(seed)
        self.planted = planted
        self.engines = [self.new_engine(i) for i in range(self.ENGINES)]
        self.weights = [""] * self.ENGINES
        self.requests = 0
        self.ended = []
        self.figures = dict.fromkeys(("aborts", "preemptions", "faults", "resets", "restarts", "crashes",
                                      "blocks_loaded", "blocks_failed", "blocks_saved"), 0)

    def new_engine(self, number):
        """The second one has a prefix cache of its own, loads and saves within its steps, and over gRPC; the
        first one through shared memory."""
        worker = dataclasses.replace(WORKER, inline=number == 1)
        return self.rig.engine(self.planted, slots=24, local_cache=number == 1, scheduler=SCHEDULER,
                               worker=worker, client=NOT_SHARING if number == 1 else SHARING)

    def event(self):
        number = self.rng.randrange(self.ENGINES)
        engine = self.engines[number]
        turn = self.rng.random()
        if turn < 0.15 and len(engine.waiting) < WAITING_AT_MOST:
            engine.add(self.request(number))
        elif turn < 0.18:
            self.abort(engine)
        elif turn < 0.20 and engine.running:
            engine.preempt(self.rng.choice(engine.running))
            self.figures["preemptions"] += 1
        elif turn < 0.24:
            self.rng.choice(engine.proxies()).inject(self.fault())
            self.figures["faults"] += 1
        elif turn < 0.27:
            engine.clear()
        elif turn < 0.273:
            self.reset(number)
        elif turn < 0.275:
            self.rig.restart(kill=self.rng.random() < 0.5)
            self.figures["restarts"] += 1
        elif turn < 0.277:
            self.crash(number)
        else:
            self.step(engine)

    def step(self, engine):
        before = set(engine.finished)
        engine.step()
        engine.must_be_right()
        self.ended += [engine.finished[name] for name in set(engine.finished) - before
                       if not engine.finished[name].aborted]

    def request(self, number):
        """Of few families, so that prefixes are shared; the tail is mostly its own."""
        self.requests += 1
        rng = self.rng
        shared = tokens_of(rng.randrange(FAMILIES), rng.randint(1, 140))
        tail = tokens_of(1000 + self.requests, rng.choice((0, 0, 5, 40)))
        return FakeRequest(f"r{self.requests}", shared + tail, max_new=rng.randint(1, 20),
                           tenant=rng.choice(("a", "b")), weights=self.weights[number])

    def fault(self):
        rng = self.rng
        method = rng.choice(("Lookup", "Fetch", "Store", "FetchShared", "StoreShared", "Release", "*"))
        kind = rng.choice(({"delay": rng.uniform(0, 0.05)}, {"delay": 0.2}, {"drop": True},
                           {"refuse": rng.choice(CODES)}, {"flip": rng.randint(0, 1)},
                           {"cut": rng.randint(0, 1)}))
        if "flip" in kind:  # of payload, which only these have
            method = rng.choice(("Fetch", "Store"))
            kind["flip"] = 0 if method == "Fetch" else 1
        return Fault(method, every=rng.randint(1, 3), times=rng.randint(1, 4), **kind)

    def abort(self, engine):
        alive = engine.waiting + engine.running
        if alive:
            engine.abort(self.rng.choice(alive))
            self.figures["aborts"] += 1

    def reset(self, number):
        """The engine's weights change; what it has begun is given up."""
        engine = self.engines[number]
        for request in engine.waiting + engine.running:
            engine.abort(request)
        engine.pool.uncache()
        engine.scheduler.reset()
        self.weights[number] = f"{number}/{self.requests}"
        self.figures["resets"] += 1

    def crash(self, number):
        """An engine ends with work under way; its successor has the old weights, and the old name."""
        self.account(self.engines[number])
        self.engines[number].__exit__()
        self.engines[number] = self.new_engine(number)
        self.weights[number] = ""
        self.figures["crashes"] += 1

    def account(self, engine):
        counters = engine.scheduler.counters()
        for name in ("blocks_loaded", "blocks_failed", "blocks_saved"):
            self.figures[name] += getattr(counters, name)

    def finish(self):
        for engine in self.engines:
            engine.clear()
            while engine.busy or engine.paged.busy():
                self.step(engine)
            engine.must_be_clean()
        self.rig.must_be_idle()

    def close(self):
        for engine in self.engines:
            self.account(engine)
            engine.__exit__()


class RandomLife(ConnectorCase):
    def live(self, seed, steps, planted=NOTHING, flags=()):
        """The figures of one life. RAM has room for 64 blocks, so that they leave it all the time."""
        shape = Shape(ranks=2, row_bytes=256)
        with Rig("--ram-bytes", "1MiB", *flags, shape=shape) as rig:
            life = Life(rig, seed, planted)
            try:
                for _ in range(steps):
                    life.event()
                life.finish()
            finally:
                life.close()
            for request in life.ended:
                if not request.weights:
                    rig.must_hold_only_right(request)
            self.assertEqual(len({one.id for one in life.ended}), len(life.ended))
            for request in life.ended:
                self.assertEqual(request.output, plain(request, shape), request.id)
            life.figures["answered"] = len(life.ended)
            life.figures["evictions"] = sum(tier.evictions for tier in rig.status().tiers)
        return life.figures

    def test_only_right_kv_is_used_and_nothing_is_left(self):
        print(f"KVTIER_SEED={SEED} KVTIER_STEPS={STEPS}", file=sys.stderr, flush=True)
        for flags in ((), ("--ssd-bytes", "16MiB")):
            figures = self.live(SEED, STEPS, flags=flags)
            print(*flags, figures, file=sys.stderr, flush=True)
            for name in ("answered", "aborts", "preemptions", "faults", "blocks_loaded", "blocks_saved"):
                self.assertGreater(figures[name], 0, name)

    def test_a_connector_at_fault_is_found(self):
        """Within ten lives at most."""
        for planted in (Planted(trusts_loads=True), Planted(drops_namespace=True),
                        Planted(believes_rank_0=True), Planted(saves_early=True)):
            with self.subTest(planted=planted), self.assertRaises(WrongKv):
                for seed in range(SEED, SEED + 10):
                    self.live(seed, 600, planted)


if __name__ == "__main__":
    unittest.main(verbosity=2)
