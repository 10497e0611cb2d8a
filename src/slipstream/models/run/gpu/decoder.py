"""A common decoder on a GPU: seven Triton kernels per layer (`kernels.gpu`), replayed as CUDA graphs (`gpu.passes`).

Long prompts run the same kernels uncaptured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from slipstream.core.array_types import Float, Tensor
from slipstream.kernels.gpu.attention import AttentionHeads, Layout
from slipstream.kernels.gpu.decoder import (
    GpuLayer,
    GpuNetwork,
    Held,
    PassBuffers,
    Watched,
    embed,
    logits,
    logits_of,
    walk,
)
from slipstream.kernels.gpu.int8_weight import Weight, fused
from slipstream.kernels.gpu.residual import Norm
from slipstream.models.run.gpu.pass_sizes import largest_of, prompt_tokens_of
from slipstream.models.run.gpu.passes import GpuPasses
from slipstream.models.run.layer_parts import head_norms
from slipstream.models.weights.int8_linear import RoundedLinear


class GpuDecoder(GpuPasses):
    """A model's layers, norm and head on the kernels, with the embedding and the rotary angles of its own modules."""

    def __init__(self, model: Any, layers: Sequence[Any], windows: dict[int, int | None], exact: bool = False) -> None:
        if any(window is not None for window in windows.values()):
            raise TypeError("some layers have a sliding window")
        super().__init__()
        base = model.base_model
        self.heads, self.layers = _heads(layers[0], exact), len(layers)
        self.embedding: Tensor = _plain_embedding(model.get_input_embeddings())
        longest = model.config.get_text_config().max_position_embeddings
        angles = _angles(base.rotary_emb, longest, self.heads.dim, self.embedding.device)
        head = _weight(model.get_output_embeddings())
        blocks = [_block(layer) for layer in layers]
        norm = Norm(base.norm.weight.detach(), base.norm.variance_epsilon)
        self.net = GpuNetwork(blocks, norm, head, self.heads, angles, exact)
        self.vocab, self.like = len(head), self.embedding[:1]
        entry = self.embedding.new_empty(1, self.heads.kv_heads, 1, self.heads.dim)
        self.entries = [(entry, entry)] * self.layers
        products = [weight for b in blocks for weight in (b.qkv, b.output, b.gate_up, b.down)]
        weights = sum(weight.shape[0] * weight.shape[1] for weight in products)
        self.largest, self.prompt_tokens = largest_of(weights), prompt_tokens_of(weights)

    def passing(self, tokens: int, parts: int) -> KernelPass:
        return KernelPass(self.net, self.embedding, tokens, parts)

    def logits(self, hidden: Float[Tensor, "n hidden"]) -> Float[Tensor, "n vocab"]:
        out = torch.empty(len(hidden), self.vocab, device=hidden.device)
        logits_of(self.net, hidden, out)
        return out


class KernelPass:
    """The buffers of a pass through the kernels."""

    def __init__(self, net: GpuNetwork, embedding: Tensor, tokens: int, parts: int) -> None:
        self._net, self._embedding, self._room = net, embedding, PassBuffers(net, tokens, parts)

    @property
    def hidden(self) -> Tensor:
        return self._room.hidden

    def run(
        self,
        token: Tensor | None,
        layout: Layout,
        held: Held,
        span: tuple[int, int],
        watched: Watched,
        tree: bool,
        out: Tensor | None = None,
        kept: Tensor | None = None,
    ) -> None:
        net, room = self._net, self._room
        if token is not None:
            embed(token, self._embedding, room.hidden)
        walk(net, room, layout, held, span, watched, tree)
        if out is not None and kept is not None:
            logits_of(net, room.hidden.index_select(0, kept), out)
        elif out is not None:
            logits(net, room.stream, out)


def _block(layer: Any) -> GpuLayer:
    attention, mlp = layer.self_attn, layer.mlp
    qkv, bias = _fused([attention.q_proj, attention.k_proj, attention.v_proj])
    gate_up, none = _fused([mlp.gate_proj, mlp.up_proj])
    if none is not None or mlp.down_proj.bias is not None:
        raise TypeError("the feed-forward part has biases")
    attention_norm, mlp_norm = layer.input_layernorm, layer.post_attention_layernorm
    return GpuLayer(
        qkv,
        _weight(attention.o_proj),
        gate_up,
        _weight(mlp.down_proj),
        Norm(attention_norm.weight.detach(), attention_norm.variance_epsilon),
        Norm(mlp_norm.weight.detach(), mlp_norm.variance_epsilon),
        bias,
        attention.o_proj.bias,
        _head_norms(layer),
    )


def _head_norms(layer: Any) -> tuple[Norm, Norm] | None:
    norms = [Norm(norm.weight.detach(), norm.variance_epsilon) for norm in head_norms(layer).values()]
    if len(norms) == 1:
        raise TypeError("only one of queries and keys is normed")
    return (norms[0], norms[1]) if norms else None


def _fused(modules: Sequence[Any]) -> tuple[Weight, Tensor | None]:
    """The weights of several linear layers as one tensor. The layers' own weights become views of it."""
    biases = [module.bias for module in modules]
    if any(bias is None for bias in biases) and any(bias is not None for bias in biases):
        raise TypeError("some of the linear layers that are fused have a bias and some have none")
    bias = None if biases[0] is None else torch.cat([bias.detach() for bias in biases])
    if all(isinstance(module, RoundedLinear) for module in modules):
        rounded, start = fused([module.int8 for module in modules]), 0
        for module in modules:
            module.move(rounded.wide()[start : start + len(module.weight)])
            start += len(module.weight)
        return rounded, bias
    parts = [_plain(module) for module in modules]
    weight = _side_by_side(parts) if _adjacent(parts) else torch.cat(parts)
    start = 0
    for module in modules:
        module.weight.data = weight[start : start + len(module.weight)]
        start += len(module.weight)
    return weight, bias


def _adjacent(parts: Sequence[Tensor]) -> bool:
    """Whether weights were fused before: each begins in memory where the one before it ends."""
    ends = [part.data_ptr() + part.nbytes for part in parts]
    same = len({part.untyped_storage().data_ptr() for part in parts}) == 1
    return same and [part.data_ptr() for part in parts[1:]] == ends[:-1]


def _side_by_side(parts: Sequence[Tensor]) -> Tensor:
    first = parts[0]
    return first.as_strided((sum(map(len, parts)), first.shape[1]), first.stride())


def _weight(module: Any) -> Weight:
    return module.int8 if isinstance(module, RoundedLinear) else _plain(module)


def _plain(module: Any) -> Tensor:
    if type(module) is not nn.Linear or not module.weight.is_contiguous():
        raise TypeError(f"{type(module).__name__} is not a plain linear layer")
    return module.weight.detach()


def _plain_embedding(module: Any) -> Tensor:
    if type(module) is not nn.Embedding:
        raise TypeError(f"{type(module).__name__} is not a plain embedding")
    return module.weight.detach()


def _heads(layer: Any, exact: bool) -> AttentionHeads:
    attention = layer.self_attn
    dim = attention.head_dim
    heads, kv_heads = len(attention.q_proj.weight) // dim, len(attention.k_proj.weight) // dim
    if dim % 2 or heads % kv_heads or heads // kv_heads > 16:
        raise TypeError(f"{heads} heads of {dim} over {kv_heads} are not supported by the kernels")
    return AttentionHeads(heads, kv_heads, dim, attention.scaling, exact)


def _angles(rotary: Any, longest: int, dim: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines of every position. Models whose angles depend on more than the position are refused before."""
    with torch.inference_mode():
        both = rotary(torch.zeros(1, 1, device=device), torch.arange(longest, device=device)[None])
    if any(turn.shape[-1] != dim for turn in both):
        raise TypeError("the rotary embedding covers only a part of each head")
    cos, sin = (turn[0, :, : dim // 2].float().contiguous() for turn in both)
    return cos, sin
