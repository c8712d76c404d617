"""lmcache_arm.py ADDRESS CLIENT: a client of LMCache's server, with shared memory, as one engine of one rank.

A block is one of LMCache's chunks of 256 tokens; the shape of the keys and values makes it 16 KiB to 2 MiB.
Lookups ask for 16 tokens a block like everybody's, so 16 blocks are one chunk. Payload lies in paged
tensors, which is what LMCache moves: stores read the first half of the pages, retrieves fill the second.
"""
import dataclasses
import logging
import sys

logging.disable(logging.WARNING)

import torch  # noqa: E402
from lmcache.cli.commands.bench.server_bench import helpers  # noqa: E402
from lmcache.cli.commands.bench.server_bench.client import RequestContext, ServerBenchClient  # noqa: E402
from lmcache.cli.commands.bench.server_bench.config import BenchConfig  # noqa: E402

import arm  # noqa: E402

CHUNK_TOKENS = 256
PAGE_TOKENS = 16
PAGES = CHUNK_TOKENS // PAGE_TOKENS  # of a chunk
LOOKUP_BLOCK_TOKENS = 16
LAYERS = 2
# heads and their size: keys and values of 2 layers in float16 give a chunk of that many bytes
SHAPES = {16 << 10: (1, 8), 64 << 10: (1, 32), 512 << 10: (2, 128), 2 << 20: (8, 128)}
CHAIN_BYTES = 64 << 10


class Engine:
    """The client of one chunk size, as LMCache's own benchmark makes it."""

    def __init__(self, url, instance, block_bytes, chunks):
        heads, size = SHAPES[block_bytes]
        helpers._INSTANCE_ID_BASE = instance
        helpers._MODEL_NAME = self.model = f"peers-{block_bytes}"
        self.chunks = chunks
        self.client = ServerBenchClient(BenchConfig(
            rpc_url=url, http_url="", mode="cpu", transfer_mode="engine_driven", tp_size=1, use_mla=False,
            num_tokens=chunks * CHUNK_TOKENS, block_size=PAGE_TOKENS, num_blocks=2 * chunks * PAGES,
            kvcache_shape_spec=f"(2,{2 * chunks * PAGES},{PAGE_TOKENS},{heads},{size}):float16:{LAYERS}"),
            log=lambda line: None)
        self.client.start()
        self.tensors = list(self.client._workers[0].kv_caches.values())

    def half(self, tensor, which, chunks):
        pages = chunks * PAGES
        return tensor.narrow(1, which * self.chunks * PAGES, pages)

    def request(self, tokens, request_id, which):
        return RequestContext(
            sequence_id=0, request_id=request_id, request_kind="peers", token_ids=tokens,
            num_full_tokens=len(tokens), total_chunks=len(tokens) // CHUNK_TOKENS, chunk_size=CHUNK_TOKENS,
            block_offset=which * self.chunks * PAGES, num_blocks=len(tokens) // PAGE_TOKENS)

    def lookup(self, tokens, request_id):
        """Chunks found. The answer is asked for until it is there."""
        client = self.client._req_client
        key = helpers._make_key(tokens, request_id, start=0, end=len(tokens))
        if not helpers._send_lookup(client, key):
            raise RuntimeError("LOOKUP timed out")
        while (found := helpers._wait_for_result(client.query_prefetch_status(request_id))) is None:
            pass
        if found is helpers._TIMEOUT:
            raise RuntimeError("QUERY_PREFETCH_STATUS timed out")
        return found

    def end(self, request_id):
        helpers._send_end_session(self.client._req_client, request_id)


def checked(result, what):
    if result is None or not result.succeeded:
        raise RuntimeError(f"{what} failed: {result}")


class LmcacheArm:
    def __init__(self, url, client):
        torch.set_num_threads(1)
        self.url, self.client = url, client
        self.engines = {}
        self.instances = self.calls = 0

    def engine_for(self, block_bytes, chunks):
        engine = self.engines.get(block_bytes)
        if engine is None or engine.chunks < chunks:
            if engine is not None:
                engine.client.close()
            # An id is of one engine only, also after that has left.
            self.instances += 1
            instance = 1000 * (self.client + 1) + self.instances
            engine = self.engines[block_bytes] = Engine(self.url, instance, block_bytes, chunks)
        helpers._MODEL_NAME = engine.model
        return engine

    def prepare(self, block_bytes, batch):
        self.batch = batch
        self.engine = self.engine_for(block_bytes, batch)

    def tokens(self, serial, batch):
        first = (serial, self.client, batch)
        return first + (7,) * (self.batch * CHUNK_TOKENS - len(first))

    def name(self, kind, serial, batch):
        return f"{kind}-{serial}-{self.client}-{batch}"

    def stamp(self, serial, batch):
        """Marks the first key of each chunk: no two of a run are equal."""
        mark = torch.tensor([number % 2039 for number in (serial, self.client, batch)], dtype=torch.float16)
        self.engine.half(self.engine.tensors[0], 0, self.batch)[0, ::PAGES, 0, 0, :3] = mark

    def put(self, serial, batch):
        self.stamp(serial, batch)
        request = self.engine.request(self.tokens(serial, batch), self.name("put", serial, batch), 0)
        checked(self.engine.client.store(request, 0, request.num_full_tokens), "STORE")

    def before_get(self, serial, batches):
        """RETRIEVE takes what a LOOKUP of the same request has locked; only RETRIEVE is timed."""
        for batch in range(batches):
            self.engine.end(self.name("put", serial, batch))
            self.lock(serial, batch)
        for tensor in self.engine.tensors:
            self.engine.half(tensor, 1, self.batch).zero_()

    def lock(self, serial, batch):
        name = self.name("get", serial, batch)
        self.engine.end(name)
        found = self.engine.lookup(self.tokens(serial, batch), name)
        if found != self.batch:
            raise RuntimeError(f"found {found} chunks, not {self.batch}")

    def get(self, serial, batch):
        request = self.engine.request(self.tokens(serial, batch), self.name("get", serial, batch), 1)
        checked(self.engine.client.retrieve(request, 0, request.num_full_tokens), "RETRIEVE")

    def compare(self, serial, batch):
        self.stamp(serial, batch)
        for tensor in self.engine.tensors:
            halves = [self.engine.half(tensor, which, self.batch) for which in (0, 1)]
            if not torch.equal(*halves):
                raise RuntimeError("wrong bytes were fetched")

    def check(self, serial, batch):
        self.get(serial, batch)
        self.compare(serial, batch)

    def drop(self, serial, batch):
        """All that the server holds, once."""
        self.engine.end(self.name("get", serial, batch))
        if batch == 0:
            helpers._wait_for_result(self.engine.client._req_client.clear(True))

    def chain(self, blocks):
        tokens = self.chain_tokens(blocks)
        self.chain_engine = self.engine_for(CHAIN_BYTES, 64)
        name = self.name("chain", self.calls, 0)
        self.calls += 1
        request = self.chain_engine.request(tokens, name, 0)
        for first in range(0, len(tokens), 64 * CHUNK_TOKENS):
            # Each piece is sent from the same pages.
            piece = dataclasses.replace(request, block_offset=-(first // PAGE_TOKENS))
            count = min(64 * CHUNK_TOKENS, len(tokens) - first)
            checked(self.chain_engine.client.store(piece, first, count), "STORE")
        self.chain_engine.end(name)

    @staticmethod
    def chain_tokens(blocks):
        return tuple(i * 2654435761 % (1 << 31) for i in range(blocks * LOOKUP_BLOCK_TOKENS))

    def prepare_lookup(self, shape, blocks):
        helpers._MODEL_NAME = self.chain_engine.model
        tokens = list(self.chain_tokens(blocks))
        if shape == "miss":
            tokens[0] ^= 1
        elif shape == "partial":
            tokens[len(tokens) // 2] ^= 1
        tokens = tuple(tokens)
        return lambda: self.lookup_once(tokens)

    def lookup_once(self, tokens):
        self.calls += 1
        name = self.name("lookup", self.calls, 0)
        found = self.chain_engine.lookup(tokens, name)
        return found * CHUNK_TOKENS // LOOKUP_BLOCK_TOKENS

    def after_lookup(self):
        """Gives back what the lookup has locked."""
        self.chain_engine.end(self.name("lookup", self.calls, 0))


if __name__ == "__main__":
    arm.serve(lambda: LmcacheArm(sys.argv[1], int(sys.argv[2])))
