"""Numbers as quantised checkpoints have them: whole numbers with a scale, and a floor, for 32 inputs; products."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from slipstream.kernels.cpu import few_bits


def four(weight: Tensor) -> Tensor:
    groups = weight.view(len(weight), -1, 32)
    floor = groups.amin(-1, keepdim=True)
    step = (groups.amax(-1, keepdim=True) - floor) / 15
    number = ((groups - floor) / step).round().clamp(0, 15)
    return (number * step.half().float() + floor.half().float()).flatten(1)


def eight(weight: Tensor) -> Tensor:
    groups = weight.view(len(weight), -1, 32)
    step = groups.abs().amax(-1, keepdim=True) / 127
    return ((groups / step).round() * step.half().float()).flatten(1)


@torch.no_grad()
def quantise(model: Any) -> Any:
    """A model's linear layers in four bits, its embedding in eight."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.weight.copy_(four(module.weight))
    embedding = model.get_input_embeddings().weight
    embedding.copy_(eight(embedding))
    return model


def random_grid(kind: str, outputs: int, inputs: int) -> few_bits.QuantizedGrid:
    """Any numbers that a form can hold, with scales of both signs."""
    form, spans, source = few_bits.FORMS[kind], inputs // few_bits.SPAN, torch.Generator().manual_seed(7)
    low, high = least_and_most(kind)
    number = torch.randint(low, high + 1, (outputs, spans, few_bits.SPAN), generator=source)
    number = number.to(torch.int8 if low else torch.uint8)
    shape, factor = (outputs, spans, form.parts + 1), None
    if form.scale == torch.int8:
        scales = torch.randint(-128, 128, shape, generator=source).to(torch.int8)
        shared = outputs, spans // few_bits.SHARING, 1 + form.floor
        factor = torch.randn(shared, generator=source).half()
    else:
        scales = torch.randn(shape, generator=source).half().to(form.scale)  # a number times its scale is exact
    return few_bits.QuantizedGrid(number, scales[..., : form.parts], scales[..., -1] if form.floor else None, factor)


def least_and_most(kind: str) -> tuple[int, int]:
    """The smallest and the largest number of a form."""
    bits = few_bits.FORMS[kind].bits
    return (0, 15) if bits == 4 else (-(1 << bits - 1), (1 << bits - 1) - 1)


def fused(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """a b + c in float32, rounded once."""
    return (a.double() * b.double() + c.double()).float()


def by_plain_arithmetic(x: Tensor, found: few_bits.QuantizedGrid, row_bits: int = 16) -> Tensor:
    """What every processor's instructions must come to: exact sums of whole numbers, then span by span in float32.
    A step of activations of eight bits has two digits less than a float32 could have."""
    groups = x.view(len(x), -1, few_bits.SPAN)
    top = groups.abs().amax(-1)
    full = torch.tensor(127.0 if row_bits == 8 else 127.0 * 256)
    number = (groups * torch.where(top > 0, full / top, 0)[..., None]).round().long()
    parts = found.scale.shape[-1]
    scale, floor = found.scales()
    mine, theirs = (n.double().view(*n.shape[:2], parts, -1) for n in (number, found.number))
    whole = torch.einsum("rspi,ospi->rosp", mine, theirs)  # exact: below 2^53
    step = top / full
    if row_bits == 8:
        step = (step.view(torch.int32) & ~3).view(torch.float32)
    size = step * number.sum(-1).float()
    total = torch.zeros(len(x), len(found.number))
    for s in range(groups.shape[1]):
        for p in range(parts):
            total = fused(whole[:, :, s, p].float() * step[:, s, None], scale[:, s, p], total)
        if floor is not None:
            total = fused(floor[:, s], size[:, s, None], total)
    return total
