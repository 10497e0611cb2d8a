"""Linear layers with weights rounded to eight bits, for a GPU. The rounded model is not the one on disk.

Every output has a scale. The module computes with the rounded weights in the model's type. Kernels that read 8-bit
weights (`kernels.gpu.matmul`) use `int8`.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from slipstream.core.array_types import Float, Tensor
from slipstream.kernels.gpu.int8_weight import Int8Weight

LARGEST = {"int8": 127.0, "fp8": 448.0}


class RoundedLinear(nn.Linear):
    """A linear layer whose weight was rounded to eight bits."""

    def __init__(self, linear: nn.Linear, kind: str) -> None:
        super().__init__(linear.in_features, linear.out_features, bias=False, device="meta")
        self.kind, number = kind, rounded(linear.weight.detach(), kind)
        self.weight = nn.Parameter(number.wide(), requires_grad=False)
        self.int8 = replace(number, full=self.weight.detach())
        self.bias = linear.bias

    def move(self, full: Float[Tensor, "out in"]) -> None:
        """Use another tensor with the same weights, such as a part of a larger one."""
        self.weight.data = full
        self.int8 = replace(self.int8, full=full)


def rounded(weight: Float[Tensor, "out in"], kind: str) -> Int8Weight:
    """A weight rounded to 255 integer steps ("int8"), or to eight-bit floats with four exponent bits ("fp8")."""
    scale = weight.abs().amax(1).float().clamp_(min=1e-12) / LARGEST[kind]
    steps = weight.float() / scale[:, None]
    number = steps.round_().to(torch.int8) if kind == "int8" else steps.to(torch.float8_e4m3fn)
    return Int8Weight(number, scale, weight.new_empty(0))


def round_linears(model: nn.Module, kind: str) -> int:
    """Replace the plain linear layers of a model, in place. Returns how many.

    An output matrix that is also the embedding is rounded separately, and the embedding keeps its values.
    """
    count = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                setattr(parent, name, RoundedLinear(child, kind))
                count += 1
    return count
