"""The EAGLE network: one decoder layer that reads the target's hidden states (arXiv 2401.15077, 2408.15766).

Slot t reads the embedding of token t + 1 and a state of position t, attends to the slots before it, and predicts token
t + 2. For positions that the target has read, the state is the target's: hidden states of a low, a middle and a high
layer, fused into one. For later positions it is the output of this layer one slot earlier.

Embeddings and output matrix are the target's and are not stored. Only the output rows of a small draft vocabulary are
used, because the full output matrix would be most of the cost of a drafted token.

The layer has separate methods (`fuse`, `project`, `finish`, `logits`), because attention differs: drafting attends to a
cache, training to several roll-outs at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.drafters.files.net_folder import StoredConfig


@dataclass(frozen=True)
class EagleConfig(StoredConfig):
    """The sizes of a head."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    features: tuple[int, ...]  # layers of the target whose outputs are fused
    draft_vocab: int
    rope_theta: float = 10000.0
    eps: float = 1e-5
    own_output: bool = False  # whether the head has its own output rows, which are stored with it


class RMSNorm(nn.Module):
    """x / rms(x) * weight, in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Float[Tensor, "*n size"]) -> Float[Tensor, "*n size"]:
        return functional.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.eps)


def rotate(
    x: Float[Tensor, "*n heads dim"], position: Int[Tensor, " *n"], frequency: Float[Tensor, " pairs"]
) -> Float[Tensor, "*n heads dim"]:
    """Rotary embedding that pairs the two halves of each head."""
    angle = position[..., None, None].to(frequency.dtype) * frequency
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    left, right = x.chunk(2, -1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)


def frequencies(theta: float, dim: int) -> Float[Tensor, " pairs"]:
    """The angle per position of each pair of a rotary embedding."""
    return (theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)).float()


class EagleNet(nn.Module):
    """`output`: the rows of the target's output matrix for the draft vocabulary, or the head's own rows."""

    scale: Tensor
    output: Tensor
    frequency: Tensor

    def __init__(self, config: EagleConfig, output: Float[Tensor, "draft_vocab hidden"] | None = None) -> None:
        super().__init__()
        self.config = c = config
        inner = c.heads * c.head_dim
        self.register_buffer("scale", torch.ones(len(c.features)))  # of each layer's states, whose sizes differ
        self.fc = nn.Linear(len(c.features) * c.hidden, c.hidden, bias=False)
        self.norm_embedding, self.norm_state = RMSNorm(c.hidden, c.eps), RMSNorm(c.hidden, c.eps)
        self.qkv = nn.Linear(2 * c.hidden, inner + 2 * c.kv_heads * c.head_dim, bias=False)
        self.o = nn.Linear(inner, c.hidden, bias=False)
        self.norm_mlp = RMSNorm(c.hidden, c.eps)
        self.gate_up = nn.Linear(c.hidden, 2 * c.intermediate, bias=False)
        self.down = nn.Linear(c.intermediate, c.hidden, bias=False)
        self.norm = RMSNorm(c.hidden, c.eps)
        rows = torch.zeros(c.draft_vocab, c.hidden) if output is None else output
        self.register_buffer("output", rows, persistent=c.own_output)
        self.register_buffer("frequency", frequencies(c.rope_theta, c.head_dim), persistent=False)

    def fuse(self, features: Float[Tensor, "*n stacked"]) -> Float[Tensor, "*n hidden"]:
        """Fuse the target's hidden states of several layers, concatenated per position, into one state."""
        parts = features.view(*features.shape[:-1], len(self.scale), self.config.hidden)
        fused: Tensor = self.fc((parts * self.scale.to(features.dtype)[:, None]).flatten(-2))
        return fused

    def project(
        self, embedding: Float[Tensor, "*n hidden"], state: Float[Tensor, "*n hidden"], position: Int[Tensor, " *n"]
    ) -> tuple[Float[Tensor, "*n heads dim"], Float[Tensor, "*n kv_heads dim"], Float[Tensor, "*n kv_heads dim"]]:
        """Query, key and value of slots, with rotary embedding."""
        c = self.config
        both = torch.cat([self.norm_embedding(embedding), self.norm_state(state)], -1)
        packed = self.qkv(both).unflatten(-1, (-1, c.head_dim))
        query_key, value = packed.split((c.heads + c.kv_heads, c.kv_heads), -2)
        rotated = rotate(query_key, position, self.frequency)
        query, key = torch.split(rotated, [c.heads, c.kv_heads], -2)
        return query, key, value

    def finish(
        self, state: Float[Tensor, "*n hidden"], attended: Float[Tensor, "*n inner"]
    ) -> Float[Tensor, "*n hidden"]:
        """The layer's output after attention: the state of the next slot."""
        state = state + self.o(attended)
        gate, up = self.gate_up(self.norm_mlp(state)).chunk(2, -1)
        out: Tensor = state + self.down(functional.silu(gate) * up)
        return out

    def logits(self, state: Float[Tensor, "*n hidden"]) -> Float[Tensor, "*n draft_vocab"]:
        return functional.linear(self.norm(state), self.output)
