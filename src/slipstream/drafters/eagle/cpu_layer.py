"""The EAGLE head's layer as one call on a CPU (`kernels.cpu.decoder`). Its reference is `network`.

The embedding of a slot's token is read beside the state, each with a norm of its own, and the products that the network
keeps fused stand apart here.
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

TURNS = 1024  # positions whose angles are worked out at a time


class CpuEagleLayer:
    def __init__(self, net: EagleNet, kernel: DecoderKernel) -> None:
        c = net.config
        self._kernel, self._frequency = kernel, net.frequency
        turned = (c.heads + c.kv_heads) * c.head_dim
        qkv, (gate, up) = net.qkv.weight.detach(), net.gate_up.weight.detach().chunk(2)
        query, key, value = qkv[: c.heads * c.head_dim], qkv[c.heads * c.head_dim : turned], qkv[turned:]
        products = (query, key, value, net.o.weight, gate, up, net.down.weight)
        norms = (net.norm_state.weight, net.norm_mlp.weight, net.norm_embedding.weight)
        packed = [pack(weight, integers=True, row_bits=kernel.row_bits) for weight in (*products, net.output)]
        block = _block(packed[:-1], [norm.detach() for norm in norms])
        sizes = LayerSizes(c.heads, c.kv_heads, c.head_dim, c.eps, c.head_dim**-0.5)
        self._net = CpuNetwork([block], net.norm.weight.detach(), packed[-1], sizes)
        self._like = torch.empty(1, c.kv_heads, 1, c.head_dim)
        self._turns = torch.empty(2, 0, c.head_dim)
        self._stay: tuple[int, CachePointers] | None = None

    def run(
        self,
        cache: KVCache,
        pieces: Sequence[RowSlice],
        embedding: Float[Tensor, "n hidden"],
        state: Float[Tensor, "n hidden"],
        position: Int[Tensor, " n"],
        kept: Int[Tensor, " kept"] | None,
    ) -> tuple[Float[Tensor, "n hidden"], Float[Tensor, "kept draft_vocab"] | None]:
        """What the layer gives at packed slots after these states, and the logits of those that are kept; without any
        only the cache is written."""
        used = max(piece.line.start + len(piece.line) for piece in pieces)
        cache.reserve(used)
        where = [
            (piece.line.row, place)
            for piece in pieces
            for place in range(piece.line.start + piece.skip, piece.line.start + len(piece.line))
        ]
        row, place = ints(where, state.device).T.contiguous()
        cos, sin = self._angles(used)[:, position]
        seen = None if kept is None else AttentionMask(pieces, state.device).visible(None, used)
        out = state.clone()
        walk = PassArgs(out, (cos, sin), row, place, used, [seen], [None], 0, 1, kept, embedding, kept is None)
        return out, self._kernel.run(self._net, self._where(cache), walk)

    def drafts(
        self,
        cache: KVCache,
        how: CandidateMode,
        arguments: Sequence[RowDraftArgs],
        ends: tuple[Float[Tensor, "rows hidden"], Float[Tensor, "rows draft_vocab"]],
        tables: tuple[Float[Tensor, "vocab hidden"], Int[Tensor, " draft_vocab"]],
    ) -> list[DraftedNodes]:
        """What follows the committed ends, of which states and logits are given; `tables` are the embedding and the
        tokens the head can say."""
        used = max(row_args.start + (row_args.depth - 1) * row_args.width for row_args in arguments)
        cache.reserve(used)
        cos, sin = self._angles(used)
        words = EmbeddingTables(tables[0], cos, sin, tables[1])
        return drafts(
            self._kernel, self._net, self._where(cache), words, how, arguments, *(x.contiguous() for x in ends)
        )

    def logits(self, state: Float[Tensor, "n hidden"]) -> Float[Tensor, "n draft_vocab"]:
        count = len(state)
        index, turn = torch.arange(count), self._turns.new_empty(count, 2)
        walk = PassArgs(state.contiguous(), (turn, turn), index, index, 1, [None], [None], 1, 1, index)
        logits = self._kernel.run(self._net, CachePointers([self._like], [self._like]), walk)
        assert logits is not None
        return logits

    def _angles(self, positions: int) -> Float[Tensor, "2 positions dim"]:
        if self._turns.shape[1] < positions:
            count = (positions // TURNS + 1) * TURNS
            angle = torch.arange(count)[:, None].to(self._frequency.dtype) * self._frequency
            self._turns = torch.stack([angle.cos(), angle.sin()]).repeat(1, 1, 2)
        return self._turns

    def _where(self, cache: KVCache) -> CachePointers:
        if self._stay is None or self._stay[0] != cache.version:
            keys, values = cache.layer(0, self._like, self._like)
            self._stay = cache.version, CachePointers([keys], [values])
        return self._stay[1]


def _block(products: list[PackedWeight], norms: list[Tensor]) -> CpuLayer:
    query, key, value, output, gate, up, down = products
    return CpuLayer(query, key, value, output, gate, up, down, *norms)


def eagle_call(net: EagleNet) -> CpuEagleLayer | None:
    """The layer as one call, where there is a kernel for it."""
    kernel = cpu_decoder.kernel(row_bits(net))
    lean = net.frequency.is_cpu and net.norm.weight.dtype == torch.float32
    return CpuEagleLayer(net, kernel) if lean and kernel is not None else None
