"""mooncake_arm.py ADDRESS CLIENT: a client of Mooncake Store, with its zero-copy calls on registered memory.

It gives no memory of its own to the store: all blocks lie with mooncake_holder.py, a process of its own, so that
every byte crosses a socket.
"""
import ctypes
import sys

import numpy
from mooncake.store import MooncakeDistributedStore

import arm

CHAIN_BYTES = 256
FIRST_PORT = 50080


def connect(address, port, segment_bytes):
    store = MooncakeDistributedStore()
    failed = store.setup(f"127.0.0.1:{port}", "P2PHANDSHAKE", segment_bytes, 512 << 20, "tcp", "", address)
    if failed:
        raise RuntimeError(f"setup returned {failed}")
    return store


def all_are(results, expected, what):
    for result in results:
        if result != expected:
            raise RuntimeError(f"{what} returned {result}, not {expected}")


class MooncakeArm:
    def __init__(self, address, client):
        self.client = client
        self.store = connect(address, FIRST_PORT + client, 0)
        self.from_ = self.to = numpy.zeros(0, dtype=numpy.uint8)

    def prepare(self, block_bytes, batch):
        size = block_bytes * batch
        self.block_bytes, self.batch = block_bytes, batch
        if size > len(self.from_):
            self.register(size)

    def register(self, size):
        for memory in (self.from_, self.to):
            if len(memory):
                self.store.unregister_buffer(memory.ctypes.data)
        self.from_ = numpy.random.default_rng(size).integers(0, 256, size, dtype=numpy.uint8)
        self.to = numpy.ones(size, dtype=numpy.uint8)
        for memory in (self.from_, self.to):
            all_are([self.store.register_buffer(memory.ctypes.data, size)], 0, "register_buffer")

    def keys(self, serial, batch):
        return [f"{serial:08x}{self.client:08x}{batch:08x}{i:08x}" for i in range(self.batch)]

    def pointers(self, memory):
        return [memory.ctypes.data + i * self.block_bytes for i in range(self.batch)]

    def stamp(self, serial, batch):
        """No two blocks of a run are equal."""
        mark = numpy.array([serial, self.client, batch], dtype=numpy.uint32).view(numpy.uint8)
        blocks = self.from_[:self.batch * self.block_bytes].reshape(self.batch, self.block_bytes)
        blocks[:, :12] = mark
        blocks[:, -12:] = mark

    def put(self, serial, batch):
        self.stamp(serial, batch)
        all_are(self.store.batch_put_from(self.keys(serial, batch), self.pointers(self.from_),
                                          [self.block_bytes] * self.batch), 0, "batch_put_from")

    def before_get(self, serial, batches):
        self.to[:] = 0x55

    def get(self, serial, batch):
        all_are(self.store.batch_get_into(self.keys(serial, batch), self.pointers(self.to),
                                          [self.block_bytes] * self.batch), self.block_bytes, "batch_get_into")

    def compare(self, serial, batch):
        self.stamp(serial, batch)
        size = self.batch * self.block_bytes
        if not numpy.array_equal(self.from_[:size], self.to[:size]):
            raise RuntimeError("wrong bytes were fetched")

    def check(self, serial, batch):
        self.get(serial, batch)
        self.compare(serial, batch)

    def drop(self, serial, batch):
        all_are(self.store.batch_remove(self.keys(serial, batch), True), 0, "batch_remove")

    def chain_key(self, block, serial=0xffffffff):
        return f"{serial:08x}{0:016x}{block:08x}"

    def chain(self, blocks):
        """Puts what is not there: a second put of a key does nothing."""
        payload = (ctypes.c_char * CHAIN_BYTES)()
        self.store.register_buffer(ctypes.addressof(payload), CHAIN_BYTES)
        for first in range(0, blocks, 64):
            keys = [self.chain_key(i) for i in range(first, min(blocks, first + 64))]
            all_are(self.store.batch_put_from(keys, [ctypes.addressof(payload)] * len(keys),
                                              [CHAIN_BYTES] * len(keys)), 0, "batch_put_from")
        self.store.unregister_buffer(ctypes.addressof(payload))

    def prepare_lookup(self, shape, blocks):
        there = {"hit": blocks, "miss": 0, "partial": blocks // 2}[shape]
        keys = [self.chain_key(i) if i < there else self.chain_key(i, 0xfffffffe) for i in range(blocks)]
        if blocks == 1:
            return lambda: self.store.is_exist(keys[0])
        return lambda: sum(self.store.batch_is_exist(keys))

    def after_lookup(self):
        """A lookup leaves nothing behind."""


if __name__ == "__main__":
    arm.serve(lambda: MooncakeArm(sys.argv[1], int(sys.argv[2])))
