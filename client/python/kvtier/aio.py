"""The asyncio client: the same calls as coroutines, with the same results and errors as kvtier.client.

async with kvtier.AsyncClient("unix:/tmp/kvtier/kvtier.sock") as client:
    model = await client.register_model(spec)
    async with await client.lookup(kvtier.Prompt(model.id, tokens), lease=10.0) as found:
        if found.blocks:
            report = await client.fetch_into(found.lease, buffers[:found.blocks])
"""

from __future__ import annotations

import asyncio
import os
import weakref
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Callable, Sequence, TypeVar

import grpc
import grpc.aio

from kvtier.client import (
    GRACE_SECONDS,
    LeaseHandle,
    close_channel,
    error_of_call,
    error_of_status,
    lease_id_of,
    stuck,
    target_of,
)
from kvtier.errors import Error, InvalidArgument, Unavailable
from kvtier.leases import empty_lease
from kvtier.leases import LeaseUse
from kvtier.model import ModelSpec, RegisteredModel, Tier
from kvtier.prompt import Part, Prompt
from kvtier.protocol import Attempt, ClientOptions, Operation, Outcome, Pause, Protocol, Work, path_of
from kvtier.results import Done, FetchReport, Found, StoreReport
from kvtier.shared_transfer import SharedViews
from kvtier.transfer import Counters

T = TypeVar("T")


class AsyncLease(LeaseHandle):
    """As kvtier.Lease; ends when an ``async with`` block ends, by ``release``, when its client is closed, or
    when its time is up."""

    __slots__ = ("_client",)

    def __init__(
        self, client: AsyncClient | None = None, model_id: bytes = b"", lease_id: int = 0, blocks: int = 0
    ) -> None:
        super().__init__(client._protocol if client is not None else None, model_id, lease_id, blocks)
        self._client = client

    async def __aenter__(self) -> AsyncLease:
        return self

    async def __aexit__(self, *unused: object) -> None:
        if self:
            await self.release()

    async def renew(self, seconds: float) -> Done:
        if self._client is None or not self:
            return Done(empty_lease())
        return await self._client.renew(self.id, seconds)

    async def release(self) -> Done:
        if self._client is None or not self:
            return Done(empty_lease())
        client = self._client
        return await client._run(client._protocol.release(*self._take()))


@dataclass(frozen=True, slots=True)
class AsyncPrefixMatch(Found):
    """What ``lookup`` found; an asynchronous context manager that releases the lease."""

    lease: AsyncLease = field(default_factory=AsyncLease)

    async def __aenter__(self) -> AsyncPrefixMatch:
        return self

    async def __aexit__(self, *unused: object) -> None:
        await self.lease.__aexit__()


class AsyncClient:
    """As kvtier.Client, for the event loop in which it is first used; not thread-safe. A coroutine that is
    cancelled ends its call. Payload that comes over gRPC is hashed and copied on the event loop's thread, a
    message of 1 MiB at a time; what goes through shared memory, on the loop's executor.

    Store uses a connection and threads of blocking gRPC: when a daemon ends a stream while it is still
    written to, grpc.aio reports an internal error instead of what the daemon said."""

    def __init__(self, address: str, options: ClientOptions = ClientOptions()) -> None:
        self._protocol = Protocol(address, options)
        self._channel: grpc.aio.Channel | None = None
        self._store_channel: grpc.Channel | None = None
        # Ends its thread when nobody closes the client; at the interpreter's exit that happens anyway.
        weakref.finalize(self, self._protocol.shared_memory.close, wait=False).atexit = False
        self._methods: dict[str, Any] = {}  # by name: what calls it
        self._home: tuple[int, asyncio.AbstractEventLoop] | None = None  # process and loop of the channel
        self._closed = False

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *unused: object) -> None:
        await self.close()

    @property
    def closed(self) -> bool:
        return self._closed

    async def register_model(self, spec: ModelSpec, *, timeout: float | None = None) -> RegisteredModel:
        return await self._run(self._protocol.register_model(spec, timeout))

    async def lookup(
        self,
        prompt: Prompt,
        *,
        lease: float | None = None,
        promote_to: Tier | None = None,
        prefill_tokens_per_second: float = 0.0,
        timeout: float | None = None,
    ) -> AsyncPrefixMatch:
        found = await self._run(
            self._protocol.lookup(
                prompt,
                lease=lease,
                promote_to=promote_to,
                timeout=timeout,
                prefill_tokens_per_second=prefill_tokens_per_second,
            )
        )
        held = (
            AsyncLease(self, prompt.model_id, found.lease_id, found.blocks)
            if found.lease_id
            else AsyncLease()
        )
        return AsyncPrefixMatch(
            found.blocks, found.tokens, found.runs, found.group_blocks, found.lease_id, found.failure, held
        )

    async def fetch_into(
        self,
        what: Prompt | AsyncLease | int,
        buffers: Sequence[Any],
        *,
        first_block: int = 0,
        part: Part = Part(),
        allow_gaps: bool = False,
        lease_end: float | None = None,
        timeout: float | None = None,
    ) -> FetchReport:
        prompt, lease_id, model_id = target_of(what)
        return await self._run(
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

    async def fetch_views(
        self,
        what: AsyncLease | int,
        blocks: int,
        *,
        first_block: int = 0,
        part: Part = Part(),
        allow_gaps: bool = False,
        lease_end: float | None = None,
        timeout: float | None = None,
    ) -> SharedViews:
        """As kvtier.Client's: ``with await client.fetch_views(...) as views``."""
        return await self._run(
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

    async def store_from(
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
        return await self._run(
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

    async def release(
        self,
        lease_id: int,
        verified_blocks: int = 0,
        *,
        shared_bytes: int = 0,
        shared_seconds: float = 0.0,
    ) -> Done:
        use = LeaseUse(verified_blocks, shared_bytes, shared_seconds)
        return await self._run(self._protocol.release(lease_id, use))

    async def renew(self, lease_id: int, seconds: float) -> Done:
        return await self._run(self._protocol.renew(lease_id, seconds))

    def counters(self) -> Counters:
        return self._protocol.counters()

    async def close(self) -> None:
        """As kvtier.Client's."""
        if self._closed or self._channel is None:
            self._closed = True
            return
        for lease_id in self._protocol.leases.open_ids():
            use = self._protocol.leases.close(lease_id)
            if not await self._run(self._protocol.release(lease_id, use)):
                break  # the daemon ends them when their time is up
        self._closed = True
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._protocol.shared_memory.close)
        await self._channel.close()
        if self._store_channel is not None:
            await loop.run_in_executor(None, close_channel, self._store_channel, self._protocol.address)

    # --------------------------------------------------------------------------------------------- I/O

    async def _run(self, operation: Operation[T]) -> T:
        outcome: Outcome | None = None
        try:
            if self._closed:
                raise InvalidArgument("the client is closed")
            while True:
                step = operation.send(outcome)
                if isinstance(step, Pause):
                    await _pause(step.seconds)
                    outcome = None
                elif isinstance(step, Work):
                    await _on_thread(step.run, step.stop)
                    outcome = None
                else:
                    outcome = await self._perform(step)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        finally:
            operation.close()

    async def _perform(self, attempt: Attempt) -> Outcome:
        outcome = Outcome()
        if self._closed:
            outcome.error = Unavailable(f"{attempt.rpc}: the client was closed")
            return outcome
        method = self._method(attempt.rpc)
        if attempt.messages is None:
            call = method(attempt.request, timeout=attempt.limit)
            end = _read(call, attempt, outcome)
        else:
            call = method.future(attempt.messages, timeout=attempt.limit)
            end = _stored(call, attempt, outcome)
        try:
            await asyncio.wait_for(end, attempt.limit + GRACE_SECONDS)
        except asyncio.TimeoutError:
            outcome.error = stuck(attempt)
        except grpc.aio.AioRpcError as error:
            outcome.error = error_of_status(
                attempt,
                error.code(),
                error.details(),
                error.initial_metadata(),
                error.trailing_metadata(),
            )
        except Error as error:
            outcome.error = error
        except asyncio.CancelledError:
            if not self._closed:
                raise
            outcome.error = Unavailable(f"{attempt.rpc}: the client was closed")
        finally:
            if attempt.messages is not None:
                attempt.messages.stop()
            call.cancel()  # of no effect once it has ended
        return outcome

    def _method(self, rpc: str) -> Any:
        here = (os.getpid(), asyncio.get_running_loop())
        if self._channel is None:
            self._open()
            self._home = here
        elif self._home != here:
            raise InvalidArgument(
                "this client was used in another event loop or before fork(): make a new one"
            )
        return self._methods[rpc]

    def _open(self) -> None:
        address, options = self._protocol.address, self._protocol.options.channel_options()
        channel = grpc.aio.insecure_channel(address, options=options)
        for rpc in ("RegisterModel", "Lookup", "Release", "Renew", "StoreShared"):
            self._methods[rpc] = channel.unary_unary(path_of(rpc))
        for rpc in ("Fetch", "FetchShared"):
            self._methods[rpc] = channel.unary_stream(path_of(rpc))
        self._channel = channel
        self._store_channel = grpc.insecure_channel(address, options=options)
        self._methods["Store"] = self._store_channel.stream_unary(path_of("Store"))


async def _read(call: Any, attempt: Attempt, outcome: Outcome) -> None:
    """To the end of a call of grpc.aio."""
    if attempt.on_message is None:
        if attempt.meanwhile is not None:
            stop = attempt.meanwhile.stop
            call.add_done_callback(lambda _: stop())
            await _on_thread(attempt.meanwhile.run, stop)
        outcome.reply = await call
        outcome.received = True
        return
    async for message in call:
        outcome.received = True
        if attempt.stop is None:
            attempt.on_message(message)
        else:
            await _on_thread(partial(attempt.on_message, message), attempt.stop)


async def _on_thread(work: Callable[[], None], stop: Callable[[], None]) -> None:
    """Also when cancelled, it ends only after the work has: that uses the caller's memory."""
    future = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        await asyncio.shield(future)
    except asyncio.CancelledError:
        stop()
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError:
                continue  # it will be raised
        future.exception()  # nobody is told any more
        raise


async def _stored(call: Any, attempt: Attempt, outcome: Outcome) -> None:
    """To the end of a call of blocking gRPC."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    call.add_done_callback(lambda _: loop.is_closed() or loop.call_soon_threadsafe(ended.set))
    await ended.wait()
    if call.code() is grpc.StatusCode.OK:
        outcome.reply, outcome.received = call.result(), True
    else:
        outcome.error = error_of_call(call, attempt)


async def _pause(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    over = loop.create_future()
    timer = loop.call_later(seconds, over.set_result, None)
    try:
        await over
    finally:
        timer.cancel()
