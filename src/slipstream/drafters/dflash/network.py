"""The DFlash network: a stack of layers that predicts a block of tokens in one pass (arXiv 2602.06036).

The target has read positions 0 to n - 2 of a text of n tokens. The last token is the *anchor*. Slot k of the block is
at position n - 1 + k and predicts the token after it, so a block of B slots predicts B tokens. Each slot attends to all
slots of its block and to the target's states at positions 0 to n - 2.

- The target's hidden states of several layers are fused into one state per position. Every layer of the stack makes
  keys and values from it, as it does from its slots. These *context* keys and values never change and are cached.
- All slots start from the anchor's embedding and the last state, joined by a matrix, and a learned vector per slot.
  This layout is called `joined`.
- Embeddings and output matrix are the target's. The output is cut to a draft vocabulary.

The layout `masked` is that of published checkpoints. Slot 0 starts from the anchor's embedding and all others from the
embedding of a mask token. The fused state is normalised once and not in every layer, and so are queries and keys. Slot
0 may predict nothing (`anchor_predicts`); then slot k predicts the token at its own position.

Without a Markov head the tokens of a block are predicted independently of each other, and the law of a draft is the
product of the slots' laws. With one (`markov`), the law of a token depends on the token before it in the draft, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import nn
from torch.nn import functional

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.drafters.dflash.markov import WIDTHS, MarkovHead, with_slot_rows
from slipstream.drafters.eagle.network import RMSNorm, frequencies, rotate
from slipstream.drafters.files.net_folder import StoredConfig

LAYOUTS = ("joined", "masked")


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
    layout: str = "joined"
    anchor_predicts: bool = True
    mask_token: int = -1  # of the layout `masked`
    own_output: bool = False  # whether the stack has its own output rows, which are stored with it
    markov: int = 0  # width of the Markov head; 0: none

    def __post_init__(self) -> None:
        if self.layout not in LAYOUTS:
            raise ValueError(f"layout is {self.layout!r}; it must be one of {', '.join(LAYOUTS)}")
        if self.markov and (self.markov not in WIDTHS or self.layout != "joined"):
            widths = ", ".join(map(str, WIDTHS))
            raise ValueError(f"markov is {self.markov}; it must be 0 or, in the layout joined, one of {widths}")

    @property
    def first(self) -> int:
        """The first slot that predicts a token."""
        return 0 if self.anchor_predicts else 1

    @property
    def slots(self) -> int:
        """Slots of a block."""
        return self.block + self.first


class DflashLayer(nn.Module):
    """One layer. Attention is outside, because drafting attends to a cache and training to many blocks at once."""

    def __init__(self, c: DflashConfig) -> None:
        super().__init__()
        inner = c.heads * c.head_dim
        self._dim, self._masked = c.head_dim, c.layout == "masked"
        self.norm_attention = RMSNorm(c.hidden, c.eps)
        self.query = nn.Linear(c.hidden, inner, bias=False)
        self.key_value = nn.Linear(c.hidden, 2 * c.kv_heads * c.head_dim, bias=False)
        self.o = nn.Linear(inner, c.hidden, bias=False)
        self.norm_mlp = RMSNorm(c.hidden, c.eps)
        self.gate_up = nn.Linear(c.hidden, 2 * c.intermediate, bias=False)
        self.down = nn.Linear(c.intermediate, c.hidden, bias=False)
        if self._masked:
            self.norm_query, self.norm_key = RMSNorm(c.head_dim, c.eps), RMSNorm(c.head_dim, c.eps)

    def keys_values(
        self, x: Float[Tensor, "*n hidden"], position: Int[Tensor, " *n"], frequency: Float[Tensor, " pairs"]
    ) -> tuple[Float[Tensor, "*n kv_heads dim"], Float[Tensor, "*n kv_heads dim"]]:
        """Key and value of slots."""
        return self._project(self.norm_attention(x), position, frequency)

    def context_keys_values(
        self, state: Float[Tensor, "*n hidden"], position: Int[Tensor, " *n"], frequency: Float[Tensor, " pairs"]
    ) -> tuple[Float[Tensor, "*n kv_heads dim"], Float[Tensor, "*n kv_heads dim"]]:
        """Key and value of the context, from the fused state of each position."""
        return self._project(state if self._masked else self.norm_attention(state), position, frequency)

    def _project(
        self, normalised: Float[Tensor, "*n hidden"], position: Int[Tensor, " *n"], frequency: Float[Tensor, " pairs"]
    ) -> tuple[Float[Tensor, "*n kv_heads dim"], Float[Tensor, "*n kv_heads dim"]]:
        key, value = torch.unflatten(self.key_value(normalised), -1, (-1, self._dim)).chunk(2, -2)
        return rotate(self.norm_key(key) if self._masked else key, position, frequency), value

    def queries(
        self, x: Float[Tensor, "*n hidden"], position: Int[Tensor, " *n"], frequency: Float[Tensor, " pairs"]
    ) -> Float[Tensor, "*n heads dim"]:
        query = torch.unflatten(self.query(self.norm_attention(x)), -1, (-1, self._dim))
        return rotate(self.norm_query(query) if self._masked else query, position, frequency)

    def finish(self, x: Float[Tensor, "*n hidden"], attended: Float[Tensor, "*n inner"]) -> Float[Tensor, "*n hidden"]:
        """The layer's output after attention."""
        x = x + self.o(attended)
        gate, up = self.gate_up(self.norm_mlp(x)).chunk(2, -1)
        out: Tensor = x + self.down(functional.silu(gate) * up)
        return out


class DflashNet(nn.Module):
    """`output`: the rows of the target's output matrix for the draft vocabulary, or the stack's own rows.

    `mask`: the target's embedding of the mask token, which is set after loading."""

    scale: Tensor
    mask: Tensor
    output: Tensor
    frequency: Tensor

    def __init__(self, config: DflashConfig, output: Float[Tensor, "draft_vocab hidden"] | None = None) -> None:
        super().__init__()
        self.config = c = config
        self.register_buffer("scale", torch.ones(len(c.features)))  # of each layer's states, whose sizes differ
        self.fc = nn.Linear(len(c.features) * c.hidden, c.hidden, bias=False)
        self.norm_state = RMSNorm(c.hidden, c.eps)
        if c.layout == "joined":
            self.norm_embedding = RMSNorm(c.hidden, c.eps)
            self.join = nn.Linear(2 * c.hidden, c.hidden, bias=False)
            self.slots = nn.Parameter(torch.zeros(c.slots, c.hidden))
        self.markov = MarkovHead(c.hidden, c.markov) if c.markov else None
        self.register_buffer("mask", torch.zeros(c.hidden), persistent=False)
        self.layers = nn.ModuleList(DflashLayer(c) for _ in range(c.layers))
        self.norm = RMSNorm(c.hidden, c.eps)
        rows = torch.zeros(c.draft_vocab, c.hidden) if output is None else output
        self.register_buffer("output", rows, persistent=c.own_output)
        self.register_buffer("frequency", frequencies(c.rope_theta, c.head_dim), persistent=False)

    @property
    def stack(self) -> list[DflashLayer]:
        return [cast(DflashLayer, layer) for layer in self.layers]

    def fuse(self, features: Float[Tensor, "*n stacked"]) -> Float[Tensor, "*n hidden"]:
        """Fuse the target's hidden states of several layers, concatenated per position, into one state."""
        parts = torch.unflatten(features, -1, (len(self.scale), self.config.hidden))
        fused: Tensor = self.fc((parts * self.scale.to(features.dtype)[:, None]).flatten(-2))
        return fused if self.config.layout == "joined" else self.norm_state(fused)

    def inputs(
        self, anchor: Float[Tensor, "*n hidden"], state: Float[Tensor, "*n hidden"]
    ) -> Float[Tensor, "*n slots hidden"]:
        """The input of every slot, from the embedding of the anchor and the fused state before it."""
        if self.config.layout == "masked":
            masks = self.mask.to(anchor.dtype).expand(*anchor.shape[:-1], self.config.slots - 1, -1)
            return torch.cat([anchor[..., None, :], masks], -2)
        joined: Tensor = self.join(torch.cat([self.norm_embedding(anchor), self.norm_state(state)], -1))
        return joined[..., None, :] + self.slots.to(joined.dtype)

    def logits(
        self, x: Float[Tensor, "*n hidden"], previous: Float[Tensor, "*n hidden"] | None = None
    ) -> Float[Tensor, "*n draft_vocab"]:
        """The logits of slots. `previous`: embeddings of the tokens before them, for the Markov head."""
        state = self.norm(x)
        if self.markov is not None:
            assert previous is not None, "the law of a slot depends on the token before it"
            state = self.markov(state, self.norm_embedding(previous))
        return functional.linear(state, self.output)

    def outputs(self, x: Float[Tensor, "*n hidden"]) -> Float[Tensor, "*n draft_vocab_and_width"]:
        """The logits of slots without the Markov head's correction, and after them what that head reads of them."""
        return functional.linear(self.norm(x), with_slot_rows(self.output, self.markov))
