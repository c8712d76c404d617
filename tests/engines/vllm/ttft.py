"""Time to first token in vLLM: computed, from kvtier, and from vLLM's own prefix cache.

usage: ttft.py [--tokens N] [--rounds N] [--dtype fp32|bf16 ...] [--multiprocess] [--json]

A random model of 512 hidden x 8 layers on one thread. Each round has a prompt of its own and takes three
times, with one token of answer: cold (nobody has it), warm (vLLM's own cache dropped, all whole blocks come
from kvtier) and local (a hit in vLLM's own cache: what no connector can be faster than). A first round, not
counted, warms the programs up; the figures are medians. `plain` is cold in an engine without a connector,
turn about with the others: the ratio is plain / warm. `kvtier` is the share of the warm time that the local hit does not take, `load`
what the connector counted for fetching into vLLM's pages.

Needs kvtierd in KVTIERD and the venv of tests/engines/install.sh; tests/engines/run.sh vllm -k Ttft runs a
short form of it.
"""
import argparse
import dataclasses
import json
import pathlib
import statistics
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "support"), str(HERE.parents[1] / "support")]

import models  # noqa: E402  (the folders above are where these are)
import prompts  # noqa: E402
import tiny_model  # noqa: E402
from engine import BLOCK_TOKENS, Engine, kvtier_connector  # noqa: E402
from kvtierd import kvtierd  # noqa: E402

DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
LOAD_SECONDS = "vllm:kvtier_load_seconds"
LOAD_BYTES = "vllm:kvtier_bytes_loaded"


@dataclasses.dataclass(frozen=True, slots=True)
class Figures:
    """Of one dtype. Seconds are medians over the rounds; cached counts tokens of each warm prompt."""

    dtype: str
    tokens: int
    cached: int
    rounds: int
    multiprocess: bool
    plain_seconds: float
    cold_seconds: float
    warm_seconds: float
    local_seconds: float
    load_seconds: float
    load_bytes: int

    @property
    def ratio(self) -> float:
        return self.plain_seconds / self.warm_seconds

    @property
    def kvtier_share(self) -> float:
        return max(0.0, self.warm_seconds - self.local_seconds) / self.warm_seconds

    @property
    def load_gb_per_second(self) -> float:
        return self.load_bytes / self.load_seconds / 1e9 if self.load_seconds else 0.0

    def document(self) -> dict:
        return {**dataclasses.asdict(self), "ratio": self.ratio, "kvtier_share": self.kvtier_share,
                "load_gb_per_second": self.load_gb_per_second}

    def text(self) -> str:
        return (f"{self.dtype}: {self.tokens} tokens, {self.cached} of them cached: plain "
                f"{self.plain_seconds * 1e3:.1f} ms, cold {self.cold_seconds * 1e3:.1f} ms, warm "
                f"{self.warm_seconds * 1e3:.1f} ms = 1/{self.ratio:.1f} of plain, local hit "
                f"{self.local_seconds * 1e3:.1f} ms; kvtier {self.kvtier_share:.0%} of warm; load "
                f"{self.load_seconds * 1e3:.1f} ms, {self.load_gb_per_second:.2f} GB/s")


def once(engine: Engine, prompt: list[int], expected: int) -> float:
    answer, = engine.generate([prompt], max_tokens=1, logprobs=None)
    if answer.cached != expected:
        raise SystemExit(f"{answer.cached} tokens cached where {expected} should be")
    return engine.seconds


def measure(dtype: str, tokens: int, rounds: int, multiprocess: bool) -> Figures:
    model = models.model(dataclasses.replace(tiny_model.MEDIUM, dtype=DTYPES[dtype]))
    blocks = (tokens - 1) // BLOCK_TOKENS
    cached = blocks * BLOCK_TOKENS
    asked = [prompts.tokens(seed=51 + round_, count=tokens) for round_ in range(rounds + 1)]
    plain, cold, warm, local, loads = [], [], [], [], []
    with kvtierd(ram="1GiB") as daemon, Engine(model, multiprocess=multiprocess) as alone, \
            Engine(model, kvtier_connector(daemon.address), multiprocess=multiprocess) as engine:
        for number, prompt in enumerate(asked, 1):
            plain.append(once(alone, prompt, 0))
            cold.append(once(engine, prompt, 0))
            daemon.wait_blocks(number * blocks)
            daemon.wait_idle()
            engine.forget()
            before = engine.metrics()
            warm.append(once(engine, prompt, cached))
            local.append(once(engine, prompt, cached))
            after = engine.metrics()
            loads.append([after[name] - before[name] for name in (LOAD_SECONDS, LOAD_BYTES)])
        engine.stop()
    middle = [statistics.median(of[1:]) for of in (plain, cold, warm, local)]
    load_seconds = statistics.median(seconds for seconds, _ in loads[1:])
    load_bytes = int(statistics.median(size for _, size in loads[1:]))
    return Figures(dtype, tokens, cached, rounds, multiprocess, *middle, load_seconds, load_bytes)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--multiprocess", action="store_true", help="the engine core in its own process")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    figures = [measure(dtype, args.tokens, args.rounds, args.multiprocess) for dtype in args.dtype]
    if args.json:
        print(json.dumps([one.document() for one in figures], indent=2))
    else:
        print(*(one.text() for one in figures), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
