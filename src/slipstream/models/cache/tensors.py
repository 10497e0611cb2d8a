"""The KV cache: keys and values of every layer, in tensors that outlive the passes.

Two tensors per layer, [rows, kv_heads, places, head_dim], and one with a single head for each layer whose hidden states
a drafter declared. A row keeps its index from open to close. The entry at place i belongs to the i-th token of the row.
A roll-back only shortens a row's length, since a place beyond it is never read before it is written again.
Rows and places grow by doubling, so growing costs a constant per token. A sliding-window layer keeps everything too:
tokens that left the window are visible again when a draft is rolled back.

Rows and places may have grown for different requests, so that the tensors are larger than the open rows need. If
growing would exceed the limit, the rows in use are compacted into the smallest tensors that hold them.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch

from slipstream.core.array_types import Float, Tensor
from slipstream.core.device import next_power_of_two
from slipstream.kernels.cpu.move import CacheBlocks, Move, kernel

SMALLEST = 64  # places of a new cache
LINE = 64  # bytes of a cache line, where tensors begin
PLACES, ROWS = 1024, 16  # of a new cache on a GPU, where all graphs are captured again when it grows


class KVCache:
    """Rows are allocated lowest first, so that the rows in use are mostly adjacent."""

    def __init__(self, places: int = SMALLEST, rows: int = 0) -> None:
        self.rows = rows
        self.places = places
        self.version = 0  # increases whenever tensors are replaced
        self.limit: int | None = None  # rows times places; exceeded only if the rows in use need more
        self._free: list[int] = list(range(rows))
        self._layers: dict[object, tuple[Tensor, ...]] = {}
        self._table: CacheBlocks | None = None  # addresses of all tensors; None after one is replaced
        self._token_bytes = 0

    @staticmethod
    def on(device: torch.device) -> KVCache:
        """A cache with the initial size for a device."""
        return KVCache(PLACES, ROWS) if device.type == "cuda" else KVCache()

    def grow(self, rows: int, places: int) -> None:
        """Make room for at least so many rows and places, if the limit allows it. The tensors grow when they are next
        written."""
        rows, places = max(rows, self.rows), max(places, self.places)
        if (rows, places) != (self.rows, self.places) and (self.limit is None or rows * places <= self.limit):
            self._free += range(self.rows, rows)  # larger than all others, so this is still a heap
            self.rows, self.places = rows, places
            self.version += 1

    def take(self) -> int:
        """An index for a new row."""
        if not self._free:
            grown = max(1, 2 * self.rows)
            self._free = list(range(self.rows, grown))
            self.rows = grown
            self.version += 1
        return heapq.heappop(self._free)

    def give(self, row: int) -> None:
        assert row not in self._free, f"row {row} was given back twice"
        heapq.heappush(self._free, row)

    def reserve(self, places: int) -> None:
        """Make room for this many tokens in every row. The tensors grow when they are next written."""
        while self.places < places:
            self.places *= 2
            self.version += 1

    def would_exceed_limit(self, more: int, places: int) -> bool:
        """Whether growing by `more` rows, and to `places` places, would exceed the limit."""
        wide, grown = self.places, self.rows
        while wide < places:
            wide *= 2
        while grown - self.rows + len(self._free) < more:
            grown = max(1, 2 * grown)
        return self.limit is not None and (grown, wide) != (self.rows, self.places) and grown * wide > self.limit

    def compact(self, taken: Sequence[int], places: int) -> None:
        """Move the rows in use to the front and resize to `places` places. Row `taken[n]` becomes row n."""
        assert len(taken) + len(self._free) == self.rows, "a row is neither free nor taken"
        self.rows, self.places = next_power_of_two(max(1, len(taken))), next_power_of_two(places)
        self.version += 1
        self._free = list(range(len(taken), self.rows))
        self._table = None
        for name, held in self._layers.items():
            self._layers[name] = tuple(self._compacted(old, taken) for old in held)

    def _compacted(self, old: Tensor, taken: Sequence[int]) -> Tensor:
        new = old.new_zeros(self.rows, old.shape[1], self.places, old.shape[3])
        places = min(self.places, old.shape[2])
        for n, row in enumerate(taken):
            if row < old.shape[0]:  # a layer that was not written since the rows grew lacks the new rows
                new[n, :, :places] = old[row, :, :places]
        return new

    def layer(
        self, index: int, key: Float[Tensor, "1 kv_heads tokens dim"], value: Float[Tensor, "1 kv_heads tokens dim_v"]
    ) -> tuple[Tensor, Tensor]:
        """The key and value tensors of one layer, made or grown on demand. `key` and `value` give shapes and type."""
        keys, values = self.hold(index, key, value)
        return keys, values

    def hold(self, name: object, *like: Float[Tensor, "_ _ _ _"]) -> tuple[Tensor, ...]:
        """The tensors of a name, made or grown on demand. `like` gives shapes and type."""
        held = self._layers.get(name)
        if held is None or held[0].shape[0] < self.rows or held[0].shape[2] < self.places:
            old = held or [None] * len(like)
            if held is None:
                self._token_bytes += sum(entry.shape[1] * entry.shape[3] * entry.element_size() for entry in like)
            held = self._layers[name] = tuple(map(self._grown, like, old))
            self._table = None
        return held

    def all_tensors(self) -> Iterator[tuple[object, tuple[Tensor, ...]]]:
        """All tensors by name, grown to hold every row and place."""
        for name, held in list(self._layers.items()):
            yield name, self.hold(name, *held)

    def row(self, name: object, row: int, start: int, end: int) -> Float[Tensor, "heads tokens dim"]:
        """The places from `start` up to `end` of one row, in the first tensor of a name."""
        assert name in self._layers, f"nothing was written to {name} yet"
        return self._layers[name][0][row, :, start:end]

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's entries in all layers."""
        return self._token_bytes

    @property
    def device(self) -> torch.device:
        return next((held[0].device for held in self._layers.values()), torch.device("cpu"))

    def _grown(self, like: Tensor, old: Tensor | None) -> Tensor:
        # zeros, not empty: a masked place has weight 0, and 0 times a stray NaN would not be 0
        new = _zeros(like, (self.rows, like.shape[1], self.places, like.shape[3]))
        if old is not None:
            new[: old.shape[0], :, : old.shape[2]] = old
        return new

    def move(self, moves: Sequence[Move]) -> None:
        """Copy entries from place to place within their rows, in every layer. All reads come before the writes."""
        copier = kernel() if self.device.type == "cpu" else None
        if copier is not None:
            if self._table is None:
                self._table = CacheBlocks([held for rectangles in self._layers.values() for held in rectangles])
            copier.move(self._table, moves)
            return
        row, source, target = torch.tensor(moves, device=self.device).T
        for rectangles in self._layers.values():
            for held in rectangles:
                held[row, :, target] = held[row, :, source]

    def check_integrity(self, taken: Iterable[int], lengths: Sequence[int]) -> None:
        """Raise AssertionError unless every row is either free or taken, once, and fits the places."""
        rows = sorted([*self._free, *taken])
        assert rows == list(range(self.rows)), f"free and taken rows are {rows}, not 0 to {self.rows - 1}"
        assert max(lengths, default=0) <= self.places, f"a row of {max(lengths)} does not fit {self.places} places"
        for name, held in self._layers.items():
            shapes = [(tensor.shape[0], tensor.shape[2]) for tensor in held]
            assert len(set(shapes)) == 1, f"layer {name} holds rectangles of {shapes}"
            assert all(bool(torch.isfinite(tensor).all()) for tensor in held), f"layer {name} is not finite"


def hidden(layer: int) -> str:
    """The cache's name for the output of a layer."""
    return f"hidden {layer}"


def _zeros(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Zeros of the type and on the device of `like`. On a CPU the memory is one that the system fills with zeros when
    it is first used: places that no token has reached take neither time nor memory."""
    if like.device.type != "cpu":
        return like.new_zeros(shape)
    size = math.prod(shape) * like.element_size()
    memory = torch.from_numpy(np.zeros(size + LINE, np.uint8))
    return memory[-memory.data_ptr() % LINE :][:size].view(like.dtype).view(shape)
