"""Weights of few bits are found, kept exactly, and multiplied with next to no rounding; a row's bits are its own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from grids import by_plain_arithmetic, eight, four
from slipstream.kernels.cpu import few_bits
from slipstream.kernels.cpu import linear as cpu_linear

needs_integers = pytest.mark.skipif(not cpu_linear.has_integers(), reason="needs instructions for products of bytes")


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", [four, eight])
@pytest.mark.parametrize("outputs", [1, 4, 7, 130])
def test_found_and_raised_again(kind, outputs):
    weight = kind(normal(outputs, 96))
    found = few_bits.grid(weight)
    assert found is not None
    assert (found.floor is None) == (kind is eight)
    assert torch.equal(found.weight(), weight)
    if cpu_linear.has_integers():
        assert torch.equal(cpu_linear.pack_grid(found).unpack(), weight)


def test_a_group_of_equal_numbers_has_no_step():
    weight = four(normal(4, 64))
    weight[1, 32:] = 0.25
    found = few_bits.grid(weight)
    assert found is not None
    assert torch.equal(found.weight(), weight)


def test_what_is_not_of_few_bits_is_left_alone():
    weight = four(normal(8, 64))
    assert few_bits.grid(normal(8, 64)) is None
    assert few_bits.grid(weight[:, :40]) is None  # no whole groups
    for place in ((0, 3), (7, 63)):  # within the glance and beyond it
        spoilt = weight.clone()
        spoilt[place] += 1e-6
        assert few_bits.grid(spoilt) is None
    assert few_bits.grid(torch.empty(0, 32)) is None


@needs_integers
@pytest.mark.parametrize("kind", [four, eight])
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 7, 8, 9, 31])
def test_products_are_far_closer_than_bfloat16_activations_give(kind, rows):
    weight, bias = kind(normal(64, 192)), normal(64, seed=1)
    x = normal(rows, 192, seed=2)
    x[:, 5] *= 40  # an outlier takes precision from its own group only
    packed = cpu_linear.pack(weight, bias, integers=True)
    assert packed.is_integer
    assert packed.data.numel() * 8 / weight.numel() < (9 if kind is eight else 5.5)
    exact = x.double() @ weight.double().T + bias
    error = (cpu_linear.linear(x, packed) - exact).norm()
    rough = (x.bfloat16().double() @ weight.double().T + bias - exact).norm()
    assert error < rough / 10


@needs_integers
@pytest.mark.parametrize("kind", [four, eight])
def test_a_row_has_the_same_bits_alone_and_in_any_batch(kind):
    x, packed = normal(40, 576), cpu_linear.pack(kind(normal(130, 576, seed=1)), integers=True)
    alone = torch.cat([cpu_linear.linear(row, packed) for row in x.split(1)])
    for rows in (*range(2, 30), 40):  # some by vectors, some by tiles, in one block, two or three
        assert torch.equal(cpu_linear.linear(x[:rows], packed), alone[:rows])


@needs_integers
@pytest.mark.parametrize("kind", [four, eight])
@pytest.mark.parametrize("rows", [1, 3, 4, 7, 8, 11, 12, 16, 19, 21, 24, 27, 50])
def test_products_are_those_of_plain_arithmetic_to_the_bit(kind, rows):
    weight, x = kind(normal(37, 160, seed=rows)), normal(rows, 160, seed=3) * 5
    x[rows // 2, 32:64] = 0
    found = few_bits.grid(weight)
    assert found is not None
    packed = cpu_linear.pack(weight, integers=True)
    assert torch.equal(cpu_linear.linear(x, packed), by_plain_arithmetic(x, found))


@needs_integers
def test_a_row_of_zeros_gives_the_bias():
    packed = cpu_linear.pack(four(normal(6, 32)), torch.arange(6.0), integers=True)
    assert torch.equal(cpu_linear.linear(torch.zeros(3, 32), packed), torch.arange(6.0).expand(3, 6))


def test_only_where_they_may():
    assert not cpu_linear.pack(four(normal(8, 64))).is_integer
