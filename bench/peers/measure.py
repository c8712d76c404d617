"""One measurement: what an arm's clients did, how long it took, and whose processor time it was."""
import contextlib
import ctypes
import json
import os
import select
import statistics
import time

import systems

ANSWER_SECONDS = 120
_libc = ctypes.CDLL(None)


class Failed(Exception):
    """An operation of this arm failed: it has no figures."""


def parents():
    """Parent by process id, of all processes."""
    out = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", encoding="ascii", errors="replace") as stat:
                    out[int(name)] = int(stat.read().rpartition(")")[2].split()[1])
            except OSError:
                pass  # it has ended
    return out


def with_descendants(roots):
    found, parent_of = set(roots), parents()
    while more := {pid for pid, parent in parent_of.items() if parent in found} - found:
        found |= more
    return found


def cpu_seconds(pid):
    """Of a living process, all its threads, ended ones too; to the nanosecond, where /proc counts hundredths."""
    clock = ctypes.c_int()
    if _libc.clock_getcpuclockid(pid, ctypes.byref(clock)) != 0:
        return 0.0
    try:
        return time.clock_gettime(clock.value)
    except OSError:
        return 0.0


def machine_busy_seconds():
    """Processor time of everybody, idle and waiting for disks left out."""
    with open("/proc/stat", encoding="ascii") as stat:
        ticks = [int(word) for word in stat.readline().split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


class Usage:
    """Processor time from here to `end`: of these processes, and how many cores all others kept busy."""

    def __init__(self, pids):
        self.pids = with_descendants(pids)
        self.own, self.all, self.start = self.now()

    def now(self):
        return sum(map(cpu_seconds, self.pids)), machine_busy_seconds(), time.monotonic()

    def end(self):
        own, everybody, now = self.now()
        used = own - self.own
        others = (everybody - self.all - used) / (now - self.start)
        return used, max(0.0, others)


class Client:
    """One client process of an arm."""

    def __init__(self, arm, number, log):
        self.arm = arm
        self.process = systems.start([*arm.argv, number], log, arm.env, stdin=systems.subprocess.PIPE,
                                     stdout=systems.subprocess.PIPE)

    def send(self, command):
        try:
            self.process.stdin.write(command + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # what it says is still to be read

    def answer(self):
        ready, _, _ = select.select([self.process.stdout], [], [], ANSWER_SECONDS)
        line = self.process.stdout.readline() if ready else ""
        if not line:
            raise Failed(f"a client has ended or is silent for {ANSWER_SECONDS} s")
        answer = json.loads(line)
        if "error" in answer:
            raise Failed(answer["error"])
        return answer

    def stop(self):
        with contextlib.suppress(BrokenPipeError):  # what was still to be sent to one that has ended
            self.process.stdin.close()
        systems.stop(self.process)


class Clients:
    """The clients of one arm, started when they are first needed."""

    def __init__(self, arm, log):
        self.arm, self.log = arm, log
        self.all = []

    def some(self, count):
        while len(self.all) < count:
            self.all.append(Client(self.arm, len(self.all), self.log))
        return self.all[:count]

    def ask(self, count, command):
        """All at the same time; their answers."""
        clients = self.some(count)
        for client in clients:
            client.send(command)
        return [client.answer() for client in clients]

    def measure(self, count, command):
        """Answers, seconds from the first start to the last end, processor seconds, others' cores."""
        servers = [process.pid for process in self.arm.system.processes]
        usage = Usage(servers + [client.process.pid for client in self.some(count)])
        answers = self.ask(count, command)
        cpu, others = usage.end()
        seconds = max(a["end"] for a in answers) - min(a["start"] for a in answers)
        return answers, seconds, cpu, others

    def stop(self):
        for client in self.all:
            client.stop()


def transfer(clients, cell, serial, check):
    """Puts, gets and drops fresh blocks; {operation: sample}. With `check` all is fetched once more and compared."""
    model = clients.ask(cell.clients, f"prepare {cell.block_bytes} {cell.batch}")[0]["model"]
    words = f"{serial} {cell.batches}"
    out = {}
    for operation in ("put", "get"):
        _, seconds, cpu, others = clients.measure(cell.clients, f"{operation} {words}")
        gigabytes = cell.bytes() / 1e9
        out[operation] = {"value": gigabytes / seconds, "cpu": cpu / gigabytes, "others": others}
    if check:
        clients.ask(cell.clients, f"check {words}")
    clients.ask(cell.clients, f"drop {words}")
    if model:
        clients.arm.system.forget(model)
    return out


def lookup(clients, cell):
    answers, _, _, others = clients.measure(1, f"lookup {cell.shape} {cell.blocks} {cell.calls}")
    return {f"lookup_{cell.shape}": {"value": statistics.median(answers[0]["us"]), "cpu": None, "others": others}}
