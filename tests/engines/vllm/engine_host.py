"""One vLLM engine in this process, driven over pipes. tests/engines/vllm/engine.py is its other end.

usage: engine_host.py '{"engine": {arguments of vllm.LLM}, "plant": bool}'

Reads one JSON request a line from standard input, answers with one JSON object a line on standard output;
vLLM's own output goes to standard error. Requests, by "do":
  generate   {"prompts": [{"tokens", "cache_salt"?, "adapter"?: [name, id, folder]}], "max_tokens",
             "logprobs", "one_by_one"?}
             -> {"outputs": [{"tokens", "logprobs", "cached", "finish"}], "seconds"}
  forget     drops the local prefix cache -> {"dropped": bool}
  metrics    -> {"metrics": {name without _total: sum over all labels}}
  stop       ends the engine in order and the process
A request that raises is answered {"error": text}.
"""
import json
import os
import sys
import time
import traceback


def take_standard_output() -> int:
    """The pipe to the parent, kept away from whatever prints."""
    answers = os.dup(1)
    os.dup2(2, 1)
    return answers


class Host:
    """The engine and what may be asked of it."""

    def __init__(self, arguments: dict):
        from vllm import LLM, SamplingParams
        from vllm.lora.request import LoRARequest
        self._sampling, self._adapter = SamplingParams, LoRARequest
        self._engine = LLM(**arguments)

    def generate(self, prompts: list, max_tokens: int, logprobs: int | None = None,
                 one_by_one: bool = False) -> dict:
        began = time.monotonic()
        groups = [[prompt] for prompt in prompts] if one_by_one else [prompts]
        outputs = [output for group in groups for output in self._run(group, max_tokens, logprobs)]
        return {"outputs": [described(output) for output in outputs], "seconds": time.monotonic() - began}

    def _run(self, prompts: list, max_tokens: int, logprobs: int | None) -> list:
        sampling = self._sampling(temperature=0.0, max_tokens=max_tokens, logprobs=logprobs, ignore_eos=True)
        inputs = [{"prompt_token_ids": prompt["tokens"]}
                  | ({"cache_salt": prompt["cache_salt"]} if prompt.get("cache_salt") else {})
                  for prompt in prompts]
        adapters = [self._adapter(*prompt["adapter"]) if prompt.get("adapter") else None
                    for prompt in prompts]
        return self._engine.generate(inputs, sampling, use_tqdm=False,
                                     lora_request=adapters if any(adapters) else None)

    def forget(self) -> dict:
        return {"dropped": bool(self._engine.reset_prefix_cache())}

    def metrics(self) -> dict:
        """From the registry: vLLM's own get_metrics() makes integers of counters, also of seconds."""
        from prometheus_client import REGISTRY

        found: dict[str, float] = {}
        for sample in (sample for metric in REGISTRY.collect() for sample in metric.samples):
            if sample.name.startswith("vllm:") and not sample.name.endswith(("_bucket", "_created")):
                name = sample.name.removesuffix("_total")
                found[name] = found.get(name, 0.0) + sample.value
        return {"metrics": found}

    def stop(self) -> dict:
        self._engine.llm_engine.engine_core.shutdown()
        return {}


def described(output) -> dict:
    """Tokens, and for each the most likely ones with the exact bits of their log probability."""
    answer = output.outputs[0]
    logprobs = [[[token, value.logprob.hex()] for token, value in sorted(step.items())]
                for step in answer.logprobs or []]
    return {"tokens": list(answer.token_ids), "logprobs": logprobs, "cached": output.num_cached_tokens or 0,
            "finish": answer.finish_reason}


def main() -> int:
    answers = os.fdopen(take_standard_output(), "w", encoding="utf-8", buffering=1)
    wish = json.loads(sys.argv[1])
    try:
        if wish["plant"]:
            import planted  # faults live beside the tests, never in the package

            planted.plant()
        host = Host(wish["engine"])
    except Exception as error:  # told to the parent, which fails the test with it
        traceback.print_exc()
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=answers)
        return 1
    print(json.dumps({"ready": True}), file=answers)
    for line in sys.stdin:
        request = json.loads(line)
        what = request.pop("do")
        try:
            answer = getattr(host, what)(**request)
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers)
        if what == "stop":
            break
    return 0


if __name__ == "__main__":
    sys.exit(main())
