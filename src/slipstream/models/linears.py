"""A model's linear layers on the kernel for few rows (`kernels.cpu_linear`).

Decoding is bound by reading weights. Most checkpoints are bfloat16 numbers; a processor without instructions for them
runs the model in float32 and reads twice the bytes for nothing. Packed, such weights take two bytes again and give the
numbers they gave before, up to the order of summation, which then is the same for every number of tokens. Between half
precision layers the kernel still sums in float32, and its results are rounded as theirs would be.
"""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import nn

from slipstream.core.shapes import Float, Tensor
from slipstream.kernels import cpu_linear

HALF = torch.bfloat16, torch.float16


class PackedLinear(nn.Module):
    """Takes the place of a linear layer, for inference. The weight is no parameter: casts and moves pass it by."""

    def __init__(
        self, weight: Float[Tensor, "out in"], bias: Float[Tensor, " out"] | None, integers: bool = False
    ) -> None:
        super().__init__()
        self.packed = cpu_linear.pack(weight.float(), None if bias is None else bias.float(), integers)
        self.out_features, self.in_features = weight.shape

    def forward(self, x: Float[Tensor, "*rows in"]) -> Float[Tensor, "*rows out"]:
        if x.requires_grad and torch.is_grad_enabled():
            raise RuntimeError("a packed linear layer has no gradient; train on the model as it was loaded")
        if x.dtype in HALF:
            return cpu_linear.linear(x.float(), self.packed).to(x.dtype)
        return cpu_linear.linear(x, self.packed)

    @property
    def weight(self) -> Float[Tensor, "out in"]:
        """A copy, unpacked anew each time: right for code that looks at it once, slow in a forward pass."""
        return self.packed.unpack()

    @property
    def bias(self) -> Float[Tensor, " out"] | None:
        return self.packed.bias

    def extra_repr(self) -> str:
        kind = self.packed.kind
        return f"in_features={self.in_features}, out_features={self.out_features}, weight={kind}"


def pack_linears(model: nn.Module, integers: bool = False) -> int:
    """Replace the linear layers of a model on the CPU, in place; how many were, none if there is no kernel. With
    `integers`, weights that are whole numbers of few bits meet activations of sixteen.

    Each weight is let go as soon as it is packed, so memory does not double. An output matrix that is also the
    embedding is packed for its own use, and the embedding keeps its tensor.
    """
    if not cpu_linear.available():
        return 0
    places: dict[nn.Module, list[tuple[nn.Module, str]]] = defaultdict(list)
    for parent in model.modules():
        for name, child in parent._modules.items():  # `named_children` skips a second place
            if child is not None and _weights(child) is not None:
                places[child].append((parent, name))
    count = len(places)
    while places:
        child, homes = places.popitem()
        weights = _weights(child)
        assert weights is not None
        packed = PackedLinear(*weights, integers)
        for parent, name in homes:
            setattr(parent, name, packed)
    return count


def products(model: nn.Module) -> str | None:
    """What the products of packed layers are made of, where they are of whole numbers."""
    kinds = {module.packed.kind for module in model.modules() if isinstance(module, PackedLinear)}
    small = sorted(kind for kind in kinds if kind.startswith("int"))
    return f"int16 x {'/'.join(small)} products" if small else None


def _weights(module: nn.Module) -> tuple[Tensor, Tensor | None] | None:
    """Weight [out, in] and bias of a plain linear layer; None for all else, kinds of linear layers with a twist too."""
    if type(module) is nn.Linear:
        weight, bias = module.weight.detach(), module.bias
    elif _is_conv1d(module):  # GPT-2 stores [in, out]
        weight, bias = module.get_parameter("weight").detach().T, module.get_parameter("bias")
    else:
        return None
    plain = weight.dtype in (torch.float32, *HALF) and weight.is_cpu and weight.numel() > 0
    hooked = module._forward_hooks or module._forward_pre_hooks
    return (weight, bias) if plain and not hooked else None


def _is_conv1d(module: nn.Module) -> bool:
    kind = type(module)
    return (kind.__module__, kind.__name__) == ("transformers.pytorch_utils", "Conv1D")
