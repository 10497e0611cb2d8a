"""The DFlash network: a stack of layers that predicts a block of tokens in one pass (arXiv 2602.06036).

The target has read positions 0 to n - 2 of a text of n tokens. The last token is the *anchor*. Slot k of the block is
at position n - 1 + k and predicts the token after it, so a block of B slots predicts B tokens. Each slot attends to all
slots of its block and to the target's states at positions 0 to n - 2.

- The target's hidden states of several layers are fused into one state per position. Every layer of the stack makes
  keys and values from it, as it does from its slots. These *context* keys and values never change and are cached.
- All slots start from the anchor's embedding and the last state, joined by a matrix, and a learned vector per slot.
- Embeddings and output matrix are the target's. The output is cut to a draft vocabulary.

The tokens of a block are predicted independently of each other. The law of a draft is the product of the slots' laws.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import nn
from torch.nn import functional

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.drafters.eagle.network import RMSNorm, frequencies, rotate
from slipstream.drafters.files.net_folder import StoredConfig


@dataclass(frozen=True)
class DflashConfig(StoredConfig):
    """The sizes of a stack."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    layers: int
    block: int  # tokens predicted in one pass
    features: tuple[int, ...]  # layers of the target whose outputs are fused
    draft_vocab: int
    rope_theta: float = 10000.0
    eps: float = 1e-5


class DflashLayer(nn.Module):
    """One layer. Attention is outside, because drafting attends to a cache and training to many blocks at once."""

    def __init__(self, c: DflashConfig) -> None:
        super().__init__()
        inner = c.heads * c.head_dim
        self._dim = c.head_dim
        self.norm_attention = RMSNorm(c.hidden, c.eps)
        self.query = nn.Linear(c.hidden, inner, bias=False)
        self.key_value = nn.Linear(c.hidden, 2 * c.kv_heads * c.head_dim, bias=False)
        self.o = nn.Linear(inner, c.hidden, bias=False)
        self.norm_mlp = RMSNorm(c.hidden, c.eps)
        self.gate_up = nn.Linear(c.hidden, 2 * c.intermediate, bias=False)
        self.down = nn.Linear(c.intermediate, c.hidden, bias=False)

    def keys_values(
        self, x: Float[Tensor, "*n hidden"], position: Int[Tensor, " *n"], frequency: Float[Tensor, " pairs"]
    ) -> tuple[Float[Tensor, "*n kv_heads dim"], Float[Tensor, "*n kv_heads dim"]]:
        """Key and value of slots, or of the context where `x` is the fused state of a position."""
        key, value = torch.unflatten(self.key_value(self.norm_attention(x)), -1, (-1, self._dim)).chunk(2, -2)
        return rotate(key, position, frequency), value

    def queries(
        self, x: Float[Tensor, "*n hidden"], position: Int[Tensor, " *n"], frequency: Float[Tensor, " pairs"]
    ) -> Float[Tensor, "*n heads dim"]:
        return rotate(torch.unflatten(self.query(self.norm_attention(x)), -1, (-1, self._dim)), position, frequency)

    def finish(self, x: Float[Tensor, "*n hidden"], attended: Float[Tensor, "*n inner"]) -> Float[Tensor, "*n hidden"]:
        """The layer's output after attention."""
        x = x + self.o(attended)
        gate, up = self.gate_up(self.norm_mlp(x)).chunk(2, -1)
        out: Tensor = x + self.down(functional.silu(gate) * up)
        return out


class DflashNet(nn.Module):
    """`output`: the rows of the target's output matrix for the draft vocabulary."""

    scale: Tensor
    output: Tensor
    frequency: Tensor

    def __init__(self, config: DflashConfig, output: Float[Tensor, "draft_vocab hidden"] | None = None) -> None:
        super().__init__()
        self.config = c = config
        self.register_buffer("scale", torch.ones(len(c.features)))  # of each layer's states, whose sizes differ
        self.fc = nn.Linear(len(c.features) * c.hidden, c.hidden, bias=False)
        self.norm_embedding, self.norm_state = RMSNorm(c.hidden, c.eps), RMSNorm(c.hidden, c.eps)
        self.join = nn.Linear(2 * c.hidden, c.hidden, bias=False)
        self.slots = nn.Parameter(torch.zeros(c.block, c.hidden))
        self.layers = nn.ModuleList(DflashLayer(c) for _ in range(c.layers))
        self.norm = RMSNorm(c.hidden, c.eps)
        rows = torch.zeros(c.draft_vocab, c.hidden) if output is None else output
        self.register_buffer("output", rows, persistent=False)
        self.register_buffer("frequency", frequencies(c.rope_theta, c.head_dim), persistent=False)

    @property
    def stack(self) -> list[DflashLayer]:
        return [cast(DflashLayer, layer) for layer in self.layers]

    def fuse(self, features: Float[Tensor, "*n stacked"]) -> Float[Tensor, "*n hidden"]:
        """Fuse the target's hidden states of several layers, concatenated per position, into one state."""
        parts = torch.unflatten(features, -1, (len(self.scale), self.config.hidden))
        fused: Tensor = self.fc((parts * self.scale.to(features.dtype)[:, None]).flatten(-2))
        return fused

    def inputs(
        self, anchor: Float[Tensor, "*n hidden"], state: Float[Tensor, "*n hidden"]
    ) -> Float[Tensor, "*n block hidden"]:
        """The input of every slot, from the embedding of the anchor and the fused state before it."""
        joined: Tensor = self.join(torch.cat([self.norm_embedding(anchor), self.norm_state(state)], -1))
        return joined[..., None, :] + self.slots.to(joined.dtype)

    def logits(self, x: Float[Tensor, "*n hidden"]) -> Float[Tensor, "*n draft_vocab"]:
        return functional.linear(self.norm(x), self.output)
