"""Blocks are read as GGUF's own reader reads them, to the bit, and multiplied as plain arithmetic does."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gguf_files import random_blocks
from slipstream.kernels.cpu import few_bits
from slipstream.models.weights import gguf_blocks as blocks

gguf = pytest.importorskip("gguf")
FORMS = {"Q4_0": "int4", "Q4_1": "int4", "Q5_0": "int8", "Q8_0": "int8", "Q4_K": "int4_k", "Q6_K": "int6_k"}


@pytest.mark.parametrize("kind", blocks.TYPES)
def test_numbers_are_those_of_the_file(kind):
    raw = random_blocks(kind, 37, 768, size=1.0)
    grid = blocks.grid(torch.from_numpy(raw), kind)
    expected = gguf.dequantize(raw, gguf.GGMLQuantizationType[kind])
    assert torch.equal(grid.weight(), torch.from_numpy(expected))
    assert grid.kind == FORMS.get(kind, "int5_k")
    assert grid.number.dtype == (torch.uint8 if grid.kind.startswith("int4") else torch.int8)


@pytest.mark.parametrize("kind", blocks.TYPES)
def test_laid_out_and_raised_again(kind):
    grid = blocks.grid(torch.from_numpy(random_blocks(kind, 37, 768)), kind)
    for side in (4, 8, 16):
        data = few_bits.pack_blocks(grid, side)
        assert data.shape == (-(-37 // side), 24, side * few_bits.FORMS[grid.kind].size)
        assert torch.equal(few_bits.unpack_blocks(data, 37, grid.kind), grid.weight())


def test_sizes_are_those_of_the_format():
    for kind, (size, _) in blocks.TYPES.items():
        numbers, bytes_ = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
        assert (bytes_, numbers) == (size, 256 if kind.endswith("K") else 32)


def test_one_bit_elsewhere_is_another_number():
    raw = random_blocks("Q6_K", 1, 256)
    before = blocks.grid(torch.from_numpy(raw), "Q6_K").weight()
    for byte in (0, 127, 128, 191, 192, 207):
        other = raw.copy()
        other[0, byte] ^= np.uint8(1)
        assert not torch.equal(blocks.grid(torch.from_numpy(other), "Q6_K").weight(), before)
