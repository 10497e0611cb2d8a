"""Moves KV cache entries to other places in all layers, in one call (`move.cpp`).

The reference is `cache[row, :, target] = cache[row, :, source]` for each tensor, which `models.cache.tensors` runs
without a kernel. For the few entries of an accepted path, these sixty torch calls take much longer than the copies.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from slipstream.kernels.cpu.compile import function, load_or_none
from slipstream.kernels.cpu.linear import POINTER, SIZE

SOURCE = Path(__file__).parent / "src" / "move.cpp"
Move = tuple[int, int, int]
"""(row, source place, target place)."""


class _CacheTensor(ctypes.Structure):
    _fields_ = (("data", POINTER), *((name, SIZE) for name in ("heads", "places", "bytes")))


class CacheBlocks:
    """Cache tensors [rows, heads, places, dim] as the kernel reads them. Keeps references to the tensors."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        assert all(tensor.is_contiguous() for tensor in tensors), "the kernel reads the cache in place"
        self._tensors = tensors
        self.count = len(tensors)
        self.rows, self.places = (min(tensor.shape[axis] for tensor in tensors) for axis in (0, 2))
        self._table = (_CacheTensor * self.count)(
            *(_CacheTensor(x.data_ptr(), *x.shape[1:3], x.shape[3] * x.element_size()) for x in tensors)
        )
        self.address = ctypes.addressof(self._table)


class MoveKernel:
    """The compiled library."""

    def __init__(self, path: Path) -> None:
        self._call = function(path, "slipstream_move", POINTER, SIZE, POINTER, SIZE)

    def move(self, blocks: CacheBlocks, moves: Sequence[Move]) -> None:
        inside = all(row < blocks.rows and max(places) < blocks.places for row, *places in moves)
        assert inside, f"{moves} go beyond the {blocks.rows} rows and {blocks.places} places of the cache"
        table = torch.tensor(moves, dtype=torch.long)
        self._call(blocks.address, blocks.count, table.data_ptr(), len(moves))


@functools.cache
def kernel() -> MoveKernel | None:
    """The kernel, or None if it is not available."""
    return load_or_none(MoveKernel, SOURCE)
