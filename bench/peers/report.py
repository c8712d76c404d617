"""From samples to rows, cells and a table."""
import statistics

RATES = ("put", "get")
REFERENCES = ("raw", "grpc")


def is_rate(operation):
    return operation in RATES


def better(operation, one, other):
    """How many times as good `one` is as `other`: above 1 it is ahead."""
    return one / other if is_rate(operation) else other / one


class Results:
    """Samples by cell and arm. A cell is (operation, block_bytes, batch, clients)."""

    def __init__(self):
        self.samples = {}

    def add(self, key, arm, sample):
        self.samples.setdefault(key, {}).setdefault(arm.name, (arm, []))[1].append(sample)

    def drop(self, arm):
        for by_arm in self.samples.values():
            by_arm.pop(arm.name, None)

    def values(self, key, name):
        return [sample["value"] for sample in self.samples[key][name][1]]


def limit_of(results, key, arm):
    """(name, median) of what no system over this transport can exceed, (None, None) where there is none."""
    name = "memcpy" if arm.transport == "shm" and is_rate(key[0]) else f"raw_{arm.calls}"
    source = key if name != "memcpy" else ("memcpy", None, None, 1)
    if name == arm.name or name not in results.samples.get(source, {}):
        return None, None
    return name, statistics.median(results.values(source, name))


def row(results, key, name):
    arm, samples = results.samples[key][name]
    operation, block_bytes, batch, clients = key
    values = [sample["value"] for sample in samples]
    limit_name, limit = limit_of(results, key, arm)
    cpu = [sample["cpu"] for sample in samples if sample["cpu"] is not None]
    return {
        "system": name, "version": arm.version, "operation": operation, "block_bytes": block_bytes, "batch": batch,
        "clients": clients, "value": statistics.median(values), "unit": "GB/s" if is_rate(operation) else "us",
        "spread": [min(values), max(values)], "rounds": len(values),
        "cpu_seconds_per_gb": statistics.median(cpu) if cpu else None, "verified": arm.verified,
        "limit": limit, "limit_name": limit_name, "transport": arm.transport,
        "other_cores": statistics.median(sample["others"] for sample in samples),
    }


def best(results, key, names):
    """The arm with the best median, or None."""
    medians = {name: statistics.median(results.values(key, name)) for name in names}
    if not medians:
        return None
    return (max if is_rate(key[0]) else min)(medians, key=medians.get)


def ratio(results, key, transport=None):
    """kvtier beside its best peer: (ours, theirs, median of the rounds' ratios), None without one of the two.

    Rounds are compared one by one, so that a slow phase of the machine weighs on both.
    """
    names = [name for name, (arm, _) in results.samples[key].items()
             if arm.system.name not in REFERENCES and transport in (None, arm.transport)]
    ours = best(results, key, [name for name in names if name.startswith("kvtier")])
    theirs = best(results, key, [name for name in names if not name.startswith("kvtier")])
    if ours is None or theirs is None:
        return None
    pairs = zip(results.values(key, ours), results.values(key, theirs))
    return ours, theirs, statistics.median(better(key[0], a, b) for a, b in pairs)


def cell(results, key):
    operation, block_bytes, batch, clients = key
    out = {"operation": operation, "block_bytes": block_bytes, "batch": batch, "clients": clients}
    overall, over_tcp = ratio(results, key), ratio(results, key, "tcp")
    if overall:
        out.update(zip(("kvtier", "best_peer", "ratio"), overall))
    if over_tcp:
        out.update(zip(("best_peer_tcp", "ratio_tcp"), over_tcp[1:]))
    return out


def document(results, about, not_run, notes):
    keys = [key for key in results.samples if key[0] != "memcpy"]
    rows = [row(results, key, name) for key in keys for name in results.samples[key]]
    memcpy = [value for name in results.samples.get(("memcpy", None, None, 1), {})
              for value in results.values(("memcpy", None, None, 1), name)]
    return {"bench": "peers", **about, "memcpy_gbps": statistics.median(memcpy) if memcpy else None,
            "rows": rows, "cells": [cell(results, key) for key in keys], "not_run": not_run, "notes": notes}


# ------------------------------------------------------------------------------------------------ text

def size_text(block_bytes):
    if block_bytes is None:
        return ""
    return f"{block_bytes >> 20} MiB" if block_bytes >> 20 else f"{block_bytes >> 10} KiB"


def cell_label(key):
    operation, block_bytes, batch, clients = key
    if block_bytes is None:
        return f"{operation} {batch}"
    return f"{operation} {size_text(block_bytes)} x {batch}" + (f", {clients} clients" if clients > 1 else "")


def with_spread(results, key, name):
    values = results.values(key, name)
    middle = statistics.median(values)
    half = (max(values) - min(values)) / 2 / middle * 100
    return f"{middle:.2f}" * (middle < 100) + f"{middle:.0f}" * (middle >= 100) + f" ±{half:.0f}%"


def aligned(rows):
    widths = [max(len(r[i]) for r in rows if i < len(r)) for i in range(max(map(len, rows)))]
    lines = []
    for r in rows:
        words = [r[0].ljust(widths[0])] + [word.rjust(width) for word, width in zip(r[1:], widths[1:])]
        lines.append("  ".join(words).rstrip())
    return "\n".join(lines) + "\n"


def ratio_text(found):
    return f"{found[2]:.2f} ({found[1]})" if found else ""


def value_table(results, keys, names):
    rows = [["", *names, "kvtier / best peer", "the same, TCP only"]]
    for key in keys:
        cells = [with_spread(results, key, name) if name in results.samples[key] else "-" for name in names]
        rows.append([cell_label(key), *cells, ratio_text(ratio(results, key)),
                     ratio_text(ratio(results, key, "tcp"))])
    return aligned(rows)


def cpu_table(results, keys, names):
    rows = [["", *names]]
    for key in keys:
        cpu = {name: row(results, key, name)["cpu_seconds_per_gb"] for name in results.samples[key]}
        rows.append([cell_label(key), *(f"{cpu[name]:.2f}" if name in cpu else "-" for name in names)])
    return aligned(rows)


def text(results, order, doc):
    keys = [key for key in results.samples if key[0] != "memcpy"]
    transfers = [key for key in keys if is_rate(key[0])]
    lookups = [key for key in keys if not is_rate(key[0])]
    out = [f"{len(doc['rows'])} figures: medians of {doc['rounds']} rounds ± half of what lies between the least and "
           "the most. A ratio above 1: kvtier is ahead."]
    for title, part, table in (("GB/s", transfers, value_table),
                               ("Processor seconds of clients and server per GB", transfers, cpu_table),
                               ("Lookup of so many blocks, us, median call", lookups, value_table)):
        names = [name for name in order if any(name in results.samples[key] for key in part)]
        if names:
            out.append(f"{title}\n{table(results, part, names).rstrip()}")
    others = statistics.median([r["other_cores"] for r in doc["rows"]] or [0])
    memcpy = f"{doc['memcpy_gbps']:.1f} GB/s" if doc["memcpy_gbps"] else "not measured"
    out.append(f"memcpy: {memcpy}. Others on this machine kept {others:.2f} of {doc['cores']} "
               "cores busy meanwhile (median).")
    seen = {r["system"]: (r["version"], r["verified"]) for r in doc["rows"]}
    out.append("\n".join(f"{name}: {seen[name][0] or 'no version'}; verifies {seen[name][1]}"
                         for name in order if name in seen))
    out += [f"Not run: {item['system']}: {item['reason']}" for item in doc["not_run"]]
    return "\n\n".join(out + ["\n".join(doc["notes"])])
