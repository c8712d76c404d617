"""What the Python client costs, each figure beside its limit from the same run:

    python -m kvtier.bench [--server ADDRESS] [--rounds N] [--json]

Without --server a kvtierd of its own runs meanwhile (--kvtierd PATH, $KVTIERD, or the one on PATH). A server
of yours is filled with some 200 MiB of blocks in namespaces that nobody else uses; 1 GiB of RAM is enough.

The limit is bare gRPC in Python with the same kvtierd and the same messages: fetched and dropped, or made
before the clock starts and sent. The limits "hashed and copied", "hashed and joined" do to them what any
client has to: verify each byte, and copy it once. For shared memory it is memcpy: as many bytes from warmed
memory into the same buffers. Ratios are medians over interleaved rounds; a rate is at
best its limit, a latency at least.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Callable, Iterator, Sequence

import grpc
import xxhash

from kvtier import wire
from kvtier.client import Client, Lease
from kvtier.errors import Error
from kvtier.model import ModelSpec, PackOrder
from kvtier.prompt import Namespace, Part, Prompt
from kvtier.protocol import ClientOptions, path_of
from kvtier.transfer import StoreMessages, blocks_of

_BLOCK_TOKENS = 16
_BLOCK_BYTES = 2 << 20
_BLOCKS = 32
_BYTES = _BLOCKS * _BLOCK_BYTES
_SHARED_BLOCKS = 64
_SHARED_LEASE = 600.0
_SMALL_BYTES = (16 << 10, 64 << 10)
_SMALL_BLOCKS = 64
_LOOKUP_BLOCKS = 512
_LONG_TOKENS = 131_072
_CALL_SECONDS = 60.0
_LOOKUPS_PER_ROUND = 50


@dataclass
class _Row:
    name: str
    unit: str
    rounds: list[float]
    limit_name: str = ""
    limits: Sequence[float] = ()

    def to_json(self) -> dict[str, Any]:
        row = {
            "name": self.name,
            "value": statistics.median(self.rounds),
            "unit": self.unit,
            "rounds": self.rounds,
        }
        if self.limit_name:
            ratios = [value / limit for value, limit in zip(self.rounds, self.limits)]
            row |= {
                "limit_name": self.limit_name,
                "limit": statistics.median(self.limits),
                "ratio": statistics.median(ratios),
            }
        return row


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _median_us(work: Callable[[], object], times: int = _LOOKUPS_PER_ROUND) -> float:
    return statistics.median(_seconds(work) for _ in range(times)) * 1e6


def _gigabytes_per_second(work: Callable[[], object]) -> float:
    return _BYTES / _seconds(work) / 1e9


def _shared_gigabytes_per_second(work: Callable[[], object]) -> float:
    return _SHARED_BLOCKS * _BLOCK_BYTES / _seconds(work) / 1e9


def _interleaved(
    rounds: int, measure: Callable[[Callable[[], object]], float], *works: Callable[[], object]
) -> list[list[float]]:
    """Per work its rounds. The first round warms up and is not counted."""
    measured: list[list[float]] = [[] for _ in works]
    for number in range(rounds + 1):
        for work, into in zip(works, measured):
            value = measure(work)
            if number:
                into.append(value)
    return measured


class _Bench:
    def __init__(self, address: str, rounds: int, stack: ExitStack) -> None:
        options = ClientOptions(
            lookup_deadline=_CALL_SECONDS, register_deadline=_CALL_SECONDS, transfer_deadline=_CALL_SECONDS
        )
        self._rounds = rounds
        # Over gRPC: what is compared with it.
        self._client = stack.enter_context(Client(address, replace(options, shared_memory=False)))
        self._sharing = stack.enter_context(Client(address, options))
        self._unverified = stack.enter_context(Client(address, replace(options, verify_shared=False)))
        channel = stack.enter_context(grpc.insecure_channel(address, options=options.channel_options()))
        self._bare_lookup = channel.unary_unary(path_of("Lookup"))
        self._bare_fetch = channel.unary_stream(path_of("Fetch"))
        self._bare_store = channel.stream_unary(path_of("Store"))
        self._model = self._register("kvtier-bench-python", _BLOCK_BYTES)
        self._payloads = [bytes([i + 1]) * _BLOCK_BYTES for i in range(_BLOCKS)]
        self._buffers = [bytearray(_BLOCK_BYTES) for _ in range(_BLOCKS)]

    def run(self) -> list[_Row]:
        return [
            self._memcpy(),
            *self._store(),
            *self._fetch(),
            *self._shared(),
            *self._views(),
            *(row for size in _SMALL_BYTES for row in self._small(size)),
            *self._lookup(),
            *self._encode(),
        ]

    def _register(self, name: str, part_bytes: int) -> bytes:
        spec = ModelSpec(
            name,
            block_tokens=_BLOCK_TOKENS,
            pack_order=PackOrder.OPAQUE,
            layout_fingerprint=b"bench",
            explicit_part_bytes=[part_bytes],
        )
        self._sharing.register_model(spec)
        self._unverified.register_model(spec)
        return self._client.register_model(spec).id

    def _fresh_prompt(self, blocks: int = _BLOCKS, model: bytes | None = None) -> Prompt:
        """Nothing of it is held."""
        return Prompt(
            model or self._model,
            list(range(blocks * _BLOCK_TOKENS)),
            namespace=Namespace(tenant="bench", salt=uuid.uuid4().bytes),
        )

    def _memcpy(self) -> _Row:
        def copy() -> None:
            for buffer, payload in zip(self._buffers, self._payloads):
                memoryview(buffer)[:] = payload

        (rounds,) = _interleaved(self._rounds, _gigabytes_per_second, copy)
        return _Row("memcpy_python", "GB/s", rounds)

    def _store(self) -> list[_Row]:
        blocks = blocks_of("payloads", self._payloads, writable=False)
        made = list(StoreMessages(b"", 0, blocks))[1:]

        def store() -> None:
            _check(
                self._client.store_from(self._fresh_prompt(), self._payloads, first_missing=0).held, _BLOCKS
            )

        def bare(messages: Callable[[], Iterator[bytes]]) -> None:
            header = wire.store_header(self._fresh_prompt(), 0, _BLOCKS, Part(), False)
            reply = self._bare_store(_after(header, messages()), timeout=_CALL_SECONDS)
            _check(len(wire.decode_store(reply).outcomes), _BLOCKS)

        stored, sent, joined = _interleaved(
            self._rounds,
            _gigabytes_per_second,
            store,
            lambda: bare(lambda: iter(made)),
            lambda: bare(self._hashed_and_joined),
        )
        return [
            _Row("store_python", "GB/s", stored, "bare stream, made before", sent),
            _Row("store_joined_python", "GB/s", stored, "bare stream, hashed and joined", joined),
        ]

    def _hashed_and_joined(self) -> Iterator[bytes]:
        for block, payload in enumerate(self._payloads):
            checksum = xxhash.xxh3_64_intdigest(payload)
            for offset in range(0, _BLOCK_BYTES, wire.MESSAGE_PAYLOAD):
                half = memoryview(payload)[offset : offset + wire.MESSAGE_PAYLOAD]
                yield b"".join((wire.piece_head(block, offset, _BLOCK_BYTES, checksum, half.nbytes), half))

    def _fetch(self) -> list[_Row]:
        prompt = self._fresh_prompt()
        _check(self._client.store_from(prompt, self._payloads, first_missing=0).held, _BLOCKS)
        request = wire.fetch_request(prompt, 0, 0, _BLOCKS, Part(), False)
        spare = [bytearray(_BLOCK_BYTES) for _ in range(_BLOCKS)]
        pages = [
            [memoryview(buffer)[at : at + (32 << 10)] for at in range(0, _BLOCK_BYTES, 32 << 10)]
            for buffer in self._buffers
        ]

        def fetch(buffers: Sequence[Any]) -> None:
            _check(self._client.fetch_into(prompt, buffers).leading, _BLOCKS)

        def bare(take: Callable[[int, bytes], object]) -> None:
            for number, message in enumerate(self._bare_fetch(request, timeout=_CALL_SECONDS)):
                take(number, message)

        def drop(number: int, message: bytes) -> None:
            pass

        def hash_and_copy(number: int, message: bytes) -> None:
            xxhash.xxh3_64_intdigest(message)
            block, half = divmod(number, _BLOCK_BYTES // wire.MESSAGE_PAYLOAD)
            at = half * wire.MESSAGE_PAYLOAD
            memoryview(spare[block])[at : at + wire.MESSAGE_PAYLOAD] = memoryview(message)[
                -wire.MESSAGE_PAYLOAD :
            ]

        fetched, paged, dropped, copied = _interleaved(
            self._rounds,
            _gigabytes_per_second,
            lambda: fetch(self._buffers),
            lambda: fetch(pages),
            lambda: bare(drop),
            lambda: bare(hash_and_copy),
        )
        _check([bytes(buffer) for buffer in self._buffers] == self._payloads, True)
        return [
            _Row("fetch_python", "GB/s", fetched, "bare stream, dropped", dropped),
            _Row("fetch_copied_python", "GB/s", fetched, "bare stream, hashed and copied", copied),
            _Row("fetch_64_segments_python", "GB/s", paged, "fetch_python", fetched),
        ]

    def _shared(self) -> list[_Row]:
        payloads = [bytearray([i + 1]) * _BLOCK_BYTES for i in range(_SHARED_BLOCKS)]
        buffers = [bytearray(_BLOCK_BYTES) for _ in range(_SHARED_BLOCKS)]
        prompt = self._fresh_prompt(_SHARED_BLOCKS)
        _check(self._sharing.store_from(prompt, payloads, first_missing=0).shared, _SHARED_BLOCKS)

        def memcpy() -> None:
            for buffer, payload in zip(buffers, payloads):
                memoryview(buffer)[:] = payload

        def fetch(client: Client, lease: Lease) -> None:
            _check(client.fetch_into(lease, buffers).shared, _SHARED_BLOCKS)

        def store(client: Client) -> None:
            report = client.store_from(self._fresh_prompt(_SHARED_BLOCKS), payloads, first_missing=0)
            _check((report.held, report.shared), (_SHARED_BLOCKS, _SHARED_BLOCKS))

        # The stores come last: they may push out what is fetched.
        with self._sharing.lookup(prompt, lease=_SHARED_LEASE) as one:
            with self._unverified.lookup(prompt, lease=_SHARED_LEASE) as two:
                copied, fetched, verified = _interleaved(
                    self._rounds,
                    _shared_gigabytes_per_second,
                    memcpy,
                    lambda: fetch(self._unverified, two.lease),
                    lambda: fetch(self._sharing, one.lease),
                )
        _check(buffers == payloads, True)
        copied_too, stored, stored_verified = _interleaved(
            self._rounds,
            _shared_gigabytes_per_second,
            memcpy,
            lambda: store(self._unverified),
            lambda: store(self._sharing),
        )
        return [
            _Row("fetch_shared_python", "GB/s", fetched, "memcpy", copied),
            _Row("fetch_shared_verified_python", "GB/s", verified, "memcpy", copied),
            _Row("store_shared_python", "GB/s", stored, "memcpy", copied_too),
            _Row("store_shared_verified_python", "GB/s", stored_verified, "memcpy", copied_too),
        ]

    def _views(self) -> list[_Row]:
        """Of any size: nothing is copied."""
        rows = []
        for name, size in (("2MiB", _BLOCK_BYTES), ("16KiB", 16 << 10)):
            prompt = self._fresh_prompt(_SMALL_BLOCKS, self._register(f"kvtier-bench-python-{size}", size))
            held = self._sharing.store_from(prompt, [bytes(size)] * _SMALL_BLOCKS, first_missing=0).held
            _check(held, _SMALL_BLOCKS)

            def view() -> None:
                with self._sharing.fetch_views(found.lease, _SMALL_BLOCKS) as views:
                    _check(views.leading, _SMALL_BLOCKS)

            with self._sharing.lookup(prompt, lease=_SHARED_LEASE) as found:
                (rounds,) = _interleaved(self._rounds, _median_us, view)
            rows.append(_Row(f"views_of_{_SMALL_BLOCKS}_x_{name}_python", "us", rounds))
        return rows

    def _small(self, size: int) -> list[_Row]:
        """Microseconds for one call with 64 blocks, and with one."""
        prompt = self._fresh_prompt(_SMALL_BLOCKS, self._register(f"kvtier-bench-python-{size}", size))
        _check(
            self._client.store_from(prompt, [bytes(size)] * _SMALL_BLOCKS, first_missing=0).held,
            _SMALL_BLOCKS,
        )
        buffers = [bytearray(size) for _ in range(_SMALL_BLOCKS)]

        def fetch(client: Client, lease: Lease, blocks: int) -> None:
            _check(client.fetch_into(lease, buffers[:blocks]).leading, blocks)

        rows = []
        with self._sharing.lookup(prompt, lease=_SHARED_LEASE) as one:
            with self._client.lookup(prompt, lease=_SHARED_LEASE) as two:
                for blocks in (1, _SMALL_BLOCKS):
                    shared, over_grpc = _interleaved(
                        self._rounds,
                        _median_us,
                        lambda: fetch(self._sharing, one.lease, blocks),
                        lambda: fetch(self._client, two.lease, blocks),
                    )
                    name = f"fetch_shared_{blocks}_x_{size >> 10}KiB_python"
                    rows.append(_Row(name, "us", shared, "over gRPC", over_grpc))
        return rows

    def _lookup(self) -> list[_Row]:
        prompt = self._fresh_prompt(_LOOKUP_BLOCKS, self._register("kvtier-bench-python-lookup", 64))
        _check(
            self._client.store_from(prompt, [bytes(64)] * _LOOKUP_BLOCKS, first_missing=0).held,
            _LOOKUP_BLOCKS,
        )
        request = wire.lookup_request(prompt)
        _check(self._client.lookup(prompt).blocks, _LOOKUP_BLOCKS)
        found, bare = _interleaved(
            self._rounds,
            _median_us,
            lambda: self._client.lookup(prompt),
            lambda: self._bare_lookup(request, timeout=_CALL_SECONDS),
        )
        return [_Row("lookup_512_hit_python", "us", found, "bare call", bare)]

    def _encode(self) -> list[_Row]:
        tokens = list(range(_LONG_TOKENS))
        packed = memoryview(b"".join(token.to_bytes(4, "little") for token in tokens)).cast("I")
        name = f"encode_{_LONG_TOKENS}_tokens"
        of_buffer, of_list = _interleaved(
            self._rounds,
            lambda work: _median_us(work, 5),
            lambda: wire.lookup_request(Prompt(self._model, packed)),
            lambda: wire.lookup_request(Prompt(self._model, tokens)),
        )
        return [
            _Row(f"{name}_of_a_buffer_python", "us", of_buffer),
            _Row(f"{name}_of_a_list_python", "us", of_list),
        ]


def _after(header: bytes, messages: Iterator[bytes]) -> Iterator[bytes]:
    yield header
    yield from messages


def _check(value: object, expected: object) -> None:
    if value != expected:
        raise RuntimeError(f"the benchmark's own work failed: {value} instead of {expected}")


@contextmanager
def _own_daemon(binary: str) -> Iterator[str]:
    """Its address."""
    with tempfile.TemporaryDirectory(prefix="kvtier_bench_") as folder, open(f"{folder}/log", "wb") as log:
        daemon = subprocess.Popen(
            [binary, "--data-dir", f"{folder}/data", "--ram-bytes", "1GiB"],
            stderr=log,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert daemon.stdout is not None
            words = daemon.stdout.readline().split()
            if words[:1] != ["ready"]:
                raise RuntimeError(f"{binary} did not get ready: {words}")
            yield dict(word.split("=", 1) for word in words[1:])["listen"].split(",")[0]
        finally:
            daemon.kill()
            daemon.wait()


def _table(rows: list[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        line = f"{row['name']:<42} {row['value']:>10.3f} {row['unit']:<5}"
        if "limit" in row:
            line += f" {row['ratio']:>6.3f} of {row['limit']:.3f}, {row['limit_name']}"
        lines.append(line)
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m kvtier.bench", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--server", help="address of a running kvtierd")
    parser.add_argument(
        "--kvtierd",
        default=os.environ.get("KVTIERD") or shutil.which("kvtierd"),
        help="the program to run when there is no --server",
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="the rows as JSON, in the format of kvtier bench")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error(f"--rounds is {options.rounds}, the least is 1")
    if not options.server and not options.kvtierd:
        parser.error("no --server, and no kvtierd on PATH: give --kvtierd")
    with ExitStack() as stack:
        try:
            address = options.server or stack.enter_context(_own_daemon(options.kvtierd))
            rows = [row.to_json() for row in _Bench(address, options.rounds, stack).run()]
        except (Error, grpc.RpcError, RuntimeError, OSError) as error:
            print(f"kvtier.bench: {error}", file=sys.stderr)
            return 1
    print(json.dumps({"bench": "python", "rows": rows}, indent=2) if options.json else _table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
