"""Medusa: heads on the target's last hidden state, each for one of the next tokens (arXiv 2401.10774).

The law of a token does not depend on the tokens drafted before it, so the law of a draft is the product of the heads'
laws. All heads run at once, and the output rows are read once for a whole draft. The heads read the output of the
target's last layer, or of several layers, with norms of their own in place of the target's final norm.

With `recurrent` the heads see the last token of the text and the tokens drafted before them, as those of Hydra do
(arXiv 2402.05109). They then run one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.core.array_types import Float, Tensor
from slipstream.drafters.heads.drafter import HeadsDrafter
from slipstream.drafters.heads.network import HeadsConfig, ResidualHeads, StateInput


@dataclass(frozen=True)
class MedusaConfig(HeadsConfig):
    """The sizes of a Medusa network."""

    blocks: int = 1  # residual blocks of a head
    recurrent: int = 0  # width of the part by which heads see tokens; 0: they see none


class MedusaNet(ResidualHeads):
    """Residual heads on the target's state at the last position."""

    def __init__(self, config: MedusaConfig) -> None:
        super().__init__(config, config.blocks, config.recurrent)
        self.input = StateInput(config.hidden, len(config.features))

    def states(
        self, features: Float[Tensor, "*n stacked"], embedding: Float[Tensor, "*n hidden"]
    ) -> Float[Tensor, "*n hidden"]:
        return self.step(self.input(features), embedding, 0)


class Medusa(HeadsDrafter):
    """The drafter `medusa`."""

    kind = "medusa"
    config_type = MedusaConfig

    @staticmethod
    def make_net(config: MedusaConfig) -> MedusaNet:
        return MedusaNet(config)
