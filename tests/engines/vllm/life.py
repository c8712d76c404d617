"""One engine through its life, in a process of its own; life_test.py reads what it prints.

usage: life.py MODEL_FOLDER ADDRESS sync|async

A line `at STAGE` on standard output waits for a line on standard input; the last line is JSON: for each stage
{"cached": tokens, "same": the answer was that of the first stage, "sources": {...}}.
"""
import json
import os
import random
import sys
import time
from typing import TextIO

SEED = 3
PROMPT_TOKENS = 300
ANSWER_TOKENS = 40
PATIENCE_SECONDS = 60.0


class Life:
    def __init__(self, answers: TextIO, model: str, address: str, load: str) -> None:
        from vllm import LLM, SamplingParams
        self._answers = answers
        self._engine = LLM(
            model=model, block_size=32, max_model_len=4096, enforce_eager=True, disable_log_stats=False,
            seed=0, kv_transfer_config={
                "kv_connector": "KvtierConnector", "kv_connector_module_path": "kvtier.engines.vllm",
                "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
                "kv_connector_extra_config": {"address": address, "load": load, "lookup_budget": 5.0,
                                              "load_budget": 5.0, "save_budget": 5.0}})
        self._greedy = SamplingParams(temperature=0.0, max_tokens=ANSWER_TOKENS, ignore_eos=True)
        source = random.Random(SEED)
        self.prompt = [source.randrange(500) for _ in range(PROMPT_TOKENS)]
        self.first: list[int] = []
        self.stages: dict[str, dict] = {}

    @property
    def core(self):
        return self._engine.llm_engine.engine_core.engine_core

    def ask(self, stage: str, tokens: list[int] | None = None) -> dict:
        before = self._sources()
        output, = self._engine.generate([{"prompt_token_ids": tokens or self.prompt}], self._greedy,
                                        use_tqdm=False)
        answer = list(output.outputs[0].token_ids)
        self.first = self.first or answer
        after = self._sources()
        seen = {"cached": output.num_cached_tokens, "same": answer == self.first,
                "sources": {name: count - before.get(name, 0) for name, count in after.items()
                            if count != before.get(name, 0)}}
        self.stages[stage] = seen
        return seen

    def _sources(self) -> dict[str, float]:
        return {metric.labels["source"]: metric.value for metric in self._engine.get_metrics()
                if metric.name == "vllm:prompt_tokens_cached_by_source" and metric.value}

    def settle(self) -> None:
        """Steps until no job is under way, so that no block is pinned."""
        end = time.monotonic() + PATIENCE_SECONDS
        half = self.core.scheduler.connector._scheduler.half
        while half.busy():
            if time.monotonic() > end:
                raise TimeoutError(f"still busy: {half.counters()}")
            self._engine.llm_engine.step()

    def forget(self, connector: bool = False) -> None:
        self.settle()
        if not self._engine.reset_prefix_cache(reset_connector=connector):
            raise RuntimeError("vLLM did not reset its cache")

    def abort(self, name: str, tokens: list[int], steps: int) -> None:
        engine = self._engine.llm_engine
        engine.add_request(name, {"prompt_token_ids": tokens}, self._greedy)
        for _ in range(steps):
            engine.step()
        engine.abort_request([name])

    def pause(self, stage: str) -> None:
        print(f"at {stage}", file=self._answers, flush=True)
        sys.stdin.readline()

    def live(self) -> dict:
        self.ask("cold")
        self.forget()
        self.ask("warm")
        self.forget()
        self.ask("second turn", self.prompt + self.first)
        self.settle()
        self.pause("restart")
        end = time.monotonic() + PATIENCE_SECONDS
        while self.forget() or self.ask("restarted")["cached"] == 0:  # the client finds the new one by itself
            if time.monotonic() > end:
                break
        self.forget(connector=True)
        self.ask("reset")
        self.forget()
        self.ask("reset again")
        self.forget()
        for steps in range(4):  # queued; looked up, loading or loaded; computing
            self.abort(f"hit {steps}", self.prompt, steps)
            self.abort(f"miss {steps}", [steps + 1] * 700, steps)
        self.ask("aborts")
        self.settle()
        pool = self.core.scheduler.kv_cache_manager.block_pool
        counters = self.core.scheduler.connector._scheduler.half.counters()
        return {"stages": self.stages, "in_use": pool.num_gpu_blocks - 1 - pool.get_num_free_blocks(),
                "pinned": counters.pinned_blocks, "failed": counters.blocks_failed}

    def end(self) -> None:
        self._engine.llm_engine.engine_core.shutdown()


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM prints as it likes
    life = Life(answers, *sys.argv[1:4])
    print(json.dumps(life.live()), file=answers, flush=True)
    life.end()


if __name__ == "__main__":
    main()
