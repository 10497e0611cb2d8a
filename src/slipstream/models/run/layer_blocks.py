"""Leaves attention and MLP blocks out of a pass of a model's own modules.

A block adds its output to the hidden state. So a block is left out by replacing its module's `forward`, for the length
of a pass, with one that returns zeros. This works for any architecture whose layers have one attention module and one
MLP module, or one module of experts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from slipstream.core.array_types import Tensor
from slipstream.kernels.cpu.decoder import SkippedBlocks
from slipstream.models.run.layers import Layers, attends, replaced


class LayerBlocks:
    """The attention and MLP modules of a model's layers."""

    def __init__(self, layers: Layers) -> None:
        self._layers = layers
        self._zeros: dict[nn.Module, Callable[..., Any]] = {}  # replacements, by module

    def left_out(self, skipped: SkippedBlocks) -> AbstractContextManager[None]:
        """Leave these blocks out of the passes within a `with` block."""
        modules = [attention_of(self._layers[i]) for i in sorted(skipped.attention)]
        modules += [mlp_of(self._layers[i]) for i in sorted(skipped.mlp)]
        for module in modules:
            self._zeros.setdefault(module, _zeros_of(module))
        return replaced([(module, self._zeros[module]) for module in modules])


def attention_of(layer: nn.Module) -> nn.Module:
    """The attention module of a layer. ValueError if there is not exactly one."""
    return _only([part for part in layer.children() if attends(part)], layer, "attention")


def mlp_of(layer: nn.Module) -> nn.Module:
    """The MLP of a layer, or its experts: the part without attention that holds matrices."""
    parts = [part for part in layer.children() if not attends(part)]
    return _only([part for part in parts if any(p.ndim > 1 for p in part.parameters())], layer, "MLP")


def _only(parts: Sequence[nn.Module], layer: nn.Module, kind: str) -> nn.Module:
    if len(parts) != 1:
        name = type(layer).__name__
        raise ValueError(f"blocks of {name} cannot be skipped: it has {len(parts)} {kind} modules and must have one")
    return parts[0]


def _zeros_of(module: nn.Module) -> Callable[..., Any]:
    """A `forward` that returns zeros. Its first call runs the module to see whether that returns a tuple."""
    rest: list[int] = []  # values of the tuple after the hidden state; empty until the first call, -1: no tuple

    def forward(*args: Any, **kwargs: Any) -> Any:
        if not rest:
            output = type(module).forward(module, *args, **kwargs)
            rest.append(len(output) - 1 if isinstance(output, tuple) else -1)
        hidden: Tensor = args[0] if args else kwargs["hidden_states"]
        zeros = torch.zeros_like(hidden)
        return zeros if rest[0] < 0 else (zeros, *[None] * rest[0])

    return forward
