"""What the SSD tier promises, each as a function that breaks it when it can.

Each takes the sizes it works with, prints progress, and returns its figures; a broken promise is an
AssertionError. ssd_test.py runs the short forms, ssd_endurance.py the long ones.
"""
import concurrent.futures
import contextlib
import os
import random
import shutil
import statistics
import subprocess
import time

from ssd_support import (GIB, KIB, MIB, Content, DiskUse, Engine, Load, Tenant, adm, blocks_on,
                         disk_use, grpc, kv, limits_of, metrics, need, percentile, poll, progress,
                         start, tenants_of, total, work_folder)
from daemon import run_to_end


class Skipped(Exception):
    """This host cannot do it."""


# --------------------------------------------------------------------------------------------------
# Kills and stops

KILL_AFTER_MESSAGES = 1000  # at most
CLIENTS = 4


def kill_loses_nothing_durable(seed, rounds):
    """kill -9 at random points under load. In this tier nothing needs to leave."""
    return _kill_rounds(seed, rounds, 8 * GIB, must_be_durable=True)


def kill_gives_right_or_miss_when_the_tier_is_small(seed, rounds):
    return _kill_rounds(seed, rounds, 24 * MIB, must_be_durable=False)


def _kill_rounds(seed, rounds, ssd_bytes, must_be_durable):
    rng = random.Random(seed)
    tenants = tenants_of(seed, CLIENTS, may_be_refused=not must_be_durable)
    slowest = evicted = 0
    with work_folder() as folder:
        for turn in range(rounds + 1):
            ram = rng.choice([8, 16, 40]) * MIB
            threads = rng.choice([1, 4])
            with start(folder, ssd_bytes, ram, "--ssd-read-threads", str(threads)) as daemon:
                slowest = max(slowest, daemon.seconds_to_ready)
                with Engine(daemon) as engine:
                    _settle(engine, tenants, must_be_durable and turn > 0)
                if turn == rounds:
                    break
                messages = rng.randint(1, KILL_AFTER_MESSAGES)
                with Load(daemon, tenants) as load:
                    load.flow(messages)
                    with Engine(daemon) as engine:
                        evicted += engine.ssd().evictions
                    load.kill()
            progress(f"round {turn + 1} of {rounds}: killed after {messages} messages")
        need(must_be_durable <= (evicted == 0), evicted, "blocks had to leave a tier that is large")
        return _kill_figures(tenants, rounds, slowest, evicted)


def _settle(engine, tenants, must_be_durable):
    model_id = engine.register(Tenant.PART_BYTES)
    for tenant in tenants:
        tenant.model_id = model_id
    with concurrent.futures.ThreadPoolExecutor(len(tenants)) as pool:
        for checked in [pool.submit(tenant.check, engine, must_be_durable) for tenant in tenants]:
            checked.result()


def _kill_figures(tenants, rounds, slowest, evicted):
    figures = {name: total(tenants, name) for name in tenants[0].figures}
    need(figures["found_blocks"] > 0, "nothing was ever found again")
    figures.update(rounds=rounds, slowest_start_seconds=round(slowest, 3), evicted_blocks=evicted)
    return figures


def kill_keeps_what_was_on_ssd(seed, megabytes):
    """Without DURABLE: what a client could see to be on SSD is there after kill -9."""
    ram, part, blocks = 16 * MIB, 64 * KIB, 8
    with work_folder() as folder:
        with start(folder, 8 * GIB, ram) as daemon, Engine(daemon) as engine:
            model_id = engine.register(part)
            contents = [Content(model_id, "t", i, blocks, part)
                        for i in range(megabytes * MIB // (part * blocks))]
            for content in contents:
                engine.must_store(content)
            with Load(daemon, tenants_with(model_id, seed, 6, durable=False)) as load:
                load.flow(random.Random(seed).randint(1500, 2500))
                listed = {content: blocks_on(engine.lookup(content), kv.TIER_SSD)
                          for content in contents}
                on_ssd = engine.ssd().blocks
                load.kill()
        with start(folder, 8 * GIB, ram) as daemon, Engine(daemon) as engine:
            restored = engine.ssd().blocks
            found = sum(len(there & set(range(engine.lookup(content).blocks))
                            & engine.fetch(content)) for content, there in listed.items())
    figures = {"listed_blocks": sum(map(len, listed.values())), "found_blocks": found,
               "status_before": on_ssd, "status_after": restored}
    need(figures["listed_blocks"] > megabytes * MIB // part // 3, "too few on SSD to tell:", figures)
    need(on_ssd > len(contents) * blocks, "the load wrote nothing before the kill:", figures)
    need(found >= 0.95 * figures["listed_blocks"], "lost:", figures)
    need(restored >= 0.95 * on_ssd, "lost by status:", figures)
    return figures


def tenants_with(model_id, seed, count=2, **options):
    tenants = tenants_of(seed, count, **options)
    for tenant in tenants:
        tenant.model_id = model_id
    return tenants


def stop_keeps_what_was_in_ram(seed, rounds):
    """SIGTERM under load: exit 0 within 10 s, and RAM's blocks are there again."""
    ram, part, blocks = 64 * MIB, 64 * KIB, 8
    figures = {"rounds": rounds, "in_ram_blocks": 0, "found_blocks": 0, "slowest_stop_seconds": 0}
    with work_folder() as folder:
        listed = {}
        for turn in range(rounds + 1):
            with start(folder, 8 * GIB, ram) as daemon, Engine(daemon) as engine:
                for content, there in listed.items():
                    found = there & engine.fetch(content)
                    figures["found_blocks"] += len(found & set(range(engine.lookup(content).blocks)))
                need(figures["found_blocks"] == figures["in_ram_blocks"], "lost:", figures)
                if turn == rounds:
                    return figures
                model_id = engine.register(part)
                contents = [Content(model_id, f"turn{turn}", i, blocks, part) for i in range(80)]
                for content in contents:
                    engine.must_store(content)
                with Load(daemon, tenants_with(model_id, f"{seed}/{turn}", 4)) as load:
                    load.flow(200)
                    listed = {content: blocks_on(engine.lookup(content), kv.TIER_RAM)
                              for content in contents}
                    code, seconds = load.stop()
                need(code == 0 and seconds < 10, "exit code", code, "after", seconds, "s")
            figures["in_ram_blocks"] += sum(map(len, listed.values()))
            figures["slowest_stop_seconds"] = max(figures["slowest_stop_seconds"], round(seconds, 3))
            need(figures["in_ram_blocks"] > 0, "nothing was in RAM")
            progress(f"round {turn + 1} of {rounds}: stopped in {seconds:.2f} s")


# --------------------------------------------------------------------------------------------------
# Space

def disk_stays_within_the_limit(seed, ssd_bytes, times, kills):
    """Of all there is below the data directory, measured without a pause."""
    part = 256 * KIB
    figures = {"ssd_bytes": ssd_bytes, "times": times, "samples": 0}
    with work_folder() as folder:
        with start(folder, ssd_bytes) as daemon, Engine(daemon) as engine:
            model_id = engine.register(part)
            with DiskUse(folder / "data") as use:
                _overfill(engine, model_id, "fill", ssd_bytes * times)
            _note(figures, "overfilled", use, limits_of(ssd_bytes, part))
            need(engine.ssd().evictions > 0, "nothing had to leave")
            daemon.kill()
        with DiskUse(folder / "data") as use:
            _kill_loop(folder, ssd_bytes, seed, kills)
        _note(figures, "killed", use, limits_of(ssd_bytes, part))
        half, quarter = ssd_bytes // 2, ssd_bytes // 4
        with start(folder, half) as daemon, Engine(daemon) as engine:
            model_id = engine.register(part)
            figures["restart_shrink_seconds"] = _shrunk(folder, half, part)
            with DiskUse(folder / "data") as use:
                _overfill(engine, model_id, "half", ssd_bytes)
            _note(figures, "restarted_with_half", use, limits_of(half, part))
            tenants = tenants_with(engine.register(Tenant.PART_BYTES), seed, may_be_refused=True)
            with Load(daemon, tenants) as load:
                load.flow(300)
                engine.resize_ssd(quarter)
                figures["live_shrink_seconds"] = _shrunk(folder, quarter, part)
                with DiskUse(folder / "data") as use:
                    load.flow(500)
                _note(figures, "shrunk_live", use, limits_of(quarter, part))
            need(engine.ssd().capacity_bytes == quarter, "capacity is", engine.ssd().capacity_bytes)
    return figures


def _note(figures, phase, use, limits):
    use.must_be_within(limits, phase)
    figures[f"{phase}_payload_bytes"] = use.payload
    figures[f"{phase}_other_bytes"] = use.rest
    figures["samples"] += use.samples
    progress(f"{phase}: at most {use.payload / MIB:.1f} MiB of payload files and "
             f"{use.rest / MIB:.1f} MiB beside in {use.samples} samples")


def _overfill(engine, model_id, tenant, size):
    part, blocks = 256 * KIB, 8
    for seed in range(size // (part * blocks)):
        content = Content(model_id, tenant, seed, blocks, part)
        engine.must_store(content)
        if seed % 4 == 0:
            engine.fetch(content._replace(seed=max(0, seed - 10)))


def _kill_loop(folder, ssd_bytes, seed, kills):
    rng = random.Random(seed)
    for turn in range(kills):
        with start(folder, ssd_bytes) as daemon, Engine(daemon) as engine:
            model_id = engine.register(Tenant.PART_BYTES)
            tenants = tenants_with(model_id, f"{seed}/{turn}", may_be_refused=True)
            with Load(daemon, tenants) as load:
                load.flow(rng.randint(1, KILL_AFTER_MESSAGES))
                load.kill()


def _shrunk(folder, ssd_bytes, part):
    """The seconds until what was above is gone."""
    limits = limits_of(ssd_bytes, part)

    def within():
        payload, rest = disk_use(folder / "data")
        return payload <= limits.payload and payload + rest <= limits.all
    return round(poll(within, 10, "the smaller limit"), 3)


# --------------------------------------------------------------------------------------------------
# A disk that takes nothing

def full_disk_is_survived():
    """A file system of 64 MiB that really fills up, and has room again later."""
    with work_folder() as folder, _mounted("-t", "tmpfs", "-o", "size=64m", "tmpfs",
                                           folder / "data") as mount:
        filler = mount / "filler"
        filler.write_bytes(bytes(40 * MIB))
        return _taking_nothing_is_survived(folder, lambda: None, filler.unlink)


def read_only_mount_is_survived():
    """The tier's folder turns read-only while it serves, and back."""
    with work_folder() as folder:
        tier = folder / "data" / "ssd"
        with contextlib.ExitStack() as undo:
            def turn():
                _run("mount", "--bind", tier, tier)
                undo.callback(_run, "umount", "-l", tier)
                _run("mount", "-o", "remount,bind,ro", tier)
            return _taking_nothing_is_survived(folder, turn, undo.close)


FULL_DISK_SSD_BYTES, FULL_DISK_PART_BYTES = 256 * MIB, 256 * KIB


def start_on_a_full_disk():
    """kill -9, and a disk without a byte left at the next start: RAM serves, what is on SSD is read, and
    all is as it should be once there is room, without a restart."""
    with _small_disk() as (folder, mount):
        with _started(folder) as (daemon, engine):
            old = _contents(engine.register(FULL_DISK_PART_BYTES), "old")
            for content in old:
                engine.must_store(content, durable=True)
            daemon.kill()
        filler = _fill_up(mount)
        with _started(folder) as (daemon, engine):
            figures = {"old_blocks": sum(len(engine.fetch(content)) for content in old)}
            need(figures["old_blocks"] == sum(content.blocks for content in old), "lost:", figures)
            new = _must_serve_while_full(daemon, engine, "READ_ONLY", figures)
            _must_get_well(daemon, engine, new, filler, figures)
            daemon.kill()
        _must_have(folder, old + new[:1])
    return figures


def first_start_on_a_full_disk(disk=None):
    """The same where no daemon ever was: nothing but an empty lock file can be made."""
    with (disk or _small_disk)() as (folder, mount):
        filler, figures = _fill_up(mount), {}
        with _started(folder) as (daemon, engine):
            new = _must_serve_while_full(daemon, engine, "REOPENING", figures)
            _must_get_well(daemon, engine, new, filler, figures)
            daemon.kill()
        _must_have(folder, new[:1])
    return figures


def start_on_a_read_only_mount_is_refused():
    with _small_disk() as (folder, mount):
        flags = ("--data-dir", str(mount), "--ram-bytes", "16MiB", "--ssd-bytes", "64MiB")
        _run("mount", "-o", "remount,ro", mount)
        code, _, err = run_to_end(*flags)
        need(code == 1 and str(mount) in err and "Read-only file system" in err, code, err)
        _run("mount", "-o", "remount,rw", mount)
        with _started(folder) as (daemon, _):
            need(daemon.stop() == 0, "exit code")
    return {"exit_code": code}


@contextlib.contextmanager
def _small_disk():
    with work_folder() as folder, _mounted("-t", "tmpfs", "-o", "size=64m", "tmpfs",
                                           folder / "data") as mount:
        yield folder, mount


@contextlib.contextmanager
def small_ext4():
    """Unlike tmpfs it has no room for a folder either when it is full."""
    with work_folder() as folder:
        image = folder / "image"
        image.touch()
        os.truncate(image, 80 * MIB)
        _run("mkfs.ext4", "-q", "-m", "0", image)
        with _mounted("-o", "loop", image, folder / "data") as mount:
            yield folder, mount


@contextlib.contextmanager
def _started(folder):
    with start(folder, FULL_DISK_SSD_BYTES) as daemon, Engine(daemon) as engine:
        yield daemon, engine


def _fill_up(mount):
    """To the last byte."""
    filler = mount / "filler"
    with open(filler, "wb", buffering=0) as file:
        for size in (MIB, 4 * KIB, 512, 512):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
            os.fsync(file.fileno())  # gives back what was reserved for it and not needed
    need(os.statvfs(mount).f_bavail == 0, "there is still room on", mount)
    return filler


def _contents(model_id, tenant):
    return [Content(model_id, tenant, seed, 8, FULL_DISK_PART_BYTES) for seed in range(4)]


def _must_serve_while_full(daemon, engine, state, figures):
    """Returns what was stored into RAM, of a model that was registered just now."""
    contents = _contents(engine.register(FULL_DISK_PART_BYTES, name="new"), "new")
    for content in contents:
        engine.must_store(content)
        engine.must_fetch(content)
    need(not _stored_durable(engine, contents[0]), "DURABLE is taken")
    status = engine.status().ssd
    need(status.state == kv_state(state) and "No space left" in status.why, "state:", status)
    need("No space left" in daemon.log(), "not logged")
    need("a model is registered, but not saved" in daemon.log(), "not logged")
    poll(lambda: not engine.data.serving("kvtier.ssd"), 5, "health tells")
    need(engine.data.serving(), "the daemon itself is well")
    name = f'kvtier_ssd_state{{state="{state.lower().replace("_", "-")}"}}'
    need(metrics(daemon)[name] == 1, name, "is not 1")
    figures["why"] = status.why
    return contents


def _must_get_well(daemon, engine, new, filler, figures):
    filler.unlink()
    figures["well_after_seconds"] = round(poll(
        lambda: _stored_durable(engine, new[0]), 15, "DURABLE is taken again"), 3)
    poll(lambda: engine.data.serving("kvtier.ssd"), 10, "healthy again")
    need("registered models are saved again" in daemon.log(), "not logged")


def _must_have(folder, contents):
    with _started(folder) as (daemon, engine):
        for content in contents:
            engine.must_fetch(content)
        need(engine.status().ssd.state == kv_state("SERVING"), engine.status().ssd)
        need(daemon.stop() == 0, "exit code")


def _taking_nothing_is_survived(folder, break_it, mend_it):
    ssd_bytes, part = 256 * MIB, 256 * KIB
    figures = {}
    with start(folder, ssd_bytes) as daemon, Engine(daemon) as engine:
        need(engine.data.serving("kvtier.ssd"), "is not well at the start")
        model_id = engine.register(part)
        contents = [Content(model_id, "t", seed, 8, part) for seed in range(80)]
        for content in contents[:3]:
            engine.must_store(content, durable=True)
        break_it()
        durable = contents[:3] + _store_until_refused(engine, contents[3:], figures)
        _must_serve_without_writing(daemon, engine, durable, model_id, figures)
        mend_it()
        figures["well_after_seconds"] = round(poll(
            lambda: _stored_durable(engine, contents[-1]), 10, "DURABLE is taken again"), 3)
        poll(lambda: engine.data.serving("kvtier.ssd"), 10, "healthy again")
        need(engine.status().ssd.state == kv_state("SERVING"), engine.status().ssd)
        durable.append(contents[-1])
        for content in durable:
            engine.must_fetch(content)
        daemon.kill()
    with start(folder, ssd_bytes) as daemon, Engine(daemon) as engine:
        for content in durable:
            engine.must_fetch(content)
    figures["durable_prompts"] = len(durable)
    return figures


def _store_until_refused(engine, contents, figures):
    taken = []
    for content in contents:
        began = time.monotonic()
        if not _stored_durable(engine, content):
            figures["first_refusal_seconds"] = round(time.monotonic() - began, 3)
            return taken
        taken.append(content)
    raise AssertionError("a disk that is full takes everything")


def _stored_durable(engine, content):
    try:
        engine.must_store(content, durable=True)
    except grpc.RpcError as error:
        need(error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, error)
        return False
    return True


def _must_serve_without_writing(daemon, engine, durable, model_id, figures):
    began = time.monotonic()
    need(not _stored_durable(engine, Content(model_id, "no", 1, 1, 256 * KIB)), "DURABLE is taken")
    figures["refusal_seconds"] = round(time.monotonic() - began, 3)
    need(figures["refusal_seconds"] < 10, "refused after", figures["refusal_seconds"], "s")
    for seed in range(24):  # more than RAM holds
        content = Content(model_id, "ram", seed, 8, 256 * KIB)
        engine.must_store(content)
        engine.must_fetch(content)
    for content in durable:
        engine.must_fetch(content)
    status = engine.status().ssd
    need(status.state == kv_state("READ_ONLY") and status.why, "state:", status)
    need(status.skipped_blocks > 0 and status.write_errors > 0, "not counted:", status)
    need("ssd: read-only" in daemon.log(), "not logged")
    poll(lambda: not engine.data.serving("kvtier.ssd"), 5, "health tells")
    need(engine.data.serving(), "the daemon itself is well")
    seen = metrics(daemon)
    states = {name: value for name, value in seen.items() if "ssd" in name and "state" in name}
    need(any("read-only" in name and value == 1 for name, value in states.items()), states)
    figures["why"] = status.why


def kv_state(name):
    return adm.SsdState.Value("SSD_STATE_" + name)


@contextlib.contextmanager
def _mounted(*arguments):
    where = arguments[-1]
    where.mkdir()
    _run("mount", *arguments)
    try:
        yield where
    finally:
        _run("umount", "-l", where)


def _run(*command):
    if os.geteuid() != 0:
        raise Skipped("needs root, to mount")
    if shutil.which(command[0]) is None:
        raise Skipped(f"no {command[0]} here")
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          check=False)
    if done.returncode != 0:
        raise Skipped(f"{' '.join(map(str, command))}: {done.stderr.strip()}")


# --------------------------------------------------------------------------------------------------
# Starting

def start_is_quick(blocks, most_extra_seconds):
    """With the page cache dropped, against an empty directory."""
    part, per_prompt = 4 * KIB, min(4096, blocks)
    ssd_bytes = max(GIB, blocks * part * 3 // 2)
    figures = {"blocks": blocks}
    with work_folder() as folder:
        figures["empty_seconds"] = min(_start_seconds(folder / f"empty{i}", ssd_bytes)
                                       for i in range(3))
        (folder / "full").mkdir()
        with start(folder / "full", ssd_bytes, 64 * MIB) as daemon, Engine(daemon) as engine:
            model_id = engine.register(part)
            contents = [Content(model_id, "t", seed, per_prompt, part)
                        for seed in range(-(-blocks // per_prompt))]
            for number, content in enumerate(contents):
                engine.must_store(content)
                if number % 50 == 49:
                    progress(f"stored {(number + 1) * per_prompt} of {blocks} blocks")
            need(daemon.stop() == 0, "exit code")
        figures["full_seconds"] = min(_start_seconds(folder / "full", ssd_bytes) for _ in range(3))
        with start(folder / "full", ssd_bytes, 64 * MIB) as daemon, Engine(daemon) as engine:
            _note_restored(engine, contents, figures)
    figures["extra_seconds"] = round(figures["full_seconds"] - figures["empty_seconds"], 3)
    need(figures["extra_seconds"] <= most_extra_seconds, "too slow:", figures)
    return figures


def _note_restored(engine, contents, figures):
    status = engine.status()
    need(status.blocks >= figures["blocks"], "of", figures["blocks"], "there are", status.blocks)
    for content in contents[::max(1, len(contents) // 10)]:
        need(engine.lookup(content).blocks == content.blocks, "not found:", content[1:])
        engine.must_fetch(content, last=64)
    figures["index_bytes_per_block"] = round(status.index_bytes / status.blocks, 1)
    figures["process_bytes_per_block"] = round(
        (status.process_memory_bytes - 64 * MIB) / status.blocks, 1)


def _start_seconds(folder, ssd_bytes):
    """Without what the page cache has; killed, so that nothing is written at the end."""
    folder.mkdir(exist_ok=True)
    drop_page_cache()
    with start(folder, ssd_bytes, 64 * MIB) as daemon:
        daemon.kill()
        return round(daemon.seconds_to_ready, 3)


def drop_page_cache():
    os.sync()
    try:
        with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as file:
            file.write("3")
    except OSError as error:
        raise Skipped(f"cannot drop the page cache: {error}") from error


# --------------------------------------------------------------------------------------------------
# Reading for long, and much at once

def reads_do_not_drift(seed, seconds, ssd_bytes):
    """The tier at its limit, nine reads for each store: the first tenth of the time and the last,
    after as long a time to warm up."""
    part, blocks = 64 * KIB, 8
    with work_folder() as folder, start(folder, ssd_bytes, 64 * MIB) as daemon, \
            Engine(daemon) as engine:
        model_id = engine.register(part)
        newest = 5 * ssd_bytes // 4 // (part * blocks)
        for number in range(newest):
            engine.must_store(Content(model_id, "t", number, blocks, part))
        readers = [Reader(daemon, Content(model_id, "t", 0, blocks, part), newest,
                          random.Random(f"{seed}/{i}"), f"reader{i}") for i in range(2)]
        samples = []
        with concurrent.futures.ThreadPoolExecutor(len(readers)) as pool:
            began = time.monotonic() + seconds
            ends = [pool.submit(reader.read_until, began, seconds) for reader in readers]
            while (at := time.monotonic() - began) < seconds:
                samples.append((at, engine.status().process_memory_bytes))
                concurrent.futures.wait(ends, timeout=0.2)
            for end in ends:
                end.result()
        need(engine.ssd().evictions > 0, "the tier was not at its limit")
    return _drift(seconds, [fetch for reader in readers for fetch in reader.fetches], samples)


class Reader:
    """Fetches of what was stored lately, the newer the likelier; and new prompts of its own."""

    def __init__(self, daemon, content, newest, rng, tenant):
        self.daemon = daemon
        self.content = content
        self.newest = newest
        self.rng = rng
        self.tenant = tenant
        self.fetches = []  # (when, seconds, blocks)

    def read_until(self, began, seconds):
        stored = 0
        with Engine(self.daemon) as engine:
            while (at := time.monotonic() - began) < seconds:
                if self.rng.random() < 0.1:
                    engine.must_store(self.content._replace(tenant=self.tenant, seed=stored))
                    stored += 1
                    continue
                seed = self.newest - 1 - int(self.newest * self.rng.random() ** 2 * 0.8)
                start_at = time.monotonic()
                found = engine.fetch(self.content._replace(seed=seed))
                self.fetches.append((at, time.monotonic() - start_at, len(found)))


def _drift(seconds, fetches, samples):
    def tenth(rows, first):
        start_at = 0 if first else seconds * 9 / 10
        return [row for row in rows if start_at <= row[0] < start_at + seconds / 10]
    figures = {"seconds": seconds, "fetches": len(fetches),
               "found_blocks": sum(blocks for _, _, blocks in fetches)}
    for name, first in (("first", True), ("last", False)):
        times = [took for _, took, blocks in tenth(fetches, first) if blocks]
        need(times, "nothing was found in the", name, "tenth")
        figures[f"{name}_p50_ms"] = round(percentile(times, 0.5) * 1000, 3)
        figures[f"{name}_p99_ms"] = round(percentile(times, 0.99) * 1000, 3)
        figures[f"{name}_memory_bytes"] = int(statistics.median(
            memory for _, memory in tenth(samples, first)))
    need(figures["last_p50_ms"] <= 1.5 * figures["first_p50_ms"] + 1, "slower:", figures)
    need(figures["last_p99_ms"] <= 3 * figures["first_p99_ms"] + 20, "slower:", figures)
    need(figures["last_memory_bytes"] <= figures["first_memory_bytes"] + 32 * MIB, "larger:", figures)
    return figures


def longer_than_ram_is_served_whole(ram_bytes):
    """One Store of four times the RAM tier, and one Fetch of it."""
    part = 256 * KIB
    with work_folder() as folder, start(folder, 16 * ram_bytes, ram_bytes) as daemon, \
            Engine(daemon) as engine:
        content = Content(engine.register(part), "t", 1, 4 * ram_bytes // part, part)
        began = time.monotonic()
        statuses = engine.store(content)
        need(statuses == [kv.STORE_STATUS_STORED] * content.blocks, "not all stored:", statuses)
        stored = time.monotonic()
        need(engine.lookup(content).blocks == content.blocks, "not all there")
        engine.must_fetch(content)
        fetched = time.monotonic()
        need(engine.store(content, last=8) == [kv.STORE_STATUS_ALREADY_PRESENT] * 8, "not present")
    return {"blocks": content.blocks, "store_seconds": round(stored - began, 3),
            "fetch_seconds": round(fetched - stored, 3)}


def tier_in_use_takes_new_blocks(megabytes=24):
    """All that is on SSD was read since it was written. Something must leave all the same, and
    making room must not write the whole tier again and again."""
    part, blocks = 64 * KIB, 15  # a prompt fills a file
    figures = {"seconds": [], "written_per_stored": 0}
    with work_folder() as folder, start(folder, megabytes * MIB, 8 * MIB) as daemon, \
            Engine(daemon) as engine:
        model_id = engine.register(part)
        old = [Content(model_id, "old", seed, blocks, part) for seed in range(megabytes + 1)]
        for content in old:
            engine.must_store(content, durable=True)
        for content in old * 2:
            engine.fetch(content)
        before = engine.status().ssd.payload_bytes_written
        new = [Content(model_id, "new", seed, blocks, part) for seed in range(megabytes)]
        for content in new:
            began = time.monotonic()
            engine.must_store(content, durable=True)
            figures["seconds"].append(round(time.monotonic() - began, 3))
            engine.must_fetch(content)
        written = engine.status().ssd.payload_bytes_written - before
        figures["written_per_stored"] = round(written / (len(new) * blocks * part), 2)
        need(engine.ssd().evictions > 0, "nothing left")
    need(figures["written_per_stored"] < 4, "mostly written again:", figures)
    return figures


def write_limit_never_blocks(megabytes, limit=4 * MIB):
    """A load far above ssd-write-limit: first without DURABLE, then with some, which is written all
    the same, on credit."""
    with work_folder() as folder, start(folder, 4 * GIB, 16 * MIB, "--ssd-write-limit",
                                        str(limit)) as daemon, Engine(daemon) as engine:
        content = Content(engine.register(256 * KIB), "accepted", 0, 8, 256 * KIB)
        began = time.monotonic()
        figures = _store_beyond(engine, content, megabytes, ())
        used = engine.ssd().bytes_written / (limit * (time.monotonic() - began))
        figures["used_share_of_limit"] = round(used, 2)
        dropped = engine.status().ssd.limited_blocks
        every_tenth = range(9, 1 << 16, 10)
        with_durable = _store_beyond(engine, content._replace(tenant="durable"), megabytes,
                                     every_tenth)
        written, seconds = engine.ssd().bytes_written, time.monotonic() - began
    allowed = limit * (seconds + 1) + with_durable["durable_bytes"]
    figures.update(limited_blocks=dropped, written_bytes=written, allowed_bytes=int(allowed),
                   with_durable=with_durable)
    need(seconds < 2 * megabytes * MIB / limit / 2, "the load was held up:", figures)
    need(max(figures["store_max_ms"], with_durable["store_max_ms"]) < 1000,
         "a Store was held up:", figures)
    need(dropped > 0, "nothing was dropped, or not counted:", figures)
    need(used > 0.3, "hardly anything was written:", figures)
    need(with_durable["durable_bytes"] <= written <= allowed, "written:", figures)
    return figures


def _store_beyond(engine, content, megabytes, durable_seeds):
    took, durable = [], 0
    began = time.monotonic()
    for seed in range(megabytes * MIB // (content.blocks * content.part_bytes)):
        content = content._replace(seed=seed)
        store_began = time.monotonic()
        engine.must_store(content, durable=seed in durable_seeds)
        if seed in durable_seeds:
            durable += content.blocks * content.part_bytes
        else:
            took.append(time.monotonic() - store_began)
        engine.must_fetch(content)
    return {"seconds": round(time.monotonic() - began, 3), "durable_bytes": durable,
            "store_p50_ms": round(percentile(took, 0.5) * 1000, 3),
            "store_max_ms": round(max(took) * 1000, 3)}
