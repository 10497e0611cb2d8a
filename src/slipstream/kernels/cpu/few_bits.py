"""Block-quantised weights: integers of 4, 6 or 8 bits with a scale per block of 32 inputs.

A checkpoint may hold float weights that were quantised before, such as a dequantised GGUF file of type Q4_1 or Q8_0.
`grid` recovers their integers: the floor (minimum) and the step of each block follow from its smallest and largest
number. The integers are used only if they reproduce every weight exactly. Other GGUF types cannot be recovered in this
way, because their scales are products of two numbers, or there is one per half block. They are read from the quantised
file instead (`models.weights.gguf_blocks`).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

SPAN = 32  # inputs per block
SHARING = 8  # blocks that share factors
PROBE = 4  # outputs that are tested first, because most weights fail at once


class BlockFormat(NamedTuple):
    """The memory format of a block of weights: `Block` in integers.hpp."""

    bits: int
    parts: int  # scales per block
    floor: bool  # whether a block has a floor
    scale: torch.dtype  # float16, float32, or int8 with a factor of the scales and one of the floors of SHARING blocks

    @property
    def spans(self) -> int:
        """Blocks that are stored together."""
        return SHARING if self.scale == torch.int8 else 1


FORMS = {
    "int4": BlockFormat(4, 1, True, torch.float16),
    "int8": BlockFormat(8, 1, False, torch.float16),
    "int4_k": BlockFormat(4, 1, True, torch.int8),
    "int5_k": BlockFormat(8, 1, True, torch.float32),
    "int6_k": BlockFormat(6, 2, False, torch.int8),
}


class QuantizedGrid(NamedTuple):
    """weight[o, SPAN s + i] = number[o, s, i] * scale[o, s, part of i] + floor[o, s], exactly in float32.

    Scales and floors are either floats, or int8 and multiplied by the factors of their SHARING blocks."""

    number: Tensor  # [out, spans, SPAN] uint8 with values below 16, or int8; with int8 scales and no floor -32 to 31
    scale: Tensor  # float16, float32 or int8 [out, spans, parts]
    floor: Tensor | None  # of the same type [out, spans]
    factor: Tensor | None = None  # float16 [out, spans / SHARING, 1 or 2]: of the scales, of the floors

    @property
    def kind(self) -> str:
        numbers = self.number.dtype, self.scale.shape[-1], self.floor is not None, self.scale.dtype
        return next(
            kind
            for kind, form in FORMS.items()
            if (torch.uint8 if form.bits == 4 else torch.int8, *form[1:]) == numbers
        )

    def scales(self) -> tuple[Tensor, Tensor | None]:
        """Scales and floors in float32."""
        scale, floor = self.scale.float(), None if self.floor is None else self.floor.float()
        if self.factor is not None:
            shared = self.factor.float().repeat_interleave(SHARING, 1)
            scale *= shared[..., :1]
            floor = None if floor is None else floor * shared[..., 1]
        return scale, floor

    def weight(self) -> Tensor:
        scale, floor = self.scales()
        wide = (self.number.float().view(*scale.shape, -1) * scale[..., None]).flatten(2)
        return (wide if floor is None else wide.add_(floor[..., None])).flatten(1)


def example(form: BlockFormat, outputs: int, spans: int) -> QuantizedGrid:
    """A weight with all numbers that a format has."""
    step = torch.arange(outputs * spans * SPAN).view(outputs, spans, -1) * 37 % (1 << form.bits)
    number = step.to(torch.uint8) if form.bits == 4 else (step - (1 << form.bits - 1)).to(torch.int8)
    scale = 1 + torch.arange(outputs * spans * form.parts).view(outputs, spans, -1) % 5
    floor = -3 * scale[..., 0] if form.floor else None
    if form.scale == torch.int8:
        factor = torch.full((outputs, spans // SHARING, 1 + form.floor), 0.125, dtype=torch.float16)
        return QuantizedGrid(number, scale.to(form.scale), None if floor is None else floor.to(form.scale), factor)
    return QuantizedGrid(number, scale.to(form.scale) / 8, None if floor is None else floor.to(form.scale) / 8)


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
    """Bytes as `integers.hpp` reads them: for each group of `side` outputs and `Block`, numbers, scales, factors."""
    form, spans = FORMS[numbers.kind], numbers.number.shape[1]
    assert spans % form.spans == 0, "blocks that share factors are stored together"
    scales = numbers.scale if numbers.floor is None else torch.cat([numbers.scale, numbers.floor[..., None]], -1)
    lines = [_by_output(_packed_bits(numbers.number, form.bits).view(torch.int32), side, form.spans)]
    lines.append(_by_output(scales, side, form.spans))
    if numbers.factor is not None:
        lines.append(_by_output(numbers.factor, side, 1))
    return torch.cat([line.contiguous().view(torch.uint8).flatten(2) for line in lines], -1)


def _packed_bits(number: Tensor, bits: int) -> Tensor:
    """Numbers in the bytes of their blocks."""
    if bits == 4:
        return number[..., : SPAN // 2] | number[..., SPAN // 2 :] << 4
    if bits == 8:
        return number.contiguous()
    raised = (number << 2).view(torch.uint8).view(*number.shape[:-1], 2, 4, 4)  # half of the inputs, four inputs, input
    shared = raised[..., 3:, :] >> torch.tensor([6, 4, 2], dtype=torch.uint8)[:, None] & 3
    return (raised[..., :3, :] | shared).flatten(-3)


def _by_output(part: Tensor, side: int, spans: int) -> Tensor:
    """[out, blocks, n] to [groups, blocks / spans, spans, n, side]."""
    beyond = -len(part) % side
    padded = functional.pad(part, (0, 0, 0, 0, 0, beyond)) if beyond else part
    lines = padded.reshape(-1, side, padded.shape[1] // spans, spans, padded.shape[2])
    return lines.permute(0, 2, 3, 4, 1)
