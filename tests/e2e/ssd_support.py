"""What the scenarios of the SSD tier share: contents that say whose they are, load, disk use.

Whoever fetches compares every byte with what was stored under that identity: WrongBytes at once.
"""
import contextlib
import os
import pathlib
import random
import re
import shutil
import sys
import tempfile
import threading
import time
import typing
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from daemon import (BLOCK_TOKENS, Client, Daemon, adm, collect, grpc, kv, opaque_spec,  # noqa: E402
                    prompt, store_requests)

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
REAL_DISK = "/var/tmp"  # /tmp may be in memory
PATIENCE_SECONDS = 60
TOKENS_PER_SEED = 1 << 16


class WrongBytes(AssertionError):
    """Bytes that were not stored under the identity they were asked for by."""


def need(holds, *what):
    """An assertion that python -O keeps."""
    if not holds:
        raise AssertionError(" ".join(str(word) for word in what))


def progress(*words):
    print(*words, file=sys.stderr, flush=True)


def poll(condition, seconds=PATIENCE_SECONDS, what="condition"):
    """Until it holds; each turn does real work, so there is nothing to wait for in between.
    Returns the seconds that took."""
    began = time.monotonic()
    while not condition():
        need(time.monotonic() - began < seconds, what, "does not hold after", seconds, "s")
    return time.monotonic() - began


@contextlib.contextmanager
def work_folder(parent=REAL_DISK):
    folder = pathlib.Path(tempfile.mkdtemp(prefix="kvtier_ssd_", dir=parent))
    try:
        yield folder
    except BaseException:
        for log in sorted(folder.rglob("*.log")):
            with contextlib.suppress(OSError):
                progress(f"--- {log}\n{log.read_text(errors='replace')[-4000:]}")
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def start(folder, ssd_bytes, ram_bytes=16 * MIB, *flags):
    return Daemon(pathlib.Path(folder) / "data", "--ssd-bytes", str(ssd_bytes),
                  "--ram-bytes", str(ram_bytes), "--metrics-listen", "127.0.0.1:0", *flags)


def metrics(daemon):
    with urllib.request.urlopen(f"http://{daemon.ready['metrics']}/metrics", timeout=30) as page:
        text = page.read().decode()
    return {name: float(value) for name, value in re.findall(r"^(kvtier\S+) (\S+)$", text, re.M)}


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


# --------------------------------------------------------------------------------------------------
# Contents

class Content(typing.NamedTuple):
    """A prompt and its payloads. The payload names everything that may not be mixed up; the prompt
    does not name the generation, so that what a reset removed would be found if it came back."""
    model_id: bytes
    tenant: str
    seed: int
    blocks: int
    part_bytes: int
    generation: int = 0

    def prompt(self):
        first = self.seed * TOKENS_PER_SEED
        return prompt(self.model_id, range(first, first + self.blocks * BLOCK_TOKENS),
                      tenant=self.tenant)

    def payload(self, block):
        unit = f"{self.tenant}/{self.seed}/{self.generation}/{block}|".encode()
        return (unit * (self.part_bytes // len(unit) + 1))[:self.part_bytes]

    def tokens_bytes(self, block):
        first = self.seed * TOKENS_PER_SEED + block * BLOCK_TOKENS
        return b"".join(t.to_bytes(4, "little") for t in range(first, first + BLOCK_TOKENS))


class Engine:
    """One client of the daemon, of its data and of its admin API."""

    def __init__(self, daemon):
        self.daemon = daemon
        self.data = Client(daemon.address)
        self.operator = Client(daemon.admin_address)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.data.channel.close()
        self.operator.channel.close()

    def register(self, part_bytes, name="test"):
        return self.data.unary("RegisterModel", kv.RegisterModelRequest(
            spec=opaque_spec(name=name, part_bytes=part_bytes))).model_id

    def store(self, content, first=0, last=None, durable=False, on_message=None):
        """The outcomes' statuses."""
        payloads = [content.payload(i) for i in range(first, last or content.blocks)]
        durability = kv.DURABILITY_DURABLE if durable else kv.DURABILITY_UNSPECIFIED
        requests = store_requests(content.prompt(), first, payloads, durability=durability)
        answer = self.data.store(heard(requests, on_message))
        return [outcome.status for outcome in answer.outcomes]

    def must_store(self, content, **options):
        statuses = self.store(content, **options)
        need(all(status in (kv.STORE_STATUS_STORED, kv.STORE_STATUS_ALREADY_PRESENT)
                 for status in statuses), "not all was stored:", statuses)

    def fetch(self, content, first=0, last=None, gaps=True, on_message=None):
        """The blocks that were there, verified."""
        answer = self.data.fetch(kv.FetchRequest(
            prompt=content.prompt(), first_block=first, last_block=last or content.blocks,
            allow_gaps=gaps))
        found = set()
        for block, payload in collect(heard(answer, on_message)).items():
            if payload is None:
                continue
            if payload != content.payload(block):
                raise WrongBytes(f"asked for block {block} of {content[1:]}, got {payload[:80]!r}")
            found.add(block)
        return found

    def must_fetch(self, content, last=None):
        found = self.fetch(content, last=last)
        need(found == set(range(last or content.blocks)), "of", content[1:], "only", sorted(found))

    def lookup(self, content):
        return self.data.unary("Lookup", kv.LookupRequest(prompt=content.prompt()))

    def reset(self, content):
        return self.operator.admin("Reset", adm.ResetRequest(
            model_id=content.model_id, namespace=kv.Namespace(tenant=content.tenant)))

    def status(self):
        return self.operator.admin("GetStatus", adm.GetStatusRequest())

    def ssd(self):
        return {tier.tier: tier for tier in self.status().tiers}[kv.TIER_SSD]

    def resize_ssd(self, capacity_bytes):
        return self.operator.admin("SetTierCapacity", adm.SetTierCapacityRequest(
            tier=kv.TIER_SSD, capacity_bytes=capacity_bytes))


def heard(messages, on_message):
    for message in messages:
        if on_message is not None:
            on_message()
        yield message


def blocks_on(lookup, tier):
    """The indices of blocks for which this tier is the best."""
    found, at = set(), 0
    for run in lookup.runs:
        if run.tier == tier:
            found.update(range(at, at + run.blocks))
        at += run.blocks
    return found


# --------------------------------------------------------------------------------------------------
# Load whose every answer is known

class Held:
    """What one prompt may and must have."""

    def __init__(self, stored=0, durable=0):
        self.stored = stored    # blocks that may be there; those of a Store in flight too
        self.durable = durable  # of which these must be


class Tenant:
    """One client's share of the load, in a namespace of its own, and what it may find there."""
    PROMPTS = 24
    BLOCKS = 8
    PART_BYTES = 64 * KIB

    def __init__(self, name, rng, durable=True, may_be_refused=False):
        self.name = name
        self.rng = rng
        self.durable = durable
        self.may_be_refused = may_be_refused  # DURABLE, in a tier too small for what is in use
        self.model_id = b""
        self.generation = 0
        self.held = {}
        self.resetting = False
        self.figures = {"stores": 0, "durable_stores": 0, "fetches": 0, "resets": 0,
                        "refused": 0, "found_blocks": 0, "durable_blocks": 0}

    def content(self, seed):
        return Content(self.model_id, self.name, seed, self.BLOCKS, self.PART_BYTES,
                       self.generation)

    def step(self, engine, on_message):
        turn = self.rng.random()
        if turn < 0.01:
            self.reset(engine)
        elif turn < 0.5:
            self.store(engine, on_message)
        else:
            content = self.content(self.rng.randrange(self.PROMPTS))
            self.expect_no_more(content, engine.fetch(content, on_message=on_message))
            self.figures["fetches"] += 1

    def store(self, engine, on_message):
        """A new prompt, or more of one: from where it ends, or all of it again."""
        content = self.content(self.rng.randrange(self.PROMPTS))
        durable = self.durable and self.rng.random() < 0.5
        first = engine.lookup(content).blocks if self.rng.random() < 0.5 else 0
        last = self.rng.randint(min(first + 1, self.BLOCKS), self.BLOCKS)
        first = min(first, last - 1)
        held = self.held.setdefault(content.seed, Held())
        held.stored = max(held.stored, last)
        try:
            statuses = engine.store(content, first, last, durable, on_message)
        except grpc.RpcError as error:
            if not self.may_be_refused or error.code() != grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise
            self.figures["refused"] += 1
            return
        lost_parent = first > 0 and kv.STORE_STATUS_REJECTED in statuses
        if not lost_parent:
            need(kv.STORE_STATUS_REJECTED not in statuses, "rejected:", statuses, "of", content[1:])
            held.durable = max(held.durable, last if durable else 0)
        self.figures["durable_stores" if durable else "stores"] += 1

    def reset(self, engine):
        self.resetting = True
        engine.reset(self.content(0))
        self.resetting = False
        self.generation += 1
        self.held = {}
        self.figures["resets"] += 1

    def expect_no_more(self, content, found):
        held = self.held.get(content.seed, Held())
        need(not found or max(found) < held.stored, "blocks that nobody stored, or that were reset:",
             sorted(found), "of", content[1:], "where at most", held.stored, "may be")

    def check(self, engine, must_be_durable):
        """After a restart: all that is there is right, and all that must be there is."""
        for seed in range(self.PROMPTS):
            content = self.content(seed)
            found = engine.fetch(content)
            self.expect_no_more(content, found)
            self.figures["found_blocks"] += len(found)
            durable = self.held[seed].durable if seed in self.held else 0
            if must_be_durable and not self.resetting:
                leading = engine.lookup(content).blocks
                need(found >= set(range(durable)) and leading >= durable, "of", durable,
                     "durable blocks of", content[1:], "there are", sorted(found), "and", leading,
                     "by prefix")
                self.figures["durable_blocks"] += durable
        if self.resetting:  # it may have happened or not; now it has
            self.reset(engine)
            self.check(engine, must_be_durable)


class Load:
    """Each tenant in a thread of its own. Use as a context manager around the end of the daemon, or
    of the load alone."""

    def __init__(self, daemon, tenants):
        self.daemon = daemon
        self.problems = []
        self.messages = threading.Semaphore(0)
        self.allowed_codes = ()  # errors that a client may see
        self.over = threading.Event()
        self.threads = [threading.Thread(target=self._work, args=(tenant,), daemon=True)
                        for tenant in tenants]

    def _work(self, tenant):
        try:
            with Engine(self.daemon) as engine:
                while not self.over.is_set():
                    tenant.step(engine, self.messages.release)
        except grpc.RpcError as error:
            if error.code() not in self.allowed_codes:
                self.problems.append(f"{error.code()}: {error.details()}")
        except Exception as error:  # told by the thread that waits
            self.problems.append(repr(error))

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def flow(self, messages):
        """Returns when that many more messages have gone to and fro."""
        for _ in range(messages):
            while not self.messages.acquire(timeout=1):
                need(not self.problems and any(thread.is_alive() for thread in self.threads),
                     "the load has stopped:", self.problems)

    def kill(self):
        """kill -9 while the clients go on."""
        self.allowed_codes = tuple(grpc.StatusCode)
        self.daemon.kill()
        self.join()

    def stop(self):
        """SIGTERM while the clients go on; the exit code, and the seconds it took."""
        self.allowed_codes = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
        began = time.monotonic()
        code = self.daemon.stop()
        seconds = time.monotonic() - began
        self.join()
        return code, seconds

    def join(self):
        self.over.set()
        for thread in self.threads:
            thread.join(PATIENCE_SECONDS)
        need(not any(thread.is_alive() for thread in self.threads), "a client does not end")
        need(not self.problems, self.problems)

    def __exit__(self, kind, *unused):
        if kind is None:
            self.join()
        else:
            self.over.set()
            self.daemon.close()


def tenants_of(seed, count, **options):
    """Of their own namespaces, which no other seed has."""
    return [Tenant(f"{seed}/{i}", random.Random(f"{seed}/{i}"), **options) for i in range(count)]


def total(tenants, figure):
    return sum(tenant.figures[figure] for tenant in tenants)


# --------------------------------------------------------------------------------------------------
# Disk use

def disk_use(folder):
    """Bytes on disk of (payload files, all the rest) below a folder. What a reset leaves behind is a
    file too, but smaller than any with payload."""
    payload = rest = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                on_disk = os.lstat(os.path.join(where, name)).st_blocks * 512
                if name.endswith(".sst") and on_disk > 4 * KIB:
                    payload += on_disk
                else:
                    rest += on_disk
    return payload, rest


class DiskUse:
    """Measures a folder again and again in a thread; what was the most."""

    def __init__(self, folder):
        self.folder = folder
        self.payload = self.rest = self.all = self.samples = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._measure, daemon=True)

    def _measure(self):
        while not self._ended.is_set():
            payload, rest = disk_use(self.folder)
            self.payload = max(self.payload, payload)
            self.rest = max(self.rest, rest)
            self.all = max(self.all, payload + rest)
            self.samples += 1

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *unused):
        self._ended.set()
        self._thread.join()

    def must_be_within(self, limits, when):
        need(self.samples > 0 and self.all <= limits.all and self.payload <= limits.payload,
             when, "the disk held", self.all, "bytes,", self.payload, "in payload files;", limits,
             "allowed, in", self.samples, "samples")


class Limits(typing.NamedTuple):
    all: int
    payload: int


def limits_of(ssd_bytes, part_bytes):
    """What may be on disk. A walk can see both a file that goes and the one that comes for it, so
    payload files are granted one more."""
    file = max(MIB, min(64 * MIB, ssd_bytes // 64)) + part_bytes
    return Limits(ssd_bytes + ssd_bytes // 100 + 64 * MIB + file, ssd_bytes + 2 * file)
