"""The prefix store: keys, values and declared hidden states that outlive the rows that computed them.

A row's prompt is copied here as it is read, its output when the row closes. A row with the same prefix copies it back.
A copy costs about a hundredth of computing the entries, and keeps the rows in use side by side in the cache.

For each tensor of the cache there is one here, [heads, places, dim], divided into pages (`prefix`). The store holds up
to `retained` tokens or `max_bytes`, whichever is less. On a CPU the tensors have their full size at once: the system
provides memory only when it is written, and growing would leave holes in the heap. On a GPU they grow by doubling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch

from slipstream.core.array_types import Tensor
from slipstream.kernels.machine import memory
from slipstream.models.cache.prefix import PAGE, PrefixIndex
from slipstream.models.cache.tensors import KVCache

if TYPE_CHECKING:
    from slipstream.kernels.gpu.entries import EntryCopier

WORTH = 16  # tokens; fewer are computed again rather than copied
PASS = 64  # tokens saved in other rows that justify a pass for reading ahead
MAX_BYTES = 512 << 20  # default limit in main memory
SHARE, GPU_SHARE = 0.05, 0.1  # default share of main memory, and of the free memory of a GPU


@dataclass
class PrefixCounts:
    """What prefix reuse did so far, and what the store holds."""

    prefix_hits: int = 0
    prefix_tokens_reused: int = 0
    retained_tokens: int = 0
    retained_places: int = 0  # places with memory, used or not
    retained_bytes: int = 0  # of the pages that were ever in use, in all layers
    retained_max_bytes: int = 0


class PrefixStore:
    """Keeps up to `retained` tokens in at most `max_bytes`. 0 in either keeps nothing: all is computed anew."""

    def __init__(self, cache: KVCache, retained: int, max_bytes: int) -> None:
        for name, value in (("retained", retained), ("max_bytes", max_bytes)):
            if value < 0:
                raise ValueError(f"{name} is {value}; it must be 0 (no reuse) or more")
        self.retained, self.max_bytes, self._cache = retained, max_bytes, cache
        self._pages = PrefixIndex(retained // PAGE)
        self._layers: dict[object, tuple[Tensor, ...]] = {}
        self._copier: tuple[tuple[int, int, int], EntryCopier] | None = None
        self._places = self._grown_for = 0
        self._hits = self._reused = 0

    @property
    def open(self) -> bool:
        return self._pages.capacity > 0

    @property
    def counts(self) -> PrefixCounts:
        size = self._pages.high * PAGE * self._cache.token_bytes
        return PrefixCounts(self._hits, self._reused, self._pages.tokens, self._places, size, self.max_bytes)

    def recall(self, row: int, tokens: Sequence[int], held: int) -> int:
        """Copy what is kept of a text beyond its first `held` tokens into a cache row. Returns the row's new length."""
        if not self.open or len(tokens) - held < WORTH:
            return held
        places = self._pages.find(tokens)
        if len(places) - held < WORTH:
            return held
        assert len(places) <= self._cache.capacity(row), "the row has no room for its own text"
        new = places[held:]
        if (copier := self._entry_copier()) is not None:
            copier.recall(row, held, new)
        else:
            index = torch.tensor(new, device=self._cache.device)
            for cached, kept in self._pairs():
                cached[0, :, row + held : row + len(places)] = kept.index_select(1, index)
        self._hits += 1
        self._reused += len(new)
        return len(places)

    def keep(self, row: int, tokens: Sequence[int]) -> None:
        """Copy the part of a cache row's text that is not kept yet into the store."""
        self._fit()
        if not self.open:
            return
        places = self._pages.add(tokens)
        end = min(len(tokens), self._pages.capacity * PAGE)
        try:
            if places:
                self._grow()
                self._write(row, end - len(places), places)
        except BaseException:
            self.clear()  # the index names entries that were never written
            raise

    def clear(self) -> None:
        self._pages, self._layers, self._copier = PrefixIndex(self._pages.capacity), {}, None
        self._places = self._grown_for = 0

    def _fit(self) -> None:
        """Keep no more pages than fit `max_bytes`. The size of a page is known once all layers have run."""
        pages = self.max_bytes // (PAGE * max(1, self._cache.token_bytes))
        if pages < self._pages.capacity:
            self._pages = PrefixIndex(pages)
            self.clear()

    def _write(self, row: int, start: int, places: Sequence[int]) -> None:
        if (copier := self._entry_copier()) is not None:
            copier.keep(row, start, places)
            return
        index = torch.tensor(places, device=self._cache.device)
        for cached, kept in self._pairs():
            kept.index_copy_(1, index, cached[0, :, row + start : row + start + len(places)])

    def _pairs(self) -> list[tuple[Tensor, Tensor]]:
        """The tensors of the cache with those of the store that hold the same entries."""
        return [
            pair
            for name, tensors in self._cache.all_tensors()
            for pair in zip(tensors, self._layers[name], strict=True)
        ]

    def _entry_copier(self) -> EntryCopier | None:
        """The kernel that copies the entries of all layers at once, on a GPU; None where there is none."""
        version = self._cache.version, self._places, self._cache.token_bytes
        if self._copier is not None and self._copier[0] == version:
            return self._copier[1]
        if self._cache.device.type != "cuda" or find_spec("triton") is None:
            return None
        from slipstream.kernels.gpu.entries import EntryCopier

        self._copier = version, EntryCopier(self._pairs())
        return self._copier[1]

    def _grow(self) -> None:
        """Make memory for every page in use, in every layer of the cache."""
        if self._pages.high * PAGE <= self._places and self._grown_for == self._cache.token_bytes:
            return
        self._grown_for = self._cache.token_bytes  # changes when a layer is added
        limit = self._pages.capacity * PAGE
        least = limit if self._cache.device.type == "cpu" else 4 * PAGE
        while self._places < self._pages.high * PAGE:
            self._places = min(max(2 * self._places, least), limit)
        for name, tensors in self._cache.all_tensors():
            old = self._layers.get(name)
            if old is None or old[0].shape[1] < self._places:
                self._layers[name] = tuple(self._grown(like, n, old) for n, like in enumerate(tensors))

    def _grown(self, like: Tensor, n: int, old: tuple[Tensor, ...] | None) -> Tensor:
        new = like.new_empty(like.shape[1], self._places, like.shape[3])
        if old is not None:
            new[:, : old[n].shape[1]] = old[n]
        return new

    def check_integrity(self) -> None:
        """Raise AssertionError unless the index is consistent and agrees with the memory."""
        self._pages.check_integrity()
        assert self._pages.high * PAGE <= self._places <= self._pages.capacity * PAGE, "pages without room"
        for name, tensors in self._layers.items():
            for held in tensors:
                assert held.shape[1] == self._places, f"layer {name} holds {held.shape[1]} places of {self._places}"


def default_max_bytes(device: torch.device) -> int:
    """The default limit in bytes: a small share of main memory, or a share of a GPU's free memory."""
    if device.type == "cuda":
        return int(GPU_SHARE * torch.cuda.mem_get_info(device)[0])
    return min(MAX_BYTES, int(SHARE * memory()))
