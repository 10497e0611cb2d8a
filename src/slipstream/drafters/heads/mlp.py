"""The MLP speculator: a recurrent network that sees the tokens drafted so far, without attention (arXiv 2404.19124).

State j is gelu(norm(A state j-1 + B embedding of token j-1)). The first state before it is the target's last hidden
state, and the first token is the last committed one. The matrices are shared by all heads but for the first A, because
the output rows are shared too. Each head has norms of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from torch.nn import functional

from slipstream.core.array_types import Float, Tensor
from slipstream.drafters.eagle.network import RMSNorm
from slipstream.drafters.heads.drafter import HeadsDrafter
from slipstream.drafters.heads.network import EPS, HeadsConfig, HeadsNet, StateInput


@dataclass(frozen=True)
class MlpConfig(HeadsConfig):
    """The sizes of an MLP speculator."""

    inner: int = 1024  # width of the state


class MlpNet(HeadsNet):
    """A recurrent state and a projection of it to the width of the output rows."""

    parallel = False

    def __init__(self, config: MlpConfig) -> None:
        super().__init__()
        self.config: MlpConfig = config
        c = config
        self.input = StateInput(c.hidden, len(c.features))
        self.first = nn.Linear(c.hidden, c.inner, bias=False)
        self.state = nn.Linear(c.inner, c.inner, bias=False)
        self.norm_embedding = RMSNorm(c.hidden, EPS)
        self.embedding = nn.Linear(c.hidden, c.inner, bias=False)
        self.norms = nn.ModuleList(RMSNorm(c.inner, EPS) for _ in range(c.heads))
        self.projection = nn.Linear(c.inner, c.hidden, bias=False)
        self.output_norms = nn.ModuleList(RMSNorm(c.hidden, EPS) for _ in range(c.heads))

    @property
    def inner(self) -> int:
        return self.config.inner

    @property
    def step_weights(self) -> int:
        return sum(layer.weight.numel() for layer in (self.state, self.embedding, self.projection))

    def states(
        self, features: Float[Tensor, "*n stacked"], embedding: Float[Tensor, "*n hidden"]
    ) -> Float[Tensor, "*n inner"]:
        return self._next(self.first(self.input(features)), embedding, 0)

    def step(
        self, state: Float[Tensor, "*n inner"], embedding: Float[Tensor, "*n hidden"], head: int
    ) -> Float[Tensor, "*n inner"]:
        return self._next(self.state(state), embedding, head)

    def _next(
        self, from_state: Float[Tensor, "*n inner"], embedding: Float[Tensor, "*n hidden"], head: int
    ) -> Float[Tensor, "*n inner"]:
        mixed = from_state + self.embedding(self.norm_embedding(embedding))
        return functional.gelu(self.norms[head](mixed))

    def vector(self, state: Float[Tensor, "*n inner"], head: int) -> Float[Tensor, "*n hidden"]:
        vector: Tensor = self.output_norms[head](self.projection(state))
        return vector


class Mlp(HeadsDrafter):
    """The drafter `mlp`."""

    kind = "mlp"
    config_type = MlpConfig

    @staticmethod
    def make_net(config: MlpConfig) -> MlpNet:
        return MlpNet(config)
