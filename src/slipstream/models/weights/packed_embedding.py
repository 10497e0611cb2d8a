"""The embedding of a model whose output matrix is the same table: its rows are read from the packed output matrix."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import nn

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.kernels.cpu import linear as cpu_linear
from slipstream.models.weights.linears import PackedLinear


class PackedEmbedding(nn.Module):
    """Looks rows up in quantised blocks. The whole table in float32 is made only if somebody asks for it."""

    def __init__(self, packed: cpu_linear.PackedWeight) -> None:
        super().__init__()
        self.packed = packed

    def forward(self, token: Int[Tensor, "*tokens"]) -> Float[Tensor, "*tokens hidden"]:
        return cpu_linear.unpack_outputs(self.packed, token)

    @cached_property
    def weight(self) -> Float[Tensor, "vocab hidden"]:
        with torch.inference_mode(False):
            return cpu_linear.unpack_outputs(self.packed, torch.arange(self.packed.outputs))


class TiedHead(PackedLinear):
    """An output matrix that shares its weights with a packed embedding."""

    def __init__(self, embedding: PackedEmbedding) -> None:
        super().__init__(embedding.packed)
        self._embedding = [embedding]  # in a list, so that it is no submodule

    @property
    def weight(self) -> Float[Tensor, "out in"]:
        return self._embedding[0].weight


def holds(packed: cpu_linear.PackedWeight, table: Float[Tensor, "vocab hidden"]) -> bool:
    """Whether a packed output matrix holds a table exactly and can replace it."""
    return packed.is_integer and not packed.rounded and torch.equal(packed.unpack(), table)
