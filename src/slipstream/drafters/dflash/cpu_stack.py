"""The DFlash stack on the CPU kernel (`kernels.cpu.decoder`). Its reference is `network`.

A block is one call for all layers and the logits. New committed positions are one call that computes only keys and
values. The weights that `network` fuses (key and value; gate and up) are separate here.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.drafters.dflash.markov import with_slot_rows
from slipstream.drafters.dflash.network import DflashLayer, DflashNet
from slipstream.kernels.cpu import decoder as cpu_decoder
from slipstream.kernels.cpu.decoder import CachePointers, CpuLayer, CpuNetwork, DecoderKernel, LayerSizes, PassArgs
from slipstream.kernels.cpu.linear import pack
from slipstream.models.cache.attention_mask import AttentionMask
from slipstream.models.cache.packing import RowSlice
from slipstream.models.cache.tensors import KVCache
from slipstream.models.weights.linears import row_bits

POSITIONS = 1024  # the table of rotary angles grows by so many positions


class CpuStack:
    """All layers, the final norm and the output matrix on the CPU kernel."""

    def __init__(self, net: DflashNet, kernel: DecoderKernel) -> None:
        c = net.config
        self._kernel, self._frequency, self._layers = kernel, net.frequency, c.layers
        blocks = [_packed_layer(layer, kernel.row_bits) for layer in net.stack]
        head = pack(with_slot_rows(net.output, net.markov), integers=True, row_bits=kernel.row_bits)
        sizes = LayerSizes(c.heads, c.kv_heads, c.head_dim, c.eps, c.head_dim**-0.5)
        self._net = CpuNetwork(blocks, net.norm.weight.detach(), head, sizes)
        self._like = torch.empty(1, c.kv_heads, 1, c.head_dim)
        self._angle_table = torch.empty(2, 0, c.head_dim)  # cosines and sines by position
        self._pointers: tuple[int, CachePointers] | None = None

    def read(
        self, cache: KVCache, state: Float[Tensor, "n hidden"], row: Int[Tensor, " n"], position: Int[Tensor, " n"]
    ) -> None:
        """Write the context keys and values of committed positions."""
        self._run(cache, state, row, position, int(position.max()) + 1, None, None)

    def block(
        self,
        cache: KVCache,
        pieces: Sequence[RowSlice],
        inputs: Float[Tensor, "n hidden"],
        row: Int[Tensor, " n"],
        position: Int[Tensor, " n"],
        kept: Int[Tensor, " kept"],
    ) -> Float[Tensor, "kept draft_vocab_and_width"]:
        """Run the slots of one block per piece. Returns the network's `outputs` at the kept slots."""
        used = max(piece.line.start + len(piece.line) for piece in pieces)
        mask = AttentionMask(pieces, inputs.device).visible(None, used)
        outputs = self._run(cache, inputs.contiguous(), row, position, used, mask, kept)
        assert outputs is not None, "slots were kept"
        return outputs

    def _run(
        self,
        cache: KVCache,
        hidden: Float[Tensor, "n hidden"],
        row: Int[Tensor, " n"],
        position: Int[Tensor, " n"],
        used: int,
        mask: Tensor | None,
        kept: Int[Tensor, " kept"] | None,
    ) -> Tensor | None:
        """One kernel call. `kept` None: only keys and values are computed, those of every layer from `hidden`."""
        cos, sin = self._angles(used)[:, position]
        masks, features, span = [mask] * self._layers, [None] * self._layers, (0, self._layers)
        args = PassArgs(hidden, (cos, sin), row, position, used, masks, features, *span, kept, None, kept is None)
        return self._kernel.run(self._net, self._cache_pointers(cache), args)

    def _angles(self, positions: int) -> Float[Tensor, "2 positions dim"]:
        if self._angle_table.shape[1] < positions:
            count = (positions // POSITIONS + 1) * POSITIONS
            angle = torch.arange(count)[:, None].to(self._frequency.dtype) * self._frequency
            self._angle_table = torch.stack([angle.cos(), angle.sin()]).repeat(1, 1, 2)
        return self._angle_table

    def _cache_pointers(self, cache: KVCache) -> CachePointers:
        if self._pointers is None or self._pointers[0] != cache.version:
            held = [cache.layer(layer, self._like, self._like) for layer in range(self._layers)]
            self._pointers = cache.version, CachePointers([keys for keys, _ in held], [values for _, values in held])
        return self._pointers[1]


def _packed_layer(layer: DflashLayer, bits: int) -> CpuLayer:
    halves = (*layer.key_value.weight.detach().chunk(2), *layer.gate_up.weight.detach().chunk(2))
    whole = (linear.weight.detach() for linear in (layer.query, layer.o, layer.down))
    key, value, gate, up, query, output, down = (pack(w, integers=True, row_bits=bits) for w in (*halves, *whole))
    norms = layer.norm_attention.weight.detach(), layer.norm_mlp.weight.detach()
    return CpuLayer(query, key, value, output, gate, up, down, *norms)


def cpu_stack(net: DflashNet) -> CpuStack | None:
    """The stack on the CPU kernel; None if there is no kernel for this network or machine.

    The kernel has no norms of queries and keys."""
    kernel = cpu_decoder.kernel(row_bits(net))
    supported = net.frequency.is_cpu and net.norm.weight.dtype == torch.float32 and net.config.layout == "joined"
    return CpuStack(net, kernel) if supported and kernel is not None else None
