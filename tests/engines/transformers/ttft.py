"""Time to first token of one prompt, cold and from kvtier, as ratios of one run.

usage: ttft.py [--tokens 2000] [--rounds 9] [--layers 8] [--hidden 512] [--dtype float32] [--json]

Environment: KVTIERD, as for the tests. Three arms take turns; each is generate() of a transformers model,
measured from the call to its first new token:

  cold     a prompt that nobody has seen: the model computes all of it
  cached   the same prompt again: kvtier has its blocks, the model computes the rest
  limit    the model's own live cache at the same split: what no store of KV can beat

Positions computed are counted where the model embeds them. Progress on stderr; with --json one document on
stdout, rows of {name, value, unit, limit_name, limit, ratio}.
"""
from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import statistics
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
for folder in ("tests/support", "tests/engines/support", "client/python"):
    sys.path.insert(0, str(HERE.parents[2] / folder))

import torch  # noqa: E402
from daemon import Daemon  # noqa: E402
from support import cut, ids_of, model_of  # noqa: E402
from tiny_model import MEDIUM, Shape  # noqa: E402
from transformers.generation import BaseStreamer  # noqa: E402

from kvtier.engines.transformers import CallReport, KvtierCache, Timeouts  # noqa: E402

GREEDY = {"max_new_tokens": 1, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
RAM = "1GiB"


class FirstToken(BaseStreamer):
    """When the first new token came; generate shows the prompt first."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self.seconds = 0.0
        self._seen = 0

    def put(self, value: torch.Tensor) -> None:
        self._seen += 1
        if self._seen == 2:
            self.seconds = time.perf_counter() - self._began

    def end(self) -> None:
        pass


@dataclasses.dataclass(slots=True)
class Rounds:
    cold: list[float] = dataclasses.field(default_factory=list)
    cached: list[float] = dataclasses.field(default_factory=list)
    limit: list[float] = dataclasses.field(default_factory=list)
    calls: list[CallReport] = dataclasses.field(default_factory=list)       # of cached
    cold_calls: list[CallReport] = dataclasses.field(default_factory=list)


def measure(shape: Shape, tokens: int, rounds: int, address: str) -> Rounds:
    model = model_of(shape)
    out = Rounds()
    with KvtierCache(model, address, timeouts=Timeouts(lookup=10.0, fetch=60.0, store=60.0)) as cache:
        for number in range(rounds + 1):
            one = Rounds()
            run_round(model, cache, ids_of(f"ttft {number}", tokens), one)
            if number == 0:
                continue  # warms up
            for name in ("cold", "cached", "limit", "calls", "cold_calls"):
                getattr(out, name).extend(getattr(one, name))
            print(f"round {number}: cold {one.cold[0] * 1e3:.1f} ms, cached {one.cached[0] * 1e3:.1f} ms, "
                  f"limit {one.limit[0] * 1e3:.1f} ms", file=sys.stderr)
    return out


def run_round(model, cache: KvtierCache, ids: torch.Tensor, out: Rounds) -> None:
    first = FirstToken()
    expected = cache.generate(ids, streamer=first, **GREEDY)
    out.cold.append(first.seconds)
    out.cold_calls.append(check(cache.last_call, loaded=0))

    first = FirstToken()
    cached = cache.generate(ids, streamer=first, **GREEDY)
    out.cached.append(first.seconds)
    whole = min(ids.shape[1] // cache.block_tokens * cache.block_tokens, ids.shape[1] - 1)
    out.calls.append(check(cache.last_call, loaded=whole))

    with torch.no_grad():
        live = model(input_ids=ids[:, :whole], attention_mask=torch.ones_like(ids[:, :whole]),
                     use_cache=True).past_key_values
    live = cut(live, whole)
    first = FirstToken()
    alone = model.generate(ids, attention_mask=torch.ones_like(ids), past_key_values=live, streamer=first,
                           **GREEDY)
    out.limit.append(first.seconds)
    if not (torch.equal(expected, cached) and torch.equal(expected, alone)):
        raise AssertionError("the arms answer differently")


def check(call: CallReport, loaded: int) -> CallReport:
    if call.failure is not None or call.loaded_tokens != loaded:
        raise AssertionError(f"{loaded} tokens should have come from kvtier: {call}")
    return call


def rows_of(shape: Shape, seen: Rounds) -> list[dict]:
    """Medians; ratios are medians of the rounds' own."""
    middle = statistics.median

    def row(name, value, unit, limit_name, limit, ratio):
        return {"name": f"{name}_{shape.dtype}", "value": value, "unit": unit, "limit_name": limit_name,
                "limit": limit, "ratio": ratio}

    def of_calls(name):
        return middle(getattr(call, name) for call in seen.calls)

    cached, load = middle(seen.cached), of_calls("load_seconds")
    return [
        row("ttft_cold", middle(seen.cold), "s", "", None, None),
        row("ttft_cached", cached, "s", "ttft_cold", middle(seen.cold),
            middle(one / all_ for one, all_ in zip(seen.cached, seen.cold))),
        row("ttft_cached_above_limit", cached, "s", "live cache", middle(seen.limit),
            middle(one / best for one, best in zip(seen.cached, seen.limit))),
        row("kvtier_share", load, "s", "ttft_cached", cached,
            middle(call.load_seconds / one for call, one in zip(seen.calls, seen.cached))),
        row("lookup", of_calls("lookup_seconds"), "s", "", None, None),
        row("fetch", of_calls("fetch_seconds"), "s", "", None, None),
        row("rebuild", of_calls("rebuild_seconds"), "s", "", None, None),
        row("fetch_rate", middle(call.fetched_bytes / call.fetch_seconds / 1e9 for call in seen.calls),
            "GB/s", "", None, None),
        row("store", middle(call.store_seconds for call in seen.cold_calls), "s", "", None, None),
        row("computed_cold", middle(call.prefill_positions for call in seen.cold_calls), "tokens", "",
            None, None),
        row("computed_cached", of_calls("prefill_positions"), "tokens", "", None, None),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--layers", type=int, default=MEDIUM.layers)
    parser.add_argument("--hidden", type=int, default=MEDIUM.hidden)
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default=MEDIUM.dtype)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    shape = dataclasses.replace(MEDIUM, layers=args.layers, hidden=args.hidden, heads=args.hidden // 64,
                                kv_heads=max(1, args.hidden // 128), dtype=args.dtype)
    with tempfile.TemporaryDirectory(prefix="kvtier_ttft_") as folder:
        with Daemon(folder + "/data", "--ram-bytes", RAM) as kvtierd:
            rows = rows_of(shape, measure(shape, args.tokens, args.rounds, kvtierd.address))
    if args.json:
        print(json.dumps({"rows": rows, "tokens": args.tokens, "threads": torch.get_num_threads()}, indent=1))
    else:
        for row in rows:
            beside = f"  {row['ratio']:.4f} of {row['limit_name']}" if row["ratio"] is not None else ""
            print(f"{row['name']:36} {row['value']:.6g} {row['unit']}{beside}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
