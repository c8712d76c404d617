"""Shared memory that CUDA knows of: pinned, so that a device copies from and to it at its own pace."""
from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from kvtier.warn_once import WarnOnce

logger = logging.getLogger(__name__)

# No region of the RAM tier is larger, so none has a seam: CUDA refuses a copy that spans two registrations.
# And it bounds how long one call holds the driver's locks (about 0.1 s per GB).
CHUNK_BYTES = 64 << 20

_READ_ONLY = 0x08  # cudaHostRegisterReadOnly
_READ_ONLY_SUPPORTED = 113  # cudaDevAttrHostRegisterReadOnlySupported


def loaded_runtime(major: int) -> Any | None:
    """The CUDA runtime library of this version that is in this process already; None: there is none. It is not
    loaded: another copy would have errors of its own."""
    try:
        cudart = ctypes.CDLL(f"libcudart.so.{major}", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return None
    cudart.cudaDeviceGetAttribute.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
    cudart.cudaHostRegister.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint]
    cudart.cudaHostUnregister.argtypes = [ctypes.c_void_p]
    return cudart


class CudaRegions:
    """A kvtier.RegionListener. Regions of the RAM tier are registered read-only, where the device can do that: a
    read-only map cannot be registered otherwise. The store region is registered for both directions.

    What is not registered is as right, but slower: CUDA copies through pageable memory. So failures are
    logged, once for each kind, and that is all. A copy that runs while its region is unmapped is the
    caller's mistake, as any use of views that are gone.
    """

    def __init__(self, cudart: Any, device: int,
                 on_device: Callable[[], AbstractContextManager[Any]]) -> None:
        """on_device: makes ``device`` the calling thread's, and puts back what was. Calls come on threads that
        have chosen none, and would make a context on device 0 otherwise."""
        self._cudart = cudart
        self._device = device
        self._on_device = on_device
        self._warn = WarnOnce(logger)
        # Chunks by their region's address. Without a lock, which a finalizer must not take: each step is
        # one operation of the dictionary's, and calls for one region never overlap.
        self._registered: dict[int, list[int]] = {}

    def mapped(self, address: int, size: int, writable: bool) -> None:
        with self._on_device():
            if not writable and not self._can_read_only():
                return
            flags = 0 if writable else _READ_ONLY
            chunks: list[int] = []
            for start in range(address, address + size, CHUNK_BYTES):
                length = min(CHUNK_BYTES, address + size - start)
                if not self._ok("cudaHostRegister", self._cudart.cudaHostRegister(start, length, flags)):
                    self._unregister(chunks)
                    return
                chunks.append(start)
        self._registered[address] = chunks

    def unmapping(self, address: int, size: int) -> None:
        chunks = self._registered.pop(address, [])
        if chunks:
            with self._on_device():
                self._unregister(chunks)

    def registered(self, address: int) -> bool:
        """The region that starts there."""
        return address in self._registered

    def _unregister(self, chunks: list[int]) -> None:
        for start in reversed(chunks):
            self._ok("cudaHostUnregister", self._cudart.cudaHostUnregister(start))

    def _can_read_only(self) -> bool:
        can = ctypes.c_int()
        asked = self._cudart.cudaDeviceGetAttribute(ctypes.byref(can), _READ_ONLY_SUPPORTED, self._device)
        if not self._ok("cudaDeviceGetAttribute", asked):
            return False
        if not can.value:
            self._warn("read-only", "device %d registers no read-only memory: copies from kvtierd's RAM go "
                       "through pageable memory", self._device)
        return bool(can.value)

    def _ok(self, call: str, error: int) -> bool:
        if error:
            # It stays pending otherwise, and the engine's next look at its own kernels would find it.
            self._cudart.cudaGetLastError()
            self._warn(call, "%s: CUDA error %d: shared memory stays unregistered, copies go through pageable "
                       "memory", call, error)
        return not error
