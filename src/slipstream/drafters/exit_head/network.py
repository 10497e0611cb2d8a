"""The network of an exit head: a transformer block and a norm on the target's hidden state after its first N layers.

The block attends to the states of the last positions, a window. The target stores these states of the committed text,
so the head needs no cache. Output rows are the target's and are not stored.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from slipstream.core.array_types import Bool, Float, Int, Tensor
from slipstream.drafters.dflash.network import DflashConfig, DflashLayer
from slipstream.drafters.eagle.network import RMSNorm, frequencies
from slipstream.drafters.files.net_folder import StoredConfig


@dataclass(frozen=True)
class ExitConfig(StoredConfig):
    """The sizes of an exit head."""

    hidden: int
    layer: int  # layers of the target that run before the head
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    draft_vocab: int
    window: int = 64  # positions that the block attends to, its own included
    rope_theta: float = 10000.0
    eps: float = 1e-5


class ExitNet(nn.Module):
    """One block. `attend` is apart from `keys_values`, because drafting keeps the keys and values of a draft."""

    frequency: Tensor

    def __init__(self, config: ExitConfig) -> None:
        super().__init__()
        self.config = c = config
        sizes = c.hidden, c.heads, c.kv_heads, c.head_dim, c.intermediate
        self.block = DflashLayer(DflashConfig(*sizes, layers=1, block=1, features=(), draft_vocab=0, eps=c.eps))
        self.norm = RMSNorm(c.hidden, c.eps)
        self.register_buffer("frequency", frequencies(c.rope_theta, c.head_dim), persistent=False)

    def keys_values(
        self, state: Float[Tensor, "*n hidden"], position: Int[Tensor, " *n"]
    ) -> tuple[Float[Tensor, "*n kv_heads dim"], Float[Tensor, "*n kv_heads dim"]]:
        return self.block.keys_values(state, position, self.frequency)

    def attend(
        self,
        state: Float[Tensor, "rows queries hidden"],
        position: Int[Tensor, "rows queries"],
        keys: Float[Tensor, "rows keys kv_heads dim"],
        values: Float[Tensor, "rows keys kv_heads dim"],
        seen: Bool[Tensor, "masks queries keys"],
    ) -> Float[Tensor, "rows queries hidden"]:
        """The block's normalised output. `seen`: the keys that each query attends to; one mask, or one for each row."""
        query = self.block.queries(state, position, self.frequency)
        group = query.shape[2] // keys.shape[2]
        k, v = (x.transpose(1, 2).repeat_interleave(group, 1) for x in (keys, values))
        attended = functional.scaled_dot_product_attention(query.transpose(1, 2), k, v, attn_mask=seen[:, None])
        out: Tensor = self.norm(self.block.finish(state, attended.transpose(1, 2).flatten(2)))
        return out

    def forward(self, state: Float[Tensor, "rows n hidden"]) -> Float[Tensor, "rows n hidden"]:
        """The outputs at all positions of texts, for training."""
        place = torch.arange(state.shape[1], device=state.device)
        distance = place[:, None] - place
        position = place.expand(state.shape[:2])
        seen = ((distance >= 0) & (distance < self.config.window))[None]
        return self.attend(state, position, *self.keys_values(state, position), seen)
