"""A gRPC proxy with faults, between a client and kvtierd. Needs grpcio and nothing else.

    with Daemon(folder) as daemon, GrpcProxy(daemon.address) as proxy:
        client = kvtier.Client(proxy.address)
        proxy.inject(Fault(delay=1.0))                       # every call takes 1 s longer
        proxy.inject(Fault("Fetch", flip=0, every=3))        # one Fetch in three: a byte of message 0
        proxy.inject(Fault("Lookup", refuse=grpc.StatusCode.UNAVAILABLE, times=2))
        proxy.inject(Fault("Fetch", cut=1))                  # the stream breaks after one message
        proxy.inject(Fault("Store", drop=True))              # no answer until the caller gives up
        proxy.clear()                                        # clean again; calls in flight keep theirs
        gate = proxy.inject(Fault("Fetch", gate=Gate()))     # stands still; nothing is timed:
        gate.gate.wait_arrived(1)                            #   ... until a call has come to it
        gate.gate.open()                                     #   ... and let it and all later ones on
        proxy.calls("Fetch")                                 # calls that came, since the start
        proxy.retarget(other.address)                        # another daemon, say after a restart

From another process (prints `ready listen=ADDRESS`, ends when its input does):

    python3 tests/support/grpc_proxy.py unix:/tmp/kvtier/kvtier.sock --delay 1.0
    python3 tests/support/grpc_proxy.py unix:/tmp/kvtier/kvtier.sock --method Fetch --cut 1 --every 2

It passes messages on as bytes, of every method and service, with metadata both ways, deadlines, status
and cancellation, but for the socket that RegisterModel tells of (unless it is told to): payload in shared
memory would pass by the proxy and its faults. A message is a response of the daemon, except in Store, where it is a request: there
`flip` and `cut` strike the stream of the one who stores. A daemon that is not there is UNAVAILABLE.
"""
from __future__ import annotations

import argparse
import collections
import concurrent.futures
import dataclasses
import sys
import tempfile
import threading
from typing import Iterable, Iterator

import grpc

MAX_CALLS = 64  # at a time; each has a thread
STOP_SECONDS = 10
PATIENCE_SECONDS = 30
# RegisterModelResponse.shared_memory_socket, empty; of a field given twice the last one counts.
_NO_SHARED_MEMORY = b"\x3a\x00"
# An attempt to connect has 5 s, on a loaded machine too; after one that was refused the next comes soon.
_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1),
            ("grpc.use_local_subchannel_pool", 1), ("grpc.min_reconnect_backoff_ms", 5000),
            ("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 200)]


class Gate:
    """Calls wait at it until it is opened, its caller gives up, or the proxy is closed."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._open = False
        self._arrived = 0

    @property
    def arrived(self) -> int:
        """Calls that have come to it so far."""
        with self._changed:
            return self._arrived

    def wait_arrived(self, calls: int = 1, seconds: float = PATIENCE_SECONDS) -> None:
        """Returns when so many calls have come. Raises: AssertionError after `seconds`."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._arrived >= calls, seconds):
                raise AssertionError(f"{self._arrived} of {calls} calls came to the gate in {seconds} s")

    def open(self) -> None:
        with self._changed:
            self._open = True
            self._changed.notify_all()

    def poke(self) -> None:
        """Whoever waits looks again whether its caller is still there."""
        with self._changed:
            self._changed.notify_all()

    def pass_through(self, gone: threading.Event) -> None:
        with self._changed:
            self._arrived += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._open or gone.is_set())


@dataclasses.dataclass(frozen=True)
class Fault:
    """What happens to a call. Every field that is set happens, in this order."""

    method: str = "*"                       # "Lookup", "Fetch", ...; "*" is every method
    delay: float = 0.0                      # seconds before the call is passed on
    gate: Gate | None = None                # before the call is passed on
    drop: bool = False                      # never answered: the caller's deadline ends it
    refuse: grpc.StatusCode | None = None   # at once, the daemon does not see it
    retry_delay_ms: int | None = None       # sent with `refuse`, as the daemon does
    flip: int | None = None                 # the last byte of the n-th message, from 0: payload
    cut: int | None = None                  # UNAVAILABLE after so many messages
    stall: Gate | None = None               # before message 1: in the middle of a stream
    every: int = 1                          # one call in so many, the first one first
    times: int | None = None                # so many calls at most


@dataclasses.dataclass
class _Injected:
    fault: Fault
    seen: int = 0
    used: int = 0

    def strikes(self, method: str) -> bool:
        fault = self.fault
        if fault.method not in ("*", method) or (fault.times is not None and self.used >= fault.times):
            return False
        self.seen += 1
        if (self.seen - 1) % fault.every:
            return False
        self.used += 1
        return True


class _Cut(Exception):
    """A planted end of the stream."""


class GrpcProxy(grpc.GenericRpcHandler):
    """Listens on a Unix socket of its own. A context manager; thread-safe.

    shared_memory: clients hear of it, and their payload passes by.
    """

    def __init__(self, target: str, shared_memory: bool = False) -> None:
        self._shared_memory = shared_memory
        self._folder = tempfile.TemporaryDirectory(prefix="kvtier_proxy_")
        self.address = f"unix:{self._folder.name}/proxy.sock"
        self._lock = threading.Lock()
        self._came = threading.Condition(self._lock)
        self._calls: collections.Counter[str] = collections.Counter()
        self._injected: list[_Injected] = []
        self._in_flight: set[threading.Event] = set()
        self._gates: set[Gate] = set()
        self._closed = False
        self._upstream = grpc.insecure_channel(target, options=_OPTIONS)
        self._pool = concurrent.futures.ThreadPoolExecutor(MAX_CALLS, thread_name_prefix="proxy")
        self._server = grpc.server(self._pool, handlers=[self], options=_OPTIONS)
        self._server.add_insecure_port(self.address)
        self._server.start()

    def __enter__(self) -> GrpcProxy:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends every call in flight, those at a gate too. Idempotent."""
        stopped = self._server.stop(0)
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for gone in self._in_flight:
                gone.set()
            gates = set(self._gates)
        for gate in gates:
            gate.poke()
        stopped.wait(STOP_SECONDS)
        self._pool.shutdown()
        self._upstream.close()
        self._folder.cleanup()

    def inject(self, fault: Fault) -> Fault:
        """From now on. Of several faults that fit a call, the one injected last happens."""
        with self._lock:
            self._injected.append(_Injected(fault))
            self._gates.update(gate for gate in (fault.gate, fault.stall) if gate)
        return fault

    def clear(self) -> None:
        with self._lock:
            self._injected.clear()

    def struck(self) -> int:
        """Calls that the faults in force have happened to."""
        with self._lock:
            return sum(one.used for one in self._injected)

    def calls(self, method: str) -> int:
        with self._lock:
            return self._calls[method]

    def wait_calls(self, method: str, calls: int, seconds: float = PATIENCE_SECONDS) -> None:
        """Returns when so many calls of a method have come. Raises: AssertionError after `seconds`."""
        with self._came:
            if not self._came.wait_for(lambda: self._calls[method] >= calls, seconds):
                raise AssertionError(f"{self._calls[method]} of {calls} calls of {method} in {seconds} s")

    def retarget(self, target: str) -> None:
        """Calls from now on go to another daemon; those in flight end with UNAVAILABLE or CANCELLED."""
        with self._lock:
            old, self._upstream = self._upstream, grpc.insecure_channel(target, options=_OPTIONS)
        old.close()

    # -- grpc.GenericRpcHandler ---------------------------------------------------------------------

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        """Everything as a stream both ways: on the wire a single message is a stream of one."""
        def serve(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            yield from self._serve(details, requests, context)
        return grpc.stream_stream_rpc_method_handler(serve)

    def _serve(self, details: grpc.HandlerCallDetails, requests: Iterator[bytes],
               context: grpc.ServicerContext) -> Iterator[bytes]:
        method = details.method.rpartition("/")[2]
        gone = threading.Event()
        fault = self._admit(method, gone)
        context.add_callback(lambda: self._end(fault, gone))
        self._before(fault, gone, context)
        if gone.is_set():
            return
        storing = method == "Store"
        cut = threading.Event()
        if storing:
            requests = _spoil(fault, gone, requests)
        call = self._pass_on(details, _guard(requests, gone, cut), context)
        if not context.add_callback(call.cancel):
            call.cancel()
        try:
            context.send_initial_metadata(call.initial_metadata())
            hidden = method == "RegisterModel" and not self._shared_memory
            replies = _without_shared_memory(call) if hidden else call
            yield from replies if storing else _spoil(fault, gone, replies)
        except _Cut:
            call.cancel()
            context.abort(grpc.StatusCode.UNAVAILABLE, "proxy: the stream was cut")
        except grpc.RpcError as error:
            context.set_trailing_metadata(error.trailing_metadata() or ())
            if cut.is_set():
                context.abort(grpc.StatusCode.UNAVAILABLE, "proxy: the stream was cut")
            context.abort(error.code(), error.details() or "")

    def _admit(self, method: str, gone: threading.Event) -> Fault:
        with self._came:
            self._calls[method] += 1
            self._in_flight.add(gone)
            self._came.notify_all()
            struck = (one.fault for one in reversed(self._injected) if one.strikes(method))
            return next(struck, Fault())

    def _end(self, fault: Fault, gone: threading.Event) -> None:
        with self._lock:
            self._in_flight.discard(gone)
        gone.set()
        for gate in (fault.gate, fault.stall):
            if gate:
                gate.poke()

    @staticmethod
    def _before(fault: Fault, gone: threading.Event, context: grpc.ServicerContext) -> None:
        if fault.delay:
            gone.wait(fault.delay)
        if fault.gate:
            fault.gate.pass_through(gone)
        if fault.drop:
            gone.wait()
        if fault.refuse and not gone.is_set():
            if fault.retry_delay_ms is not None:
                context.set_trailing_metadata((("retry-delay-ms", str(fault.retry_delay_ms)),))
            context.abort(fault.refuse, "proxy: refused")

    def _pass_on(self, details: grpc.HandlerCallDetails, requests: Iterator[bytes],
                 context: grpc.ServicerContext) -> grpc.Call:
        metadata = [(key, value) for key, value in details.invocation_metadata or ()
                    if key.startswith("kvtier-")]
        remaining = context.time_remaining()
        timeout = remaining if remaining is not None and remaining < 1e6 else None
        with self._lock:
            upstream = self._upstream
        return upstream.stream_stream(details.method)(requests, timeout=timeout, metadata=metadata)


def _without_shared_memory(replies: Iterable[bytes]) -> Iterator[bytes]:
    for reply in replies:
        yield reply + _NO_SHARED_MEMORY


def _spoil(fault: Fault, gone: threading.Event, messages: Iterable[bytes]) -> Iterator[bytes]:
    for number, message in enumerate(messages):
        if fault.cut == number:
            raise _Cut
        if fault.stall and number == 1:
            fault.stall.pass_through(gone)
        if fault.flip == number:
            message = message[:-1] + bytes([message[-1] ^ 1])
        yield message
    if fault.cut is not None:
        raise _Cut


def _guard(requests: Iterator[bytes], gone: threading.Event, cut: threading.Event) -> Iterator[bytes]:
    """What gRPC's sending thread reads. A caller that goes away or is cut ends the call with an error,
    not with the clean end of its stream."""
    try:
        for request in requests:
            yield request
            if gone.is_set():
                raise grpc.RpcError("proxy: the caller is gone")
    except _Cut:
        cut.set()
        raise


def main() -> None:
    parser = argparse.ArgumentParser(description="A gRPC proxy with faults; ends with its input.")
    parser.add_argument("target", help="unix:PATH or HOST:PORT of kvtierd")
    parser.add_argument("--method", default="*")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds")
    parser.add_argument("--refuse", action="store_true", help="UNAVAILABLE")
    parser.add_argument("--drop", action="store_true")
    parser.add_argument("--flip", type=int, help="message, from 0")
    parser.add_argument("--cut", type=int, help="after so many messages")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--times", type=int)
    chosen = parser.parse_args()
    with GrpcProxy(chosen.target) as proxy:
        proxy.inject(Fault(chosen.method, delay=chosen.delay, drop=chosen.drop, flip=chosen.flip,
                           refuse=grpc.StatusCode.UNAVAILABLE if chosen.refuse else None,
                           cut=chosen.cut, every=chosen.every, times=chosen.times))
        print(f"ready listen={proxy.address}", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
