"""Block-quantised weights: integers of 4 or 8 bits with a scale per block of 32 inputs.

A checkpoint may hold float weights that were quantised before, such as a dequantised GGUF file of type Q4_1 or Q8_0.
`grid` recovers their integers: the floor (minimum) and the step of each block follow from its smallest and largest
number. The integers are used only if they reproduce every weight exactly. Other GGUF types cannot be recovered in this
way, because they have float32 scales or one scale per half block. They are read from the quantised file instead
(`models.weights.gguf_blocks`).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

SPAN = 32  # inputs per block
PROBE = 4  # outputs that are tested first, because most weights fail at once


class BlockFormat(NamedTuple):
    """The memory format of a block of weights: `Block` in integers.hpp."""

    bits: int
    parts: int  # scales per block
    floor: bool  # whether a block has a floor
    scale: torch.dtype

    @property
    def size(self) -> int:
        """Bytes per block of one output."""
        return self.bits * SPAN // 8 + (self.parts + self.floor) * self.scale.itemsize


FORMS = {
    "int4": BlockFormat(4, 1, True, torch.float16),
    "int8": BlockFormat(8, 1, False, torch.float16),
    "int4_k": BlockFormat(4, 1, True, torch.float32),
    "int5_k": BlockFormat(8, 1, True, torch.float32),
    "int6_k": BlockFormat(8, 2, False, torch.float32),
}


class QuantizedGrid(NamedTuple):
    """weight[o, SPAN s + i] = number[o, s, i] * scale[o, s, part of i] + floor[o, s], exactly in float32."""

    number: Tensor  # [out, spans, SPAN] uint8 with values below 16, or int8
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
    """The integers of a float32 weight [out, in], if 8 or 4 bits reproduce it exactly; otherwise None."""
    outputs, inputs = weight.shape
    if inputs % SPAN or not outputs:
        return None
    for quantise in (_int8, _int4):
        if _is_exact(quantise(weight[:PROBE]), weight[:PROBE]):
            candidate = quantise(weight)
            return candidate if _is_exact(candidate, weight) else None
    return None


def round_to_int8(weight: Tensor) -> QuantizedGrid | None:
    """A float32 weight rounded to 8 bits. Only for drafters: rounding a target would change the output distribution."""
    return None if weight.shape[1] % SPAN or not len(weight) else _int8(weight)


def _is_exact(candidate: QuantizedGrid, weight: Tensor) -> bool:
    return torch.equal(candidate.weight(), weight)


def _int8(weight: Tensor) -> QuantizedGrid:
    groups = weight.view(len(weight), -1, SPAN)
    scale = (groups.abs().amax(-1, keepdim=True).double() / 127).half()
    return QuantizedGrid(_steps(groups, scale).clamp_(-127, 127).to(torch.int8), scale, None)


def _int4(weight: Tensor) -> QuantizedGrid:
    groups = weight.view(len(weight), -1, SPAN)
    floor = groups.amin(-1, keepdim=True)
    scale = ((groups.amax(-1, keepdim=True).double() - floor) / 15).half()
    return QuantizedGrid(_steps(groups - floor, scale).clamp_(0, 15).to(torch.uint8), scale, floor[..., 0].half())


def _steps(numbers: Tensor, scale: Tensor) -> Tensor:
    wide = scale.float()
    return (numbers / torch.where(wide == 0, 1.0, wide)).round_()


def pack_blocks(numbers: QuantizedGrid, side: int) -> Tensor:
    """Bytes as `integers.hpp` reads them: for each group of `side` outputs and each block, numbers, scales, floors."""
    form, number = FORMS[numbers.kind], numbers.number
    if form.bits == 4:
        number = number[..., : SPAN // 2] | number[..., SPAN // 2 :] << 4
    scales = numbers.scale if numbers.floor is None else torch.cat([numbers.scale, numbers.floor[..., None]], -1)
    words = number.contiguous().view(torch.int32)
    parts = [_padded(part, side) for part in (words, scales.contiguous())]
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


def unpack_blocks(data: Tensor, outputs: int, kind: str) -> Tensor:
    """The float32 weight [out, in] of packed blocks: the inverse of `pack_blocks`."""
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
