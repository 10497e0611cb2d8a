"""Keys and values (and hidden states that drafters declared) kept beyond the rows that computed them.

A row of the cache is a place to work; the shelf is what work leaves behind. What a row has read of its prompt is copied
here as it is read, the rest when the row closes, and a row that begins alike copies it back. A copy costs what moving
the bytes costs, about a hundredth of computing them, and leaves the rows in use side by side.

Rectangles [heads, places, dim], one beside each of the cache's, are cut into pages (`prefix`) and hold up to `retained`
tokens or `max_bytes`, whichever is less. On a CPU they have their full size at once, since the system gives memory only
when it is written: growing would leave holes in the heap. On a GPU they grow by doubling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from slipstream.core.array_types import Tensor
from slipstream.kernels.machine import memory
from slipstream.models.cache.prefix import PAGE, PrefixIndex
from slipstream.models.cache.tensors import KVCache

WORTH = 16  # fewer tokens are computed again rather than copied
PASS = 64  # tokens spared the other rows that are worth a pass of its own
MOST = 512 << 20  # bytes that are kept in main memory unless more are asked for
SHARE, GPU_SHARE = 0.05, 0.1  # of main memory; of what is free on a GPU


@dataclass
class PrefixCounts:
    """What reuse did so far, and what is on the shelf."""

    prefix_hits: int = 0
    prefix_tokens_reused: int = 0
    retained_tokens: int = 0
    retained_places: int = 0  # of memory, full or not
    retained_bytes: int = 0  # of the pages that were ever in use, in all layers
    retained_max_bytes: int = 0


class PrefixStore:
    """`retained` is in tokens; 0 keeps nothing, so that everything is computed anew. `max_bytes` 0 does the same."""

    def __init__(self, cache: KVCache, retained: int, max_bytes: int) -> None:
        for name, value in (("retained", retained), ("max_bytes", max_bytes)):
            if value < 0:
                raise ValueError(f"{name} is {value}; it must be 0 (no reuse) or more")
        self.retained, self.max_bytes, self._cache = retained, max_bytes, cache
        self._books = PrefixIndex(retained // PAGE)
        self._layers: dict[object, tuple[Tensor, ...]] = {}
        self._places = 0
        self._hits = self._reused = 0

    @property
    def open(self) -> bool:
        return self._books.capacity > 0

    @property
    def counts(self) -> PrefixCounts:
        size = self._books.high * PAGE * self._cache.token_bytes
        return PrefixCounts(self._hits, self._reused, self._books.tokens, self._places, size, self.max_bytes)

    def recall(self, row: int, tokens: Sequence[int], held: int) -> int:
        """Copy into a row of the cache what is kept of a text beyond its first `held` tokens; how many it holds now."""
        if not self.open or len(tokens) - held < WORTH:
            return held
        places = self._books.find(tokens)
        if len(places) - held < WORTH:
            return held
        self._cache.reserve(len(places))
        index = self._index(places[held:])
        for name, rectangles in self._cache.whole():
            for rectangle, kept in zip(rectangles, self._layers[name], strict=True):
                rectangle[row, :, held : len(places)] = kept.index_select(1, index)
        self._hits += 1
        self._reused += len(index)
        return len(places)

    def keep(self, row: int, tokens: Sequence[int]) -> None:
        """Copy from a row of the cache what is not kept yet of its text."""
        self._fit()
        if not self.open:
            return
        places = self._books.add(tokens)
        end = min(len(tokens), self._books.capacity * PAGE)
        try:
            if places:
                self._grow()
                self._write(row, end - len(places), places)
        except BaseException:
            self.clear()  # the books speak of what was never written
            raise

    def clear(self) -> None:
        self._books, self._layers, self._places = PrefixIndex(self._books.capacity), {}, 0

    def _fit(self) -> None:
        """Keep no more pages than `max_bytes` hold. How large a page is can be told once all layers have run."""
        pages = self.max_bytes // (PAGE * max(1, self._cache.token_bytes))
        if pages < self._books.capacity:
            self._books = PrefixIndex(pages)
            self.clear()

    def _write(self, row: int, start: int, places: Sequence[int]) -> None:
        index = self._index(places)
        for name, rectangles in self._cache.whole():
            for rectangle, kept in zip(rectangles, self._layers[name], strict=True):
                kept.index_copy_(1, index, rectangle[row, :, start : start + len(places)])

    def _grow(self) -> None:
        """Room for every page in use, in every layer the cache has."""
        limit = self._books.capacity * PAGE
        least = limit if self._cache.device.type == "cpu" else 4 * PAGE
        while self._places < self._books.high * PAGE:
            self._places = min(max(2 * self._places, least), limit)
        for name, rectangles in self._cache.whole():
            old = self._layers.get(name)
            if old is None or old[0].shape[1] < self._places:
                self._layers[name] = tuple(self._grown(like, n, old) for n, like in enumerate(rectangles))

    def _grown(self, like: Tensor, n: int, old: tuple[Tensor, ...] | None) -> Tensor:
        new = like.new_empty(like.shape[1], self._places, like.shape[3])
        if old is not None:
            new[:, : old[n].shape[1]] = old[n]
        return new

    def _index(self, places: Sequence[int]) -> Tensor:
        return torch.tensor(places, device=self._cache.device)

    def check_integrity(self) -> None:
        """Raise AssertionError unless the books agree with each other and with the memory."""
        self._books.check_integrity()
        assert self._books.high * PAGE <= self._places <= self._books.capacity * PAGE, "pages without room"
        for name, tensors in self._layers.items():
            for held in tensors:
                assert held.shape[1] == self._places, f"layer {name} holds {held.shape[1]} places of {self._places}"


def default_max_bytes(device: torch.device) -> int:
    """What may be kept where nobody says how much: little enough for a laptop, or a share of a GPU's free memory."""
    if device.type == "cuda":
        return int(GPU_SHARE * torch.cuda.mem_get_info(device)[0])
    return min(MOST, int(SHARE * memory()))
