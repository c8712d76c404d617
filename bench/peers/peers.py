#!/usr/bin/env python3
"""kvtier side by side with what people would otherwise use: the same block workload, in one run.

  bench/peers/install.sh        # once: Redis, Mooncake Store and LMCache, below build/peers
  bench/peers/run.sh --json > peers.json

Servers and clients are processes of their own. Each round puts blocks that nobody has seen, gets them into
memory that was touched before, and removes them; then it looks up 1 to 8,192 blocks. The arms take turns within
each cell, in another order each round; a first round warms up and compares every byte. A peer that is not
installed, or of which one operation fails, has no figure, and the table says why. Exit status: 0 when all that is
installed ran, 1 when something failed, 2 for bad arguments.

A cell's ratio is how many times as good kvtier's best arm is as the best peer's, by round, over any transport, and
over TCP alone. The standard library is all this needs.
"""
import argparse
import dataclasses
import json
import os
import pathlib
import platform
import secrets
import subprocess
import sys
import tempfile

import measure
import report
import systems

ROOT = pathlib.Path(__file__).resolve().parents[2]
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
CHAIN_BLOCKS = 8192

NOTES = [
    "kvtier_shared: payload through shared memory; a get is a Lookup that takes a lease, and a Fetch by it. The other "
    "arms of kvtier have shared memory off, and fetch by the prompt in one call. "
    "Put: kvtier is told that nothing is held, as the Lookup before would; its Store of a batch is one call. Redis "
    "gets one SET after the other, and GETs together while 1 MiB is under way.",
    "Verified is what the system itself checks within the measured time. This program compares what each system "
    "returned with what was stored: all bytes in the first round, the last batch in the others, outside the time.",
    "Lookup: kvtier gets the prompt's tokens (16 a block, 512 KiB for 8,192), compares them with what is held and "
    "answers the length of the prefix. Redis gets ready-made keys of 32 bytes: EXISTS with all of them answers a "
    "count, which says nothing of which; redis_unix_each sends one EXISTS a key. Mooncake answers for each "
    "ready-made key. LMCache gets the tokens and answers in chunks of 256 (16 blocks), polled until it has one; "
    "less than a chunk cannot be asked for.",
    "LMCache: engine_driven, payload in shared memory, a LOOKUP outside the time before each RETRIEVE, one torch "
    "thread. Mooncake: registered memory, bytes over TCP, one holder process.",
]


@dataclasses.dataclass(frozen=True)
class Transfer:
    block_bytes: int
    batch: int
    clients: int
    client_bytes: int  # of each client in each round, at least one batch

    @property
    def batches(self):
        return max(1, self.client_bytes // self.block_bytes // self.batch)

    def bytes(self):
        return self.block_bytes * self.batch * self.batches * self.clients

    def key(self, operation):
        return operation, self.block_bytes, self.batch, self.clients


@dataclasses.dataclass(frozen=True)
class Lookup:
    shape: str
    blocks: int
    calls: int

    def key(self, operation):
        return operation, None, self.blocks, 1


@dataclasses.dataclass(frozen=True)
class Plan:
    transfers: list
    lookups: list
    server_bytes: int


def lookups(sizes, calls):
    return [Lookup(shape, blocks, calls if blocks <= 512 else calls // 5)
            for blocks in sizes for shape in ("hit", "miss", "partial") if blocks > 1 or shape != "partial"]


def full_plan():
    alone = [Transfer(size, batch, 1, {16 * KIB: 16 * MIB, 64 * KIB: 64 * MIB}.get(size, 256 * MIB))
             for size in (16 * KIB, 64 * KIB, 512 * KIB, 2 * MIB) for batch in (1, 64)]
    four = [Transfer(512 * KIB, 64, 4, 64 * MIB), Transfer(2 * MIB, 1, 4, 64 * MIB)]
    return Plan(alone + four, lookups((1, 16, 64, 512, CHAIN_BLOCKS), 200), 2 * GIB)


def quick_plan():
    alone = [Transfer(64 * KIB, batch, 1, 4 * MIB) for batch in (1, 64)]
    return Plan(alone + [Transfer(512 * KIB, 1, 2, 4 * MIB)], lookups((1, 16, 512), 20), 256 * MIB)


def progress(line):
    print(f"peers: {line}", file=sys.stderr, flush=True)


class Run:
    """Everything that runs; what fails is taken out, with the reason."""

    def __init__(self, where, plan, only):
        self.where, self.plan, self.only = where, plan, only
        self.results = report.Results()
        self.systems, self.arms = [], []
        self.clients = {}
        self.not_run = []
        self.failed = False
        # Keys of one run are not those of another, should a server outlive its run.
        self.serial = secrets.randbelow(1 << 20)

    def start(self):
        for kind in systems.REFERENCES + systems.COMPARED:
            system = kind(self.where)
            if self.only and kind in systems.COMPARED and system.name not in self.only:
                continue
            if reason := system.missing():
                self.not_run.append({"system": system.name, "reason": reason})
                continue
            self.start_one(system)

    def start_one(self, system):
        progress(f"starting {system.name}")
        self.systems.append(system)  # from here on it is to be stopped
        try:
            system.start()
        except (RuntimeError, OSError) as error:
            self.fail(system.name, str(error), system.name)
            return
        for arm in system.arms:
            arm.version = system.version()
            self.arms.append(arm)
            self.clients[arm.name] = measure.Clients(arm, self.where.log(arm.name))

    def fail(self, name, reason, *logs):
        progress(f"{name} failed: {reason}")
        for log in logs:
            print(self.where.log_tail(log), file=sys.stderr)
        self.failed = True
        self.not_run.append({"system": name, "reason": reason})

    def take_out(self, arm, error):
        self.arms.remove(arm)
        self.results.drop(arm)
        self.fail(arm.name, str(error), arm.name, arm.system.name)

    def each(self, arms, turn, work):
        """Once for every arm, another one first each time. An arm that fails is out."""
        first = turn % len(arms) if arms else 0
        for arm in arms[first:] + arms[:first]:
            try:
                work(arm)
            except (measure.Failed, subprocess.CalledProcessError) as error:
                self.take_out(arm, error)

    def round(self, number):
        """Round 0 warms up and leaves no figures."""
        for turn, cell in enumerate(self.plan.transfers):
            arms = [arm for arm in self.arms if arm.transfers]
            self.each(arms, number + turn, lambda arm, cell=cell: self.transfer(arm, cell, number))
        arms = [arm for arm in self.arms if arm.lookups]
        self.each(arms, number, lambda arm: self.clients[arm.name].ask(1, f"chain {CHAIN_BLOCKS}"))
        for turn, cell in enumerate(self.plan.lookups):
            arms = [arm for arm in self.arms if arm.lookups and can_look_up(arm, cell)]
            self.each(arms, number + turn, lambda arm, cell=cell: self.look_up(arm, cell, number))
        self.memcpy(number)

    def transfer(self, arm, cell, number):
        self.serial += 1
        samples = measure.transfer(self.clients[arm.name], cell, self.serial, check=number == 0)
        self.keep(arm, cell, samples, number)

    def look_up(self, arm, cell, number):
        self.keep(arm, cell, measure.lookup(self.clients[arm.name], cell), number)

    def keep(self, arm, cell, samples, number):
        for operation, sample in samples.items():
            if number > 0:
                self.results.add(cell.key(operation), arm, sample)

    def memcpy(self, number):
        arm = next((arm for arm in self.arms if arm.system.name == "raw"), None)
        if arm is None:
            return
        gbps = self.clients[arm.name].ask(1, "memcpy")[0]["gbps"]
        if number > 0:
            memory = systems.Arm("memcpy", arm.system, "memory", [], "nothing")
            self.results.add(("memcpy", None, None, 1), memory, {"value": gbps, "cpu": None, "others": 0})

    def stop(self):
        for clients in self.clients.values():
            clients.stop()
        for system in reversed(self.systems):
            system.stop()


def can_look_up(arm, cell):
    """LMCache knows no less than a chunk of 16 blocks, and a half of one is none."""
    return arm.system.name != "lmcache" or (cell.blocks >= 16 and (cell.shape != "partial" or cell.blocks >= 32))


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout instead of the table")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="rounds that count, 1 to 100 (default 5)")
    parser.add_argument("--only", metavar="NAMES", help="of kvtier,redis,mooncake,lmcache, separated by commas")
    parser.add_argument("--quick", action="store_true", help="a small workload: whether all works, in seconds")
    parser.add_argument("--bin", metavar="DIR", default=str(ROOT / "build/release/bin"),
                        help="where kvtierd, kvtier and kvtier_peer_arm are (default build/release/bin)")
    parser.add_argument("--peers", metavar="DIR", default=os.environ.get("KVTIER_PEERS", str(ROOT / "build/peers")),
                        help="where install.sh put the peers (default KVTIER_PEERS or build/peers)")
    options = parser.parse_args()
    if not 1 <= options.rounds <= 100:
        parser.error(f"--rounds: {options.rounds} is not from 1 to 100")
    options.only = options.only.split(",") if options.only else []
    known = [kind.name for kind in systems.COMPARED]
    for name in options.only:
        if name not in known:
            parser.error(f"--only: '{name}' is not one of {', '.join(known)}")
    if not (pathlib.Path(options.bin) / "kvtier_peer_arm").exists():
        parser.error(f"--bin: {options.bin} has no kvtier_peer_arm: build it, or name another folder")
    return options


def main():
    options = parse()
    plan = quick_plan() if options.quick else full_plan()
    with tempfile.TemporaryDirectory(prefix="kvtier-peers-") as folder:
        run = Run(systems.Where(folder, options.bin, options.peers, plan.server_bytes), plan, options.only)
        try:
            run.start()
            order = [arm.name for arm in run.arms]
            for number in range(options.rounds + 1):
                progress(f"round {number} of {options.rounds}" if number else "warming up, every byte compared")
                run.round(number)
        finally:
            run.stop()
    about = {"rounds": options.rounds, "cores": os.cpu_count(), "kernel": platform.release()}
    document = report.document(run.results, about, run.not_run, NOTES)
    print(json.dumps(document, indent=1) if options.json else report.text(run.results, order, document))
    return 1 if run.failed else 0


if __name__ == "__main__":
    sys.exit(main())
