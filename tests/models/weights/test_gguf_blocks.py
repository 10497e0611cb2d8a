"""Blocks are read as GGUF's own reader reads them, to the bit, and multiplied as plain arithmetic does."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gguf_files import random_blocks
from grids import by_plain_arithmetic
from slipstream.kernels.cpu import few_bits
from slipstream.kernels.cpu import linear as cpu_linear
from slipstream.models.weights import gguf_blocks as blocks

gguf = pytest.importorskip("gguf")
BITS = {"Q4_0": 5, "Q4_1": 5, "Q5_0": 8.5, "Q8_0": 8.5, "Q4_K": 4.625, "Q6_K": 6.5625}
FORMS = {"Q4_0": "int4", "Q4_1": "int4", "Q5_0": "int8", "Q8_0": "int8", "Q4_K": "int4_k", "Q6_K": "int6_k"}


@pytest.mark.parametrize("kind", blocks.TYPES)
def test_numbers_are_those_of_the_file(kind):
    raw = random_blocks(kind, 37, 768, size=1.0)
    grid = blocks.grid(torch.from_numpy(raw), kind)
    expected = gguf.dequantize(raw, gguf.GGMLQuantizationType[kind])
    assert torch.equal(grid.weight(), torch.from_numpy(expected))
    assert grid.kind == FORMS.get(kind, "int5_k")
    assert grid.number.dtype == (torch.uint8 if grid.kind.startswith("int4") else torch.int8)


@pytest.mark.skipif(not cpu_linear.has_integers(), reason="needs instructions for products of bytes")
@pytest.mark.parametrize("kind", blocks.TYPES)
def test_packed_and_unpacked_again(kind):
    grid = blocks.grid(torch.from_numpy(random_blocks(kind, 37, 768, size=1.0)), kind)
    assert torch.equal(cpu_linear.pack_grid(grid).unpack(), grid.weight())


@pytest.mark.parametrize("kind", BITS)
def test_bits_in_memory(kind):
    grid = blocks.grid(torch.from_numpy(random_blocks(kind, 32, 768)), kind)
    for side in (4, 8, 16):
        assert few_bits.pack_blocks(grid, side).numel() * 8 == BITS[kind] * grid.number.numel()


@pytest.mark.skipif(not cpu_linear.has_integers(), reason="needs instructions for products of bytes")
@pytest.mark.parametrize("row_bits", [16, 8])
@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K"])
def test_products_are_those_of_float32_scales_to_the_bit(kind, row_bits):
    """Scales are stored as bytes with a factor. The sums are those with the scales of the file's reader."""
    raw = torch.from_numpy(random_blocks(kind, 37, 512, size=1.0))
    raw[0, 12:16] = 0  # no scale and no floor
    grid = blocks.grid(raw, kind)
    x = torch.randn(5, 512, generator=torch.Generator().manual_seed(1))
    wide = few_bits.QuantizedGrid(grid.number, *grid.scales())
    assert wide.scale.dtype == torch.float32
    result = cpu_linear.linear(x, cpu_linear.pack_grid(grid, row_bits=row_bits))
    assert torch.equal(result, by_plain_arithmetic(x, wide, row_bits))


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
