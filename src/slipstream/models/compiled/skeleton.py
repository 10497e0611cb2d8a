"""A stand-in for a model's modules when none of them has to run.

A common decoder on a CPU runs as one call (`run.cpu.decoder`), which only needs the weights under the names that
transformers gives them. A skeleton holds them in that form, packed already. It does not need transformers, whose import
is most of the start time. It is built only from a model whose layers agreed with the kernels, and its modules cannot be
run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.kernels.cpu.linear import PackedWeight
from slipstream.models.run.cpu.decoder import CpuDecoder
from slipstream.models.run.invariant import free
from slipstream.models.run.layer_parts import HEAD_NORMS, NORMS, PRODUCTS, head_norms
from slipstream.models.run.support_check import LIMITS, ModelAnatomy
from slipstream.models.run.torch_model import TorchModel
from slipstream.models.weights.linears import PackedLinear
from slipstream.models.weights.packed_embedding import PackedEmbedding, TiedHead, holds

CONFIG = ("model_type", "vocab_size", "num_hidden_layers", "layer_types", "rope_parameters", *LIMITS)
CHUNK = 4096  # positions whose angles are compared at a time


class NotCompilable(Exception):
    """A model cannot be stored as a skeleton; the message is a clause that says why."""


@dataclass(frozen=True)
class SkeletonParts:
    """The contents of a skeleton: JSON values, and tensors by name."""

    facts: dict[str, Any]
    tensors: dict[str, Tensor]


@dataclass(frozen=True)
class SkeletonConfig:
    """The part of a configuration that running a model without its modules needs."""

    values: Mapping[str, Any]
    is_encoder_decoder: bool = False

    def __getattr__(self, name: str) -> Any:
        if name not in CONFIG:
            raise AttributeError(name)
        return self.values[name]

    def get_text_config(self) -> SkeletonConfig:
        return self


class StoredRotaryTable(nn.Module):
    """Cosines and sines of positions. `take` checks that they equal those of the model's own module, to the bit."""

    def __init__(self, frequency: Float[Tensor, " half"], factor: float) -> None:
        super().__init__()
        self.frequency, self.factor = frequency, factor

    def forward(
        self, _: Float[Tensor, "..."], position: Int[Tensor, "batch tokens"]
    ) -> tuple[Float[Tensor, "batch tokens dim"], Float[Tensor, "batch tokens dim"]]:
        angle = position[..., None].float() * self.frequency
        both = torch.cat([angle, angle], -1)
        return both.cos() * self.factor, both.sin() * self.factor


class Skeleton(nn.Module):
    """A model's weights, under the names that `run.cpu.decoder` looks for."""

    def __init__(self, parts: SkeletonParts) -> None:
        super().__init__()
        facts, held = parts.facts, parts.tensors
        self.config = SkeletonConfig(facts["config"])
        self.device, self.dtype = torch.device("cpu"), torch.float32
        body = nn.Module()
        body.embed_tokens, self.lm_head = _ends(parts)
        body.norm = _norm(held["norm"], facts["epsilon"])
        body.rotary_emb = StoredRotaryTable(held["frequency"], facts["factor"])
        body.layers = nn.ModuleList(_layer(parts, i) for i in range(facts["config"]["num_hidden_layers"]))
        self.base_model = body

    def get_input_embeddings(self) -> nn.Module:
        return self.base_model.embed_tokens  # type: ignore[return-value]

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def forward(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("this model was opened from a compiled package, without modules to run; load it in full")


def _ends(parts: SkeletonParts) -> tuple[nn.Module, PackedLinear]:
    """The embedding and the output matrix."""
    table = parts.tensors.get("embedding")
    if table is None:
        embedding = PackedEmbedding(_weight(parts, "head"))
        return embedding, TiedHead(embedding)
    head = PackedLinear(_weight(parts, "head"), table if parts.facts["tied"] else None)
    return nn.Embedding.from_pretrained(table), head  # type: ignore[no-untyped-call]


def _layer(parts: SkeletonParts, number: int) -> nn.Module:
    layer = nn.Module()
    layer.self_attn, layer.mlp = nn.Module(), nn.Module()
    layer.self_attn.head_dim, layer.self_attn.scaling = parts.facts["head_dim"], parts.facts["scaling"]
    for path in PRODUCTS.values():
        parent, _, name = path.partition(".")
        setattr(getattr(layer, parent), name, PackedLinear(_weight(parts, f"{number}.{path}")))
    for path in NORMS.values():
        setattr(layer, path, _norm(parts.tensors[f"{number}.{path}"], parts.facts["epsilon"]))
    for path in HEAD_NORMS.values():
        if f"{number}.{path}" in parts.tensors:
            name = path.partition(".")[2]
            setattr(layer.self_attn, name, _norm(parts.tensors[f"{number}.{path}"], parts.facts["epsilon"]))
    return layer


def _norm(weight: Tensor, epsilon: float) -> nn.Module:
    norm = nn.Module()
    norm.weight, norm.variance_epsilon = nn.Parameter(weight, requires_grad=False), epsilon  # type: ignore[assignment]
    return norm


def _weight(parts: SkeletonParts, name: str) -> PackedWeight:
    return PackedWeight(parts.tensors[name], parts.tensors.get(f"{name}.bias"), *parts.facts["products"][name])


def assemble(parts: SkeletonParts) -> tuple[Skeleton, ModelAnatomy]:
    """A skeleton and its anatomy."""
    skeleton = Skeleton(parts)
    windows = dict(enumerate(parts.facts["windows"]))
    layers = list(skeleton.base_model.layers)  # type: ignore[arg-type]
    return skeleton, ModelAnatomy(layers, windows, skeleton.lm_head.out_features, as_tuple=False, agreed=True)


def take(model: TorchModel) -> SkeletonParts:
    """The contents of a skeleton, taken from a model. NotCompilable if the model computes more than a skeleton can."""
    whole, anatomy = model.model, model.anatomy
    if not isinstance(model.decoder, CpuDecoder) or not free(whole):
        raise NotCompilable("its layers do not run as one call in float32 on a CPU")
    embedding, body = whole.get_input_embeddings(), whole.base_model
    if type(embedding) is not nn.Embedding or embedding.max_norm is not None:
        raise NotCompilable("its embeddings are more than a table")
    products = dict(_products(whole, anatomy.layers))
    if len({id(module) for module in products.values()}) != sum(isinstance(m, PackedLinear) for m in whole.modules()):
        raise NotCompilable("it has linear layers outside its decoder layers")
    angles = _angles(body.rotary_emb, model.context, whole.config.get_text_config())
    first: Any = anatomy.layers[0]
    facts = {
        "config": {name: getattr(whole.config.get_text_config(), name, None) for name in CONFIG},
        "products": {name: m.packed.metadata for name, m in products.items()},
        "windows": [anatomy.windows[i] for i in range(len(anatomy.layers))],
        "head_dim": first.self_attn.head_dim,
        "scaling": first.self_attn.scaling,
        "epsilon": first.input_layernorm.variance_epsilon,
        "factor": angles.factor,
        "tied": products["head"].held is not None and torch.equal(products["head"].held, embedding.weight),
    }
    norms = {
        f"{i}.{path}": getattr(layer, path).weight for i, layer in enumerate(anatomy.layers) for path in NORMS.values()
    }
    for i, layer in enumerate(anatomy.layers):
        norms |= {f"{i}.{HEAD_NORMS[name]}": norm.weight for name, norm in head_norms(layer).items()}
    tensors = {"norm": body.norm.weight, "frequency": angles.frequency, **norms}
    if not (facts["tied"] and holds(products["head"].packed, embedding.weight)):
        tensors["embedding"] = embedding.weight
    for name, module in products.items():
        tensors |= {name: module.packed.data} | ({f"{name}.bias": module.bias} if module.bias is not None else {})
    return SkeletonParts(facts, {name: tensor.detach() for name, tensor in tensors.items()})


def _products(model: Any, layers: Any) -> Iterator[tuple[str, PackedLinear]]:
    yield "head", model.get_output_embeddings()
    for i, layer in enumerate(layers):
        for path in PRODUCTS.values():
            yield f"{i}.{path}", layer.get_submodule(path)


def _angles(own: Any, context: int, config: Any) -> StoredRotaryTable:
    """Our rotary table, compared with the model's own at every position."""
    longest = max([context, *(value for name in LIMITS if isinstance(value := getattr(config, name, None), int))])
    try:
        table = StoredRotaryTable(own.inv_freq.detach().clone(), float(own.attention_scaling))
    except AttributeError as error:
        raise NotCompilable("its rotary embedding is of another kind") from error
    like = torch.zeros(1, 1, 1)
    for start in range(0, longest, CHUNK):
        position = torch.arange(start, min(start + CHUNK, longest))[None]
        if not all(torch.equal(*pair) for pair in zip(table(like, position), own(like, position), strict=True)):
            raise NotCompilable("its rotary embedding is of another kind")
    return table
