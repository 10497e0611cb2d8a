"""Weights stored as integers of few bits with a scale per 32 inputs, found by inspecting float weights.

Checkpoints that were quantised and written wider again (GGUF's Q4_1 and Q8_0 among them) take a scale, and a floor, for
32 inputs of an output. The floor is then the group's least number and the scale a step from it to the largest. Whether
these reproduce every number exactly is tried, and nothing is kept in fewer bits where they do not. Other types are not
found this way but read from the quantised file (`models.weights.gguf_blocks`): their scales take float32, or there is
one for each half of a group.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

SPAN = 32  # inputs that share a scale
GLANCE = 4  # outputs that are looked at before all are


class BlockFormat(NamedTuple):
    """How a weight lies in memory: a `Block` of integers.hpp."""

    bits: int
    parts: int  # of a span that have scales of their own
    floor: bool
    scale: torch.dtype

    @property
    def size(self) -> int:
        """Bytes of a span of one output."""
        return self.bits * SPAN // 8 + (self.parts + self.floor) * self.scale.itemsize


FORMS = {
    "int4": BlockFormat(4, 1, True, torch.float16),
    "int8": BlockFormat(8, 1, False, torch.float16),
    "int4_k": BlockFormat(4, 1, True, torch.float32),
    "int5_k": BlockFormat(8, 1, True, torch.float32),
    "int6_k": BlockFormat(8, 2, False, torch.float32),
}


class QuantizedGrid(NamedTuple):
    """weight[o, SPAN s + i] = number[o, s, i] * scale[o, s, part of i] + floor[o, s], in float32, to the bit."""

    number: Tensor  # uint8 [out, spans, SPAN] of four bits, or int8
    scale: Tensor  # float16 or float32 [out, spans, parts]
    floor: Tensor | None  # of the same type [out, spans]

    @property
    def kind(self) -> str:
        bits = 4 if self.number.dtype == torch.uint8 else 8
        own = BlockFormat(bits, self.scale.shape[-1], self.floor is not None, self.scale.dtype)
        return next(kind for kind, form in FORMS.items() if form == own)

    def weight(self) -> Tensor:
        parts = self.number.float().view(*self.scale.shape, -1)
        wide = (parts * self.scale.float()[..., None]).flatten(2)
        return (wide if self.floor is None else wide.add_(self.floor.float()[..., None])).flatten(1)


def grid(weight: Tensor) -> QuantizedGrid | None:
    """A float32 weight [out, in] in few bits, where it is no other."""
    outputs, inputs = weight.shape
    if inputs % SPAN or not outputs:
        return None
    for attempt in (_eight, _four):
        if _same(attempt(weight[:GLANCE]), weight[:GLANCE]):
            candidate = attempt(weight)
            return candidate if _same(candidate, weight) else None
    return None


def nearest(weight: Tensor) -> QuantizedGrid | None:
    """A float32 weight rounded to eight bits: for drafters, whose laws are what they come to and need be no others."""
    return None if weight.shape[1] % SPAN or not len(weight) else _eight(weight)


def _same(candidate: QuantizedGrid, weight: Tensor) -> bool:
    return torch.equal(candidate.weight(), weight)


def _eight(weight: Tensor) -> QuantizedGrid:
    groups = weight.view(len(weight), -1, SPAN)
    scale = (groups.abs().amax(-1, keepdim=True).double() / 127).half()
    return QuantizedGrid(_steps(groups, scale).clamp_(-127, 127).to(torch.int8), scale, None)


def _four(weight: Tensor) -> QuantizedGrid:
    groups = weight.view(len(weight), -1, SPAN)
    floor = groups.amin(-1, keepdim=True)
    scale = ((groups.amax(-1, keepdim=True).double() - floor) / 15).half()
    return QuantizedGrid(_steps(groups - floor, scale).clamp_(0, 15).to(torch.uint8), scale, floor[..., 0].half())


def _steps(numbers: Tensor, scale: Tensor) -> Tensor:
    wide = scale.float()
    return (numbers / torch.where(wide == 0, 1.0, wide)).round_()


def laid(numbers: QuantizedGrid, side: int) -> Tensor:
    """Bytes as `integers.hpp` reads them: for as many outputs as lie side by side and a span, numbers, scales and
    floors."""
    form, number = FORMS[numbers.kind], numbers.number
    if form.bits == 4:
        number = number[..., : SPAN // 2] | number[..., SPAN // 2 :] << 4
    scales = numbers.scale if numbers.floor is None else torch.cat([numbers.scale, numbers.floor[..., None]], -1)
    fours = number.contiguous().view(torch.int32)
    parts = [_padded(part, side) for part in (fours, scales.contiguous())]
    groups, spans, start = len(parts[0]) // side, number.shape[1], 0
    data = torch.empty(groups, spans, side * form.size, dtype=torch.uint8)
    for part in parts:
        end = start + side * part.shape[-1] * part.dtype.itemsize
        lines = part.view(groups, side, spans, -1).permute(0, 2, 3, 1)  # group, span, vector or scale, output
        data[..., start:end].view(part.dtype).view(lines.shape).copy_(lines)
        start = end
    return data


def _padded(part: Tensor, side: int) -> Tensor:
    beyond = -len(part) % side
    return functional.pad(part, (0, 0) * (part.dim() - 1) + (0, beyond)) if beyond else part


def raised(data: Tensor, outputs: int, kind: str) -> Tensor:
    """The weight again, [out, in]."""
    form = FORMS[kind]
    groups, spans, size = data.shape
    side = size // form.size
    count = side * SPAN * form.bits // 8
    lines = data[..., :count].reshape(groups, spans, -1, side, 4)
    lines = torch.cat([lines & 15, lines >> 4], 2) if form.bits == 4 else lines.view(torch.int8)
    number = lines.permute(0, 3, 1, 2, 4).reshape(groups * side, spans, SPAN)
    rest = data[..., count:].contiguous().view(form.scale).view(groups, spans, -1, side)
    scales = rest.permute(0, 3, 1, 2).reshape(groups * side, spans, -1)
    floor = scales[..., form.parts] if form.floor else None
    return QuantizedGrid(number, scales[..., : form.parts], floor).weight()[:outputs]
