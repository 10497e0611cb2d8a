"""Copies entries between a cache and the prefix store, in all layers by one launch per shape of tensor.

A prompt has an entry in two tensors of every layer. One copy for each of them takes the host longer than the pass that
computed the entries.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

Pair = tuple[Tensor, Tensor]
"""A tensor of the cache, [rows, heads, places, size], and the one of the store, [heads, places, size]."""


@triton.jit(do_not_specialize=["source_base", "target_base", "source_head", "target_head"])
def _copy(
    sources, targets, like, source_place, target_place, source_base, target_base, source_head, target_head, size,
    SIZE: tl.constexpr,
):  # fmt: skip
    """One entry of one head in one tensor."""
    n, tensor, head = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    source = tl.load(sources + tensor).to(tl.pointer_type(like.dtype.element_ty))
    target = tl.load(targets + tensor).to(tl.pointer_type(like.dtype.element_ty))
    at = tl.arange(0, SIZE)
    begin = source_base + head * source_head + tl.load(source_place + n) * size
    end = target_base + head * target_head + tl.load(target_place + n) * size
    piece = tl.load(source + begin + at, mask=at < size, other=0.0)
    tl.store(target + end + at, piece, mask=at < size)


class _Group:
    """Pairs whose tensors have the same shapes and types, and their addresses."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self.cache, self.store = pairs[0]
        device = self.cache.device
        self.in_cache = torch.tensor([cache.data_ptr() for cache, _ in pairs], device=device)
        self.in_store = torch.tensor([store.data_ptr() for _, store in pairs], device=device)


class EntryCopier:
    """Copies between these pairs of tensors. It must be made anew when one of them is replaced."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        groups: defaultdict[object, list[Pair]] = defaultdict(list)
        for cache, store in pairs:
            assert cache.stride(2) == cache.shape[3], "places are adjacent in the cache"
            assert store.stride(1) == store.shape[2], "places are adjacent in the store"
            groups[cache.stride(), store.stride(), cache.shape[1], cache.dtype].append((cache, store))
        self._groups = [_Group(group) for group in groups.values()]

    def keep(self, row: int, start: int, places: Sequence[int]) -> None:
        """Copy the entries of a cache row from `start` on to these places of the store."""
        in_cache, in_store = self._places(start, places)
        for group in self._groups:
            cache, store, size = group.cache, group.store, group.cache.shape[3]
            _copy[len(places), len(group.in_cache), cache.shape[1]](
                *(group.in_cache, group.in_store, cache, in_cache, in_store),
                *(row * cache.stride(0), 0, cache.stride(1), store.stride(0), size, triton.next_power_of_2(size)),
                num_warps=1,
            )

    def recall(self, row: int, start: int, places: Sequence[int]) -> None:
        """Copy the entries at these places of the store to a cache row, from `start` on."""
        in_cache, in_store = self._places(start, places)
        for group in self._groups:
            cache, store, size = group.cache, group.store, group.cache.shape[3]
            _copy[len(places), len(group.in_cache), cache.shape[1]](
                *(group.in_store, group.in_cache, cache, in_store, in_cache),
                *(0, row * cache.stride(0), store.stride(0), cache.stride(1), size, triton.next_power_of_2(size)),
                num_warps=1,
            )

    def _places(self, start: int, places: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Both sides' places on the device. The host does not wait for it."""
        both = np.empty((2, len(places)), np.int64)
        both[0], both[1] = np.arange(start, start + len(places)), places
        in_cache, in_store = torch.from_numpy(both).to(self._groups[0].cache.device, non_blocking=True)
        return in_cache, in_store
