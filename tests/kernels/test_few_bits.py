"""Weights of few bits are found, kept exactly, and multiplied with next to no rounding; a row's bits are its own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from grids import eight, four
from slipstream.kernels import cpu_linear, few_bits

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
    for side in (4, 16):
        assert torch.equal(few_bits.raised(few_bits.laid(found, side), outputs, found.kind), weight)


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
    weight, bias = kind(normal(50, 192)), normal(50, seed=1)
    x = normal(rows, 192, seed=2)
    x[:, 5] *= 40  # an outlier takes precision from its own group only
    packed = cpu_linear.pack(weight, bias, integers=True)
    assert packed.whole
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


def fused(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """a b + c in float32, rounded once."""
    return (a.double() * b.double() + c.double()).float()


def by_plain_arithmetic(x: Tensor, found: few_bits.Grid) -> Tensor:
    """What every processor's instructions must come to: exact sums of whole numbers, then span by span in float32."""
    groups = x.view(len(x), -1, few_bits.SPAN)
    top = groups.abs().amax(-1)
    full = torch.tensor(127.0 * 256)
    number = (groups * torch.where(top > 0, full / top, 0)[..., None]).round().long()
    parts = found.scale.shape[-1]
    mine, theirs = (n.double().view(*n.shape[:2], parts, -1) for n in (number, found.number))
    whole = torch.einsum("rspi,ospi->rosp", mine, theirs)  # exact: below 2^53
    step, size = top / full, (top / full) * number.sum(-1).float()
    total = torch.zeros(len(x), len(found.number))
    for s in range(groups.shape[1]):
        for p in range(parts):
            total = fused(whole[:, :, s, p].float() * step[:, s, None], found.scale[:, s, p].float(), total)
        if found.floor is not None:
            total = fused(found.floor[:, s].float(), size[:, s, None], total)
    return total


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


def random_grid(kind: str, outputs: int, inputs: int) -> few_bits.Grid:
    """Any numbers that a form can hold, with scales of both signs."""
    form, spans, source = few_bits.FORMS[kind], inputs // few_bits.SPAN, torch.Generator().manual_seed(7)
    low, high, dtype = (0, 16, torch.uint8) if form.bits == 4 else (-128, 128, torch.int8)
    number = torch.randint(low, high, (outputs, spans, few_bits.SPAN), generator=source).to(dtype)
    scales = torch.randn(outputs, spans, form.parts + 1, generator=source).to(form.scale)
    return few_bits.Grid(number, scales[..., : form.parts], scales[..., -1] if form.floor else None)


@needs_integers
@pytest.mark.parametrize("kind", few_bits.FORMS)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 6, 8, 11, 16, 19, 24, 27, 50])
def test_every_form_is_multiplied_by_plain_arithmetic_to_the_bit(kind, rows):
    found, x = random_grid(kind, 37, 160), normal(rows, 160, seed=3) * 5
    packed = cpu_linear.pack_grid(found)
    assert (packed.kind, packed.whole) == (kind, True)
    assert torch.equal(packed.unpack(), found.weight())
    assert torch.equal(cpu_linear.linear(x, packed), by_plain_arithmetic(x, found))


@needs_integers
@pytest.mark.parametrize("kind", few_bits.FORMS)
def test_every_form_has_rows_of_its_own(kind):
    x, packed = normal(40, 576), cpu_linear.pack_grid(random_grid(kind, 130, 576), normal(130, seed=4))
    alone = torch.cat([cpu_linear.linear(row, packed) for row in x.split(1)])
    for rows in (*range(2, 26), 40):
        assert torch.equal(cpu_linear.linear(x[:rows], packed), alone[:rows])


@needs_integers
def test_a_row_of_zeros_gives_the_bias():
    packed = cpu_linear.pack(four(normal(6, 32)), torch.arange(6.0), integers=True)
    assert torch.equal(cpu_linear.linear(torch.zeros(3, 32), packed), torch.arange(6.0).expand(3, 6))


def test_only_where_they_may():
    assert not cpu_linear.pack(four(normal(8, 64))).whole
