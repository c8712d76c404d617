"""A real vLLM engine in a process of its own, asked over pipes (engine_host.py is what runs there).

    with Engine(folder, connector=kvtier_connector(daemon.address)) as engine:
        answers = engine.generate([prompt_tokens], max_tokens=8, logprobs=5)
        answers[0].tokens, answers[0].cached

The engine core runs inside that process (no child of its own) unless multiprocess=True. Every request has
a deadline; one that is missed, and one that the engine answers with an error, raises EngineFailed with the
end of vLLM's log.
"""
import dataclasses
import json
import os
import pathlib
import queue
import subprocess
import sys
import tempfile
import threading

from waiting import wait_until

HERE = pathlib.Path(__file__).resolve().parent
PACKAGE = HERE.parents[2] / "client" / "python"
START_SECONDS = 240
ANSWER_SECONDS = 180
STOP_SECONDS = 60
BLOCK_TOKENS = 32  # the CPU attention takes multiples of 32


class EngineFailed(AssertionError):
    """The engine raised, died or did not answer in time."""


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """What one request brought. logprobs: for each token (token, exact bits as hex) of the likeliest."""

    tokens: tuple[int, ...]
    logprobs: tuple[tuple[tuple[int, str], ...], ...]
    cached: int
    finish: str

    def says(self) -> tuple:
        """All that a user sees of it: two answers that say the same are bitwise equal."""
        return self.tokens, self.logprobs, self.finish


def prompt_of(tokens: list[int], cache_salt: str = "", adapter: tuple[str, int, str] | None = None) -> dict:
    return {"tokens": tokens, "cache_salt": cache_salt, "adapter": adapter}


def kvtier_connector(address: str, failure_policy: str = "recompute", **extra) -> dict:
    """vLLM's kv_transfer_config for kvtier."""
    return {"kv_connector": "KvtierConnector", "kv_connector_module_path": "kvtier.engines.vllm",
            "kv_role": "kv_both", "kv_load_failure_policy": failure_policy,
            "kv_connector_extra_config": {"address": address, **extra}}


def environment(**extra: str) -> dict[str, str]:
    """vLLM on CPU: no hub, no telemetry, no compiler (the first token would wait for it), and one thread,
    also in a worker's process: with two the sums come in another order, and other bits come out."""
    out = dict(os.environ)
    out.update(
        HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", DO_NOT_TRACK="1", VLLM_CPU_KVCACHE_SPACE="1",
        VLLM_ENABLE_V1_MULTIPROCESSING="0", OMP_NUM_THREADS="1", VLLM_CPU_OMP_THREADS_BIND="nobind",
        TORCHDYNAMO_DISABLE="1",
        PYTHONUNBUFFERED="1", PYTHONPATH=os.pathsep.join([str(PACKAGE), str(HERE)]))
    out.update(extra)
    return out


def dtype_of(model: pathlib.Path | str) -> str:
    """As the weights are; vLLM's "auto" would make bf16 of fp32."""
    return json.loads(pathlib.Path(model, "config.json").read_text(encoding="utf-8"))["dtype"]


class Engine:
    """Use as a context manager: the process is gone afterwards, whatever happened."""

    def __init__(self, model: pathlib.Path | str, connector: dict | None = None, plant: bool = False,
                 multiprocess: bool = False, extra_environment: dict[str, str] | None = None, **arguments):
        arguments = {"model": str(model), "dtype": dtype_of(model), "block_size": BLOCK_TOKENS,
                     "max_model_len": 4096, "enforce_eager": True, "disable_log_stats": False, "seed": 0,
                     **arguments}
        if connector is not None:
            arguments["kv_transfer_config"] = connector
        self._log = tempfile.NamedTemporaryFile(prefix="engine_", suffix=".log", mode="w+b")
        extra = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1" if multiprocess else "0", **(extra_environment or {})}
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "engine_host.py"), json.dumps({"engine": arguments, "plant": plant})],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
            env=environment(**extra))
        self.seconds = 0.0  # that the last generate() took inside the engine's process
        self._answers: queue.Queue = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self._answer(START_SECONDS)
        except EngineFailed:
            self.close()
            raise

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *unused) -> None:
        self.close()

    def log(self) -> str:
        return pathlib.Path(self._log.name).read_text(encoding="utf-8", errors="replace")

    def generate(self, prompts: list, max_tokens: int = 8, logprobs: int | None = 5, one_by_one: bool = False,
                 deadline: float = ANSWER_SECONDS) -> list[Answer]:
        """Greedy answers, in the order of the prompts, which are token lists or prompt_of()."""
        self.begin(prompts, max_tokens, logprobs, one_by_one)
        return self.finish(deadline)

    def begin(self, prompts: list, max_tokens: int = 8, logprobs: int | None = 5,
              one_by_one: bool = False) -> None:
        """generate() in two halves, for what happens while the engine works."""
        described = [prompt if isinstance(prompt, dict) else prompt_of(prompt) for prompt in prompts]
        self._ask({"do": "generate", "prompts": described, "max_tokens": max_tokens, "logprobs": logprobs,
                   "one_by_one": one_by_one})

    def finish(self, deadline: float = ANSWER_SECONDS) -> list[Answer]:
        answer = self._answer(deadline)
        self.seconds = answer["seconds"]
        return [Answer(tuple(one["tokens"]),
                       tuple(tuple((token, bits) for token, bits in step) for step in one["logprobs"]),
                       one["cached"], one["finish"])
                for one in answer["outputs"]]

    def forget(self) -> None:
        """Drops the engine's own prefix cache, as soon as no save holds blocks of it any more."""
        def dropped() -> bool:
            self._ask({"do": "forget"})
            return self._answer(ANSWER_SECONDS)["dropped"]
        wait_until(dropped, "vLLM drops its prefix cache: no block in use")

    def metrics(self) -> dict[str, float]:
        self._ask({"do": "metrics"})
        return self._answer(ANSWER_SECONDS)["metrics"]

    def stop(self) -> None:
        """An orderly end: the connector's shutdown runs."""
        self._ask({"do": "stop"})
        self._answer(ANSWER_SECONDS)
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise EngineFailed(f"no end within {STOP_SECONDS} s after shutdown\n{self._tail()}") from error

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        self.process.stdin.close()
        self.process.stdout.close()
        self._log.close()

    def _ask(self, request: dict) -> None:
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()

    def _answer(self, deadline: float) -> dict:
        try:
            line = self._answers.get(timeout=deadline)
        except queue.Empty:
            raise EngineFailed(f"no answer within {deadline} s\n{self._tail()}") from None
        if line is None:
            raise EngineFailed(f"the engine's process ended\n{self._tail()}")
        answer = json.loads(line)
        if "error" in answer:
            raise EngineFailed(f"{answer['error']}\n{self._tail()}")
        return answer

    def _read(self) -> None:
        for line in self.process.stdout:
            self._answers.put(line)
        self._answers.put(None)

    def _tail(self) -> str:
        return "\n".join(self.log().splitlines()[-60:])
