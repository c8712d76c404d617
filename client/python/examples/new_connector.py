#!/usr/bin/env python3
"""A skeleton to write a connector from: a toy paged engine whose prompts begin with KV from kvtier.

usage: new_connector.py ADDRESS     (of a kvtierd, for instance unix:/tmp/kvtier/kvtier.sock)

What is the toy engine's, and is yours to replace, is marked ENGINE. docs/CONNECTORS.md has the contract.
"""
import collections
import hashlib
import itertools
import sys

import kvtier
from kvtier.engines import paged

LAYERS, BLOCKS, BLOCK_TOKENS, PAGE_BYTES = 4, 64, 16, 1024  # ENGINE


class Pins:
    """ENGINE: its reference counts. A block is free when nobody counts on it."""

    def __init__(self):
        self.count = collections.Counter()

    def pin(self, block_ids):
        self.count.update(block_ids)

    def unpin(self, block_ids):
        self.count.subtract(block_ids)

    def take(self, count):
        free = [block for block in range(BLOCKS) if self.count[block] == 0][:count]
        self.pin(free)
        return free


def kv_of(block_hash, layer):
    return hashlib.sha256(block_hash + bytes([layer])).digest() * (PAGE_BYTES // 32)


class Engine:
    def __init__(self, address):
        self.layers = [bytearray(BLOCKS * PAGE_BYTES) for _ in range(LAYERS)]  # ENGINE
        self.pins = Pins()
        self.client = kvtier.Client(address, kvtier.ClientOptions(lookup_deadline=2.0))
        spec = kvtier.ModelSpec(  # all that makes your KV what it is: model, weights, dtype, layout, version
            name="toy", revision="weights-1", block_tokens=BLOCK_TOKENS, pack_order=kvtier.PackOrder.OPAQUE,
            layout_fingerprint=b"toy engine 1, layer outermost", explicit_part_bytes=[LAYERS * PAGE_BYTES])
        model = paged.ModelHandle(self.client, spec)
        model.connect()  # a daemon that is not there yet is no reason not to start
        self.scheduler = paged.SchedulerHalf(
            self.client, model, block_tokens=BLOCK_TOKENS, pinner=self.pins,
            options=paged.SchedulerOptions(lookup_budget=2.0))  # it has nothing else to do meanwhile
        pages = paged.HostPages([memoryview(layer) for layer in self.layers], [PAGE_BYTES] * LAYERS)
        self.worker = paged.WorkerHalf(self.client, model, kvtier.Part(0, 0), pages)

    def hashes(self, tokens):
        """ENGINE: one chained hash per full block, over all that the block's KV depends on."""
        blocks = [repr(tokens[i:i + BLOCK_TOKENS]).encode()
                  for i in range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS)]
        chained = itertools.accumulate(blocks, lambda before, block: hashlib.sha256(before + block).digest(),
                                       initial=b"")
        return list(chained)[1:]

    def compute(self, block_id, block_hash):
        """ENGINE: the forward pass that fills a block's pages."""
        for layer, memory in enumerate(self.layers):
            memory[block_id * PAGE_BYTES:(block_id + 1) * PAGE_BYTES] = kv_of(block_hash, layer)

    def attend(self, block_id, block_hash):
        """ENGINE: the forward pass that uses them; here it looks whether the KV is right."""
        for layer, memory in enumerate(self.layers):
            if memory[block_id * PAGE_BYTES:(block_id + 1) * PAGE_BYTES] != kv_of(block_hash, layer):
                raise AssertionError(f"block {block_id} has another prompt's KV in layer {layer}")

    def run(self, name, tokens):
        """One request from arrival to end; returns (blocks loaded, blocks computed)."""
        request = paged.RequestView(name, self.hashes(tokens))
        while (external := self.scheduler.match(request, len(tokens), local_tokens=0)) is None:
            self.step()  # a real engine computes something else meanwhile
        block_ids = self.pins.take(len(tokens) // BLOCK_TOKENS)
        self.scheduler.allocated(name, block_ids, external)
        failed = set()
        if external:
            while name not in (progress := self.step()).loaded:
                failed |= progress.failed_blocks
            failed |= progress.failed_blocks
        loaded = next((i for i in range(external) if block_ids[i] in failed), external)

        todo = list(zip(block_ids, request.hashes))[loaded:]
        self.step([paged.RequestStep(request, block_ids, len(tokens))], todo)
        for block_id, block_hash in zip(block_ids, request.hashes):
            self.attend(block_id, block_hash)
        self.scheduler.finished(name)
        self.pins.unpin(block_ids)  # those that are being saved stay pinned by the scheduler's half
        while self.scheduler.busy():
            self.step()
        return loaded, len(block_ids) - loaded

    def step(self, steps=(), todo=()):
        """One step of scheduler and worker; `todo`: (block id, hash) of the blocks that it computes."""
        plan = self.scheduler.plan(steps, idle=not todo)
        self.worker.start_loads(plan)
        for block_id, block_hash in todo:
            self.compute(block_id, block_hash)
        self.worker.start_saves(plan)
        progress = self.worker.poll(wait=0.01 if plan.idle else 0)
        self.scheduler.absorb(progress.report)
        return progress

    def close(self):
        self.worker.close()
        self.scheduler.close()
        self.client.close()


def main():
    prompt = list(range(200))
    for name, tokens in (("first", prompt), ("again", prompt), ("another ending", prompt[:100] + [7] * 50)):
        engine = Engine(sys.argv[1])  # a new one each time: what it finds comes from kvtier
        loaded, computed = engine.run(name, tokens)
        print(f"{name}: {loaded} blocks loaded, {computed} computed")
        engine.close()
    if loaded < 6:
        sys.exit("the prefix that two prompts share was not loaded")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main()
