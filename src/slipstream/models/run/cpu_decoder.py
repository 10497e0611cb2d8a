"""A common decoder on a CPU: all layers, the final norm and the head in one kernel call (`kernels.cpu.decoder`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.core.device import next_power_of_two
from slipstream.kernels.cpu.decoder import (
    CachePointers,
    CpuLayer,
    CpuNetwork,
    DecoderKernel,
    LayerSizes,
    PassArgs,
    SkippedBlocks,
)
from slipstream.models.cache.attention_mask import AttentionMask
from slipstream.models.cache.packing import RowSlice
from slipstream.models.cache.tensors import KVCache
from slipstream.models.run.layer_parts import NORMS, PRODUCTS, head_norms
from slipstream.models.weights.linears import PackedLinear
from slipstream.models.weights.packed_embedding import PackedEmbedding

Where = tuple[Int[Tensor, " tokens"], Int[Tensor, " tokens"]]
PROBE = 5  # tokens
FIRST_POSITIONS = 256  # in the first table
FAR = 1 << 24  # a position that no text reaches


class CpuDecoder:
    """A model's layers, norm and head as one call, with the embedding and the rotary angles of its own modules."""

    def __init__(
        self, model: Any, layers: Sequence[Any], windows: dict[int, int | None], kernel: DecoderKernel
    ) -> None:
        self._kernel = kernel
        blocks = [_block(layer) for layer in layers]
        base, head = model.base_model, model.get_output_embeddings()
        self._embed, self._angles = _embedding(model.get_input_embeddings()), RotaryTable(base.rotary_emb)
        self._net = CpuNetwork(blocks, base.norm.weight.detach(), _packed(head), _sizes(layers[0]))
        self._partial_nets: dict[SkippedBlocks, CpuNetwork] = {}
        self._windows = [windows[i] for i in range(len(layers))]
        self._kinds = tuple(dict.fromkeys(self._windows))
        self._like = torch.empty(1, _sizes(layers[0]).kv_heads, 1, _sizes(layers[0]).dim)
        self.state_like = torch.empty(1, len(base.norm.weight))  # one hidden state
        self._pointers: tuple[KVCache, int, CachePointers] | None = None

    def forward(
        self,
        cache: KVCache,
        pieces: Sequence[RowSlice],
        span: tuple[int, int],
        hidden: Float[Tensor, "tokens hidden"] | None = None,
        watched: Sequence[int] = (),
        kept: Tensor | None = None,
        into: Mapping[int, Float[Tensor, "tokens hidden"]] | None = None,
        skipped: SkippedBlocks | None = None,
    ) -> tuple[Tensor | None, dict[int, Tensor], Where]:
        """Run the layers from `span[0]` up to `span[1]` over packed entries, from the embeddings or from `hidden`.

        Returns the logits of the `kept` entries, the outputs of the watched layers, and the cache row and the place
        that each entry was written to. With `into`, the outputs of the watched layers are written there. The blocks
        in `skipped` do not run.
        """
        used = max(piece.line.start + len(piece.line) for piece in pieces)
        cache.check_room(pieces)
        token, position, row, place = packed(pieces)
        state = self._embed(token) if hidden is None else hidden.clone()
        angles = self._angles(state, position, used)
        mask = AttentionMask(pieces, token.device)
        visible = {window: mask.visible(window, used) for window in self._kinds}
        views = [visible[window] for window in self._windows]
        outputs = {layer: torch.empty_like(state) if into is None else into[layer] for layer in watched}
        watched_out = [outputs.get(i) for i in range(self._net.layers)]
        args = PassArgs(state, angles, row, place, used, views, watched_out, *span, kept)
        net = self._net if skipped is None else self._without(skipped)
        return self._kernel.run(net, self._cache_pointers(cache), args), outputs, (row, place)

    def _without(self, skipped: SkippedBlocks) -> CpuNetwork:
        if skipped not in self._partial_nets:
            self._partial_nets[skipped] = self._net.without(skipped)
        return self._partial_nets[skipped]

    def supports(self, pieces: Sequence[RowSlice]) -> bool:
        """Whether this decoder can run a pass."""
        return True

    def logits(self, hidden: Float[Tensor, "n hidden"]) -> Float[Tensor, "n vocab"]:
        """The model's final norm and head on hidden states; no layer runs."""
        count, layers = len(hidden), self._net.layers
        none: list[Tensor | None] = [None] * layers
        row = torch.zeros(count, dtype=torch.long)
        angles = hidden.new_zeros(count, 2), hidden.new_zeros(count, 2)
        args = PassArgs(hidden.contiguous(), angles, row, row, 1, none, none, layers, layers, torch.arange(count))
        logits = self._kernel.run(self._net, CachePointers([self._like], [self._like]), args)
        assert logits is not None
        return logits

    def _cache_pointers(self, cache: KVCache) -> CachePointers:
        if self._pointers is None or self._pointers[0] is not cache or self._pointers[1] != cache.version:
            layers = [cache.layer(i, self._like, self._like) for i in range(self._net.layers)]
            pointers = CachePointers([keys for keys, _ in layers], [values for _, values in layers])
            self._pointers = cache, cache.version, pointers
        return self._pointers[2]


class RotaryTable:
    """Cosines and sines of positions by a model's own rotary embedding.

    If they depend on the position only, they are computed once and looked up, because the module takes ten torch calls.
    Some modules depend on the longest position of a pass. Those are called every time.
    """

    def __init__(self, module: Any) -> None:
        self._module = module
        self._cos, self._sin = torch.empty(2, 0, 0)
        self._fixed = self._is_fixed()

    def __call__(
        self, state: Float[Tensor, "tokens hidden"], position: Int[Tensor, " tokens"], below: int
    ) -> tuple[Tensor, Tensor]:
        """The cosines and sines of `position`, all of which are below `below`."""
        if not self._fixed:
            cos, sin = self._module(state[None], position[None])
            return cos[0].contiguous(), sin[0].contiguous()
        if len(self._cos) < below:
            self._cos, self._sin = self._of(torch.arange(next_power_of_two(max(below, FIRST_POSITIONS))))
        return self._cos.index_select(0, position), self._sin.index_select(0, position)

    def _of(self, position: Int[Tensor, " n"]) -> Float[Tensor, "2 n rotated"]:
        cos, sin = self._module(torch.empty(1, len(position), 1), position[None])
        return torch.stack([cos[0], sin[0]])

    def _is_fixed(self) -> bool:
        """Whether the angles of a position do not depend on the other positions of the call."""
        near = torch.arange(PROBE)
        with torch.inference_mode():
            alone, with_far = self._of(near), self._of(torch.cat([near, torch.tensor([FAR])]))[:, :PROBE]
            return torch.equal(alone, with_far) and torch.equal(alone, self._of(near))


def packed(pieces: Sequence[RowSlice]) -> tuple[Int[Tensor, " tokens"], ...]:
    """Token, position, row and place of all entries of a pass."""
    token, position, row, place = list[int](), list[int](), list[int](), list[int]()
    for piece in pieces:
        line, skip = piece.line, piece.skip
        count = len(line) - skip
        token += line.token[skip:]
        position += line.position[skip:]
        row += [line.row] * count
        place += range(line.start + skip, line.start + skip + count)
    return torch.from_numpy(np.array([token, position, row, place])).unbind()


def _embedding(module: Any) -> Callable[[Int[Tensor, " tokens"]], Float[Tensor, "tokens hidden"]]:
    """A lookup in the embedding's table, or the module itself if it does more than a lookup or has no such table."""
    if isinstance(module, PackedEmbedding):
        return module
    table, probe = module.weight.detach(), torch.arange(PROBE)
    with torch.inference_mode():
        plain = torch.equal(module(probe), table[probe])
    return partial(torch.index_select, table, 0) if plain else module


def _block(layer: Any) -> CpuLayer:
    products = {name: _packed(layer.get_submodule(path)) for name, path in PRODUCTS.items()}
    norms = {name: getattr(layer, path).weight.detach() for name, path in NORMS.items()}
    return CpuLayer(**products, **norms, **{name: norm.weight.detach() for name, norm in head_norms(layer).items()})


def _sizes(layer: Any) -> LayerSizes:
    attention = layer.self_attn
    dim = attention.head_dim
    query, key = (_packed(attention.get_submodule(name)).outputs for name in ("q_proj", "k_proj"))
    return LayerSizes(query // dim, key // dim, dim, layer.input_layernorm.variance_epsilon, attention.scaling)


def _packed(module: Any) -> Any:
    if not isinstance(module, PackedLinear):
        raise TypeError(f"{type(module).__name__} is not packed")
    return module.packed
