"""What the transformers tests share: models, prompts, a kvtierd, and the oracles.

The oracle of a hit is the same split without kvtier: a live cache cut off where the loaded one ends, and
the model going on from there. It is bitwise exact. The one of the answer is full recomputation: greedy
tokens are equal, logits within a tolerance, as other GEMM shapes round otherwise.
"""
from __future__ import annotations

import contextlib
import functools
import os
import tempfile
import unittest
from typing import Any, Iterator

import daemon
import models
import prompts
import torch
from tiny_model import TINY, Shape
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel
from transformers.utils import logging

import kvtier
from kvtier.engines.transformers import KvtierCache, Timeouts

logging.disable_progress_bar()

BLOCK = 16
GREEDY = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
# A busy machine must not make a miss of a hit; the tests of slow daemons have the real ones.
PATIENT = Timeouts(lookup=20.0, fetch=20.0, store=20.0)


@functools.lru_cache(maxsize=None)
def model_of(shape: Shape = TINY, attention: str = "sdpa") -> PreTrainedModel:
    model = AutoModelForCausalLM.from_pretrained(models.model(shape), dtype=getattr(torch, shape.dtype),
                                                 attn_implementation=attention)
    return model.eval()


def ids_of(seed: Any, count: int) -> torch.Tensor:
    """[1, count] tokens; a longer prompt of a seed continues a shorter one."""
    return torch.tensor([prompts.tokens(seed, count)])


def padded(*rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[1, n] prompts as one batch with padding in front, and its attention mask."""
    width = max(row.shape[1] for row in rows)
    ids = torch.zeros((len(rows), width), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for index, row in enumerate(rows):
        ids[index, width - row.shape[1]:] = row[0]
        mask[index, width - row.shape[1]:] = 1
    return ids, mask


def cut(cache: DynamicCache, columns: int) -> DynamicCache:
    """The first columns of a live cache, in memory of their own."""
    out = DynamicCache()
    for number, layer in enumerate(cache.layers):
        out.update(layer.keys[:, :, :columns].clone(), layer.values[:, :, :columns].clone(), number)
    return out


@torch.no_grad()
def go_on(model: PreTrainedModel, ids: torch.Tensor, live: DynamicCache | None, columns: int,
          mask: torch.Tensor | None = None) -> torch.Tensor:
    """Logits of the columns from `columns` on, the ones before them from the live cache. No kvtier."""
    mask = torch.ones_like(ids) if mask is None else mask
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    past = cut(live, columns) if columns else DynamicCache()
    return model(input_ids=ids[:, columns:], attention_mask=mask, position_ids=positions[:, columns:],
                 past_key_values=past, use_cache=True).logits


def answer(model: PreTrainedModel, ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    """What the model alone generates."""
    return model.generate(ids, attention_mask=torch.ones_like(ids) if mask is None else mask, **GREEDY)


class EngineTest(unittest.TestCase):
    """A test with a kvtierd of its own, started by `start`."""

    def setUp(self) -> None:
        self._stack = contextlib.ExitStack()
        self.addCleanup(self._stack.close)
        self.folder = self._stack.enter_context(tempfile.TemporaryDirectory(
            prefix="kvtier_transformers_", dir=os.environ.get("KVTIER_TEST_DIR")))

    def start(self, *flags: str, ram: str = "64MiB") -> daemon.Daemon:
        return self._stack.enter_context(daemon.Daemon(f"{self.folder}/data", "--ram-bytes", ram, *flags))

    def cache(self, model: PreTrainedModel, server: kvtier.Client | str, **options: Any) -> KvtierCache:
        """Patient, unless it is given timeouts."""
        if isinstance(server, str) and "timeouts" not in options:
            patient = kvtier.ClientOptions(lookup_deadline=PATIENT.lookup)
            server = self._stack.enter_context(kvtier.Client(server, patient))
        options.setdefault("timeouts", PATIENT)
        return self._stack.enter_context(KvtierCache(model, server, block_tokens=BLOCK, **options))

    def assert_bits(self, got: torch.Tensor, expected: torch.Tensor, what: str = "logits") -> None:
        self.assertEqual(got.shape, expected.shape, what)
        self.assertTrue(torch.equal(got, expected),
                        f"{what}: differ by up to {(got.float() - expected.float()).abs().max():.3g}")

    def assert_served(self, cache: KvtierCache, loaded: int) -> None:
        """The last call had so many tokens from kvtier, computed the rest, and nothing failed."""
        call = cache.last_call
        self.assertIsNone(call.failure)
        self.assertEqual(call.loaded_tokens, loaded)


def loadable(tokens: int, held: int | None = None) -> int:
    """Tokens of a prompt that come from kvtier when its first `held` ones were stored before."""
    return min((tokens if held is None else held) // BLOCK * BLOCK, tokens - 1)


@contextlib.contextmanager
def planted(owner: Any, name: str, replacement: Any) -> Iterator[None]:
    """An attribute replaced for a while: the fault of a control."""
    original = getattr(owner, name)
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        setattr(owner, name, original)


__all__ = [name for name in dir() if not name.startswith("_")] + ["kvtier"]
