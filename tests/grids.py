"""Numbers as quantised checkpoints have them: whole numbers with a scale, and a floor, for 32 inputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


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
