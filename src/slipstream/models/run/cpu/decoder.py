"""A common decoder on a CPU: all layers, the final norm and the head in one kernel call (`kernels.cpu.decoder`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.core.device import Draws
from slipstream.core.types import Row, RunCycle
from slipstream.kernels.cpu.decoder import (
    CachePointers,
    CpuLayer,
    CpuNetwork,
    DecoderKernel,
    LayerSizes,
    PassArgs,
    SkippedBlocks,
)
from slipstream.kernels.cpu.linear import PackedWeight
from slipstream.kernels.cpu.runs.cycle_run import RunPlan, run_cycles
from slipstream.kernels.cpu.runs.rows_run import run_rows
from slipstream.kernels.cpu.runs.run_parts import RunInputs
from slipstream.models.cache.attention_mask import AttentionMask
from slipstream.models.cache.packing import RowSlice
from slipstream.models.cache.tensors import KVCache
from slipstream.models.run.cpu.rotary import RotaryTable
from slipstream.models.run.features import FeatureStore
from slipstream.models.run.layer_parts import NORMS, PRODUCTS, head_norms
from slipstream.models.weights.linears import PackedLinear
from slipstream.models.weights.packed_embedding import PackedEmbedding

Where = tuple[Int[Tensor, " tokens"], Int[Tensor, " tokens"]]
PROBE = 5  # tokens


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
        self._embedding = _embedding_table(model.get_input_embeddings())
        self._inputs: tuple[KVCache, int, object, Tensor, RunInputs] | None = None

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

    @property
    def has_cycle_runs(self) -> bool:
        """Whether the arguments of `forward` depend on nothing but the tokens."""
        return self._angles.fixed and self._embedding is not None and self._kinds == (None,) and self._net.outputs > 0

    def run_cycles(self, cache: KVCache, features: FeatureStore, row: Row, plan: RunPlan) -> list[RunCycle]:
        """Some cycles of a row, by `run_cycles` of the kernel. The outputs of the declared layers are kept. None at all
        for a model that needs the arguments of `forward`."""
        inputs, head = self._run_inputs(cache, features, row.length + plan.left), plan.head
        if inputs is None:
            return []
        if head is not None:
            held = features.all_places(self.state_like)
            if head.net.row_bits != self._net.row_bits or not held.keys() >= {*head.layers}:
                return []
        return run_cycles(inputs, row, plan)

    def run_rows(
        self,
        cache: KVCache,
        features: FeatureStore,
        rows: Sequence[Row],
        indices: Sequence[int],
        most: int,
        draws: Sequence[Draws | None],
    ) -> list[list[RunCycle]]:
        """Some cycles of several rows, by `run_rows` of the kernel, as `run_cycles` does for one."""
        inputs = self._run_inputs(cache, features, max(row.length for row in rows) + most)
        return [[] for _ in rows] if inputs is None else run_rows(inputs, rows, indices, most, draws)

    def _run_inputs(self, cache: KVCache, features: FeatureStore, positions: int) -> RunInputs | None:
        """What runs of cycles read, for texts of so many tokens. None for a model that needs the arguments of
        `forward`."""
        angles = self._angles.table(positions)
        if angles is None or self._embedding is None or not self.has_cycle_runs:
            return None
        held, last = features.all_places(self.state_like), self._inputs
        valid = last is not None and last[0] is cache and last[1] == cache.version
        if last is None or not valid or last[2] is not held or last[3] is not angles[0]:
            pointers = self._cache_pointers(cache)
            own = RunInputs(self._kernel, self._net, self._embedding, pointers, angles, held)
            self._inputs = last = cache, cache.version, held, angles[0], own
        return last[4]

    def _cache_pointers(self, cache: KVCache) -> CachePointers:
        if self._pointers is None or self._pointers[0] is not cache or self._pointers[1] != cache.version:
            layers = [cache.layer(i, self._like, self._like) for i in range(self._net.layers)]
            pointers = CachePointers([keys for keys, _ in layers], [values for _, values in layers])
            self._pointers = cache, cache.version, pointers
        return self._pointers[2]


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


def _embedding_table(module: Any) -> Tensor | PackedWeight | None:
    """The table of an embedding that does no more than look tokens up."""
    if isinstance(module, PackedEmbedding):
        return module.packed
    look_up = _embedding(module)
    table = look_up.args[0] if isinstance(look_up, partial) else None
    return table if table is not None and table.dtype == torch.float32 and table.is_contiguous() else None


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
