"""Runs of entries that are copied in all layers at once equal those that are copied tensor by tensor."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="needs Triton (pip install triton); its interpreter will do")

from slipstream.kernels.gpu.entries import BLOCK, EntryCopier

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PLACES = 3 * BLOCK
RUNS = [(3, 40, 5), (BLOCK, 2 * BLOCK + 1, BLOCK - 7), (60, 61, 1)]  # less than a block, several blocks, one entry


def cache() -> list[torch.Tensor]:
    """Two layers of keys and values, hidden states of another width, and entries of no whole number of words."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 8, torch.bfloat16)] * 4 + [(1, 12, torch.float32), (3, 5, torch.float32)]
    tensors = [
        torch.randn(1, heads, PLACES, size, generator=generator).to(DEVICE, dtype) for heads, size, dtype in shapes
    ]
    return [x.as_strided(x.shape, (x.shape[3], *x.stride()[1:])) for x in tensors]  # as the KV cache has them


def test_runs_are_copied_and_nothing_else_changes():
    tensors = cache()
    wanted = [tensor.clone() for tensor in tensors]
    for tensor in wanted:
        for source, target, count in RUNS:
            tensor[0, :, target : target + count] = tensor[0, :, source : source + count].clone()
    EntryCopier(tensors).copy(RUNS)
    assert all(torch.equal(tensor, own) for tensor, own in zip(tensors, wanted, strict=True))
