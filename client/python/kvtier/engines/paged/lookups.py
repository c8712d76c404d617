"""Asking kvtier beside the engine's thread: lookups, and the leases that they bring."""
from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from kvtier import Client, Error, Namespace, Prompt, TierSpan
from kvtier.engines.paged.machinery import ModelHandle, Threads
from kvtier.engines.paged.plans import NO_LEASE, LoadOutcome
from kvtier.warn_once import WarnOnce

# Of a lease by which nothing was loaded.
_UNUSED = LoadOutcome(0, 0, 0, 0.0)


class Answer:
    """A lookup under way or answered. The lookup's thread fills it in once, under the lock of Lookups.

    told: match() has said what came of it.
    """

    __slots__ = ("deadline", "asked_at", "done", "failed", "told", "blocks", "asked_blocks", "lease_id",
                 "lease_end", "runs")

    def __init__(self, now: float, budget: float, asked_blocks: int) -> None:
        self.asked_at = now
        self.deadline = now + budget
        self.asked_blocks = asked_blocks
        self.done = False
        self.failed = False
        self.told = False
        self.blocks = 0
        self.lease_id = NO_LEASE
        self.lease_end: float | None = None
        self.runs: Sequence[TierSpan] = ()


class Lookups:
    """Looks prompts up, and gives leases back, on threads of its own. Nothing here raises, and only settled()
    waits. The arguments are SchedulerOptions', in seconds; step_wait is its lookup_wait.

    A lease is the caller's, by Answer.lease_id, once its answer has settled; that of an answer which comes
    later, or was dropped, is given back here.
    """

    def __init__(self, client: Client, model: ModelHandle, warn_once: WarnOnce, *, budget: float,
                 step_wait: float, lease_seconds: float, threads: int) -> None:
        self._client = client
        self._model = model
        self._warn_once = warn_once
        self._budget = budget
        self._step_wait = step_wait
        self._lease_seconds = lease_seconds
        self._wait_left = step_wait
        self._answered = threading.Condition()
        self._threads = Threads(threads, "kvtier-lookup")

    def next_step(self) -> None:
        """settled() may wait again."""
        self._wait_left = self._step_wait

    def ask(self, namespace: Namespace, hashes: list[bytes]) -> Answer:
        answer = Answer(time.monotonic(), self._budget, len(hashes))
        self._threads.submit(lambda: self._look_up(answer, namespace, hashes))
        return answer

    def settled(self, answer: Answer) -> bool:
        """Waits for the answer if this step has time left for that; past its deadline it is a miss."""
        with self._answered:
            began = time.monotonic()
            if not answer.done and self._wait_left > 0:
                self._answered.wait_for(lambda: answer.done,
                                        max(0.0, min(self._wait_left, answer.deadline - began)))
                self._wait_left -= time.monotonic() - began
            if not answer.done and time.monotonic() >= answer.deadline:
                answer.done = answer.failed = True
            return answer.done

    def drop(self, answer: Answer) -> None:
        """Nobody waits for it any more."""
        with self._answered:
            answer.done = True
            lease_id, answer.lease_id = answer.lease_id, NO_LEASE
        self.release(lease_id)

    def release(self, lease_id: int, use: LoadOutcome = _UNUSED) -> None:
        """Gives a lease back; of NO_LEASE nothing. use: what was loaded by it."""
        if lease_id != NO_LEASE:
            self._threads.submit(lambda: self._release_now(lease_id, use))

    def close(self, timeout: float) -> None:
        """Ends the threads, once they have given back what they were told to; `timeout` seconds at most."""
        self._threads.close(timeout)

    # On a lookup thread

    def _look_up(self, answer: Answer, namespace: Namespace, hashes: list[bytes]) -> None:
        left = answer.deadline - time.monotonic()
        if answer.done or left <= 0:
            return
        blocks, lease_id, failed = 0, NO_LEASE, True
        lease_end: float | None = None
        runs: Sequence[TierSpan] = ()
        try:
            prompt = Prompt(self._model.registered().id, engine_hashes=hashes, namespace=namespace)
            found = self._client.lookup(prompt, lease=self._lease_seconds, timeout=left)
            failed = found.failure is not None
            if failed:
                self._warn_once("lookup", "lookup failed, taken for a miss: %s", found.failure)
            if found.lease:
                lease_end = found.lease.end
                blocks, lease_id, runs = found.blocks, found.lease.detach(), found.runs
        except Exception as error:
            self._warn_once(f"lookup {type(error)}", "lookup failed, taken for a miss: %s", error,
                            exc_info=not isinstance(error, Error))
        with self._answered:
            late, answer.done = answer.done, True
            if not late:
                answer.failed, answer.blocks, answer.runs = failed, blocks, runs
                answer.lease_id, answer.lease_end = lease_id, lease_end
                self._answered.notify_all()
        if late:
            self._release_now(lease_id, _UNUSED)

    def _release_now(self, lease_id: int, use: LoadOutcome) -> None:
        if lease_id == NO_LEASE:
            return
        try:
            done = self._client.release(lease_id, use.verified, shared_bytes=use.shared_bytes,
                                        shared_seconds=use.shared_seconds)
            failure = done.failure
        except Error as error:
            failure = error
        if failure is not None:
            self._warn_once("release", "lease not released, it ends by itself: %s", failure)
