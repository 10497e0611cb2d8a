"""Copies runs of entries within a KV cache, in all layers by one launch per shape of tensor.

A prompt has an entry in two tensors of every layer. One copy for each of them takes the host longer than the pass that
computed the entries. The entries of a run lie side by side in each head, so a run is copied in blocks of words.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024  # words
WORD = 8  # bytes


@triton.jit(do_not_specialize=["head_step", "size"])
def _copy(tensors, like, runs, head_step, size, HEADS: tl.constexpr, BLOCK: tl.constexpr):
    """One block of the words of a run, in one head of one tensor. `runs`: source, target and count of each."""
    block, run, tensor, head = tl.program_id(0), tl.program_id(1), tl.program_id(2) // HEADS, tl.program_id(2) % HEADS
    source, target, count = tl.load(runs + 3 * run), tl.load(runs + 3 * run + 1), tl.load(runs + 3 * run + 2)
    begin = tl.load(tensors + tensor).to(tl.pointer_type(like.dtype.element_ty)) + head.to(tl.int64) * head_step
    at = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count * size
    tl.store(begin + target * size + at, tl.load(begin + source * size + at, mask=inside, other=0), mask=inside)


class _Group:
    """The addresses of tensors of the same shape and type, and their sizes in words."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        first = tensors[0]
        whole = first.shape[3] * first.element_size() % WORD == 0
        self._like = torch.empty(1, dtype=torch.int64 if whole else first.dtype, device=first.device)
        per_entry = WORD // first.element_size() if whole else 1
        self.heads, self.count = first.shape[1], len(tensors)
        self.size, self.head_step = first.shape[3] // per_entry, first.stride(1) // per_entry
        self._addresses = torch.tensor([tensor.data_ptr() for tensor in tensors], device=first.device)

    def copy(self, runs: Tensor, count: int, longest: int) -> None:
        grid = triton.cdiv(longest * self.size, BLOCK), count, self.count * self.heads
        _copy[grid](self._addresses, self._like, runs, self.head_step, self.size, self.heads, BLOCK)


class EntryCopier:
    """Copies within these tensors, [1, heads, places, size]. It must be made anew when one of them is replaced."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        groups: defaultdict[object, list[Tensor]] = defaultdict(list)
        for tensor in tensors:
            assert tensor.stride()[2:] == (tensor.shape[3], 1), "places lie side by side"
            groups[tensor.shape, tensor.stride(), tensor.dtype].append(tensor)
        self._device = tensors[0].device
        self._groups = [_Group(group) for group in groups.values()]

    def copy(self, runs: Sequence[tuple[int, int, int]]) -> None:
        """Copy runs: first place, target place, count. The host does not wait for it."""
        table = torch.tensor(runs, dtype=torch.int64)
        if self._device.type == "cuda":
            table = table.pin_memory().to(self._device, non_blocking=True)
        for group in self._groups:
            group.copy(table, len(runs), max(count for _, _, count in runs))
