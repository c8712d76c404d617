"""The protocol of kvtier_peer_arm (its manual is at the top of arm_main.cc) for clients written in Python.

An arm is an object with prepare(block_bytes, batch), put, get, check and drop(serial, batch_number) of one batch,
compare() of the last of them, before_get(serial, batches) for what is not timed, chain(blocks), prepare_lookup(shape,
blocks), which returns the call to be timed, and after_lookup(). What raises ends the run: a rate with one failed
operation in it is none.
"""
import json
import os
import sys
import time


def private_stdout():
    """Libraries print what they like on stdout; the protocol keeps the real one for itself."""
    real = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return real


def timed(calls):
    start = time.monotonic()
    for call, arguments in calls:
        call(*arguments)
    return {"start": start, "end": time.monotonic()}


class Commands:
    def __init__(self, arm):
        self.arm = arm

    def do(self, words):
        name, arguments = words[0], words[1:]
        if name in ("put", "get", "check", "drop"):
            return self.batches(name, *map(int, arguments))
        if name == "prepare":
            self.arm.prepare(*map(int, arguments))
            return {"model": ""}
        if name == "chain":
            self.arm.chain(int(arguments[0]))
            return {}
        if name == "lookup":
            return self.lookup(arguments[0], int(arguments[1]), int(arguments[2]))
        raise ValueError(f"command: '{name}' is unknown")

    def batches(self, name, serial, batches):
        if name in ("get", "check"):
            self.arm.before_get(serial, batches)
        out = timed([(getattr(self.arm, name), (serial, batch)) for batch in range(batches)])
        if name == "get":
            self.arm.compare(serial, batches - 1)
        return out

    def lookup(self, shape, blocks, calls):
        expected = {"hit": blocks, "miss": 0, "partial": blocks // 2}[shape]
        call = self.arm.prepare_lookup(shape, blocks)
        us = []
        start = time.monotonic()
        for _ in range(calls):
            before = time.perf_counter()
            found = call()
            us.append((time.perf_counter() - before) * 1e6)
            if found != expected:
                raise RuntimeError(f"found {found} blocks, not {expected}")
            self.arm.after_lookup()
        return {"start": start, "end": time.monotonic(), "us": us}


def serve(make_arm):
    """Answers the commands on stdin until it ends; exits 1 after an error."""
    answers = private_stdout()
    try:
        commands = Commands(make_arm())
        for line in sys.stdin:
            print(json.dumps(commands.do(line.split())), file=answers)
    except Exception as error:  # whatever a library throws ends this arm, and the driver says so
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=answers)
        answers.flush()
        os._exit(1)  # no destructors of a library that has just failed
    os._exit(0)
