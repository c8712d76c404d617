"""What a call does, without doing any I/O: shared by the blocking and the asyncio client.

Each operation is a generator. It yields ``Attempt`` (make this call, answer with an ``Outcome``) or ``Pause``
(wait so long), and returns its result. A client is a loop that carries these out, so deadlines, retries,
breaker, checks, accounting and the rule of what is raised exist once.
"""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Generator, Sequence, TypeVar

from kvtier import wire
from kvtier.breaker import BreakerOptions, CircuitBreaker
from kvtier.errors import (
    DeadlineExceeded,
    Error,
    Internal,
    InvalidArgument,
    NotFound,
    Unavailable,
    check_range,
)
from kvtier.model import ModelSpec, RegisteredModel, Tier
from kvtier.prompt import Part, Prompt
from kvtier.results import (
    Done,
    FetchReport,
    Found,
    StoredBlock,
    StoreReport,
    StoreVerdict,
    TierSpan,
    refusal_of,
    span_of,
)
from kvtier.transfer import Block, Counters, FetchAssembler, StoreMessages, blocks_of, check_sizes

_FIRST_PAUSE = 0.005  # seconds; doubles with each retry
_U32 = (1 << 32) - 1
_LONGEST_LEASE = 600.0
_UNIX = "unix:"
_UNIX_PATH_BYTES = 108

# How the daemon and the C++ client tune gRPC's transport (common/channel_args.h), and what Python needs
# besides.
CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.http2.max_frame_size", 1 << 20),
    ("grpc.http2.lookahead_bytes", 16 << 20),
    ("grpc.experimental.tcp_read_chunk_size", 1 << 20),
    ("grpc.experimental.tcp_min_read_chunk_size", 256 << 10),
    ("grpc.experimental.tcp_max_read_chunk_size", 4 << 20),
    ("grpc.enable_retries", 0),  # this package repeats calls itself, and knows which
    ("grpc.default_compression_algorithm", 0),  # KV does not compress
    ("grpc.max_receive_message_length", wire.MAX_REQUEST_BYTES),
    ("grpc.max_send_message_length", wire.MAX_REQUEST_BYTES),
    ("grpc.use_local_subchannel_pool", 1),  # a connection of its own for each client
    ("grpc.enable_http_proxy", 0),
    # After a lost connection: the breaker paces attempts, gRPC must not sit them out.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
)


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Deadlines in seconds, each for the whole call with its retries; a call's ``timeout`` replaces it."""

    connect_deadline: float = 2.0  # for one attempt to connect, which is made by the first call that needs it
    lookup_deadline: float = 0.25  # lookup, release, renew
    register_deadline: float = 2.0
    transfer_deadline: float = 30.0  # fetch_into, store_from
    retries: int = 2  # after Unavailable, within the deadline; every call is idempotent
    breaker: BreakerOptions = field(default_factory=BreakerOptions)

    def channel_options(self) -> list[tuple[str, int]]:
        return [*CHANNEL_OPTIONS, ("grpc.min_reconnect_backoff_ms", int(self.connect_deadline * 1000))]


@dataclass(slots=True)
class Attempt:
    """One call to make. ``request`` for all but Store, which has ``messages``; ``on_message`` for Fetch, to
    be called with each message in order: an Error that it raises ends the call and is its error."""

    rpc: str
    limit: float  # seconds
    request: bytes = b""
    messages: StoreMessages | None = None
    on_message: Callable[[bytes], None] | None = None


@dataclass(slots=True)
class Pause:
    seconds: float


@dataclass(slots=True)
class Outcome:
    """Of an Attempt. ``received``: a message of the reply had arrived, so the call must not be repeated."""

    reply: bytes = b""
    error: Error | None = None
    received: bool = False


T = TypeVar("T")
Operation = Generator["Attempt | Pause", "Outcome | None", T]


def path_of(rpc: str) -> str:
    return f"/kvtier.v1.KvCache/{rpc}"


def check_address(address: str) -> None:
    if address.startswith(_UNIX):
        if 0 < len(address.encode()) - len(_UNIX) < _UNIX_PATH_BYTES:
            return
    else:
        host, _, port = address.rpartition(":")
        if host and port.isascii() and port.isdigit() and 0 < int(port) < 65536:
            return
    raise InvalidArgument(
        f'address is "{address}", it must be "unix:/path" with a path below {_UNIX_PATH_BYTES} bytes, '
        'or "host:port"'
    )


def lease_milliseconds(seconds: float | None) -> int:
    """0 for none."""
    if not seconds:
        return 0
    if not 0.001 <= seconds <= _LONGEST_LEASE:
        raise InvalidArgument(f"lease is {seconds} s, the limits are 0.001 and {_LONGEST_LEASE:.0f}")
    return math.ceil(round(seconds * 1000, 6))


def failure_of(error: Error) -> Error:
    """A miss's error; raises what must be raised."""
    if isinstance(error, (InvalidArgument, Internal)):
        raise error
    return error


class LeaseLedger:
    """Which leases this client holds, and which of their blocks it has fetched and verified. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._verified: dict[int, bytearray] = {}

    def open(self, lease_id: int, blocks: int) -> None:
        with self._lock:
            self._verified[lease_id] = bytearray(blocks)

    def note(self, lease_id: int, first_block: int, ok: Sequence[bool]) -> None:
        with self._lock:
            verified = self._verified.get(lease_id)
            if verified is None:
                return
            for i, good in enumerate(ok[: max(len(verified) - first_block, 0)], first_block):
                verified[i] |= good

    def close(self, lease_id: int) -> int:
        """Its verified blocks."""
        with self._lock:
            return sum(self._verified.pop(lease_id, b""))

    def open_ids(self) -> list[int]:
        with self._lock:
            return list(self._verified)


class Protocol:
    """The operations of one client. Thread-safe."""

    def __init__(self, address: str, options: ClientOptions) -> None:
        check_address(address)
        self.address = address
        self.options = options
        self.leases = LeaseLedger()
        self._breaker = CircuitBreaker(options.breaker, address)
        self._lock = threading.Lock()  # guards what is below
        self._models: dict[bytes, ModelSpec] = {}
        self._counted = dict.fromkeys(("calls", "retries", "failures", "checksum_failures"), 0)

    def counters(self) -> Counters:
        with self._lock:
            counted = dict(self._counted)
        return Counters(
            **counted, refused_by_breaker=self._breaker.refused, breaker_opened=self._breaker.opened
        )

    # ------------------------------------------------------------------------------------- operations

    def register_model(self, spec: ModelSpec, timeout: float | None) -> Operation[RegisteredModel]:
        spec.validate()
        limit = self.options.register_deadline if timeout is None else timeout
        model = yield from self._register(spec, limit)
        with self._lock:
            self._models[model.id] = spec
        return model

    def lookup(
        self,
        prompt: Prompt,
        *,
        lease: float | None,
        promote_to: Tier | None,
        prefill_tokens_per_second: float,
        timeout: float | None,
    ) -> Operation[Found]:
        if not 0 <= prefill_tokens_per_second <= 1e9:
            raise InvalidArgument(
                f"prefill_tokens_per_second is {prefill_tokens_per_second}, the limits are 0 and 1e9"
            )
        request = wire.lookup_request(
            prompt,
            lease_ms=lease_milliseconds(lease),
            promote_to=int(promote_to or 0),
            prefill_tokens_per_second=prefill_tokens_per_second,
        )
        end = self._end(timeout, self.options.lookup_deadline)
        try:
            reply = yield from self._lookup(prompt, request, end)
        except Error as error:
            return Found(failure=failure_of(error))
        if reply.lease_id:
            self.leases.open(reply.lease_id, reply.blocks)
        return Found(
            reply.blocks,
            reply.tokens,
            tuple(_span(run) for run in reply.runs),
            tuple(reply.group_blocks),
            reply.lease_id,
        )

    def fetch(
        self,
        prompt: Prompt | None,
        lease_id: int,
        model_id: bytes | None,
        buffers: Sequence[Any],
        *,
        first_block: int,
        part: Part,
        allow_gaps: bool,
        timeout: float | None,
    ) -> Operation[FetchReport]:
        """By prompt, or by lease. ``model_id`` is None when it is not known (a bare lease id)."""
        blocks = blocks_of("buffers", buffers, writable=True)
        check_range("first_block", first_block, 0, _U32 - len(blocks))
        self._check_part(model_id, part, blocks)
        request = wire.fetch_request(
            prompt, lease_id, first_block, first_block + len(blocks), part, allow_gaps
        )
        end = self._end(timeout, self.options.transfer_deadline)
        assembler = FetchAssembler(first_block, blocks)
        attempt = Attempt("Fetch", 0, request, on_message=assembler.add)
        try:
            yield from self._with_model(prompt, end, lambda: self._call(lambda: attempt, end))
            assembler.finish()
        except Error as error:
            return FetchReport([False] * len(blocks), 0, failure_of(error))
        finally:
            self._count("checksum_failures", assembler.checksum_failures)
        if lease_id:
            self.leases.note(lease_id, first_block, assembler.ok)
        leading = next((i for i, ok in enumerate(assembler.ok) if not ok), len(blocks))
        return FetchReport(assembler.ok, leading)

    def store(
        self,
        prompt: Prompt,
        buffers: Sequence[Any],
        *,
        first_block: int,
        part: Part,
        durable: bool,
        first_missing: int | None,
        timeout: float | None,
    ) -> Operation[StoreReport]:
        blocks = blocks_of("buffers", buffers, writable=False)
        check_range("first_block", first_block, 0, _U32 - len(blocks))
        self._check_part(prompt.model_id, part, blocks)
        end = self._end(timeout, self.options.transfer_deadline)
        try:
            if first_missing is None:
                first_missing = yield from self._first_missing(prompt, end)
            present = min(max(first_missing - first_block, 0), len(blocks))
            # Present is not durable: naming the last block makes all before it durable too.
            if durable and present == len(blocks):
                present -= 1
            return (yield from self._store(prompt, blocks, present, first_block, part, durable, end))
        except Error as error:
            return StoreReport([StoredBlock()] * len(blocks), failure=failure_of(error))

    def release(self, lease_id: int, verified_blocks: int, timeout: float | None = None) -> Operation[Done]:
        _check_lease_id(lease_id)
        check_range("verified_blocks", verified_blocks, 0, _U32)
        return (
            yield from self._acknowledged("Release", wire.release_request(lease_id, verified_blocks), timeout)
        )

    def renew(self, lease_id: int, seconds: float, timeout: float | None = None) -> Operation[Done]:
        _check_lease_id(lease_id)
        if not seconds:
            raise InvalidArgument(f"lease is {seconds} s, the limits are 0.001 and {_LONGEST_LEASE:.0f}")
        request = wire.renew_request(lease_id, lease_milliseconds(seconds))
        return (yield from self._acknowledged("Renew", request, timeout))

    # ------------------------------------------------------------------------------------- their parts

    def _end(self, timeout: float | None, default: float) -> float:
        if timeout is not None and timeout <= 0:
            raise InvalidArgument(f"timeout is {timeout} s, it must be above 0")
        return time.monotonic() + (default if timeout is None else timeout)

    def _check_part(self, model_id: bytes | None, part: Part, blocks: Sequence[Block]) -> None:
        """As far as this client knows the model."""
        with self._lock:
            spec = self._models.get(model_id) if model_id is not None else None
        if spec is None:
            return
        check_range("part.layer_group", part.layer_group, 0, spec.groups - 1)
        check_range("part.rank", part.rank, 0, spec.tensor_parallel - 1)
        check_sizes("buffers", blocks, spec.part_bytes()[part.layer_group * spec.tensor_parallel + part.rank])

    def _register(self, spec: ModelSpec, limit: float) -> Operation[RegisteredModel]:
        attempt = Attempt("RegisterModel", 0, wire.register_request(spec))
        reply = yield from self._call(lambda: attempt, time.monotonic() + limit)
        return wire.decode_model(reply, spec)

    def _lookup(self, prompt: Prompt, request: bytes, end: float) -> Operation[Any]:
        attempt = Attempt("Lookup", 0, request)
        reply = yield from self._with_model(prompt, end, lambda: self._call(lambda: attempt, end))
        return wire.decode_lookup(reply)

    def _first_missing(self, prompt: Prompt, end: float) -> Operation[int]:
        request = wire.lookup_request(prompt, before_store=True)
        reply = yield from self._lookup(
            prompt, request, min(end, self._end(None, self.options.lookup_deadline))
        )
        return int(reply.blocks)

    def _store(
        self,
        prompt: Prompt,
        blocks: Sequence[Block],
        present: int,
        first_block: int,
        part: Part,
        durable: bool,
        end: float,
    ) -> Operation[StoreReport]:
        outcomes = [StoredBlock(StoreVerdict.ALREADY_PRESENT)] * present
        missing = blocks[present:]
        if not missing:
            return StoreReport(outcomes)
        first = first_block + present
        header = wire.store_header(prompt, first, len(missing), part, durable)

        def make() -> Attempt:
            return Attempt("Store", 0, messages=StoreMessages(header, first, missing))

        raw = yield from self._with_model(prompt, end, lambda: self._call(make, end))
        reply = wire.decode_store(raw)
        if len(reply.outcomes) != len(missing):
            raise Internal(f"Store: the reply has {len(reply.outcomes)} outcomes for {len(missing)} blocks")
        outcomes += [_stored_block(outcome) for outcome in reply.outcomes]
        return StoreReport(outcomes, len(missing), reply.checksum_mismatches)

    def _acknowledged(self, rpc: str, request: bytes, timeout: float | None) -> Operation[Done]:
        end = self._end(timeout, self.options.lookup_deadline)
        attempt = Attempt(rpc, 0, request)
        try:
            yield from self._call(lambda: attempt, end)
        except Error as error:
            return Done(failure_of(error))
        return Done()

    def _with_model(
        self, prompt: Prompt | None, end: float, call: Callable[[], Operation[bytes]]
    ) -> Operation[bytes]:
        """The call; once more when the daemon had forgotten a model that this client registered."""
        try:
            return (yield from call())
        except NotFound:
            with self._lock:
                spec = self._models.get(prompt.model_id) if prompt is not None else None
            left = end - time.monotonic()
            if spec is None or left <= 0:
                raise
            yield from self._register(spec, min(left, self.options.register_deadline))
            return (yield from call())

    def _call(self, make: Callable[[], Attempt], end: float) -> Operation[bytes]:
        """``make``: the attempt, anew for each try."""
        self._breaker.admit()
        self._count("calls")
        judged = False
        try:
            outcome = yield from self._try_until_done(make, end)
            failed = isinstance(outcome.error, (Unavailable, DeadlineExceeded))
            self._count("failures", failed)
            self._breaker.record(failed)
            judged = True
        finally:
            if not judged:  # given up from outside, which says nothing about the daemon
                self._breaker.withdraw()
        if outcome.error is not None:
            raise outcome.error
        return outcome.reply

    def _try_until_done(self, make: Callable[[], Attempt], end: float) -> Operation[Outcome]:
        pause = _FIRST_PAUSE
        retries = 0
        while True:
            attempt = make()
            attempt.limit = max(end - time.monotonic(), 0.001)
            outcome = yield attempt
            assert isinstance(outcome, Outcome)
            again = (
                isinstance(outcome.error, Unavailable)
                and not outcome.received
                and retries < self.options.retries
                and time.monotonic() + pause < end
            )
            if not again:
                return outcome
            retries += 1
            self._count("retries")
            yield Pause(pause)
            pause *= 2

    def _count(self, what: str, by: int = 1) -> None:
        if by:
            with self._lock:
                self._counted[what] += by


def _check_lease_id(lease_id: int) -> None:
    check_range("lease_id", lease_id, 1, (1 << 64) - 1)


def _span(run: Any) -> TierSpan:
    return span_of(run.tier, run.blocks, run.load_seconds)


def _stored_block(outcome: Any) -> StoredBlock:
    if outcome.status in (StoreVerdict.STORED, StoreVerdict.ALREADY_PRESENT):
        return StoredBlock(StoreVerdict(outcome.status))
    return StoredBlock(StoreVerdict.REJECTED, refusal_of(outcome.reason))
