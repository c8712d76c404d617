"""What a call does, without doing any I/O: shared by the blocking and the asyncio client.

Each operation is a generator. It yields ``Attempt`` (make this call, answer with an ``Outcome``), ``Work`` (do
this, which takes a while) or ``Pause`` (wait so long), and returns its result. A client is a loop that carries these out, so deadlines, retries,
breaker, checks, accounting and the rule of what is raised exist once.
"""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Callable, Generator, Sequence, TypeVar

from kvtier import store_ring, wire
from kvtier.breaker import BreakerOptions, CircuitBreaker
from kvtier.errors import (
    Code,
    DeadlineExceeded,
    Error,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    Unavailable,
    check_range,
    check_seconds,
    check_timeout,
    check_type,
    utf8_of,
)
from kvtier.leases import LeaseLedger, LeaseTimes, LeaseUse, LeaseWatch, empty_lease
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
from kvtier.shared_session import RegionListener, SessionLost, SharedMemory, SharedSession
from kvtier.shared_transfer import (
    NOT_SHARED,
    SharedFiller,
    SharedPart,
    SharedReader,
    SharedReply,
    SharedViews,
    fetch_shared_request,
    grpc_may_do,
    lease_ended,
    store_shared_request,
)
from kvtier.transfer import Block, Counters, FetchAssembler, StoreMessages, blocks_of, check_sizes

_FIRST_PAUSE = 0.005  # seconds; doubles with each retry
_STORE_REGION_PAUSE = 0.001  # between looks at whether another store has let go of it
_U32 = (1 << 32) - 1
_U64 = (1 << 64) - 1
_MOST_SHARED_SECONDS = 1e6
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
    shared_memory: bool = True  # use it where it is offered
    # Hash what goes through shared memory, as everything else is: fetched bytes are compared with the
    # checksum that they were stored with, stored ones carry this client's. Costs a pass over bytes that are
    # mostly in the CPU's cache anyway (docs/BENCHMARKS.md). Without it a fetched block is ok by the daemon's
    # word and the lease's time alone.
    verify_shared: bool = True
    region_listener: RegionListener | None = None  # is told which shared memory is mapped

    def __post_init__(self) -> None:
        for name in ("connect_deadline", "lookup_deadline", "register_deadline", "transfer_deadline"):
            check_timeout(name, getattr(self, name))
        check_range("retries", self.retries, 0, 1 << 31)
        check_type("breaker", self.breaker, BreakerOptions)
        check_type("shared_memory", self.shared_memory, bool)
        check_type("verify_shared", self.verify_shared, bool)
        if self.region_listener is not None:
            check_type("region_listener", self.region_listener, RegionListener)

    def channel_options(self) -> list[tuple[str, int]]:
        return [*CHANNEL_OPTIONS, ("grpc.min_reconnect_backoff_ms", int(self.connect_deadline * 1000))]


@dataclass(slots=True)
class Attempt:
    """One call to make. ``request`` for all but Store, which has ``messages``; ``on_message`` for Fetch and
    FetchShared, to be called with each message in order: an Error that it raises ends the call and is its
    error. ``stop``: that may take a while, unless this is called from another thread. ``meanwhile``: to be
    done while the call is under way, and stopped when the call ends."""

    rpc: str
    limit: float  # seconds
    request: bytes = b""
    messages: StoreMessages | None = None
    on_message: Callable[[bytes], None] | None = None
    stop: Callable[[], None] | None = None
    meanwhile: Work | None = None


@dataclass(slots=True)
class Work:
    """Copies, or waits for the daemon, without a call; raises nothing. ``stop``, from another thread: it
    comes to its end soon."""

    run: Callable[[], None]
    stop: Callable[[], None]


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
Operation = Generator["Attempt | Work | Pause", "Outcome | None", T]


def path_of(rpc: str) -> str:
    return f"/kvtier.v1.KvCache/{rpc}"


def check_address(address: str) -> None:
    encoded = utf8_of("address", address)
    if address.startswith(_UNIX):
        if 0 < len(encoded) - len(_UNIX) < _UNIX_PATH_BYTES:
            return
    else:
        host, _, port = address.rpartition(":")
        if host and "/" not in host and port.isascii() and port.isdigit() and 0 < int(port) < 65536:
            return
    raise InvalidArgument(
        f'address is "{address}", it must be "unix:/path" with a path below {_UNIX_PATH_BYTES} bytes, '
        'or "host:port"'
    )


def check_rate(tokens_per_second: float) -> None:
    if not isinstance(tokens_per_second, (int, float)) or not 0 <= tokens_per_second <= 1e9:
        raise InvalidArgument(
            f"prefill_tokens_per_second is {tokens_per_second!r}, the limits are 0 and 1e9"
        )


def lease_milliseconds(seconds: float | None) -> int:
    """0 for none."""
    if seconds is None:
        return 0
    check_seconds("lease", seconds, 0.001, _LONGEST_LEASE)
    return math.ceil(round(seconds * 1000, 6))


def failure_of(error: Error) -> Error:
    """A miss's error; raises what must be raised. Without its traceback, which would hold the caller's
    buffers."""
    if isinstance(error, (InvalidArgument, Internal)):
        raise error
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


_COUNTED = (
    "calls",
    "retries",
    "failures",
    "checksum_failures",
    "shared_fetched_blocks",
    "shared_stored_blocks",
    "ended_leases",
)


@dataclass(frozen=True, slots=True)
class _FetchTask:
    """What one fetch is to do, checked."""

    prompt: Prompt | None
    lease_id: int
    first_block: int
    blocks: Sequence[Block]
    part: Part
    allow_gaps: bool
    end: float

    def run(self, first: int, last: int) -> _FetchTask:
        """Of some of its blocks."""
        return replace(self, first_block=self.first_block + first, blocks=self.blocks[first:last])


@dataclass(slots=True)
class _StoreTask:
    """What one store is to do, checked, and what became of it: outcomes are of the leading blocks."""

    prompt: Prompt
    first_block: int
    blocks: Sequence[Block]
    part: Part
    durable: bool
    end: float
    outcomes: list[StoredBlock]
    sent: int = 0
    checksum_mismatches: int = 0
    shared: int = 0

    @property
    def left(self) -> int:
        return len(self.blocks) - len(self.outcomes)

    def take(self, raw: bytes, count: int) -> None:
        reply = wire.decode_store(raw)
        if len(reply.outcomes) != count:
            raise Internal(f"Store: the reply has {len(reply.outcomes)} outcomes for {count} blocks")
        self.outcomes += [_stored_block(outcome) for outcome in reply.outcomes]
        self.sent += count
        self.checksum_mismatches += reply.checksum_mismatches

    def report(self) -> StoreReport:
        return StoreReport(self.outcomes, self.sent, self.checksum_mismatches, shared=self.shared)


class Protocol:
    """The operations of one client. Thread-safe."""

    def __init__(self, address: str, options: ClientOptions) -> None:
        check_address(address)
        check_type("options", options, ClientOptions)
        self.address = address
        self.options = options
        self.leases = LeaseLedger()
        self.lease_times = LeaseTimes()
        self.shared_memory = SharedMemory(options.shared_memory, options.breaker, options.region_listener)
        self._breaker = CircuitBreaker(options.breaker, address)
        self._lock = threading.Lock()  # guards what is below
        self._models: dict[bytes, ModelSpec] = {}
        self._counted = dict.fromkeys(_COUNTED, 0)

    def counters(self) -> Counters:
        with self._lock:
            counted = dict(self._counted)
        return Counters(
            **counted, refused_by_breaker=self._breaker.refused, breaker_opened=self._breaker.opened
        )

    # ------------------------------------------------------------------------------------- operations

    def register_model(self, spec: ModelSpec, timeout: float | None) -> Operation[RegisteredModel]:
        check_type("spec", spec, ModelSpec)
        spec.validate()
        if timeout is not None:
            check_timeout("timeout", timeout)
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
        check_type("prompt", prompt, Prompt)
        check_rate(prefill_tokens_per_second)
        if promote_to is not None:
            check_type("promote_to", promote_to, Tier)
        request = wire.lookup_request(
            prompt,
            lease_ms=lease_milliseconds(lease),
            promote_to=0 if promote_to is None else int(promote_to),
            prefill_tokens_per_second=prefill_tokens_per_second,
        )
        end = self._end(timeout, self.options.lookup_deadline)
        lease_end = self.lease_times.now() + (lease or 0)
        try:
            reply = yield from self._lookup(prompt, request, end)
        except Error as error:
            return Found(failure=failure_of(error))
        if reply.lease_id:
            self.leases.open(reply.lease_id, reply.blocks)
            self.lease_times.open(reply.lease_id, lease_end)
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
        lease_end: float | None,
        timeout: float | None,
    ) -> Operation[FetchReport]:
        """By prompt, or by lease. ``model_id`` is None when it is not known (a bare lease id)."""
        blocks = blocks_of("buffers", buffers, writable=True)
        check_type("allow_gaps", allow_gaps, bool)
        _check_lease_end(lease_end)
        if prompt is None and lease_id == 0:
            return FetchReport([False] * len(blocks), 0, empty_lease())
        check_range("first_block", first_block, 0, _U32 - len(blocks))
        self._check_part(model_id, part, blocks)
        if not blocks:
            return FetchReport([], 0)
        end = self._end(timeout, self.options.transfer_deadline)
        task = _FetchTask(prompt, lease_id, first_block, blocks, part, allow_gaps, end)
        watch = LeaseWatch(self.lease_times, lease_id, lease_end)
        try:
            report = yield from self._fetch(task, watch)
        except Error as error:
            return FetchReport([False] * len(blocks), 0, failure_of(error))
        # The ledger is of what was verified.
        if lease_id and (not report.shared or self.options.verify_shared):
            self.leases.note(lease_id, first_block, report.ok)
        return report

    def fetch_views(
        self,
        lease_id: int,
        count: int,
        *,
        first_block: int,
        part: Part,
        allow_gaps: bool,
        lease_end: float | None,
        timeout: float | None,
    ) -> Operation[SharedViews]:
        check_range("blocks", count, 1, _U32 - 1)
        check_type("part", part, Part)
        check_type("allow_gaps", allow_gaps, bool)
        _check_lease_end(lease_end)
        check_range("first_block", first_block, 0, _U32 - count)
        end = self._end(timeout, self.options.transfer_deadline)
        watch = LeaseWatch(self.lease_times, lease_id, lease_end)
        parts: list[SharedPart | None] = [None] * count

        def keep(found: SharedPart) -> None:
            parts[found.index] = found

        try:
            if lease_id == 0:
                raise empty_lease()
            if not watch.known:
                raise FailedPrecondition(
                    "lease_end is not given, and this client does not know when the lease ends"
                )
            session = yield from self._session()
            if session is None:
                raise Unavailable("this client has no shared memory")
            reply = SharedReply(session, first_block, count, keep)
            request = fetch_shared_request(
                session, lease_id, first_block, first_block + count, part, allow_gaps
            )
            attempt = Attempt("FetchShared", 0, request, on_message=reply.add, stop=_nothing)
            yield from self._call(lambda: attempt, end)
        except Error as error:
            return SharedViews([None] * count, [False] * count, None, failure_of(error))
        self._count("shared_fetched_blocks", count - parts.count(None))
        return SharedViews(parts, [status == NOT_SHARED for status in reply.statuses()], watch)

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
        check_type("prompt", prompt, Prompt)
        check_type("durable", durable, bool)
        blocks = blocks_of("buffers", buffers, writable=False)
        check_range("first_block", first_block, 0, _U32 - len(blocks))
        if first_missing is not None:
            check_range("first_missing", first_missing, 0, _U32)
        self._check_part(prompt.model_id, part, blocks)
        if not blocks:
            return StoreReport([])
        end = self._end(timeout, self.options.transfer_deadline)
        try:
            if first_missing is None:
                first_missing = yield from self._first_missing(prompt, end)
            present = min(max(first_missing - first_block, 0), len(blocks))
            # Present is not durable: naming the last block makes all before it durable too.
            if durable and present == len(blocks):
                present -= 1
            outcomes = [StoredBlock(StoreVerdict.ALREADY_PRESENT)] * present
            task = _StoreTask(prompt, first_block, blocks, part, durable, end, outcomes)
            if task.left:
                yield from self._store_shared(task)
            if task.left:
                yield from self._store(task)
            return task.report()
        except Error as error:
            return StoreReport([StoredBlock()] * len(blocks), failure=failure_of(error))

    def release(self, lease_id: int, use: LeaseUse, timeout: float | None = None) -> Operation[Done]:
        _check_lease_id(lease_id)
        check_range("verified_blocks", use.verified_blocks, 0, _U32)
        check_range("shared_bytes", use.shared_bytes, 0, _U64)
        check_seconds("shared_seconds", use.shared_seconds, 0, _MOST_SHARED_SECONDS)
        self.lease_times.close(lease_id)
        request = wire.release_request(lease_id, use)
        return (yield from self._acknowledged("Release", request, timeout))

    def renew(self, lease_id: int, seconds: float, timeout: float | None = None) -> Operation[Done]:
        _check_lease_id(lease_id)
        check_seconds("lease", seconds, 0.001, _LONGEST_LEASE)
        request = wire.renew_request(lease_id, lease_milliseconds(seconds))
        times = self.lease_times.begin_renew(lease_id, seconds)
        done = Done(Unavailable("Renew: given up"))
        try:
            done = yield from self._acknowledged("Renew", request, timeout)
        finally:
            self.lease_times.end_renew(lease_id, times, bool(done))
        return done

    # ------------------------------------------------------------------------------------- their parts

    def _end(self, timeout: float | None, default: float) -> float:
        if timeout is not None:
            check_timeout("timeout", timeout)
        return time.monotonic() + (default if timeout is None else timeout)

    def _check_part(self, model_id: bytes | None, part: Part, blocks: Sequence[Block]) -> None:
        """As far as this client knows the model."""
        check_type("part", part, Part)
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
        self.shared_memory.offer(wire.decode_shared_memory_socket(reply))
        yield from self._session()
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

    def _fetch(self, task: _FetchTask, watch: LeaseWatch) -> Operation[FetchReport]:
        # A lease that is over may yet live for a moment by the daemon's clock: that is its to say.
        if task.lease_id and not watch.over:
            session = yield from self._session()
            if session is not None:
                report = yield from self._fetch_shared(task, watch, session)
                if report is not None:
                    return report
        ok = yield from self._fetch_over_grpc(task)
        return FetchReport(ok, _leading(ok))

    def _fetch_over_grpc(self, task: _FetchTask) -> Operation[list[bool]]:
        last = task.first_block + len(task.blocks)
        request = wire.fetch_request(
            task.prompt, task.lease_id, task.first_block, last, task.part, task.allow_gaps
        )
        assembler = FetchAssembler(task.first_block, task.blocks)
        attempt = Attempt("Fetch", 0, request, on_message=assembler.add)
        try:
            yield from self._with_model(
                task.prompt, task.end, lambda: self._call(lambda: attempt, task.end)
            )
            assembler.finish()
        finally:
            self._count("checksum_failures", assembler.checksum_failures)
        return assembler.ok

    def _fetch_shared(
        self, task: _FetchTask, watch: LeaseWatch, session: SharedSession
    ) -> Operation[FetchReport | None]:
        """None: over gRPC instead."""
        reader = SharedReader(task.blocks, watch, self.options.verify_shared)
        reply = SharedReply(session, task.first_block, len(task.blocks), reader.add)
        last = task.first_block + len(task.blocks)
        request = fetch_shared_request(
            session, task.lease_id, task.first_block, last, task.part, task.allow_gaps
        )

        def take(message: bytes) -> None:
            reply.add(message)
            reader.read_all()

        attempt = Attempt("FetchShared", 0, request, on_message=take, stop=reader.stop)
        try:
            yield from self._call(lambda: attempt, task.end)
        except Error as error:
            if grpc_may_do(error):
                return None
            if not watch.over:
                raise
        finally:
            self._count("checksum_failures", reader.checksum_failures)
        if watch.over:  # nobody knows which bytes were read too late
            self._count("ended_leases")
            raise lease_ended(task.lease_id)
        shared = sum(reader.ok)
        self._count("shared_fetched_blocks", shared)
        self.leases.note_shared(task.lease_id, reader.size, reader.seconds)
        yield from self._fetch_rest(task, reply.statuses(), reader.ok)
        return FetchReport(reader.ok, _leading(reader.ok), shared=shared, shared_seconds=reader.seconds)

    def _fetch_rest(self, task: _FetchTask, statuses: Sequence[int], ok: list[bool]) -> Operation[None]:
        """What could not be shared, run by run."""
        first = 0
        for status, run in groupby(statuses):
            last = first + len(list(run))
            if status == NOT_SHARED:
                ok[first:last] = yield from self._fetch_over_grpc(task.run(first, last))
            first = last

    def _store(self, task: _StoreTask) -> Operation[None]:
        """The rest of the task, over gRPC."""
        done = len(task.outcomes)
        first, missing = task.first_block + done, task.blocks[done:]
        header = wire.store_header(task.prompt, first, len(missing), task.part, task.durable)

        def make() -> Attempt:
            return Attempt("Store", 0, messages=StoreMessages(header, first, missing))

        raw = yield from self._with_model(task.prompt, task.end, lambda: self._call(make, task.end))
        task.take(raw, len(missing))

    def _store_shared(self, task: _StoreTask) -> Operation[None]:
        """The rest of the task, unless shared memory cannot do it."""
        session = yield from self._session()
        if session is None or not store_ring.usable(session.store_region):
            return
        try:
            while not session.take_store_region():
                if time.monotonic() >= task.end:
                    raise DeadlineExceeded("other calls did not let go of the store region")
                yield Pause(_STORE_REGION_PAUSE)
            try:
                yield from self._store_stream(task, session)
            finally:
                session.give_back_store_region()
        except Error as error:
            if not grpc_may_do(error):
                raise

    def _store_stream(self, task: _StoreTask, session: SharedSession) -> Operation[None]:
        """One call, and the store region is filled while the daemon takes from it. Nothing is accounted for
        unless it ends well."""
        done = len(task.outcomes)
        first, missing = task.first_block + done, task.blocks[done:]
        verify = self.options.verify_shared
        filler = SharedFiller(session.store_region, missing, verify, task.end)
        header = wire.store_header(
            task.prompt, first, len(missing), task.part, task.durable, wire.STORE_SHARED_HEADER
        )
        attempt = Attempt("StoreShared", 0, store_shared_request(session, header, verify))
        work = Work(filler.fill, filler.stop)
        if filler.short:
            yield work
        else:
            attempt.meanwhile = work
        ended = False
        try:
            raw = yield from self._call(_once(attempt), task.end)
            ended = True
        except Error as error:
            ended = not _may_still_run(error)
            raise
        finally:
            if not ended:
                # Its region would be written to under the daemon's hands: another session gets another.
                session.end()
        task.take(raw, len(missing))
        task.shared += len(missing)
        self._count("shared_stored_blocks", len(missing))

    def _session(self) -> Operation[SharedSession | None]:
        """The session, made if it is time to."""
        if self.shared_memory.may_connect:
            yield Work(self.shared_memory.connect, _nothing)
        return self.shared_memory.session

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
            error, outcome.error = outcome.error, None
            try:
                raise error
            finally:
                del error  # its traceback has this frame, so both would stay until a collection
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


def _check_lease_end(lease_end: float | None) -> None:
    """Whether it is a time: any is taken, as one that is over is the daemon's to say."""
    if lease_end is not None and (not isinstance(lease_end, (int, float)) or math.isnan(lease_end)):
        raise InvalidArgument(f"lease_end is {lease_end!r}, it must be a time in seconds, or None")


def _leading(ok: Sequence[bool]) -> int:
    return next((i for i, good in enumerate(ok) if not good), len(ok))


def _nothing() -> None:
    """Stops what ends soon anyway."""


def _may_still_run(error: Error) -> bool:
    """Nobody knows whether the daemon still reads the store region."""
    return error.code in (
        Code.DEADLINE_EXCEEDED,
        Code.UNAVAILABLE,
        Code.CANCELLED,
        Code.INTERNAL,
        Code.UNKNOWN,
        Code.ABORTED,
    )


def _once(attempt: Attempt) -> Callable[[], Attempt]:
    """For ``_call``: what the store region holds can be taken once. The next try is gRPC's."""
    left = [attempt]

    def make() -> Attempt:
        if not left:
            raise SessionLost
        return left.pop()

    return make


def _span(run: Any) -> TierSpan:
    return span_of(run.tier, run.blocks, run.load_seconds)


def _stored_block(outcome: Any) -> StoredBlock:
    if outcome.status in (StoreVerdict.STORED, StoreVerdict.ALREADY_PRESENT):
        return StoredBlock(StoreVerdict(outcome.status))
    return StoredBlock(StoreVerdict.REJECTED, refusal_of(outcome.reason))
