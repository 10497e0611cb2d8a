"""Medusa: heads on the target's last hidden state, each for one of the next tokens (arXiv 2401.10774).

The law of a token does not depend on the tokens drafted before it, so the law of a draft is the product of the heads'
laws. All heads run at once, and the output rows are read once for a whole draft. The heads read the output of the
target's last layer and have a norm of their own in front, in place of the target's final norm.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from slipstream.core.array_types import Float, Tensor
from slipstream.drafters.heads.drafter import ParallelHeads
from slipstream.drafters.heads.network import HeadsConfig, HeadsNet, ResidualHead, StateInput


@dataclass(frozen=True)
class MedusaConfig(HeadsConfig):
    """The sizes of a Medusa network."""

    blocks: int = 1  # residual blocks of a head


class MedusaNet(HeadsNet):
    """Residual heads on one state."""

    def __init__(self, config: MedusaConfig) -> None:
        super().__init__()
        self.config = config
        self.input = StateInput(config.hidden, len(config.features))
        self.heads = nn.ModuleList(ResidualHead(config.hidden, config.blocks) for _ in range(config.heads))

    def states(
        self, features: Float[Tensor, "*n stacked"], embedding: Float[Tensor, "*n hidden"]
    ) -> Float[Tensor, "*n hidden"]:
        state: Tensor = self.input(features)
        return state

    def vector(self, state: Float[Tensor, "*n hidden"], head: int) -> Float[Tensor, "*n hidden"]:
        vector: Tensor = self.heads[head](state)
        return vector


class Medusa(ParallelHeads):
    """The drafter `medusa`."""

    kind = "medusa"
    config_type = MedusaConfig

    @staticmethod
    def make_net(config: MedusaConfig) -> MedusaNet:
        return MedusaNet(config)
