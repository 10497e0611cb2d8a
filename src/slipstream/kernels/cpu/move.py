"""Moves KV cache entries to other places in all layers, in one call (`move.cpp`).

The reference is a copy tensor by tensor, which `models.cache.tensors` runs without a kernel. For the few entries of an
accepted path, these sixty torch calls take much longer than the copies.
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
    _fields_ = (("data", POINTER), *((name, SIZE) for name in ("heads", "row_step", "head_step", "bytes")))


class CacheBlocks:
    """Cache tensors [rows, heads, places, dim] as the kernel reads them. Keeps references to the tensors."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = tensors
        self.count = len(tensors)
        self._last = [(x.shape[0] - 1, x.shape[2] - 1, *steps(x)) for x in tensors]
        self._table = (_CacheTensor * self.count)(
            *(_CacheTensor(x.data_ptr(), x.shape[1], *steps(x), x.shape[3] * x.element_size()) for x in tensors)
        )
        self.address = ctypes.addressof(self._table)

    def holds(self, row: int, place: int) -> bool:
        """Whether a place of a row is in every tensor."""
        return all(0 <= row * step + place <= last * step + end for last, end, step, _ in self._last)


def steps(cache: Tensor) -> tuple[int, int]:
    """Places from one row, and from one head, to the next in a cache tensor [rows, heads, places, dim]."""
    dim = cache.shape[3]
    assert cache.stride()[2:] == (dim, 1), "places lie side by side"
    return cache.stride(0) // dim, cache.stride(1) // dim


class MoveKernel:
    """The compiled library."""

    def __init__(self, path: Path) -> None:
        self._call = function(path, "slipstream_move", POINTER, SIZE, POINTER, SIZE)

    def move(self, blocks: CacheBlocks, moves: Sequence[Move]) -> None:
        inside = all(blocks.holds(row, place) for row, *places in moves for place in places)
        assert inside, f"{moves} go beyond the cache"
        table = torch.tensor(moves, dtype=torch.long)
        self._call(blocks.address, blocks.count, table.data_ptr(), len(moves))


@functools.cache
def kernel() -> MoveKernel | None:
    """The kernel, or None if it is not available."""
    return load_or_none(MoveKernel, SOURCE)
