"""A model with the weights of the file it was converted from, where they were kept (`kept`).

The folder gives the modules; then each linear layer takes the numbers of few bits that it has in the file, packed for
the kernels, and whatever else was rounded takes its own numbers in float32: embeddings, norms, biases. Weights are let
go one by one as they are replaced, so there is never a second copy of the model, nor one in float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from slipstream.core.array_types import Float, Tensor
from slipstream.kernels.cpu import linear as cpu_linear
from slipstream.kernels.machine import say
from slipstream.models.sources.folder import read_json
from slipstream.models.sources.gguf_weights import GgufWeights, opened
from slipstream.models.sources.load import ModelFiles, load_model
from slipstream.models.weights.linears import PackedLinear, places, put

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def load_restored(found: ModelFiles, row_bits: int = 16) -> PreTrainedModel | None:
    """The model in float32 on a CPU, its linear layers in few bits, to meet activations of `row_bits`; None where the
    processor does not multiply bytes, or nothing was kept."""
    if not cpu_linear.has_integers():
        return None
    kept = opened(found.path)
    if kept is None:
        if found.kind == "gguf" and read_json(found.path / "config.json").get("dtype") == "bfloat16":
            say(f"few bits: none kept in {found.path}; removed and converted again, the model is faster")
        return None
    model = load_model(found, torch.bfloat16)
    restore(model, kept, row_bits)
    return model


def restore(model: Any, kept: GgufWeights, row_bits: int = 16) -> None:
    """Give a model its weights back, in place."""
    names, linears = _names(model, kept), places(model)
    chosen = {id(module): name for module in linears if (name := names.get(id(getattr(module, "weight", None))))}
    tables: dict[str, Tensor] = {}
    for module in model.modules():
        if type(module) is nn.Embedding and (name := names.get(id(module.weight))):
            tables[name] = module.weight.data = kept.value(name)
    while linears:
        module, homes = linears.popitem()
        name = chosen.get(id(module), "")
        found = kept.grid(name)
        if found is not None:
            packed = cpu_linear.pack_grid(found, _bias(module.bias, names, kept), row_bits)
            put(PackedLinear(packed, tables.get(name)), homes)
    for weight in model.parameters():
        if weight.dtype != torch.float32 and (name := names.get(id(weight), "")):
            weight.data = kept.value(name)
    model.float()


def _names(model: Any, kept: GgufWeights) -> dict[int, str]:
    """What is kept of a model's parameters, by their identity: some have two places, and none may be held here."""
    found = {name: weight for name, weight in model.named_parameters() if name in kept.kinds}
    others = {name for name, weight in found.items() if not kept.rounds(name, weight.detach())}
    if others:
        say(f"few bits: {len(others)} weights are others than those that were kept, {min(others)} among them")
    return {id(weight): name for name, weight in found.items() if name not in others}


def _bias(own: Any, names: dict[int, str], kept: GgufWeights) -> Float[Tensor, " out"] | None:
    if own is None:
        return None
    name = names.get(id(own))
    return own.detach().float() if name is None else kept.value(name)
