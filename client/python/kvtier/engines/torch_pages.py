"""Pages (see paged/engine.py) over torch tensors, in host memory or on an accelerator.

A layer is given as an int8 tensor of shape (blocks, page bytes) over the engine's own storage, its rows
contiguous. So nothing here knows what is in a page.
"""
from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Sequence
from typing import Any

import torch

from kvtier.engines.cuda_regions import CudaRegions, loaded_runtime
from kvtier.engines.paged import HostPages, Segments

logger = logging.getLogger(__name__)

STAGING_BYTES = 64 << 20


def memory_of(tensor: torch.Tensor) -> memoryview:
    """A host tensor's storage from its first element on, writable, without a copy. The tensor must
    outlive it."""
    storage = tensor.untyped_storage()
    offset = int(tensor.storage_offset()) * tensor.element_size()
    size = int(storage.nbytes()) - offset
    return memoryview((ctypes.c_ubyte * size).from_address(storage.data_ptr() + offset)).cast("B")


def pages_of(layers: Sequence[torch.Tensor]) -> HostPages | StagedPages:
    """Pages over these layers: in place in host memory, else through pinned memory."""
    if all(layer.device.type == "cpu" for layer in layers):
        return InPlacePages(layers)
    return StagedPages(layers)


def cuda_regions() -> CudaRegions | None:
    """A region_listener for a client whose engine computes on this thread's CUDA device. None: it has none, or
    a runtime that cannot be asked."""
    if not torch.cuda.is_available() or torch.version.cuda is None:
        return None
    torch.cuda.init()
    cudart = loaded_runtime(int(torch.version.cuda.split(".")[0]))
    if cudart is None:
        logger.warning("no libcudart of CUDA %s is loaded: shared memory stays unregistered", torch.version.cuda)
        return None
    device = torch.cuda.current_device()
    return CudaRegions(cudart, device, lambda: torch.cuda.device(device))


class InPlacePages(HostPages):
    """Layers in host memory. Pages of one block that lie end to end become one segment."""

    def __init__(self, layers: Sequence[torch.Tensor]) -> None:
        self._tensors = tuple(layers)  # keeps their memory
        runs: list[tuple[torch.Tensor, int]] = []
        for layer in layers:
            if runs and _follows(runs[-1], layer):
                runs[-1] = (runs[-1][0], runs[-1][1] + layer.shape[1])
            else:
                runs.append((layer, layer.shape[1]))
        super().__init__([memory_of(first) for first, _ in runs], [size for _, size in runs],
                         [first.stride(0) for first, _ in runs])


def _follows(run: tuple[torch.Tensor, int], layer: torch.Tensor) -> bool:
    first, size = run
    return (layer.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
            and layer.stride(0) == first.stride(0) and layer.storage_offset() == first.storage_offset() + size
            and size + layer.shape[1] <= first.stride(0))


class StagedPages:
    """Layers on an accelerator: through pinned host memory, copied on a stream of this class's own.

    Saves wait for an event recorded where the engine computes, so they read what its step wrote. Loads
    are synchronised before they are reported, so the engine's next step reads them. Each thread has its
    own stream and STAGING_BYTES of pinned memory. Written for CUDA and not tried on a device.
    """

    def __init__(self, layers: Sequence[torch.Tensor]) -> None:
        self._layers = tuple(layers)
        self.part_bytes = sum(layer.shape[1] for layer in layers)
        self.chunk_blocks = max(1, STAGING_BYTES // self.part_bytes)
        self._local = threading.local()

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event()
        event.record()
        return event

    def gather(self, block_ids: Sequence[int], mark: torch.cuda.Event) -> Sequence[Segments]:
        stream, staging = self._own()
        stream.wait_event(mark)
        self._copy(stream, block_ids, lambda page, host: host.copy_(page, non_blocking=True))
        return _rows(staging, len(block_ids))

    def targets(self, block_ids: Sequence[int]) -> Sequence[Segments]:
        return _rows(self._own()[1], len(block_ids))

    def written(self, block_ids: Sequence[int], mark: torch.cuda.Event) -> None:
        stream, _ = self._own()
        stream.wait_event(mark)
        self._copy(stream, block_ids, lambda page, host: page.copy_(host, non_blocking=True))

    def _copy(self, stream: torch.cuda.Stream, block_ids: Sequence[int], copy: Any) -> None:
        staging = self._own()[1]
        with torch.cuda.stream(stream):
            for row, block_id in enumerate(block_ids):
                at = 0
                for layer in self._layers:
                    copy(layer[block_id], staging[row, at:at + layer.shape[1]])
                    at += layer.shape[1]
        stream.synchronize()

    def _own(self) -> tuple[torch.cuda.Stream, torch.Tensor]:
        if not hasattr(self._local, "stream"):
            device = self._layers[0].device
            torch.cuda.set_device(device)
            self._local.stream = torch.cuda.Stream(device)
            self._local.staging = torch.empty((self.chunk_blocks, self.part_bytes), dtype=torch.int8,
                                              pin_memory=True)
        return self._local.stream, self._local.staging


def _rows(staging: torch.Tensor, count: int) -> list[Segments]:
    memory, row = memory_of(staging), staging.shape[1]
    return [[memory[i * row:(i + 1) * row]] for i in range(count)]
