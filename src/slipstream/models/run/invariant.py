"""Invariant mode: a row's numbers depend on its own tokens only.

They do not depend on the other rows of the batch, on how a prompt was cut into chunks, on a prefix computed earlier, on
how many tokens were drafted, or on the size of the cache. Norms and rotary embeddings work token by token anyway.
Matrix products and attention do not: their libraries choose the order of a sum by the shape of the whole batch.
So the mode needs kernels that sum in one order (`kernels`) for both, and is refused where there are none. On a CPU
these work in float32; a model in half precision is rounded before and after them, token by token. On a GPU they are
those of `gpu.decoder`, with one tile size for any number of tokens.

Activation functions need care on a CPU. torch computes most elements of a tensor with vector instructions, and the last
few elements of each thread's share with scalar ones. The two round differently in functions such as GELU and SiLU.
`InvariantActivations` lets torch compute every element with vector instructions.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from slipstream.core.array_types import Float, Tensor
from slipstream.kernels.cpu import attention as cpu_attention
from slipstream.models.run.layers import replaced
from slipstream.models.weights.decoding_modules import decoding_modules
from slipstream.models.weights.linears import HALF

STEP = 64  # elements; torch's vector loops take at most two vectors of 32 in one step
PIECE = 1 << 14  # elements; torch computes so many on one thread, so that no thread's share ends within a step


def why_not(model: Any) -> str | None:
    """Why a model cannot run in invariant mode; None if it can."""
    if model.device.type != "cpu" or model.dtype not in (torch.float32, *HALF):
        here = f"{str(model.dtype).removeprefix('torch.')} on {model.device.type}"
        return f"its kernels are made for a CPU in float32, bfloat16 or float16, not for {here}"
    if reason := cpu_attention.why_not():
        return f"its kernels are not available ({reason})"
    for name, module in decoding_modules(model):
        if isinstance(module, nn.Linear):
            return f"{name} is not run by a kernel that sums in one order"
        if any(parameter.dim() > 2 for parameter in module.parameters(recurse=False)):
            return f"{name} holds experts, which are not run by a kernel that sums in one order"
        if getattr(module, "sinks", None) is not None:
            return f"{name} has attention sinks"
    return None


def free(model: Any) -> bool:
    """Whether a model can have the mode at next to no cost, as measured by `benchmarks/invariant.py`."""
    return model.dtype == torch.float32 and why_not(model) is None


def invariant_attention(model: Any) -> cpu_attention.AttentionKernel:
    """The attention kernel of invariant mode. ValueError where the model cannot run in that mode."""
    reason = why_not(model)
    kernel = cpu_attention.kernel()
    if reason or kernel is None:
        raise no_invariance(model, reason)
    return kernel


def no_invariance(model: Any, reason: str | None) -> ValueError:
    return ValueError(f"invariant mode is not available for {type(model).__name__}: {reason}")


class InvariantActivations:
    """A model's activation modules, computed so that the bits of an element depend on its value only."""

    def __init__(self, model: nn.Module) -> None:
        from transformers.activations import ACT2CLS

        classes = {entry[0] if isinstance(entry, tuple) else entry for entry in ACT2CLS.values()} | {nn.GELU}
        modules = [module for module in model.modules() if type(module) in classes]
        self._forwards = [(module, partial(apply_by_steps, module.forward)) for module in modules]

    def applied(self) -> AbstractContextManager[None]:
        """Use these instead of the model's own activations within a `with` block."""
        return replaced(self._forwards)


def apply_by_steps(function: Callable[[Tensor], Tensor], x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """An elementwise function, called on whole steps of torch's vector loops only, and on one thread.

    Rows are padded to whole steps, so that the other elements of a vector are always of the same row: on ARM they
    decide how torch computes `erf`, which changes its last bit."""
    width = x.shape[-1]
    padded = functional.pad(x, (0, -width % STEP)) if width % STEP else x
    pieces = [function(piece) for piece in torch.split(padded.reshape(-1), PIECE)]
    result = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
    return result.view(padded.shape)[..., :width]
