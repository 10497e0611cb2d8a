"""The DFlash stack on GPU kernels (`kernels.gpu`). Its reference is `network`."""

from __future__ import annotations

from dataclasses import replace

import torch

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.drafters.dflash.markov import with_slot_rows
from slipstream.drafters.dflash.network import DflashLayer, DflashNet
from slipstream.kernels.gpu.attention import AttentionHeads, Layout, turn
from slipstream.kernels.gpu.blocks.layout import BlockLayout
from slipstream.kernels.gpu.blocks.markov import correct, token_table
from slipstream.kernels.gpu.cycle import pair
from slipstream.kernels.gpu.decoder import GpuLayer, GpuNetwork, Held, PassBuffers, walk
from slipstream.kernels.gpu.matmul import product
from slipstream.kernels.gpu.residual import Norm


class GpuStack:
    """All layers, the final norm and the output matrix on GPU kernels."""

    def __init__(self, net: DflashNet, embedding: Float[Tensor, "vocab hidden"], positions: int) -> None:
        c = net.config
        self.config, self.embedding, self.scale, self.slots = c, embedding, net.scale, net.slots.detach()
        self._fc, self._join = net.fc.weight.detach(), net.join.weight.detach()
        self._norms = Norm(net.norm_embedding.weight, c.eps), Norm(net.norm_state.weight, c.eps)
        angle = torch.arange(positions + c.block, device=embedding.device)[:, None] * net.frequency.float()
        heads = AttentionHeads(c.heads, c.kv_heads, c.head_dim, c.head_dim**-0.5)
        blocks = [_gpu_layer(layer, c.eps) for layer in net.stack]
        output = with_slot_rows(net.output.detach(), net.markov)
        self.markov = None if net.markov is None else GpuMarkov(net, embedding)
        self.net = GpuNetwork(blocks, Norm(net.norm.weight, c.eps), output, heads, (angle.cos(), angle.sin()))
        self._context = torch.cat([_normed_keys_values(layer) for layer in net.stack])
        self._context_norm = Norm(torch.ones_like(net.norm.weight), c.eps)
        self._context_heads = replace(heads, heads=0)

    def read(self, stacked: Float[Tensor, "n stacked"], room: PassBuffers, layout: Layout, held: Held) -> None:
        """Write the context keys and values of positions; `room.hidden` then holds their fused states.

        `stacked`: the target's scaled states of several layers, concatenated per position."""
        tile_rows, angles, heads = self.net.tile_rows(len(stacked)), self.net.angles, self._context_heads
        product(stacked, self._fc, room.hidden, tile_rows=tile_rows)
        room.stream.begin(self._context_norm)
        given = room.given.new_empty(len(stacked), len(self._context))  # of all layers
        product(room.stream, self._context, given, tile_rows=tile_rows)
        for own, (keys, values) in zip(given.chunk(len(held), 1), held, strict=True):
            turn(own, angles, layout, keys, values, room.space.query, heads)

    def run(
        self,
        token: Int[Tensor, " rows"],
        state: Float[Tensor, "rows hidden"],
        both: Float[Tensor, "rows twice"],
        room: PassBuffers,
        layout: BlockLayout,
        held: Held,
    ) -> None:
        """Run one block per row, from its last token and the fused state before it. The final norm may read
        `room.stream` then, which holds the outputs."""
        rows, size = state.shape
        pair(token, 1, self.embedding, state, self._norms, both)
        joined = state.new_empty(rows, size)
        product(both, self._join, joined, tile_rows=self.net.tile_rows(rows))
        first = self.net.blocks[0].before
        assert first is not None, "every layer norms what it reads"
        room.stream.begin_sums(joined, self.slots, first)
        span = 0, len(self.net.blocks)
        walk(self.net, room, layout.reads, held, span, {}, False, writes=layout.writes, begun=True)


class GpuMarkov:
    """The Markov head on its GPU kernel."""

    def __init__(self, net: DflashNet, embedding: Float[Tensor, "vocab hidden"]) -> None:
        head = net.markov
        assert head is not None
        self._columns = (net.output @ head.correction.weight).detach().contiguous()
        self._table = token_table(head.previous.weight, net.norm_embedding, embedding)

    def __call__(
        self,
        outputs: Float[Tensor, "rows draft_vocab_and_width"],
        token: Int[Tensor, " rows"],
        out: Float[Tensor, "rows draft_vocab"],
    ) -> None:
        """Write the logits of one slot of each row. `token`: the tokens before them."""
        correct(token, self._table, outputs, self._columns, out)


@torch.no_grad()
def _normed_keys_values(layer: DflashLayer) -> Float[Tensor, "keys_values hidden"]:
    """The weights of a layer's keys and values of the context, multiplied with its norm's. All layers read the same
    states, which are then divided by the same root."""
    return layer.key_value.weight * layer.norm_attention.weight


def _gpu_layer(layer: DflashLayer, eps: float) -> GpuLayer:
    qkv = torch.cat([layer.query.weight.detach(), layer.key_value.weight.detach()])
    output, gate_up, down = (part.weight.detach() for part in (layer.o, layer.gate_up, layer.down))
    norms = Norm(layer.norm_attention.weight, eps), Norm(layer.norm_mlp.weight, eps)
    return GpuLayer(qkv, output, gate_up, down, *norms)
