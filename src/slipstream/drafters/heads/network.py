"""What the networks of `medusa`, `mlp` and `prophet` share.

A row of n committed tokens drafts when the target has read all of them but the last. The network reads the target's
hidden states at the last positions that were read, and the embeddings of the tokens after them. Head j predicts the
token j + 1 places after the last committed one. Embeddings and output rows are the target's and are not stored.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import nn

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.drafters.eagle.network import RMSNorm
from slipstream.drafters.files.net_folder import StoredConfig

EPS = 1e-5  # of the norms


@dataclass(frozen=True)
class HeadsConfig(StoredConfig):
    """The sizes that every network has."""

    hidden: int
    features: tuple[int, ...]  # layers of the target whose outputs are read
    heads: int  # tokens that can be predicted
    draft_vocab: int


class HeadsNet(nn.Module, ABC):
    """A network of several heads. States are rows of a matrix: one for each base or row."""

    config: HeadsConfig
    window: int = 1  # positions that are read
    parallel: bool = True  # whether no head sees a drafted token

    @property
    def inner(self) -> int:
        """The width of a state."""
        return self.config.hidden

    @property
    def step_weights(self) -> int:
        """Weights that every head reads: those of `step`, and those that the heads share."""
        return 0

    @abstractmethod
    def states(
        self, features: Float[Tensor, "*n stacked"], embedding: Float[Tensor, "*n hidden"]
    ) -> Float[Tensor, "*n inner"]:
        """The states from which drafting starts after each position, in training; n is then (rows, positions).

        `features`: the target's states of all layers, concatenated. `embedding`: of the token after each position."""

    def end_states(
        self,
        features: Float[Tensor, "rows window stacked"],
        embedding: Float[Tensor, "rows window hidden"],
        length: Int[Tensor, " rows"],
    ) -> Float[Tensor, "rows inner"]:
        """The states from which rows draft. A row has `length` positions, at the end of its window."""
        return self.states(features[:, -1], embedding[:, -1])

    def step(
        self, state: Float[Tensor, "*n inner"], embedding: Float[Tensor, "*n hidden"], head: int
    ) -> Float[Tensor, "*n inner"]:
        """The state of a head, from that of the head before it and the embedding of the token drafted by that one."""
        return state

    @abstractmethod
    def vector(self, state: Float[Tensor, "*n inner"], head: int) -> Float[Tensor, "*n hidden"]:
        """The vector that is multiplied with the output rows to get the logits of a head."""


class StateInput(nn.Module):
    """The target's hidden states of one or several layers as one state."""

    def __init__(self, hidden: int, layers: int) -> None:
        super().__init__()
        self._hidden = hidden
        self.norms = nn.ModuleList(RMSNorm(hidden, EPS) for _ in range(layers))
        self.fc = nn.Linear(layers * hidden, hidden, bias=False) if layers > 1 else nn.Identity()

    def forward(self, features: Float[Tensor, "*n stacked"]) -> Float[Tensor, "*n hidden"]:
        parts = torch.split(features, self._hidden, -1)
        state: Tensor = self.fc(torch.cat([norm(part) for norm, part in zip(self.norms, parts, strict=True)], -1))
        return state


class TokenStep(nn.Module):
    """Adds what a token says to a state: x + down(silu(state(norm x) + token(norm e))), e being its embedding.

    The heads that follow depend on the tokens drafted before them, as in Hydra (arXiv 2402.05109), and share it."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.norm_state, self.norm_token = RMSNorm(hidden, EPS), RMSNorm(hidden, EPS)
        self.state = nn.Linear(hidden, width, bias=False)
        self.token = nn.Linear(hidden, width, bias=False)
        self.down = nn.Linear(width, hidden, bias=False)

    def forward(
        self, x: Float[Tensor, "*n hidden"], embedding: Float[Tensor, "*n hidden"]
    ) -> Float[Tensor, "*n hidden"]:
        inner = self.state(self.norm_state(x)) + self.token(self.norm_token(embedding))
        moved: Tensor = x + self.down(nn.functional.silu(inner))
        return moved


class ResidualHead(nn.Module):
    """Residual SiLU blocks, x + silu(W x), and a norm: one head of Medusa (arXiv 2401.10774)."""

    def __init__(self, hidden: int, blocks: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(hidden, hidden, bias=False) for _ in range(blocks))
        self.norm = RMSNorm(hidden, EPS)

    def forward(self, x: Float[Tensor, "*n hidden"]) -> Float[Tensor, "*n hidden"]:
        for block in self.blocks:
            x = x + nn.functional.silu(block(x))
        vector: Tensor = self.norm(x)
        return vector


class ResidualHeads(HeadsNet):
    """Residual heads on one state. With a `recurrent` part, the state moves on with every drafted token."""

    def __init__(self, config: HeadsConfig, blocks: int, recurrent: int) -> None:
        super().__init__()
        self.config, self.parallel = config, not recurrent
        self.heads = nn.ModuleList(ResidualHead(config.hidden, blocks) for _ in range(config.heads))
        self.recurrent = TokenStep(config.hidden, recurrent) if recurrent else None

    @property
    def step_weights(self) -> int:
        return 0 if self.recurrent is None else sum(p.numel() for p in self.recurrent.parameters())

    def step(
        self, state: Float[Tensor, "*n hidden"], embedding: Float[Tensor, "*n hidden"], head: int
    ) -> Float[Tensor, "*n hidden"]:
        moved: Tensor = state if self.recurrent is None else self.recurrent(state, embedding)
        return moved

    def vector(self, state: Float[Tensor, "*n hidden"], head: int) -> Float[Tensor, "*n hidden"]:
        vector: Tensor = self.heads[head](state)
        return vector
