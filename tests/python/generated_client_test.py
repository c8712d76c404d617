"""A client made by protoc for another language reads and writes the cache byte for byte."""
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from daemon import (Client, Daemon, adm, checksum, collect, grpc, kv, opaque_spec, payload_of,  # noqa: E402
                    prompt, store_requests, tokens_of)

SIZES = (1, 4096, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3 << 20)


class GeneratedClientTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="kvtier_py_")
        self.addCleanup(folder.cleanup)
        self.daemon = self.enterContext(Daemon(folder.name + "/data", "--ram-bytes", "64MiB"))
        self.client = self.enterContext(Client(self.daemon.address))

    def register(self, **shape):
        return self.client.unary("RegisterModel", kv.RegisterModelRequest(spec=opaque_spec(**shape)))

    def test_every_size_goes_there_and_back(self):
        for size in SIZES:
            with self.subTest(size=size):
                model = self.register(name=f"m{size}", part_bytes=size)
                self.assertEqual(list(model.part_bytes), [size])
                who = prompt(model.model_id, tokens_of(1, 3), tenant="t", salt=b"s")
                payloads = [payload_of(size, i, size) for i in range(3)]
                stored = self.client.store(store_requests(who, 0, payloads))
                self.assertEqual([o.status for o in stored.outcomes], [kv.STORE_STATUS_STORED] * 3)

                found = self.client.unary("Lookup", kv.LookupRequest(prompt=who, lease_ms=60000))
                self.assertEqual((found.blocks, found.tokens), (3, 48))
                self.assertEqual([(r.tier, r.blocks) for r in found.runs], [(kv.TIER_RAM, 3)])
                self.assertNotEqual(found.lease_id, 0)

                by_prompt = kv.FetchRequest(prompt=who, first_block=0, last_block=3)
                self.assertEqual(collect(self.client.fetch(by_prompt)), dict(enumerate(payloads)))
                by_lease = kv.FetchRequest(lease_id=found.lease_id, first_block=1, last_block=3)
                self.assertEqual(collect(self.client.fetch(by_lease)), {1: payloads[1], 2: payloads[2]})

                self.client.unary("Renew", kv.RenewRequest(lease_id=found.lease_id, lease_ms=1000))
                self.client.unary("Release", kv.ReleaseRequest(lease_id=found.lease_id))
                with self.assertRaises(grpc.RpcError) as ended:
                    self.client.unary("Release", kv.ReleaseRequest(lease_id=found.lease_id))
                self.assertEqual(ended.exception.code(), grpc.StatusCode.NOT_FOUND)

    def test_parts_make_a_block_only_together(self):
        model = self.register(name="parts", part_bytes=1000, parts=2)
        who = prompt(model.model_id, tokens_of(2, 1))
        halves = [payload_of("rank", rank, 1000) for rank in range(2)]
        self.client.store(store_requests(who, 0, halves[:1], kv.Part(rank=0)))
        self.assertEqual(self.client.unary("Lookup", kv.LookupRequest(prompt=who)).blocks, 0)
        self.client.store(store_requests(who, 0, halves[1:], kv.Part(rank=1)))
        self.assertEqual(self.client.unary("Lookup", kv.LookupRequest(prompt=who)).blocks, 1)
        for rank, half in enumerate(halves):
            request = kv.FetchRequest(prompt=who, last_block=1, part=kv.Part(rank=rank))
            self.assertEqual(collect(self.client.fetch(request)), {0: half})

    def test_namespaces_share_nothing(self):
        model = self.register(name="spaces")
        mine = prompt(model.model_id, tokens_of(3, 2), tenant="a", salt=b"1", adapter="x")
        payloads = [payload_of("mine", i, 4096) for i in range(2)]
        self.client.store(store_requests(mine, 0, payloads))
        self.assertEqual(self.client.unary("Lookup", kv.LookupRequest(prompt=mine)).blocks, 2)
        for other in ({"tenant": "b", "salt": b"1", "adapter": "x"},
                      {"tenant": "a", "salt": b"2", "adapter": "x"},
                      {"tenant": "a", "salt": b"1", "adapter": "y"}):
            theirs = prompt(model.model_id, tokens_of(3, 2), **other)
            self.assertEqual(self.client.unary("Lookup", kv.LookupRequest(prompt=theirs)).blocks, 0)
            request = kv.FetchRequest(prompt=theirs, last_block=2, allow_gaps=True)
            self.assertEqual(collect(self.client.fetch(request)), {0: None, 1: None})

    def test_wrong_bytes_are_rejected_and_the_next_try_is_taken(self):
        model = self.register(name="wrong")
        who = prompt(model.model_id, tokens_of(4, 1))
        payload = payload_of("right", 0, 4096)
        header = kv.StoreRequest(header=kv.StoreHeader(prompt=who, block_count=1))
        bad = kv.Piece(block=0, part_bytes=4096, checksum=checksum(payload) ^ 1, payload=payload)
        outcome = self.client.store(iter([header, kv.StoreRequest(pieces=[bad])])).outcomes[0]
        self.assertEqual((outcome.status, outcome.reason),
                         (kv.STORE_STATUS_REJECTED, kv.REJECT_REASON_CHECKSUM))
        self.assertEqual(self.client.unary("Lookup", kv.LookupRequest(prompt=who)).blocks, 0)
        outcome = self.client.store(store_requests(who, 0, [payload])).outcomes[0]
        self.assertEqual(outcome.status, kv.STORE_STATUS_STORED)
        again = self.client.store(store_requests(who, 0, [payload])).outcomes[0]
        self.assertEqual(again.status, kv.STORE_STATUS_ALREADY_PRESENT)

    def test_lookup_before_a_store_is_answered_and_not_counted(self):
        model = self.register(name="before")
        who = prompt(model.model_id, tokens_of(5, 2))
        self.client.store(store_requests(who, 0, [payload_of("before", i, 4096) for i in range(2)]))
        admin = self.enterContext(Client(self.daemon.admin_address))

        def counted():
            counters = admin.admin("GetStatus", adm.GetStatusRequest()).counters
            return counters.lookups, counters.lookup_blocks, counters.hit_blocks

        request = kv.LookupRequest(prompt=who, before_store=True)
        self.assertEqual(self.client.unary("Lookup", request).blocks, 2)
        self.assertEqual(counted(), (0, 0, 0))
        self.assertEqual(self.client.unary("Lookup", kv.LookupRequest(prompt=who)).blocks, 2)
        self.assertEqual(counted(), (1, 2, 2))

    def test_request_id_comes_back(self):
        call = self.client.channel.unary_unary("/kvtier.v1.KvCache/Release")
        answer = call.future(kv.ReleaseRequest(lease_id=1).SerializeToString(), timeout=10,
                             metadata=[("kvtier-request-id", "abc-123")])
        self.assertIn(("kvtier-request-id", "abc-123"), list(answer.initial_metadata()))
        self.assertEqual(answer.code(), grpc.StatusCode.NOT_FOUND)
        self.assertIn("abc-123", answer.details())


if __name__ == "__main__":
    unittest.main(verbosity=2)
