"""A model with the unrounded weights of the GGUF file that it was converted from (`gguf.weights`).

The folder gives the modules. Each linear layer then gets its quantised weight from the file, packed for the kernels.
Everything else that was rounded (embeddings, norms, biases) gets its values in float32. Weights are freed one by one as
they are replaced, so there is never a second copy of the model, nor one in float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from slipstream.core.array_types import Float, Tensor
from slipstream.kernels.cpu import linear as cpu_linear
from slipstream.kernels.machine import say
from slipstream.models.sources.folder import read_json
from slipstream.models.sources.gguf.weights import GgufWeights, opened
from slipstream.models.sources.load import ModelFiles, load_model
from slipstream.models.weights.linears import PackedLinear, places, put

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def load_restored(files: ModelFiles, row_bits: int = 16) -> PreTrainedModel | None:
    """The model in float32 on a CPU with quantised linear layers, for activations of `row_bits` bits.

    None where the processor has no integer products, or no unrounded weights were kept.
    """
    if not cpu_linear.has_integers():
        return None
    kept = opened(files.path)
    if kept is None:
        if files.kind == "gguf" and read_json(files.path / "config.json").get("dtype") == "bfloat16":
            say(f"few bits: none kept in {files.path}; remove and convert the model again to make it faster")
        return None
    model = load_model(files, torch.bfloat16)
    restore(model, kept, row_bits)
    return model


def restore(model: Any, kept: GgufWeights, row_bits: int = 16) -> None:
    """Replace the rounded weights of a model by the unrounded ones, in place."""
    names, linears = _names(model, kept), places(model)
    chosen = {id(module): name for module in linears if (name := names.get(id(getattr(module, "weight", None))))}
    tables: dict[str, Tensor] = {}
    for module in model.modules():
        if type(module) is nn.Embedding and (name := names.get(id(module.weight))):
            tables[name] = module.weight.data = kept.value(name)
    while linears:
        module, homes = linears.popitem()
        name = chosen.get(id(module), "")
        grid = kept.grid(name)
        if grid is not None:
            packed = cpu_linear.pack_grid(grid, _bias(module.bias, names, kept), row_bits)
            put(PackedLinear(packed, tables.get(name)), homes)
    for weight in model.parameters():
        if weight.dtype != torch.float32 and (name := names.get(id(weight), "")):
            weight.data = kept.value(name)
    model.float()


def _names(model: Any, kept: GgufWeights) -> dict[int, str]:
    """The names of the kept parameters by the parameters' ids. Ids, so that no weight is kept alive here."""
    kept_parameters = {name: weight for name, weight in model.named_parameters() if name in kept.kinds}
    others = {name for name, weight in kept_parameters.items() if not kept.rounds(name, weight.detach())}
    if others:
        say(f"few bits: {len(others)} weights differ from those that were kept, {min(others)} among them")
    return {id(weight): name for name, weight in kept_parameters.items() if name not in others}


def _bias(own: Any, names: dict[int, str], kept: GgufWeights) -> Float[Tensor, " out"] | None:
    if own is None:
        return None
    name = names.get(id(own))
    return own.detach().float() if name is None else kept.value(name)
