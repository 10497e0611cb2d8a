"""Entries of a cache are moved by one call as they are tensor by tensor."""

from __future__ import annotations

import pytest
import torch

from slipstream.kernels.cpu.move import CacheBlocks, kernel
from slipstream.models.cache import tensors as cache
from slipstream.models.cache.tensors import KVCache

MOVES = [(0, 5, 3), (128, 9, 4), (0, 6, 5), (0, 3, 6), (128, 4, 9), (64, 63, 0)]  # some targets are others' sources


def filled(seed=0):
    """Three rows of several widths and types."""
    made = KVCache()
    assert [made.take() for _ in range(3)] == [0, 64, 128]
    torch.manual_seed(seed)
    for name, heads, dim, dtype in (
        ("a", 2, 5, torch.float32),
        ("b", 1, 7, torch.float64),
        ("c", 3, 4, torch.bfloat16),
    ):
        for held in made.hold(name, *(torch.empty(1, heads, 1, dim, dtype=dtype) for _ in range(2))):
            held.copy_(torch.randn(held.shape))
    return made


def tensors(made):
    return [held for _, layer in made.all_tensors() for held in layer]


def test_all_layers_at_once_are_each_by_itself(monkeypatch):
    if kernel() is None:
        pytest.skip("no kernel here")
    one, other = filled(), filled()
    one.move(MOVES)
    monkeypatch.setattr(cache, "kernel", lambda: None)
    other.move(MOVES)
    untouched = filled()
    for mine, theirs, before in zip(tensors(one), tensors(other), tensors(untouched), strict=True):
        assert torch.equal(mine, theirs)
        assert not torch.equal(mine, before)


def test_a_cache_that_grew_is_moved_where_it_lies_now():
    one = filled()
    one.move(MOVES[:1])
    row = one.reserve(64, 200)
    assert row not in (0, 64, 128), "there is no room for it where it was"
    before = [held.clone() for held in tensors(one)]
    one.move([(row, 5, 150)])
    for mine, old in zip(tensors(one), before, strict=True):
        assert torch.equal(mine[0, :, row + 150], old[0, :, row + 5])
        old[0, :, row + 150] = old[0, :, row + 5]
        assert torch.equal(mine, old)


def test_what_is_not_there_is_not_moved():
    if (found := kernel()) is None:
        pytest.skip("no kernel here")
    blocks = CacheBlocks(tensors(filled()))
    for move in ((256, 0, 1), (192, 64, 1), (0, 1, 256)):
        with pytest.raises(AssertionError, match="beyond the cache"):
            found.move(blocks, [move])
