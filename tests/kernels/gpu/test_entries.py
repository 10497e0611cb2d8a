"""Entries of all layers that are copied at once equal those that are copied tensor by tensor."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="needs Triton (pip install triton); its interpreter will do")

from slipstream.kernels.gpu.entries import EntryCopier

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROW, START, PLACES = 2, 3, [7, 4, 5, 0]


def pairs() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Two layers of keys and values, and hidden states of another width."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 8)] * 4 + [(1, 12)]
    return [
        (
            torch.randn(3, heads, 10, size, generator=generator).to(DEVICE),
            torch.randn(heads, 16, size, generator=generator).to(DEVICE),
        )
        for heads, size in shapes
    ]


def test_a_cache_row_is_kept_and_nothing_else_changes():
    tensors = pairs()
    wanted = [store.clone() for _, store in tensors]
    for (cache, _), store in zip(tensors, wanted, strict=True):
        store[:, PLACES] = cache[ROW, :, START : START + len(PLACES)]
    EntryCopier(tensors).keep(ROW, START, PLACES)
    assert all(torch.equal(store, own) for (_, store), own in zip(tensors, wanted, strict=True))


def test_kept_entries_are_recalled_and_nothing_else_changes():
    tensors = pairs()
    wanted = [cache.clone() for cache, _ in tensors]
    for (_, store), cache in zip(tensors, wanted, strict=True):
        cache[ROW, :, START : START + len(PLACES)] = store[:, PLACES]
    EntryCopier(tensors).recall(ROW, START, PLACES)
    assert all(torch.equal(cache, own) for (cache, _), own in zip(tensors, wanted, strict=True))
