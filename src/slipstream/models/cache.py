"""Keys and values of every layer, kept in rectangles that outlive the passes.

One tensor per layer, [rows, kv_heads, places, head_dim]. A row keeps its index from open to close, and the entry at
place i belongs to the i-th token the row has read. Writing goes into tensors that already exist; rolling back is
forgetting a length, since a place beyond it is never read before it is written again. Both axes grow by doubling, so
growing costs a constant per token. A sliding-window layer keeps everything too: what slid out of the window must be
there again when a draft is rolled back.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

import torch

from slipstream.core.shapes import Float, Int, Tensor

SMALLEST = 64  # places of a fresh cache


class Cache:
    """Rows are handed out lowest first, so that the rows in use mostly lie side by side."""

    def __init__(self) -> None:
        self.rows = 0
        self.places = SMALLEST
        self._free: list[int] = []
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def take(self) -> int:
        """An index for a new row."""
        if not self._free:
            grown = max(1, 2 * self.rows)
            self._free = list(range(self.rows, grown))
            self.rows = grown
        return heapq.heappop(self._free)

    def give(self, row: int) -> None:
        assert row not in self._free, f"row {row} was given back twice"
        heapq.heappush(self._free, row)

    def reserve(self, places: int) -> None:
        """Room for this many tokens in every row; the layers follow when they are next written."""
        while self.places < places:
            self.places *= 2

    def layer(
        self, index: int, key: Float[Tensor, "1 kv_heads tokens dim"], value: Float[Tensor, "1 kv_heads tokens dim_v"]
    ) -> tuple[Tensor, Tensor]:
        """Both rectangles of one layer, made or grown on demand to hold entries such as these."""
        held = self._layers.get(index)
        if held is None or held[0].shape[0] < self.rows or held[0].shape[2] < self.places:
            held = self._grown(key, held and held[0]), self._grown(value, held and held[1])
            self._layers[index] = held
        return held

    def _grown(self, like: Tensor, old: Tensor | None) -> Tensor:
        # zeros, not empty: a masked place has weight 0, and 0 times a stray NaN would not be 0
        new = like.new_zeros(self.rows, like.shape[1], self.places, like.shape[3])
        if old is not None:
            new[: old.shape[0], :, : old.shape[2]] = old
        return new

    def move(self, row: Int[Tensor, " n"], source: Int[Tensor, " n"], target: Int[Tensor, " n"]) -> None:
        """Copy entries from place to place within their rows, in every layer; the gather ends before the write."""
        for pair in self._layers.values():
            for held in pair:
                held[row, :, target] = held[row, :, source]

    def check_integrity(self, taken: Iterable[int], lengths: Sequence[int]) -> None:
        """Raise AssertionError unless every row is either free or taken, once, and what it holds has room."""
        everyone = sorted([*self._free, *taken])
        assert everyone == list(range(self.rows)), f"free and taken rows are {everyone}, not 0 to {self.rows - 1}"
        assert max(lengths, default=0) <= self.places, f"a row of {max(lengths)} does not fit {self.places} places"
        for index, (keys, values) in self._layers.items():
            assert keys.shape[:3] == values.shape[:3], f"layer {index} holds {keys.shape} keys, {values.shape} values"
            assert bool(torch.isfinite(keys).all() & torch.isfinite(values).all()), f"layer {index} is not finite"
