"""A model's linear layers on the kernel for few rows (`kernels.cpu.linear`).

Decoding is bound by reading weights. Most checkpoints are in bfloat16. A processor without instructions for it runs the
model in float32 and reads twice the bytes for the same values. Packed, such weights take two bytes again. The results
are the same up to the order of summation, which is then fixed for every number of tokens. In a half-precision model the
kernel still sums in float32, and its results are rounded to the model's type.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from slipstream.core.array_types import Float, Tensor
from slipstream.kernels.cpu import linear as cpu_linear
from slipstream.kernels.cpu.few_bits import FORMS
from slipstream.models.weights.decoding_modules import decoding_modules, runs_in_every_pass
from slipstream.models.weights.int8_linear import round_linears

HALF = torch.bfloat16, torch.float16
Homes = list[tuple[nn.Module, str]]
"""The parent modules of a layer, and its name in each."""


class PackedLinear(nn.Module):
    """A linear layer with packed weights, for inference. The weight is not a parameter: `to()` does not affect it."""

    def __init__(self, packed: cpu_linear.PackedWeight, held: Float[Tensor, "out in"] | None = None) -> None:
        """`held` is the unpacked weight, where an embedding holds it anyway."""
        super().__init__()
        self.packed, self.held = packed, held
        self.out_features, self.in_features = packed.outputs, packed.inputs

    def forward(self, x: Float[Tensor, "*rows in"]) -> Float[Tensor, "*rows out"]:
        if x.requires_grad and torch.is_grad_enabled():
            raise RuntimeError("a packed linear layer has no gradient; train on the model as it was loaded")
        if x.dtype in HALF:
            return cpu_linear.linear(x.float(), self.packed).to(x.dtype)
        return cpu_linear.linear(x, self.packed)

    @property
    def weight(self) -> Float[Tensor, "out in"]:
        """The weight, unpacked at each call unless it is held. Meant for code that reads it once."""
        return self.packed.unpack() if self.held is None else self.held

    @property
    def bias(self) -> Float[Tensor, " out"] | None:
        return self.packed.bias

    def extra_repr(self) -> str:
        kind = self.packed.kind
        return f"in_features={self.in_features}, out_features={self.out_features}, weight={kind}"


def prepared(
    model: Any, invariant: bool = False, compact: bool = False, weights: str | None = None, row_bits: int = 16
) -> Any:
    """Give a model the linear layers that are fastest for its device and type, in place.

    On a CPU, packed layers are used in float32, where they are faster, and for invariant mode. With `compact`, weights
    take as few bytes as possible: quantised ones stay quantised if the processor has integer products, and are rounded
    to bfloat16 otherwise. `weights`: a type that all weights are rounded to. `row_bits`: bits of the activations that
    quantised weights are multiplied with.
    """
    if weights and model.device.type != "cpu":
        round_linears(model, weights)
    if model.device.type == "cpu" and (model.dtype == torch.float32 or invariant):
        if compact and model.dtype == torch.float32 and cpu_linear.available() and not cpu_linear.has_integers():
            for weight in model.parameters():  # not buffers: rotary frequencies are not weights
                weight.data = weight.data.bfloat16().float()
        pack_linears(model, integers=compact or weights is not None, rounded=weights is not None, row_bits=row_bits)
    return model


def pack_linears(model: nn.Module, integers: bool = False, rounded: bool = False, row_bits: int = 16) -> int:
    """Replace the linear layers of a model on the CPU, in place. Returns how many; 0 where there is no kernel.

    With `integers`, weights that are integers of few bits use integer products with activations of `row_bits` bits.
    With `rounded`, all weights are rounded to eight bits, which is allowed for a drafter.

    Each weight is freed as soon as it is packed, so memory does not double. An output matrix that is also the embedding
    is packed separately, and the embedding keeps its tensor.
    """
    if not cpu_linear.available():
        return 0
    layers = places(model)
    tables = {m.weight.data_ptr() for m in model.modules() if isinstance(m, nn.Embedding)}
    count = len(layers)
    while layers:
        child, homes = layers.popitem()
        weights = _weights(child)
        assert weights is not None
        put(_packed(*weights, integers, rounded, row_bits, held=weights[0].data_ptr() in tables), homes)
    return count


def pack_as_target(drafter: nn.Module, target: nn.Module) -> None:
    """Pack the linear layers of a drafter that runs in float32 on a CPU.

    Weights that are integers of few bits, such as output rows of a quantised target, use integer products. If the
    target has integer products, the other weights are rounded to 8 bits."""
    weight = next(drafter.parameters())
    if weight.is_cpu and weight.dtype == torch.float32:
        pack_linears(drafter, integers=True, rounded=products(target) is not None, row_bits=row_bits(target))


def places(model: nn.Module) -> dict[nn.Module, Homes]:
    """The plain linear layers of a model on the CPU, with the parents of each."""
    homes_by_layer: dict[nn.Module, Homes] = defaultdict(list)
    for parent_name, parent in decoding_modules(model):
        for name, child in parent._modules.items():  # `named_children` skips a second parent
            in_pass = runs_in_every_pass(model, f"{parent_name}.{name}")
            if child is not None and in_pass and _weights(child) is not None:
                homes_by_layer[child].append((parent, name))
    return homes_by_layer


def put(layer: PackedLinear, homes: Homes) -> None:
    for parent, name in homes:
        setattr(parent, name, layer)


def _packed(
    weight: Tensor, bias: Tensor | None, integers: bool, rounded: bool, row_bits: int, held: bool
) -> PackedLinear:
    packed = cpu_linear.pack(weight.float(), None if bias is None else bias.float(), integers, rounded, row_bits)
    kept = held and not rounded and weight.dtype == torch.float32
    return PackedLinear(packed, weight if kept else None)


def products(model: nn.Module) -> str | None:
    """The types of the integer products of packed layers; None where there are none."""
    kinds = {packed.kind for packed in _all_packed(model)}
    small = sorted({f"int{FORMS[kind].bits}" for kind in kinds if kind in FORMS})
    return f"int{row_bits(model)} x {'/'.join(small)} products" if small else None


def row_bits(model: nn.Module) -> int:
    """The bits of the activations in integer products; 16 where a model has none."""
    return next((packed.row_bits for packed in _all_packed(model) if packed.is_integer), 16)


def rounded(model: nn.Module) -> bool:
    """Whether any packed layer has weights that were rounded after loading."""
    return any(packed.rounded for packed in _all_packed(model))


def _all_packed(model: nn.Module) -> Iterator[cpu_linear.PackedWeight]:
    return (module.packed for module in model.modules() if isinstance(module, PackedLinear))


def _weights(module: nn.Module) -> tuple[Tensor, Tensor | None] | None:
    """Weight [out, in] and bias of a plain linear layer; None for any other module, subclasses and hooked ones too."""
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
