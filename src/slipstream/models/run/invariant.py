"""Invariant mode: a row's numbers depend on its own tokens only.

Not on batch mates, on how a prompt was cut into pieces, on a prefix computed earlier, on how many tokens were drafted
beside it, or on the room in the cache. Norms, rotations and activations work token by token anyway; what mixes are
matrix products and attention, whose libraries choose the order of their sums by the shape of the whole batch. So the
mode is there where both run on kernels that sum in one order (`kernels`), and is refused by name elsewhere. On a CPU
these work in float32; a model in half precision is rounded before and after them, token by token. On a GPU it is the
layers' own kernels with one tile for any number of tokens (`gpu_decoder`), where a model's layers run on them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from slipstream.kernels.cpu import attention as cpu_attention
from slipstream.models.weights.linears import HALF


def why_not(model: Any) -> str | None:
    """What keeps a model from invariant mode, or None."""
    if model.device.type != "cpu" or model.dtype not in (torch.float32, *HALF):
        here = f"{str(model.dtype).removeprefix('torch.')} on {model.device.type}"
        return f"its kernels are made for a CPU in float32, bfloat16 or float16, not for {here}"
    if reason := cpu_attention.why_not():
        return f"its kernels are not available ({reason})"
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            return f"{name} is not run by a kernel that sums in one order"
        if any(parameter.dim() > 2 for parameter in module.parameters(recurse=False)):
            return f"{name} holds experts, which are not run by a kernel that sums in one order"
        if getattr(module, "sinks", None) is not None:
            return f"{name} has attention sinks"
    return None


def free(model: Any) -> bool:
    """Whether a model can have the mode and, as measured (`benchmarks/invariant.py`), pays next to nothing for it."""
    return model.dtype == torch.float32 and why_not(model) is None


def invariant_attention(model: Any) -> cpu_attention.AttentionKernel:
    """The attention of invariant mode; ValueError where the mode cannot be had."""
    reason = why_not(model)
    kernel = cpu_attention.kernel()
    if reason or kernel is None:
        raise no_invariance(model, reason)
    return kernel


def no_invariance(model: Any, reason: str | None) -> ValueError:
    return ValueError(f"invariant mode cannot be had with {type(model).__name__}: {reason}")
