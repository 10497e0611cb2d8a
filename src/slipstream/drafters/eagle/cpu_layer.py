"""The EAGLE head's layer as one call on a CPU (`kernels.cpu.decoder`). Its reference is `network`.

A slot reads the embedding of its token and a state, each with its own norm. The weights that `network` fuses (query,
key and value; gate and up) are separate here.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.drafters.eagle.network import EagleNet
from slipstream.kernels.cpu import decoder as cpu_decoder
from slipstream.kernels.cpu.decoder import CachePointers, CpuLayer, CpuNetwork, DecoderKernel, LayerSizes, PassArgs
from slipstream.kernels.cpu.draft import CandidateMode, DraftedNodes, EmbeddingTables, RowDraftArgs, drafts
from slipstream.kernels.cpu.linear import PackedWeight, pack
from slipstream.models.cache.attention_mask import AttentionMask, ints
from slipstream.models.cache.packing import RowSlice
from slipstream.models.cache.tensors import KVCache
from slipstream.models.weights.linears import row_bits

POSITIONS = 1024  # the table of rotary angles grows by so many positions


class CpuEagleLayer:
    """The head's layer, final norm and output matrix on the CPU kernel."""

    def __init__(self, net: EagleNet, kernel: DecoderKernel) -> None:
        c = net.config
        self._kernel, self._frequency = kernel, net.frequency
        rows = [c.heads * c.head_dim, c.kv_heads * c.head_dim, c.kv_heads * c.head_dim]
        query, key, value = torch.split(net.qkv.weight.detach(), rows)
        gate, up = net.gate_up.weight.detach().chunk(2)
        products = (query, key, value, net.o.weight, gate, up, net.down.weight)
        norms = (net.norm_state.weight, net.norm_mlp.weight, net.norm_embedding.weight)
        packed = [pack(weight, integers=True, row_bits=kernel.row_bits) for weight in (*products, net.output)]
        block = _layer(packed[:-1], [norm.detach() for norm in norms])
        sizes = LayerSizes(c.heads, c.kv_heads, c.head_dim, c.eps, c.head_dim**-0.5)
        self._net = CpuNetwork([block], net.norm.weight.detach(), packed[-1], sizes)
        self._like = torch.empty(1, c.kv_heads, 1, c.head_dim)
        self._angle_table = torch.empty(2, 0, c.head_dim)  # cosines and sines by position
        self._pointers: tuple[int, CachePointers] | None = None

    def run(
        self,
        cache: KVCache,
        pieces: Sequence[RowSlice],
        embedding: Float[Tensor, "n hidden"],
        state: Float[Tensor, "n hidden"],
        position: Int[Tensor, " n"],
        kept: Int[Tensor, " kept"] | None,
    ) -> tuple[Float[Tensor, "n hidden"], Float[Tensor, "kept draft_vocab"] | None]:
        """The layer's outputs at packed slots that read these states, and the logits of the kept slots.

        `kept` None: only the cache is written."""
        used = max(piece.line.start + len(piece.line) for piece in pieces)
        cache.check_room(pieces)
        where = [
            (piece.line.row, place)
            for piece in pieces
            for place in range(piece.line.start + piece.skip, piece.line.start + len(piece.line))
        ]
        row, place = ints(where, state.device).T.contiguous()
        cos, sin = self._angles(used)[:, position]
        mask = None if kept is None else AttentionMask(pieces, state.device).visible(None, used)
        out = state.clone()
        args = PassArgs(out, (cos, sin), row, place, used, [mask], [None], 0, 1, kept, embedding, kept is None)
        return out, self._kernel.run(self._net, self._cache_pointers(cache), args)

    def head(
        self,
        cache: KVCache,
        used: int,
        tables: tuple[Float[Tensor, "vocab hidden"], Int[Tensor, " draft_vocab"]],
    ) -> tuple[CpuNetwork, CachePointers, EmbeddingTables]:
        """The layer as a kernel reads it that runs it over slots below `used`. `tables`: as those of `drafts`."""
        cos, sin = self._angles(used)
        return self._net, self._cache_pointers(cache), EmbeddingTables(tables[0], cos, sin, tables[1])

    def drafts(
        self,
        cache: KVCache,
        mode: CandidateMode,
        arguments: Sequence[RowDraftArgs],
        ends: tuple[Float[Tensor, "rows hidden"], Float[Tensor, "rows draft_vocab"]],
        tables: tuple[Float[Tensor, "vocab hidden"], Int[Tensor, " draft_vocab"]],
    ) -> list[DraftedNodes]:
        """Drafts after the committed ends. `ends`: states and logits there. `tables`: embedding, and token id of each
        logit."""
        used = max(row_args.start + (row_args.depth - 1) * row_args.width for row_args in arguments)
        net, pointers, lookup = self.head(cache, used, tables)
        state, logits = (x.contiguous() for x in ends)
        return drafts(self._kernel, net, pointers, lookup, mode, arguments, state, logits)

    def logits(self, state: Float[Tensor, "n hidden"]) -> Float[Tensor, "n draft_vocab"]:
        count = len(state)
        index, unused = torch.arange(count), state.new_empty(count, 2)  # no layer runs, so no angles are read
        args = PassArgs(state.contiguous(), (unused, unused), index, index, 1, [None], [None], 1, 1, index)
        logits = self._kernel.run(self._net, CachePointers([self._like], [self._like]), args)
        assert logits is not None
        return logits

    def _angles(self, positions: int) -> Float[Tensor, "2 positions dim"]:
        if self._angle_table.shape[1] < positions:
            count = (positions // POSITIONS + 1) * POSITIONS
            angle = torch.arange(count)[:, None].to(self._frequency.dtype) * self._frequency
            self._angle_table = torch.stack([angle.cos(), angle.sin()]).repeat(1, 1, 2)
        return self._angle_table

    def _cache_pointers(self, cache: KVCache) -> CachePointers:
        if self._pointers is None or self._pointers[0] != cache.version:
            keys, values = cache.layer(0, self._like, self._like)
            self._pointers = cache.version, CachePointers([keys], [values])
        return self._pointers[1]


def _layer(products: list[PackedWeight], norms: list[Tensor]) -> CpuLayer:
    query, key, value, output, gate, up, down = products
    return CpuLayer(query, key, value, output, gate, up, down, *norms)


def cpu_layer(net: EagleNet) -> CpuEagleLayer | None:
    """The layer on the CPU kernel; None if there is no kernel for this head or machine."""
    kernel = cpu_decoder.kernel(row_bits(net))
    supported = net.frequency.is_cpu and net.norm.weight.dtype == torch.float32
    return CpuEagleLayer(net, kernel) if supported and kernel is not None else None
