"""vLLM's OpenAI-compatible server with kvtier: the second request's prompt comes from the cache, and
/metrics says so."""
import json
import re
import socket
import subprocess
import sys
import tempfile
import unittest
import urllib.error
import urllib.request

import models
import prompts
from engine import BLOCK_TOKENS, START_SECONDS, environment, kvtier_connector
from kvtierd import kvtierd
from waiting import wait_until

BLOCKS = 9
CALL_SECONDS = 60


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Server:
    """The server as a child process. Its own prefix cache is off: what hits comes from kvtier."""

    def __init__(self, connector: dict):
        self.port = free_port()
        flags = ["--model", str(models.model()), "--served-model-name", "tiny", "--dtype", "float32",
                 "--host", "127.0.0.1", "--port", str(self.port), "--block-size", str(BLOCK_TOKENS),
                 "--max-model-len", "4096",
                 "--enforce-eager", "--no-enable-prefix-caching", "--enable-prompt-tokens-details",
                 "--kv-transfer-config", json.dumps(connector)]
        self._log = tempfile.NamedTemporaryFile(prefix="server_", suffix=".log")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *flags],
            stdout=self._log, stderr=subprocess.STDOUT,
            env=environment(VLLM_ENABLE_V1_MULTIPROCESSING="1"))

    def __enter__(self) -> "Server":
        try:
            wait_until(self._ready, "vLLM's server ready", START_SECONDS)
        except AssertionError as error:
            tail = self.log()[-4000:]
            self.__exit__()
            raise AssertionError(f"{error}\n{tail}") from None
        return self

    def __exit__(self, *unused) -> None:
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._log.close()

    def _ready(self) -> bool:
        if self.process.poll() is not None:
            raise AssertionError(f"vLLM's server ended with {self.process.returncode}")
        try:
            self.get("/health")
        except (urllib.error.URLError, ConnectionError):
            return False
        return True

    def log(self) -> str:
        with open(self._log.name, encoding="utf-8", errors="replace") as log:
            return log.read()

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=CALL_SECONDS) as answer:
            return answer.read().decode()

    def complete(self, tokens: list[int]) -> dict:
        body = json.dumps({"model": "tiny", "prompt": tokens, "max_tokens": 8, "temperature": 0.0}).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/v1/completions", body,
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=CALL_SECONDS) as answer:
            return json.loads(answer.read())

    def metric(self, name: str) -> float:
        """The sum over all labels of a metric; 0 when there is none of that name."""
        found = re.findall(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)$", self.get("/metrics"), re.MULTILINE)
        return sum(map(float, found))


def cached(answer: dict) -> int:
    return (answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0


class ServerTest(unittest.TestCase):

    def test_the_second_request_comes_from_kvtier(self):
        _, prompt = prompts.split(seed=41, blocks=BLOCKS, rest=12)
        with kvtierd() as daemon, Server(kvtier_connector(daemon.address, lookup_budget=2.0)) as server:
            first = server.complete(prompt)
            self.assertEqual(cached(first), 0)
            self.assertEqual(server.metric("vllm:external_prefix_cache_hits_total"), 0)
            daemon.wait_blocks(BLOCKS)
            second = server.complete(prompt)
            self.assertEqual(cached(second), BLOCKS * BLOCK_TOKENS)
            self.assertEqual(server.metric("vllm:external_prefix_cache_hits_total"), BLOCKS * BLOCK_TOKENS)
            self.assertEqual(server.metric("vllm:prefix_cache_hits_total"), 0)
            self.assertEqual(second["choices"][0]["text"], first["choices"][0]["text"])
            print(*sorted(line for line in server.get("/metrics").splitlines()
                          if line.startswith(("vllm:kvtier", "vllm:external_prefix", "kvtier"))
                          and "_created" not in line and "_bucket" not in line), sep="\n", flush=True)


if __name__ == "__main__":
    unittest.main()
