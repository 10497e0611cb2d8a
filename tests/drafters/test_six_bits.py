"""Weights in six bits: what comes back, and how close it is."""

from __future__ import annotations

import torch

from slipstream.drafters.files.six_bits import GROUP, MOST, pack, unpack


def test_numbers_on_the_grid_come_back_exactly():
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randint(-MOST - 1, MOST + 1, (3, 2, GROUP), generator=generator).float()
    numbers[..., 0] = MOST  # the largest, so that the scale is 2 ** -5 exactly
    numbers.clamp_(-MOST, MOST)
    weight = (numbers * 2**-5).reshape(3, 2 * GROUP)
    packed, scales = pack(weight)
    assert (packed.shape, packed.dtype) == ((3, 2 * GROUP * 3 // 4), torch.uint8)
    assert scales.shape == (3, 2)
    assert torch.equal(unpack(packed, scales), weight)


def test_each_group_has_its_own_scale_and_a_small_error():
    weight = torch.randn(8, 4 * GROUP, generator=torch.Generator().manual_seed(1))
    weight[:, GROUP : 2 * GROUP] *= 1000
    restored = unpack(*pack(weight))
    for group in range(4):
        part = slice(group * GROUP, (group + 1) * GROUP)
        error = (restored[:, part] - weight[:, part]).norm() / weight[:, part].norm()
        assert 0.005 < error < 0.03


def test_zeros_stay_zeros():
    assert not unpack(*pack(torch.zeros(2, GROUP))).any()
