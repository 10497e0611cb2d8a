"""Trains an exit head: a transformer block on the target's state after its first N layers predicts the next token.

The block starts as the target's layer after the first N, and the norm as its final norm, where the target has such
parts. The states that the block reads are then those that it is used to.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import torch
from torch.nn import functional

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.drafters.exit_head.head import KIND
from slipstream.drafters.exit_head.network import ExitConfig, ExitNet
from slipstream.drafters.files.net_folder import save_net
from slipstream.models.run.layer_parts import NORMS, PRODUCTS
from slipstream.train.corpus import SampleBatch
from slipstream.train.methods.positions import PositionMethod
from slipstream.train.methods.rollout import attention_sizes, initialise
from slipstream.train.options import EarlyExitTrainOptions
from slipstream.train.teacher import Teacher, TeacherOutput


class EarlyExitMethod(PositionMethod):
    """Training of an exit head."""

    name: ClassVar[str] = KIND
    options: ClassVar[type] = EarlyExitTrainOptions
    drafts_in_prefill: ClassVar[bool] = False
    net: ExitNet

    def __init__(self, teacher: Teacher, ids: Int[Tensor, " draft_vocab"], options: EarlyExitTrainOptions) -> None:
        super().__init__(teacher, ids)
        layer = options.layer or max(1, teacher.layers // 3)
        if layer >= teacher.layers:
            raise ValueError(
                f"layer is {layer}; the target has {teacher.layers} layers, so it must be 1 to {teacher.layers - 1}"
            )
        self.layers = (layer - 1,)
        self.net = ExitNet(_config(teacher, options, layer, len(ids))).to(teacher.device)
        initialise(self.net)
        copy_next_layer(self.net, teacher)
        self.follow_target()

    def follow_target(self) -> None:
        self._output = self.teacher.output[self.ids].float()

    def logits(self, batch: SampleBatch, output: TeacherOutput) -> Float[Tensor, "supervised draft_vocab"]:
        states: Tensor = self.net(output.features.float())
        return functional.linear(states[batch.supervised], self._output)

    def save(self, folder: Path, about: dict[str, Any], precision: str) -> None:
        save_net(folder, KIND, self.net, self.net.config, self.ids.cpu(), precision, about)

    @property
    def shape(self) -> dict[str, Any]:
        return self.net.config.as_dict()

    @property
    def weights_read(self) -> int:
        """The first layers count: a drafted token runs through them. Accepted tokens do not run through them again."""
        first = self.teacher.anatomy.layers[: self.net.config.layer]
        below = sum(p.numel() for layer in first for p in layer.parameters())
        return below + sum(p.numel() for p in self.net.parameters()) + self._output.numel()


@torch.no_grad()
def copy_next_layer(net: ExitNet, teacher: Teacher) -> bool:
    """Start from the target's next layer and final norm. Returns False, and changes nothing, if their parts differ."""
    layer: Any = teacher.anatomy.layers[net.config.layer]
    block = net.block
    try:
        part: dict[str, Tensor] = {name: layer.get_submodule(path).weight for name, path in PRODUCTS.items()}
        norms = [getattr(layer, name).weight for name in NORMS.values()] + [teacher.model.base_model.norm.weight]
    except AttributeError:
        return False
    pairs = [
        (block.query.weight, part["query"]),
        (block.key_value.weight, torch.cat([part["key"], part["value"]])),
        (block.o.weight, part["output"]),
        (block.gate_up.weight, torch.cat([part["gate"], part["up"]])),
        (block.down.weight, part["down"]),
        *zip((block.norm_attention.weight, block.norm_mlp.weight, net.norm.weight), norms, strict=True),
    ]
    if any(own.shape != given.shape for own, given in pairs):
        return False
    for own, given in pairs:
        own.copy_(given)
    return True


def _config(teacher: Teacher, options: EarlyExitTrainOptions, layer: int, draft_vocab: int) -> ExitConfig:
    shape = teacher.model.config.get_text_config()
    rope = getattr(shape, "rope_parameters", None) or {}
    heads, kv_heads, head_dim = attention_sizes(teacher)
    return ExitConfig(
        hidden=shape.hidden_size,
        layer=layer,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=options.intermediate or shape.intermediate_size,
        draft_vocab=draft_vocab,
        window=options.window,
        rope_theta=float(rope.get("rope_theta") or getattr(shape, "rope_theta", None) or 10000.0),
        eps=float(getattr(shape, "rms_norm_eps", 1e-5)),
    )
