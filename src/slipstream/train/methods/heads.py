"""Trains the heads of `medusa`, `mlp` and `prophet` on the target's hidden states and answers.

The MLP speculator was introduced with two phases of training, on text and then on the target's answers. Here it is
trained on the answers only, which the second phase approaches.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch.nn import functional

from slipstream.core.array_types import Bool, Float, Int, Tensor
from slipstream.drafters.files.net_folder import save_net
from slipstream.drafters.heads.medusa import MedusaConfig, MedusaNet
from slipstream.drafters.heads.mlp import MlpConfig, MlpNet
from slipstream.drafters.heads.network import HeadsNet, ResidualHeads
from slipstream.drafters.heads.prophet import ProphetConfig, ProphetNet, prophet_net
from slipstream.train.corpus import SampleBatch
from slipstream.train.methods.rollout import (
    RolloutMethod,
    attention_sizes,
    feature_layers,
    initialise,
    next_embedding,
    unit_scales,
)
from slipstream.train.options import MedusaTrainOptions, MlpTrainOptions, ProphetTrainOptions
from slipstream.train.teacher import Teacher, TeacherOutput


class HeadsMethod(RolloutMethod):
    """Training of several heads on the target's last hidden state."""

    drafts_in_prefill: ClassVar[bool] = False
    net: HeadsNet

    def __init__(self, teacher: Teacher, ids: Int[Tensor, " draft_vocab"], options: Any) -> None:
        super().__init__(teacher, ids, options.heads, options.decay, options.focus)
        self.layers = feature_layers(options.features, teacher.layers, (teacher.layers - 1,))
        sizes = {
            "hidden": teacher.output.shape[1],
            "features": self.layers,
            "heads": options.heads,
            "draft_vocab": len(ids),
        }
        self.net = self.make_net(sizes, options).to(teacher.device)
        initialise(self.net)
        if isinstance(self.net, ResidualHeads) and self.net.recurrent is not None:
            torch.nn.init.zeros_(self.net.recurrent.down.weight)  # it changes nothing at first
        self.follow_target()

    def follow_target(self) -> None:
        self._output = self.teacher.output[self.ids].float()

    @abstractmethod
    def make_net(self, sizes: dict[str, Any], options: Any) -> HeadsNet:
        """The network. `sizes`: those that every network has."""

    def rollout(self, batch: SampleBatch, output: TeacherOutput) -> Iterator[Float[Tensor, "rows bases hidden"]]:
        features = output.features[:, :-1].float()
        state = self.net.states(features, next_embedding(self.teacher, batch, 0).float())
        for head in range(self.net.config.heads):
            if head:
                state = self.net.step(state, next_embedding(self.teacher, batch, head).float(), head)
            yield self.net.vector(state, head)

    def logits(self, state: Float[Tensor, "n hidden"]) -> Float[Tensor, "n draft_vocab"]:
        return functional.linear(state, self._output)

    def save(self, folder: Path, about: dict[str, Any], precision: str) -> None:
        save_net(folder, self.name, self.net, self.net.config, self.ids.cpu(), precision, about)

    @property
    def shape(self) -> dict[str, Any]:
        return self.net.config.as_dict()

    @property
    def weights_read(self) -> int:
        """A draft of all heads reads every weight once, but those of steps once for each head. Parallel heads read the
        output rows once, the others once for each head."""
        net, output = self.net, self._output.numel()
        once = sum(p.numel() for p in net.parameters()) - net.step_weights
        if net.parallel:
            return (once + output) // net.config.heads
        return once // net.config.heads + net.step_weights + output


class MedusaMethod(HeadsMethod):
    """Training of Medusa heads."""

    name: ClassVar[str] = "medusa"
    options: ClassVar[type] = MedusaTrainOptions
    can_add: ClassVar[tuple[str, ...]] = ("recurrent",)

    def make_net(self, sizes: dict[str, Any], options: MedusaTrainOptions) -> MedusaNet:
        return MedusaNet(MedusaConfig(**sizes, blocks=options.blocks, recurrent=options.recurrent))


class MlpMethod(HeadsMethod):
    """Training of an MLP speculator."""

    name: ClassVar[str] = "mlp"
    options: ClassVar[type] = MlpTrainOptions

    def make_net(self, sizes: dict[str, Any], options: MlpTrainOptions) -> MlpNet:
        return MlpNet(MlpConfig(**sizes, inner=options.inner))


class ProphetMethod(HeadsMethod):
    """Training of a prophet head."""

    name: ClassVar[str] = "prophet"
    options: ClassVar[type] = ProphetTrainOptions
    can_add: ClassVar[tuple[str, ...]] = ("recurrent",)

    def make_net(self, sizes: dict[str, Any], options: ProphetTrainOptions) -> HeadsNet:
        attention_heads, kv_heads, head_dim = attention_sizes(self.teacher)
        config = ProphetConfig(
            **sizes,
            projection=options.projection,
            window=options.window,
            attention_heads=attention_heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            intermediate=options.intermediate,
            recurrent=options.recurrent,
        )
        return prophet_net(config)

    @torch.no_grad()
    def prepare(self, output: TeacherOutput, supervised: Bool[Tensor, "rows length"]) -> None:
        if isinstance(self.net, ProphetNet):
            self.net.layer.scale.copy_(unit_scales(output, supervised, self.net.config.hidden))
