"""Weights that are whole numbers of few bits by groups of 32 inputs: found by looking at them, kept in those bits.

Checkpoints that were quantised and written wider again (GGUF's Q4_1 and Q8_0 among them) take a scale, and a floor, for
32 inputs of an output. The floor is then the group's least number and the scale a step from it to the largest. Whether
these reproduce every number exactly is tried, and nothing is kept in fewer bits where they do not.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

SPAN = 32  # inputs that share a scale
GLANCE = 4  # outputs that are looked at before all are


class Grid(NamedTuple):
    """weight[o, SPAN s + i] = number[o, s, i] * scale[o, s] + floor[o, s], in float32, to the bit."""

    number: Tensor  # uint8 [out, spans, SPAN] of four bits, or int8
    scale: Tensor  # float16 [out, spans]
    floor: Tensor | None

    def weight(self) -> Tensor:
        wide = self.number.float() * self.scale.float()[..., None]
        return (wide if self.floor is None else wide + self.floor.float()[..., None]).flatten(1)


def grid(weight: Tensor) -> Grid | None:
    """A float32 weight [out, in] in few bits, where it is no other."""
    outputs, inputs = weight.shape
    if inputs % SPAN or not outputs:
        return None
    for attempt in (_eight, _four):
        if _same(attempt(weight[:GLANCE]), weight[:GLANCE]):
            found = attempt(weight)
            return found if _same(found, weight) else None
    return None


def nearest(weight: Tensor) -> Grid | None:
    """A float32 weight rounded to eight bits: for drafters, whose laws are what they come to and need be no others."""
    return None if weight.shape[1] % SPAN or not len(weight) else _eight(weight)


def _same(found: Grid, weight: Tensor) -> bool:
    return torch.equal(found.weight(), weight)


def _eight(weight: Tensor) -> Grid:
    groups = weight.view(len(weight), -1, SPAN)
    scale = (groups.abs().amax(-1).double() / 127).half()
    return Grid(_steps(groups, scale).clamp_(-127, 127).to(torch.int8), scale, None)


def _four(weight: Tensor) -> Grid:
    groups = weight.view(len(weight), -1, SPAN)
    floor = groups.amin(-1)
    scale = ((groups.amax(-1).double() - floor) / 15).half()
    return Grid(_steps(groups - floor[..., None], scale).clamp_(0, 15).to(torch.uint8), scale, floor.half())


def _steps(numbers: Tensor, scale: Tensor) -> Tensor:
    wide = scale.float()[..., None]
    return (numbers / torch.where(wide == 0, 1.0, wide)).round_()


def laid(found: Grid, side: int) -> Tensor:
    """Bytes as `integers.hpp` reads them: for as many outputs as lie side by side and a span, numbers, scales and
    floors."""
    padded = [None if part is None else _padded(part, side) for part in found]
    number, scale, floor = padded
    assert number is not None
    assert scale is not None
    groups, spans = len(number) // side, number.shape[1]
    lines = number.view(groups, side, spans, SPAN // 4, 4).permute(0, 2, 3, 1, 4)  # group, span, vector, output, input
    if floor is not None:
        lines = lines[:, :, :4] | lines[:, :, 4:] << 4
    parts = [lines.reshape(groups, spans, -1).view(torch.uint8)]
    for half in (scale, floor):
        if half is not None:
            parts.append(half.view(groups, side, spans).transpose(1, 2).contiguous().view(torch.uint8))
    return torch.cat(parts, -1).contiguous()


def _padded(part: Tensor, side: int) -> Tensor:
    return functional.pad(part, (0, 0) * (part.dim() - 1) + (0, -len(part) % side))


def raised(data: Tensor, outputs: int, four: bool) -> Tensor:
    """The weight again, [out, in]; `four` bits a number or eight."""
    groups, spans, size = data.shape
    each = SPAN // 2 if four else SPAN  # bytes of numbers an output has in a span, before its scale and floor
    side = size // (each + (4 if four else 2))
    count = each * side
    numbers, rest = data[..., :count], data[..., count:].contiguous().view(torch.float16)
    lines = numbers.reshape(groups, spans, -1, side, 4)
    lines = torch.cat([lines & 15, lines >> 4], 2) if four else lines.contiguous().view(torch.int8)
    number = lines.permute(0, 3, 1, 2, 4).reshape(groups * side, spans, SPAN)
    scale, floor = (_by_output(half) for half in (rest[..., :side], rest[..., side:]))
    return Grid(number, scale, floor if four else None).weight()[:outputs]


def _by_output(half: Tensor) -> Tensor:
    return half.transpose(1, 2).reshape(-1, half.shape[1]) if half.shape[-1] else half.new_zeros(0)
