"""The blocking client.

with kvtier.Client("unix:/tmp/kvtier/kvtier.sock") as client:
    model = client.register_model(spec)
    prompt = kvtier.Prompt(model.id, tokens)
    hit = 0
    with client.lookup(prompt, lease=10.0) as found:
        if found.blocks:
            hit = client.fetch_into(found.lease, buffers[:found.blocks]).leading
    ... compute the blocks from `hit` on ...
    client.store_from(prompt, buffers, first_missing=hit)
"""

from __future__ import annotations

import logging
import os
import threading
import time
import warnings
import weakref
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Sequence, TypeVar

import grpc

from kvtier.errors import Code, DeadlineExceeded, Error, InvalidArgument, Unavailable, check_range, error_of
from kvtier.leases import empty_lease
from kvtier.leases import LeaseUse
from kvtier.model import ModelSpec, RegisteredModel, Tier
from kvtier.prompt import Part, Prompt
from kvtier.protocol import Attempt, ClientOptions, Operation, Outcome, Pause, Protocol, Work, path_of
from kvtier.results import Done, FetchReport, Found, StoreReport
from kvtier.shared_transfer import SharedViews
from kvtier.transfer import Counters

_log = logging.getLogger("kvtier")

# gRPC ends a call at its deadline, except when a write to a peer that stands still is stuck. Then this
# package gives the call up, so much later.
GRACE_SECONDS = 0.25
_CLOSE_SECONDS = 2.0

T = TypeVar("T")


class LeaseHandle:
    """What the leases of both clients have in common."""

    __slots__ = ("_protocol", "_model_id", "id", "blocks")

    def __init__(
        self, protocol: Protocol | None = None, model_id: bytes = b"", lease_id: int = 0, blocks: int = 0
    ) -> None:
        self._protocol = protocol
        self._model_id = model_id
        self.id = lease_id
        self.blocks = blocks

    def __bool__(self) -> bool:
        return self.id != 0

    def __del__(self) -> None:
        # Not released here: that would be a call from wherever the collector happens to run.
        if getattr(self, "id", 0):
            warnings.warn(
                f"lease {self.id:x} was dropped unreleased, it stays until its time is up",
                ResourceWarning,
                stacklevel=2,
            )

    @property
    def end(self) -> float | None:
        """When it is over at the earliest, in seconds of ``time.monotonic``, which the processes of one host
        share. None: it is empty."""
        return self._protocol.lease_times.end(self.id) if self._protocol is not None else None

    def detach(self) -> int:
        """Gives up ownership without ending it, and returns the id: another process or rank fetches by it.
        Take ``end`` before, for a process that shall use shared memory."""
        return self._take()[0]

    def _take(self) -> tuple[int, LeaseUse]:
        """The id and what it was used for; empty afterwards."""
        lease_id, protocol = self.id, self._protocol
        self._protocol, self.id, self.blocks = None, 0, 0
        return lease_id, protocol.leases.close(lease_id) if protocol is not None else LeaseUse()


class Lease(LeaseHandle):
    """A time-limited pin on the blocks that one lookup found; falsy when there is none. Blocks [0, blocks) of
    the prompt are pinned. Ends when a ``with`` block ends, by ``release``, when its client is closed, or when
    its time is up.

    The release tells the daemon how many of its blocks were fetched by it and verified here, for the
    operator's hit funnel; once detached the caller has to tell.
    """

    __slots__ = ("_client",)

    def __init__(
        self, client: Client | None = None, model_id: bytes = b"", lease_id: int = 0, blocks: int = 0
    ) -> None:
        super().__init__(client._protocol if client is not None else None, model_id, lease_id, blocks)
        self._client = client

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *unused: object) -> None:
        if self:
            self.release()

    def renew(self, seconds: float) -> Done:
        """Sets the remaining time, counted from now: 0.001 to 600 s."""
        if self._client is None or not self:
            return Done(empty_lease())
        return self._client.renew(self.id, seconds)

    def release(self) -> Done:
        """Ends it now; afterwards the lease is empty, whatever the result."""
        if self._client is None or not self:
            return Done(empty_lease())
        client = self._client
        return client._run(client._protocol.release(*self._take()))


@dataclass(frozen=True, slots=True)
class PrefixMatch(Found):
    """What ``lookup`` found; a context manager that releases the lease."""

    lease: Lease = field(default_factory=Lease)

    def __enter__(self) -> PrefixMatch:
        return self

    def __exit__(self, *unused: object) -> None:
        self.lease.__exit__()


class Client:
    """Connections to one kvtierd (one for streams, one for the rest), made by the first call that needs them
    and made again when they are lost.

    address  "unix:/path" or "host:port"

    Thread-safe: any number of threads may call at the same time. Calls block until their deadline at most,
    and a quarter of a second more when the daemon stands still. A dead or slow daemon costs a bounded time,
    then nothing: after a few failures in a row a circuit breaker makes calls misses at once, except for a
    probe now and then.

    Not across fork(): a client that was used before must not be used in the child (InvalidArgument); make a
    new one there. (gRPC itself asks for more: see its notes on fork.)
    """

    def __init__(self, address: str, options: ClientOptions = ClientOptions()) -> None:
        self._protocol = Protocol(address, options)
        self._lock = threading.Lock()  # guards what is below
        self._channels: list[grpc.Channel] = []
        self._methods: dict[str, Any] = {}  # by name: what calls it
        self._process = 0  # that made the channel
        self._closed = False
        self._dropped = 0  # how often the channels were
        self._watch = self._new_watch()
        # Ends its thread when nobody closes the client; at the interpreter's exit that happens anyway.
        weakref.finalize(self, self._protocol.shared_memory.close, wait=False).atexit = False
        self._lane = _QuickLane(address)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._closed

    # ------------------------------------------------------------------------------------------- calls

    def register_model(self, spec: ModelSpec, *, timeout: float | None = None) -> RegisteredModel:
        """Declares a model: once, before anything else. Idempotent; survives a restart of the daemon, and is
        repeated by this client if it does not. Raises every Error, and Internal when the daemon computes
        another id or other part sizes from this spec than this package."""
        return self._run(self._protocol.register_model(spec, timeout))

    def lookup(
        self,
        prompt: Prompt,
        *,
        lease: float | None = None,
        promote_to: Tier | None = None,
        prefill_tokens_per_second: float = 0.0,
        timeout: float | None = None,
    ) -> PrefixMatch:
        """The longest cached prefix, in one round trip for any prompt length.

        lease       seconds (0.001 to 600) for which a fetch of these blocks does not miss; without one the
                    answer is a hint
        promote_to  start moving what is found up to this tier; does not wait
        prefill_tokens_per_second
                    how fast this engine computes, so that the operator sees the time saved; 0 = unknown
        """
        found = self._run(
            self._protocol.lookup(
                prompt,
                lease=lease,
                promote_to=promote_to,
                timeout=timeout,
                prefill_tokens_per_second=prefill_tokens_per_second,
            )
        )
        held = Lease(self, prompt.model_id, found.lease_id, found.blocks) if found.lease_id else Lease()
        return PrefixMatch(
            found.blocks, found.tokens, found.runs, found.group_blocks, found.lease_id, found.failure, held
        )

    def fetch_into(
        self,
        what: Prompt | Lease | int,
        buffers: Sequence[Any],
        *,
        first_block: int = 0,
        part: Part = Part(),
        allow_gaps: bool = False,
        lease_end: float | None = None,
        timeout: float | None = None,
    ) -> FetchReport:
        """Fetches one part of blocks [first_block, first_block + len(buffers)) into the caller's memory.

        what        the prompt, a lease on it, or the id of a lease
        buffers     buffers[i] takes block first_block + i: a writable contiguous object of the buffer
                    protocol, or a sequence of such objects that are filled end to end. Exactly the part's
                    bytes. Not the same memory for two blocks: of those the last one stays.
        allow_gaps  go on after a miss; otherwise all blocks after the first miss are misses
        lease_end   with the id of a lease that another client took: when it ends, as its Lease.end said.
                    Without it this client does not know how long shared memory may be read, and fetches over
                    gRPC

        Payload is copied once: by a lease out of the daemon's own memory, where it is shared with this host;
        otherwise from the message as gRPC hands it over. Nothing is ok that was not verified. A lease that
        ends while shared memory is read makes every block a miss, with NotFound as the failure.
        """
        prompt, lease_id, model_id = target_of(what)
        return self._run(
            self._protocol.fetch(
                prompt,
                lease_id,
                model_id,
                buffers,
                first_block=first_block,
                part=part,
                allow_gaps=allow_gaps,
                lease_end=lease_end,
                timeout=timeout,
            )
        )

    def fetch_views(
        self,
        what: Lease | int,
        blocks: int,
        *,
        first_block: int = 0,
        part: Part = Part(),
        allow_gaps: bool = False,
        lease_end: float | None = None,
        timeout: float | None = None,
    ) -> SharedViews:
        """One part of blocks [first_block, first_block + blocks) of a lease without a copy, in memory that is
        shared with the daemon; otherwise as ``fetch_into``. Failures of its own: Unavailable when there is no
        shared memory, FailedPrecondition when it is not known when the lease ends.

        with client.fetch_views(found.lease, found.blocks) as views:
            use(views.blocks[0])
            if views.expired():
                ... what was read is void
        """
        return self._run(
            self._protocol.fetch_views(
                lease_id_of(what),
                blocks,
                first_block=first_block,
                part=part,
                allow_gaps=allow_gaps,
                lease_end=lease_end,
                timeout=timeout,
            )
        )

    def store_from(
        self,
        prompt: Prompt,
        buffers: Sequence[Any],
        *,
        first_block: int = 0,
        part: Part = Part(),
        durable: bool = False,
        first_missing: int | None = None,
        timeout: float | None = None,
    ) -> StoreReport:
        """Stores one part of blocks [first_block, first_block + len(buffers)).

        buffers        as in ``fetch_into``, but they may be read-only. They are read until the call returns,
                       and must not change meanwhile: a block that does may be stored as no moment saw it.
        durable        on SSD and synced when this returns; needs the SSD tier. Otherwise in RAM.
        first_missing  the first block that the daemon lacks, when the caller knows it from its own lookup;
                       blocks before it are not sent. None: ask first.

        The prompt must reach through the last block stored. A block is found once all its parts are stored.
        """
        return self._run(
            self._protocol.store(
                prompt,
                buffers,
                first_block=first_block,
                part=part,
                durable=durable,
                first_missing=first_missing,
                timeout=timeout,
            )
        )

    def release(
        self,
        lease_id: int,
        verified_blocks: int = 0,
        *,
        shared_bytes: int = 0,
        shared_seconds: float = 0.0,
    ) -> Done:
        """Ends a lease that was detached, and tells the daemon what only its user knows.

        verified_blocks  how many of its blocks were fetched ok and used
        shared_bytes, shared_seconds
                         what was copied out of shared memory, and for how long: FetchReport.shared times the
                         part's bytes, FetchReport.shared_seconds
        """
        use = LeaseUse(verified_blocks, shared_bytes, shared_seconds)
        return self._run(self._protocol.release(lease_id, use))

    def renew(self, lease_id: int, seconds: float) -> Done:
        """Sets a lease's remaining time, counted from now: 0.001 to 600 s."""
        return self._run(self._protocol.renew(lease_id, seconds))

    def counters(self) -> Counters:
        return self._protocol.counters()

    def close(self) -> None:
        """Releases the leases that are still held, and ends calls that are under way, which become misses;
        later ones raise InvalidArgument. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            channels, mine = self._channels, self._process == os.getpid()
        if not channels or not mine:
            return
        for lease_id in self._protocol.leases.open_ids():
            release = self._protocol.release(lease_id, self._protocol.leases.close(lease_id))
            if not self._run(release, closing=True):
                break  # the daemon ends them when their time is up
        self._watch.close()
        self._protocol.shared_memory.close()
        for channel in channels:
            close_channel(channel, self._protocol.address)

    # --------------------------------------------------------------------------------------------- I/O

    def _run(self, operation: Operation[T], closing: bool = False) -> T:
        outcome: Outcome | None = None
        try:
            if self._closed and not closing:
                raise InvalidArgument("the client is closed")
            while True:
                step = operation.send(outcome)
                if isinstance(step, Pause):
                    threading.Event().wait(step.seconds)
                    outcome = None
                elif isinstance(step, Work):
                    step.run()
                    outcome = None
                else:
                    outcome = self._perform(step)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        finally:
            operation.close()

    def _perform(self, attempt: Attempt) -> Outcome:
        dropped = self._dropped
        try:
            return self._make(attempt)
        except Error:
            raise
        except BaseException as error:
            closed = self._closed or self._dropped != dropped
            if closed and isinstance(error, ValueError):  # gRPC's word for a channel that was just closed
                return Outcome(error=Unavailable(f"{attempt.rpc}: the connection was closed: {error}"))
            self._drop_channels()
            raise

    def _drop_channels(self) -> None:
        """After an exception that a signal's handler has raised within gRPC (KeyboardInterrupt): gRPC may have
        been left with a lock held, by which every later call on these channels would hang."""
        with self._lock:
            channels, watch = self._channels, self._watch
            self._channels, self._methods = [], {}
            self._lane = _QuickLane(self._protocol.address)
            self._watch = self._new_watch()
            self._dropped += 1
        watch.close()
        for channel in channels:  # the calls of other threads are made again, or are misses
            threading.Thread(target=channel.close, name="kvtier-close", daemon=True).start()

    def _new_watch(self) -> _CallWatch:
        watch = _CallWatch()
        # Ends its thread when nobody closes the client; at the interpreter's exit that happens anyway.
        weakref.finalize(self, watch.close).atexit = False
        return watch

    def _make(self, attempt: Attempt) -> Outcome:
        method = self._method(attempt.rpc)
        if attempt.on_message is not None:
            return self._read_all(method(attempt.request, timeout=attempt.limit), attempt)
        if attempt.meanwhile is not None:
            return self._ask_meanwhile(method, attempt, attempt.meanwhile)
        if attempt.messages is None:
            return self._ask(method, attempt)
        try:
            return _await(method.future(attempt.messages, timeout=attempt.limit), attempt)
        finally:
            attempt.messages.stop()

    def _ask(self, method: Any, attempt: Attempt) -> Outcome:
        """A call of one message each way: on this thread, if gRPC is sure to end it in time; that takes half
        as long."""
        size = len(attempt.request)
        if not self._lane.enter(size):
            outcome = _await(method.future(attempt.request, timeout=attempt.limit), attempt)
            self._lane.note(outcome)
            return outcome
        outcome = Outcome(error=Unavailable(f"{attempt.rpc}: given up"))
        try:
            outcome = Outcome(method(attempt.request, timeout=attempt.limit), received=True)
        except grpc.RpcError as call:
            outcome = Outcome(error=error_of_call(call, attempt))
        finally:
            self._lane.leave(size, outcome)
        return outcome

    def _ask_meanwhile(self, method: Any, attempt: Attempt, work: Work) -> Outcome:
        began = time.monotonic()
        call = method.future(attempt.request, timeout=attempt.limit)
        try:
            call.add_done_callback(lambda _: work.stop())
            work.run()
            outcome = _await(call, attempt, time.monotonic() - began)
        finally:
            call.cancel()  # of no effect once it has ended
        self._lane.note(outcome)
        return outcome

    def _read_all(self, call: Any, attempt: Attempt) -> Outcome:
        assert attempt.on_message is not None
        received = False
        watch = self._watch
        watched = watch.add(call, attempt.limit + GRACE_SECONDS)
        try:
            for message in call:
                received = True
                attempt.on_message(message)
            return Outcome(received=received)
        except grpc.RpcError as raised:
            _forget_frames(raised)
            error = stuck(attempt) if watch.gave_up(watched) else error_of_call(call, attempt)
            return Outcome(error=error, received=received)
        except Error as error:
            return Outcome(error=error, received=received)
        finally:
            watch.remove(watched)
            call.cancel()

    def _method(self, rpc: str) -> Any:
        with self._lock:
            if not self._channels:
                self._open_locked()
            elif self._process != os.getpid():
                raise InvalidArgument(
                    f"this client was used in process {self._process} and this is its child "
                    f"{os.getpid()}: make a new one after fork()"
                )
            return self._methods[rpc]

    def _open_locked(self) -> None:
        if self._closed:
            raise InvalidArgument("the client is closed")
        address, options = self._protocol.address, self._protocol.options.channel_options()
        # Two connections, so that a stream whose peer stands still does not stick to the calls of one
        # message.
        calls, streams = (grpc.insecure_channel(address, options=options) for _ in range(2))
        for rpc in ("RegisterModel", "Lookup", "Release", "Renew", "StoreShared"):
            self._methods[rpc] = calls.unary_unary(path_of(rpc))
        for rpc in ("Fetch", "FetchShared"):
            self._methods[rpc] = streams.unary_stream(path_of(rpc))
        self._methods["Store"] = streams.stream_unary(path_of("Store"))
        self._channels = [calls, streams]
        self._process = os.getpid()


class _QuickLane:
    """Lets a call block in gRPC while no write on its connection can be stuck: when the last call that ended
    was answered and what is under way fits into the socket's buffer, even if nobody reads. Otherwise gRPC may
    overlook the deadline."""

    _UNIX_BYTES = 96 << 10  # Linux gives 208 KiB
    _TCP_BYTES = 8 << 10  # 16 KiB, while the other host is silent
    _HEADERS = 512

    def __init__(self, address: str) -> None:
        self._limit = self._UNIX_BYTES if address.startswith("unix:") else self._TCP_BYTES
        self._lock = threading.Lock()  # guards what is below
        self._under_way = 0  # bytes
        self._answered = True

    def enter(self, size: int) -> bool:
        with self._lock:
            if not self._answered or self._under_way + size + self._HEADERS > self._limit:
                return False
            self._under_way += size + self._HEADERS
            return True

    def leave(self, size: int, outcome: Outcome) -> None:
        with self._lock:
            self._under_way -= size + self._HEADERS
        self.note(outcome)

    def note(self, outcome: Outcome) -> None:
        with self._lock:
            self._answered = not isinstance(outcome.error, (DeadlineExceeded, Unavailable))


def _await(call: Any, attempt: Attempt, age: float = 0.0) -> Outcome:
    """The end of a call that is under way for ``age`` seconds, or the end of patience with it."""
    try:
        left = max(attempt.limit + GRACE_SECONDS - age, 0)
        return Outcome(call.result(timeout=left), received=True)
    except grpc.FutureTimeoutError:
        return Outcome(error=stuck(attempt))
    except (grpc.RpcError, grpc.FutureCancelledError) as raised:
        _forget_frames(raised)
        return Outcome(error=error_of_call(call, attempt))
    finally:
        call.cancel()  # of no effect once it has ended


def _forget_frames(raised: BaseException) -> None:
    """gRPC raises the call itself, and its traceback's frames hold the call, and with it the caller's
    buffers, until the garbage collector comes."""
    raised.__traceback__ = None


class _CallWatch:
    """Cancels streams that have not ended when they should have: gRPC's iterator has no timeout of its
    own. Once it is closed it ends with the last of them."""

    def __init__(self) -> None:
        # Guards what is below. Not entered by the condition: that is Python, and a signal's handler that
        # raises within it leaves the lock held.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._calls: dict[int, tuple[float, Any]] = {}  # by number: when it is overdue, the call
        self._given_up: set[int] = set()
        self._numbers = 0
        self._thread: threading.Thread | None = None
        self._closed = False
        self._wakes_at = 0.0

    def add(self, call: Any, seconds: float) -> int:
        with self._lock:
            self._numbers += 1
            end = time.monotonic() + seconds
            self._calls[self._numbers] = (end, call)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="kvtier-watch", daemon=True)
                self._thread.start()
            elif end < self._wakes_at:
                self._changed.notify()
            return self._numbers

    def remove(self, number: int) -> None:
        with self._lock:
            self._calls.pop(number, None)
            self._given_up.discard(number)
            if self._closed:
                self._changed.notify()

    def gave_up(self, number: int) -> bool:
        with self._lock:
            return number in self._given_up

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._changed.notify()

    def _work(self) -> None:
        overdue: list[Any] = []
        while True:
            for call in overdue:  # without the lock: gRPC may take its time
                call.cancel()
            with self._lock:
                overdue = self._take_overdue()
                if overdue:
                    continue
                if self._closed and not self._calls:
                    return
                now = time.monotonic()
                self._wakes_at = min((end for end, _ in self._calls.values()), default=now + 60)
                self._changed.wait(self._wakes_at - now)

    def _take_overdue(self) -> list[Any]:
        now = time.monotonic()
        numbers = [number for number, (end, _) in self._calls.items() if end <= now]
        self._given_up.update(numbers)
        return [self._calls.pop(number)[1] for number in numbers]


def target_of(what: Prompt | LeaseHandle | int) -> tuple[Prompt | None, int, bytes | None]:
    """Prompt, lease id (0: none) and the model, if known."""
    if isinstance(what, Prompt):
        return what, 0, what.model_id
    if isinstance(what, LeaseHandle):
        return None, what.id, what._model_id or None
    return None, _id_of(what, "a Prompt, a Lease or a lease's id"), None


def lease_id_of(what: LeaseHandle | int) -> int:
    """0: none."""
    return what.id if isinstance(what, LeaseHandle) else _id_of(what, "a Lease or a lease's id")


def _id_of(what: Any, wanted: str) -> int:
    if not isinstance(what, int):
        raise InvalidArgument(f"what is a {type(what).__name__}, it must be {wanted}")
    check_range("lease_id", what, 1, (1 << 64) - 1)
    return what


def close_channel(channel: grpc.Channel, address: str) -> None:
    # gRPC waits for calls to end, which they do not while a write is stuck.
    closer = threading.Thread(target=channel.close, name="kvtier-close", daemon=True)
    closer.start()
    closer.join(_CLOSE_SECONDS)
    if closer.is_alive():
        _log.warning(
            "%s: the connection did not close within %.0f s, left to itself", address, _CLOSE_SECONDS
        )


def stuck(attempt: Attempt) -> Error:
    return DeadlineExceeded(
        f"{attempt.rpc}: no end of the call {GRACE_SECONDS} s after its deadline of "
        f"{attempt.limit:.3f} s: the daemon stands still"
    )


def error_of_call(call: Any, attempt: Attempt) -> Error:
    """Of a call that has ended with an error."""
    return error_of_status(
        attempt, call.code(), call.details(), call.initial_metadata(), call.trailing_metadata()
    )


def error_of_status(
    attempt: Attempt, code: grpc.StatusCode, details: str | None, initial: Any, trailing: Any
) -> Error:
    number = code.value[0]
    details = details or ""
    request_id = _metadata(initial, "kvtier-request-id")
    if number == Code.DEADLINE_EXCEEDED and not request_id:  # gRPC's own word, in many wordings
        details = f"no answer within {round(attempt.limit, 3):g} s"
    if number == Code.UNAVAILABLE and "http" in details.lower():
        details += " (is this an address that kvtierd listens on?)"
    if number == Code.UNIMPLEMENTED:
        details = "nobody serves kvtier's data API at this address"
    if number == Code.CANCELLED:  # and not by its caller, who is not told any more
        number, details = Code.UNAVAILABLE, f"ended by the other side or by close(): {details}"
    if request_id and request_id not in details:
        details += f" (request {request_id})"
    delay = _metadata(trailing, "retry-delay-ms")
    return error_of(
        number,
        f"{attempt.rpc}: {details}",
        int(delay) / 1000 if delay.isascii() and delay.isdigit() else None,
    )


def _metadata(metadata: Any, name: str) -> str:
    for key, value in metadata or ():
        if key == name:
            return value if isinstance(value, str) else value.decode("ascii", "replace")
    return ""
