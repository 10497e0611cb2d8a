"""The EAGLE head on GPU kernels (`kernels.gpu`). Its reference is `network`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.drafters.eagle.network import EagleNet
from slipstream.kernels.gpu.attention import AttentionHeads, Layout
from slipstream.kernels.gpu.cycle import pair
from slipstream.kernels.gpu.decoder import GpuLayer, GpuNetwork, PassBuffers, layer, logits
from slipstream.kernels.gpu.matmul import product
from slipstream.kernels.gpu.residual import Norm


class GpuEagleLayer:
    """The head's layer, final norm and output matrix on GPU kernels."""

    def __init__(self, net: EagleNet, embedding: Float[Tensor, "vocab hidden"], positions: int) -> None:
        c = net.config
        self.config, self.embedding, self.scale, self._fc = c, embedding, net.scale, net.fc.weight.detach()
        mlp_norm, last, self._norms = Norm(net.norm_mlp.weight, c.eps), Norm(net.norm.weight, c.eps), _norms(net)
        qkv, output, gate_up, down = (part.weight.detach() for part in (net.qkv, net.o, net.gate_up, net.down))
        block = GpuLayer(qkv, output, gate_up, down, None, mlp_norm)
        angle = torch.arange(positions, device=embedding.device)[:, None] * net.frequency.float()
        heads = AttentionHeads(c.heads, c.kv_heads, c.head_dim, c.head_dim**-0.5)
        self.net = GpuNetwork([block], last, net.output.detach(), heads, (angle.cos(), angle.sin()))

    def fuse(self, stacked: Float[Tensor, "n stacked"], out: Float[Tensor, "n hidden"]) -> None:
        """Fuse the target's scaled states of several layers, concatenated per position, into one state."""
        product(stacked, self._fc, out, tile_rows=self.net.tile_rows(len(stacked)))

    def step(
        self,
        token: Int[Tensor, "..."],
        room: PassBuffers,
        both: Float[Tensor, "n twice"],
        layout: Layout,
        held: Sequence[tuple[Tensor, Tensor]],
        stride: int = 1,
        tree: bool = False,
    ) -> None:
        """Run slots that read these tokens, `stride` apart in `token`, and the states in `room.hidden`.

        The outputs replace the states in `room.hidden`."""
        pair(token, stride, self.embedding, room.hidden, self._norms, both)
        tile_rows = self.net.tile_rows(len(room.hidden))
        layer(self.net, self.net.blocks[0], room, both, layout, held[0], self.net.norm, tree, tile_rows)

    def begin(self, room: PassBuffers, state: Float[Tensor, "n hidden"]) -> None:
        """Start from the head's states at the last slots."""
        room.hidden.copy_(state)
        room.stream.begin(self.net.norm)

    def logits(self, room: PassBuffers, out: Float[Tensor, "n draft_vocab"]) -> None:
        logits(self.net, room.stream, out)


def _norms(net: EagleNet) -> tuple[Norm, Norm]:
    eps = net.config.eps
    return Norm(net.norm_embedding.weight, eps), Norm(net.norm_state.weight, eps)
