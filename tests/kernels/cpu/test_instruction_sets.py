"""Quantised weights give the same bits on every x86 processor, whatever instructions it has."""

from __future__ import annotations

import pytest
import torch

from grids import random_grid
from slipstream.kernels.cpu import compile as compiler
from slipstream.kernels.cpu import few_bits
from slipstream.kernels.cpu import linear as cpu_linear

ALL = "avx512_vnni" in compiler._processor().split()
slow = pytest.mark.slow


@pytest.mark.skipif(not ALL, reason="needs a processor with AVX-512 VNNI, whose instructions are left out in turn")
@pytest.mark.parametrize(
    ("without", "row_bits"),
    [
        ("-mno-avx512vnni", 16),  # the first processors with AVX-512: vectors of 16 numbers, groups of eight outputs
        pytest.param("-mno-avx512vnni", 8, marks=slow),
        pytest.param("-mno-avx512f", 16, marks=slow),
        pytest.param("-mno-avx512f", 8, marks=slow),
        pytest.param("-mno-avx512bw", 16, marks=slow),  # 256-bit VNNI, as with AVX-VNNI
        pytest.param("-mno-avx512bw", 8, marks=slow),
    ],
)
def test_bits_are_those_of_the_processors_best_instructions(without, row_bits, monkeypatch):
    best = cpu_linear.LinearKernel(compiler.build(cpu_linear.SOURCE, row_bits), row_bits)
    monkeypatch.setenv("CXX", f"g++ {without}")
    try:
        path = compiler.build(cpu_linear.SOURCE, row_bits)
    except compiler.Unavailable as error:
        pytest.skip(str(error))
    other = cpu_linear.LinearKernel(path, row_bits)
    assert (other.side, best.side) == (8, 16)
    for kind in few_bits.FORMS:
        grid = random_grid(kind, outputs=130, inputs=512)
        ours, theirs = best.pack_grid(grid, None), other.pack_grid(grid, None)
        for rows in (1, 2, 5, 7, 12, 19, 70):
            x = torch.randn(rows, 512, generator=torch.Generator().manual_seed(rows)) * 9
            assert torch.equal(best.linear(x, ours), other.linear(x, theirs)), (kind, rows)
