"""What all scenarios of a connector check at their end, and that each can fail."""
from __future__ import annotations

import contextlib
import io
import logging
import unittest
from typing import Any, Callable

from fake_engine import FakeEngine, FakeRequest, NoConnector, Slots
from fake_kv import Shape
from paged_connector import NOTHING, Leaked, Planted, Rig, threads_of_kvtier

BLOCK = 16


def plain(request: FakeRequest, shape: Shape = Shape()) -> list[int]:
    """What an engine without a connector answers to the same prompt."""
    again = FakeRequest(request.id, request.tokens[:request.prompt_tokens], max_new=request.max_new,
                        tenant=request.tenant, salt=request.salt, adapter=request.adapter,
                        weights=request.weights)
    slots = Slots(shape)
    with FakeEngine(slots, NoConnector(shape.ranks)) as engine:
        engine.add(again)
        engine.run()
    return again.output


class ConnectorCase(unittest.TestCase):
    """`self.log` has what the package logs."""

    def setUp(self) -> None:
        self._threads = threads_of_kvtier()
        self.log = io.StringIO()
        handler = logging.StreamHandler(self.log)
        logging.getLogger("kvtier").addHandler(handler)
        self.addCleanup(logging.getLogger("kvtier").removeHandler, handler)

    def tearDown(self) -> None:
        self.assertEqual(threads_of_kvtier(), self._threads)

    def holds(self, scenario: Callable[..., None], planted: Planted, seen: type[BaseException],
              *arguments: Any, **options: Any) -> None:
        """For the connector as it is, and is `seen` to fail with the fault."""
        scenario(NOTHING, *arguments, **options)
        with self.assertRaises(seen), contextlib.redirect_stderr(io.StringIO()):
            scenario(planted, *arguments, **options)

    def check(self, engine: FakeEngine, rig: Rig, *requests: FakeRequest,
              computed: int | None = None) -> None:
        """The right KV was used, the right answers given, and nothing is left behind."""
        engine.must_be_clean()
        for request in requests:
            self.assertEqual(request.output, plain(request, rig.shape), request.id)
            if computed is not None:
                self.assertEqual(request.tokens_computed, computed, request.id)
        try:
            rig.must_be_idle()
        except Leaked as leak:
            raise Leaked(f"{leak}; the log says:\n{self.log.getvalue()}") from leak
