"""The two halves of a connector for an engine with a paged KV pool, without the engine.

An engine with a paged pool keeps the KV of `block_tokens` tokens in a *page* of each layer and calls
the pages of one block by a *block id*. It decides in a scheduler what to compute next, and computes in
one or more workers (ranks), each with a part of every block. A connector has a half in each:

    scheduler process                                  each rank
    -----------------                                  ---------
    half.match(request, tokens, local_tokens)
       -> None: ask again in the next step
       -> n blocks beyond the local ones
    half.allocated(request_id, block_ids, n)
    plan = half.plan(steps)            -- pickled -->  half.start_loads(plan)
                                                       ... submit this step's forward pass ...
                                                       half.start_saves(plan)
    half.absorb(progress.report)       <-- pickled --  progress = half.poll()
    half.finished(request_id)                             progress.loaded, progress.failed_blocks

What holds, whatever the daemon does:

  * SchedulerHalf never blocks on the network and never raises. A lookup runs on a thread of its own
    and has `lookup_budget` seconds; then it is a miss.
  * A block counts as loaded when its bytes are in the page and their checksum was verified. Every other
    block of a load is in `failed_blocks`, and the engine has to compute it. A load ends within
    `load_budget` + its bytes / `load_floor` seconds, and is reported only when nothing writes to the
    pages any more.
  * A block is pinned (BlockPinner) from the step in which it is complete until every rank has saved it
    or given up, within `save_budget` seconds. So its page is not reused while it is read.
  * Everything in flight is known by a job id, never by the request's: a request may be aborted, or its
    id used again, at any time.
  * With several ranks a block is found only when all parts of it are stored, and a load is done when
    every rank has reported; as many blocks count as the rank with the fewest verified.

No request is told that all of its tokens are there: an engine needs the last one to compute logits.

Threads: the methods of one half are called by one thread at a time. Both halves have threads of their
own, which are daemons; close() ends them.

A connector imports from here; the modules, each of which imports only from those above it:

    engine       what an engine tells and brings: requests, steps, pins, pages
    plans        what goes between the halves: jobs, plans, reports
    machinery    what both halves stand on: the model's handle, threads
    held_hashes  which blocks need not be sent
    lookups      lookups and leases, beside the engine's thread
    scheduler    the half in the engine's scheduler
    worker       the half in each rank
"""
from kvtier.engines.paged.engine import (
    BlockPinner,
    HostPages,
    NoPins,
    Pages,
    RequestStep,
    RequestView,
    Segments,
)
from kvtier.engines.paged.machinery import ModelHandle
from kvtier.engines.paged.plans import (
    LoadJob,
    LoadOutcome,
    Progress,
    SaveJob,
    SaveOutcome,
    StepPlan,
    WorkerReport,
)
from kvtier.engines.paged.scheduler import SchedulerCounters, SchedulerHalf, SchedulerOptions
from kvtier.engines.paged.worker import WorkerHalf, WorkerOptions

__all__ = [
    "BlockPinner",
    "HostPages",
    "LoadJob",
    "LoadOutcome",
    "ModelHandle",
    "NoPins",
    "Pages",
    "Progress",
    "RequestStep",
    "RequestView",
    "SaveJob",
    "SaveOutcome",
    "SchedulerCounters",
    "SchedulerHalf",
    "SchedulerOptions",
    "Segments",
    "StepPlan",
    "WorkerHalf",
    "WorkerOptions",
    "WorkerReport",
]
