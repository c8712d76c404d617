"""Registering shared memory with CUDA: against a runtime that keeps books, and on a device where there is one."""
import contextlib
import ctypes
import mmap
import os
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "client/python"))
try:
    import grpc  # noqa: F401  (the package needs it)
except ImportError:
    print("skipped: no python3-grpcio here")
    sys.exit(77)

from kvtier.engines import cuda_regions  # noqa: E402
from kvtier.engines.cuda_regions import CHUNK_BYTES, CudaRegions  # noqa: E402

BASE = 0x7F0000000000
PLAIN, READ_ONLY = 0, 8


class FakeRuntime:
    """CUDA's rules for registrations; ``fail_at``: the n-th cudaHostRegister fails."""

    def __init__(self, read_only=1, fail_at=None):
        self.read_only = read_only
        self.fail_at = fail_at
        self.calls = []
        self.now = {}  # start -> (size, flags)
        self.pending = 0
        self.wrong = []
        self.on_device = 0

    def cudaDeviceGetAttribute(self, out, attribute, device):
        if (attribute, device) != (113, 3):
            self.wrong.append(f"attribute {attribute} of device {device}")
        out._obj.value = self.read_only
        return 0

    def cudaHostRegister(self, start, size, flags):
        self._look()
        self.calls.append(("register", start, size, flags))
        taken = any(start < at + have and at < start + size for at, (have, _) in self.now.items())
        if taken or len(self._made("register")) == self.fail_at:
            self.pending = 2
            return self.pending
        self.now[start] = (size, flags)
        return 0

    def cudaHostUnregister(self, start):
        self._look()
        self.calls.append(("unregister", start))
        if self.now.pop(start, None) is None:
            self.pending = 713
        return self.pending

    def cudaGetLastError(self):
        was, self.pending = self.pending, 0
        return was

    @contextlib.contextmanager
    def device(self):
        self.on_device += 1
        yield
        self.on_device -= 1

    def _look(self):
        if self.on_device != 1:
            self.wrong.append("a call without its device")
        if self.pending:
            self.wrong.append(f"error {self.pending} left pending")

    def _made(self, kind):
        return [call for call in self.calls if call[0] == kind]


class FakeRuntimeTest(unittest.TestCase):
    def start(self, **options):
        self.cuda = FakeRuntime(**options)
        self.addCleanup(lambda: self.assertEqual(self.cuda.wrong, []))
        self.addCleanup(lambda: self.assertEqual(self.cuda.pending, 0))
        return CudaRegions(self.cuda, 3, self.cuda.device)

    def test_chunks_cover_the_region_and_nothing_else(self):
        for size in (1, 4096, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES + 4096):
            for writable, flags in ((False, READ_ONLY), (True, PLAIN)):
                with self.subTest(size=size, writable=writable):
                    regions = self.start()
                    regions.mapped(BASE, size, writable)
                    at = BASE
                    for start, (length, used) in sorted(self.cuda.now.items()):
                        self.assertEqual((start, used), (at, flags))
                        self.assertTrue(0 < length <= CHUNK_BYTES)
                        at += length
                    self.assertEqual(at, BASE + size)
                    self.assertTrue(regions.registered(BASE))
                    regions.unmapping(BASE, size)
                    self.assertEqual(self.cuda.now, {})
                    self.assertFalse(regions.registered(BASE))

    def test_a_region_of_the_ram_tier_is_one_registration(self):
        """A copy must not span two; no extent is larger than 64 MiB."""
        self.start().mapped(BASE, 64 << 20, False)
        self.assertEqual(len(self.cuda.now), 1)

    def test_regions_come_and_go_by_themselves(self):
        regions = self.start()
        other = BASE + 4 * CHUNK_BYTES
        regions.mapped(BASE, 2 * CHUNK_BYTES, False)
        regions.mapped(other, 4096, True)
        regions.unmapping(BASE, 2 * CHUNK_BYTES)
        self.assertEqual(self.cuda.now, {other: (4096, PLAIN)})
        regions.mapped(BASE, 4096, True)  # another region at the same place
        self.assertEqual(self.cuda.now, {other: (4096, PLAIN), BASE: (4096, PLAIN)})

    def test_a_failure_in_the_middle_leaves_nothing_registered(self):
        regions = self.start(fail_at=3)
        with self.assertLogs("kvtier", "WARNING") as logs:
            regions.mapped(BASE, 5 * CHUNK_BYTES, True)
        self.assertEqual(len(logs.output), 1)
        self.assertEqual(self.cuda.now, {})
        self.assertFalse(regions.registered(BASE))
        calls = len(self.cuda.calls)
        regions.unmapping(BASE, 5 * CHUNK_BYTES)
        self.assertEqual(len(self.cuda.calls), calls, "nothing is left to do")
        regions.mapped(BASE, CHUNK_BYTES, True)
        self.assertTrue(regions.registered(BASE), "the next may do")

    def test_failures_are_logged_once(self):
        regions = self.start()
        self.cuda.now[BASE] = (CHUNK_BYTES, PLAIN)  # somebody else's
        with self.assertLogs("kvtier", "WARNING") as logs:
            for _ in range(3):
                regions.mapped(BASE, CHUNK_BYTES, True)
                regions.unmapping(BASE, CHUNK_BYTES)
        self.assertEqual(len(logs.output), 1)
        self.assertIn("cudaHostRegister", logs.output[0])
        self.assertEqual(list(self.cuda.now), [BASE], "not ours to unregister")

    def test_a_device_without_read_only_gets_the_store_region_alone(self):
        regions = self.start(read_only=0)
        with self.assertLogs("kvtier", "WARNING") as logs:
            for i in range(3):
                regions.mapped(BASE + i * CHUNK_BYTES, CHUNK_BYTES, False)
        self.assertEqual(len(logs.output), 1)
        self.assertEqual(self.cuda.calls, [])
        regions.mapped(BASE, CHUNK_BYTES, True)
        self.assertEqual(self.cuda.now, {BASE: (CHUNK_BYTES, PLAIN)})

    def test_a_runtime_that_is_not_loaded_is_none(self):
        self.assertIsNone(cuda_regions.loaded_runtime(999))


class DeviceTest(unittest.TestCase):
    """With torch and a CUDA device."""

    def setUp(self):
        try:
            import torch
        except ImportError:
            self.skipTest("no torch here")
        from kvtier.engines import torch_pages
        self.torch = torch
        self.regions = torch_pages.cuda_regions()
        if not torch.cuda.is_available():
            self.assertIsNone(self.regions, "nothing to register with")
            self.skipTest("no CUDA device here")
        self.assertIsNotNone(self.regions)

    def mapping(self, size, writable):
        fd = os.memfd_create("test")
        self.addCleanup(os.close, fd)
        os.ftruncate(fd, size)
        with mmap.mmap(fd, size) as fill:
            fill[:] = bytes(range(251)) * (size // 251) + bytes(size % 251)
        from kvtier.shared_session import Mapping
        return Mapping(fd, size, writable)

    def test_a_device_reads_what_is_in_a_region(self):
        for writable in (False, True):
            with self.subTest(writable=writable):
                mapping = self.mapping(CHUNK_BYTES, writable)
                self.regions.mapped(mapping.address, mapping.size, writable)
                print("writable" if writable else "read-only", "registered:", self.regions.registered(mapping.address))
                if writable:
                    self.assertTrue(self.regions.registered(mapping.address))
                memory = (ctypes.c_ubyte * mapping.size).from_address(mapping.address)
                host = self.torch.frombuffer(memory, dtype=self.torch.uint8)
                self.assertEqual(host.is_pinned(), self.regions.registered(mapping.address))
                there = host.to("cuda", non_blocking=True)
                self.torch.cuda.synchronize()
                self.assertEqual(there.cpu().numpy().tobytes(), bytes(mapping.view))
                self.regions.unmapping(mapping.address, mapping.size)
                self.assertFalse(host.is_pinned())


if __name__ == "__main__":
    unittest.main()
