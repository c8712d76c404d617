"""What the tests of the Python package share: the package of this tree, the real daemon, and both clients
behind one blocking interface, so that a case is written once."""

import asyncio
import os
import pathlib
import sys
import tempfile
import threading

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tests/support"))
# An installed package is tested as it is; else that of this tree.
if not os.environ.get("KVTIER_INSTALLED"):
    sys.path.insert(0, str(SOURCE / "client/python"))

import daemon  # noqa: E402  (first: it exits with "skipped" where there is no grpc)

import kvtier  # noqa: E402

Daemon = daemon.Daemon
BLOCK = 16
CALL_SECONDS = 60


def opaque_spec(name="test", part_bytes=4096, ranks=1, **other):
    return kvtier.ModelSpec(
        name,
        block_tokens=BLOCK,
        tensor_parallel=ranks,
        pack_order=kvtier.PackOrder.OPAQUE,
        layout_fingerprint=b"layout",
        explicit_part_bytes=[part_bytes] * ranks,
        **other,
    )


def tokens_of(seed, blocks, rest=0):
    """Tokens that no other seed has."""
    return [seed * 1_000_000 + i for i in range(blocks * BLOCK + rest)]


def payloads_of(seed, blocks, size):
    """Each byte of a block depends on the seed, the block and its place."""
    return [daemon.payload_of(seed, block, size) for block in range(blocks)]


def poisoned(blocks, size):
    return [bytearray(b"\xdb") * size for _ in range(blocks)]


class Loop:
    """An event loop on a thread, for the asyncio client."""

    def __init__(self):
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(CALL_SECONDS)

    def close(self):
        self.run(self._finish())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @staticmethod
    async def _finish():
        """Waits for the calls that are still under way."""
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others, timeout=CALL_SECONDS / 2)


class BlockingAsyncClient:
    """kvtier.AsyncClient with the calls of kvtier.Client."""

    def __init__(self, address, options=kvtier.ClientOptions()):
        self._loop = Loop()
        self.inner = kvtier.AsyncClient(address, options)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.close()

    def close(self):
        if self._loop is not None:
            self._loop.run(self.inner.close())
            self._loop.close()
            self._loop = None

    def lookup(self, *args, **named):
        return _BlockingMatch(self._loop, self._loop.run(self.inner.lookup(*args, **named)))

    def fetch_into(self, what, *args, **named):
        return self._loop.run(self.inner.fetch_into(getattr(what, "inner", what), *args, **named))

    def counters(self):
        return self.inner.counters()

    def __getattr__(self, name):
        method = getattr(self.inner, name)
        return lambda *args, **named: self._loop.run(method(*args, **named))


class _BlockingMatch:
    def __init__(self, loop, inner):
        self._loop = loop
        self.inner = inner
        self.lease = _BlockingLease(loop, inner.lease)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self._loop.run(self.inner.__aexit__(None, None, None))

    def __getattr__(self, name):
        return getattr(self.inner, name)


class _BlockingLease:
    def __init__(self, loop, inner):
        self._loop = loop
        self.inner = inner

    def __bool__(self):
        return bool(self.inner)

    def renew(self, seconds):
        return self._loop.run(self.inner.renew(seconds))

    def release(self):
        return self._loop.run(self.inner.release())

    def __getattr__(self, name):
        return getattr(self.inner, name)


CLIENTS = {"sync": kvtier.Client, "async": BlockingAsyncClient}


class DaemonCase:
    """A mixin for unittest.TestCase: a daemon, and clients of either kind. CLIENT names the kind."""

    CLIENT = "sync"
    FLAGS = ("--ram-bytes", "64MiB")

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="kvtier_py_")
        self.addCleanup(folder.cleanup)
        self.data_dir = folder.name + "/data"
        self.daemon = self.start()
        self.client = self.connect()

    def start(self, *flags):
        return self.enterContext(Daemon(self.data_dir, *(flags or self.FLAGS)))

    def connect(self, address=None, **options):
        # Generous: the machine that runs tests is slow, and none of these are about time.
        options.setdefault("lookup_deadline", 10.0)
        options.setdefault("register_deadline", 10.0)
        return self.enterContext(
            CLIENTS[self.CLIENT](address or self.daemon.address, kvtier.ClientOptions(**options))
        )

    def fetched(self, what, blocks, size, **named):
        """What a fetch says is ok, by block; memory that it says nothing of is not looked at."""
        buffers = poisoned(blocks, size)
        report = self.client.fetch_into(what, buffers, **named)
        return report, [bytes(buffer) if ok else None for buffer, ok in zip(buffers, report.ok)]


if sys.version_info < (3, 11):

    def _enter_context(self, manager):
        result = manager.__enter__()
        self.addCleanup(manager.__exit__, None, None, None)
        return result

    DaemonCase.enterContext = _enter_context


def both(case):
    """Decorates a DaemonCase: makes of it two test cases in its module, one for each client."""
    import unittest

    module = sys.modules[case.__module__]
    for kind in CLIENTS:
        name = f"{case.__name__}_{kind}"
        setattr(
            module,
            name,
            type(name, (case, unittest.TestCase), {"CLIENT": kind, "__module__": case.__module__}),
        )
    return case
