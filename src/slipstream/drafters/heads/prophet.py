"""The prophet head: one transformer layer over the target's last hidden states that predicts several tokens at once.

The idea is ProphetNet's (arXiv 2001.04063), as a draft head. A slot reads the target's state of a position and the
embedding of the token after it. The last slot attends to a window of slots before it. Each head is a residual block on
the layer's output there. As with Medusa, the law of a draft is the product of the heads' laws. With `recurrent`, heads
also see the tokens drafted before them.

With the projection `linear` there is no layer: each head is a matrix on the target's last hidden state. This is the
plain baseline.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from slipstream.core.array_types import Bool, Float, Int, Tensor
from slipstream.drafters.eagle.network import EagleConfig, EagleNet
from slipstream.drafters.heads.drafter import HeadsDrafter
from slipstream.drafters.heads.network import HeadsConfig, HeadsNet, ResidualHeads, StateInput

PROJECTIONS = ("transformer", "linear")


@dataclass(frozen=True)
class ProphetConfig(HeadsConfig):
    """The sizes of a prophet head. With the projection `linear` the other sizes are not used."""

    projection: str = "transformer"
    window: int = 16  # positions that the layer attends to
    attention_heads: int = 1
    kv_heads: int = 1
    head_dim: int = 64
    intermediate: int = 512
    recurrent: int = 0  # width of the part by which heads see drafted tokens; 0: they see none

    def __post_init__(self) -> None:
        if self.projection not in PROJECTIONS:
            raise ValueError(f"projection is {self.projection!r}; it must be one of {', '.join(PROJECTIONS)}")
        if self.projection == "linear" and self.recurrent:
            raise ValueError("heads of the projection linear see no drafted tokens; leave recurrent out")


class ProphetNet(ResidualHeads):
    """A layer with a sliding window, and residual heads on its output."""

    def __init__(self, config: ProphetConfig) -> None:
        super().__init__(config, 1, config.recurrent)
        self.window, c = config.window, config
        self.layer = EagleNet(
            EagleConfig(c.hidden, c.attention_heads, c.kv_heads, c.head_dim, c.intermediate, c.features, draft_vocab=0)
        )

    def states(
        self, features: Float[Tensor, "rows n stacked"], embedding: Float[Tensor, "rows n hidden"]
    ) -> Float[Tensor, "rows n hidden"]:
        place = torch.arange(features.shape[1], device=features.device)
        distance = place[:, None] - place
        return self._run(features, embedding, ((distance >= 0) & (distance < self.window))[None], 0)

    def end_states(
        self,
        features: Float[Tensor, "rows window stacked"],
        embedding: Float[Tensor, "rows window hidden"],
        length: Int[Tensor, " rows"],
    ) -> Float[Tensor, "rows hidden"]:
        size = features.shape[1]
        seen = torch.arange(size, device=features.device) >= size - length[:, None]
        return self._run(features, embedding, seen[:, None], size - 1)[:, 0]

    def _run(
        self,
        features: Float[Tensor, "rows n stacked"],
        embedding: Float[Tensor, "rows n hidden"],
        seen: Bool[Tensor, "masks queries n"],
        start: int,
    ) -> Float[Tensor, "rows queries hidden"]:
        """The layer's outputs at the slots from `start` on, normalised. `seen`: the slots that each attends to."""
        layer, state = self.layer, self.layer.fuse(features)
        place = torch.arange(features.shape[1], device=features.device).expand(features.shape[:2])
        query, key, value = layer.project(embedding.to(state.dtype), state, place)
        group = query.shape[2] // key.shape[2]
        keys, values = (x.transpose(1, 2).repeat_interleave(group, 1) for x in (key, value))
        attended = functional.scaled_dot_product_attention(
            query[:, start:].transpose(1, 2), keys, values, attn_mask=seen[:, None]
        )
        out: Tensor = layer.norm(layer.finish(state[:, start:], attended.transpose(1, 2).flatten(2)))
        return out


class LinearProphetNet(HeadsNet):
    """One matrix for each head, on the target's last hidden state."""

    def __init__(self, config: ProphetConfig) -> None:
        super().__init__()
        self.config = config
        self.input = StateInput(config.hidden, len(config.features))
        self.heads = nn.ModuleList(nn.Linear(config.hidden, config.hidden, bias=False) for _ in range(config.heads))

    def states(
        self, features: Float[Tensor, "*n stacked"], embedding: Float[Tensor, "*n hidden"]
    ) -> Float[Tensor, "*n hidden"]:
        state: Tensor = self.input(features)
        return state

    def vector(self, state: Float[Tensor, "*n hidden"], head: int) -> Float[Tensor, "*n hidden"]:
        vector: Tensor = self.heads[head](state)
        return vector


def prophet_net(config: ProphetConfig) -> HeadsNet:
    """The network of a config."""
    return LinearProphetNet(config) if config.projection == "linear" else ProphetNet(config)


class Prophet(HeadsDrafter):
    """The drafter `prophet`."""

    kind = "prophet"
    config_type = ProphetConfig

    @staticmethod
    def make_net(config: ProphetConfig) -> HeadsNet:
        return prophet_net(config)
