"""Moves cache entries to other places in all layers, in one call (`move.cpp`).

What it must equal is `held[row, :, target] = held[row, :, source]`, tensor by tensor, as `models.cache.tensors` does it
without a kernel: for the few entries of an accepted path that is sixty calls of a library that do next to nothing.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from slipstream.kernels.cpu.compile import function, had
from slipstream.kernels.cpu.linear import POINTER, SIZE

SOURCE = Path(__file__).parent / "src" / "move.cpp"
Move = tuple[int, int, int]
"""A row, the place an entry of it lies at, and the one it is to lie at."""


class _Rectangle(ctypes.Structure):
    _fields_ = (("data", POINTER), *((name, SIZE) for name in ("heads", "places", "bytes")))


class CacheBlocks:
    """Tensors [rows, heads, places, dim] as the kernel reads them, and keeps them alive."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        assert all(held.is_contiguous() for held in tensors), "entries are moved where they lie"
        self._held = tensors
        self.count = len(tensors)
        self.rows, self.places = (min(held.shape[axis] for held in tensors) for axis in (0, 2))
        self._table = (_Rectangle * self.count)(
            *(_Rectangle(held.data_ptr(), *held.shape[1:3], held.shape[3] * held.element_size()) for held in tensors)
        )
        self.address = ctypes.addressof(self._table)


class MoveKernel:
    def __init__(self, path: Path) -> None:
        self._call = function(path, "slipstream_move", POINTER, SIZE, POINTER, SIZE)

    def move(self, rectangles: CacheBlocks, moves: Sequence[Move]) -> None:
        inside = all(row < rectangles.rows and max(ends) < rectangles.places for row, *ends in moves)
        assert inside, f"of {rectangles.rows} rows and {rectangles.places} places, some of {moves} are not there"
        table = torch.tensor(moves, dtype=torch.long)
        self._call(rectangles.address, rectangles.count, table.data_ptr(), len(moves))


@functools.cache
def kernel() -> MoveKernel | None:
    """The kernel, where it can be had."""
    return had(MoveKernel, SOURCE)
