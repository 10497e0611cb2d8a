"""Trains the eagle head by rolling it out on its own states (arXiv 2408.15766; training-time test, 2503.01840).

Step 0 reads the target's hidden state at the base. Step j reads the state of step j - 1 and the next token of the
answer. It attends to the true positions up to the base and to its own j earlier steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch.nn import functional

from slipstream.core.array_types import Bool, Float, Int, Tensor
from slipstream.drafters.eagle.folder import save_head
from slipstream.drafters.eagle.network import EagleConfig, EagleNet
from slipstream.train.corpus import SampleBatch
from slipstream.train.methods.rollout import (
    RolloutMethod,
    attention_sizes,
    feature_layers,
    initialise,
    next_embedding,
    unit_scales,
)
from slipstream.train.options import EagleTrainOptions
from slipstream.train.teacher import Teacher, TeacherOutput


class EagleMethod(RolloutMethod):
    """Training of an EAGLE head."""

    name: ClassVar[str] = "eagle"
    options: ClassVar[type] = EagleTrainOptions
    drafts_in_prefill: ClassVar[bool] = False
    net: EagleNet

    def __init__(self, teacher: Teacher, ids: Int[Tensor, " draft_vocab"], options: EagleTrainOptions) -> None:
        super().__init__(teacher, ids, options.unroll, options.decay)
        layers = teacher.layers
        default = tuple(sorted({min(3, layers - 1), layers // 2 + 1 if layers > 2 else 0, layers - 1}))
        self.layers = feature_layers(options.features, layers, default)
        shape = teacher.model.config.get_text_config()
        heads, kv_heads, head_dim = attention_sizes(teacher)
        config = EagleConfig(
            hidden=shape.hidden_size,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            intermediate=options.intermediate or getattr(shape, "intermediate_size", 4 * shape.hidden_size),
            features=self.layers,
            draft_vocab=len(ids),
        )
        self.net = EagleNet(config, teacher.output[self.ids].float()).to(teacher.device)
        initialise(self.net)

    @torch.no_grad()
    def prepare(self, output: TeacherOutput, supervised: Bool[Tensor, "rows length"]) -> None:
        self.net.scale.copy_(unit_scales(output, supervised, self.net.config.hidden))

    def follow_target(self) -> None:
        self.net.output = self.teacher.output[self.ids].float()

    def rollout(self, batch: SampleBatch, output: TeacherOutput) -> Iterator[Float[Tensor, "rows bases hidden"]]:
        net = self.net
        base = torch.arange(batch.tokens.shape[1] - 1, device=batch.tokens.device).expand(len(batch.tokens), -1)
        state = net.fuse(output.features[:, :-1].to(net.scale.dtype))
        past: list[tuple[Tensor, Tensor]] = []
        for step in count():
            embedding = next_embedding(self.teacher, batch, step).to(state.dtype)
            query, key, value = net.project(embedding, state, base + step)
            past.append((key, value))
            state = net.finish(state, attend(query, past).flatten(-2))
            yield state

    def logits(self, state: Float[Tensor, "n hidden"]) -> Float[Tensor, "n draft_vocab"]:
        return self.net.logits(state)

    def save(self, folder: Path, about: dict[str, Any], precision: str) -> None:
        save_head(folder, self.net, self.ids.cpu(), precision, about)

    @property
    def shape(self) -> dict[str, Any]:
        return self.net.config.as_dict()

    @property
    def weights_read(self) -> int:
        return sum(p.numel() for p in self.net.parameters()) + self.net.output.numel()


def attend(
    query: Float[Tensor, "rows bases heads dim"], past: list[tuple[Tensor, Tensor]]
) -> Float[Tensor, "rows bases heads dim"]:
    """Attention over the true positions up to each base, and over the base's own later steps."""
    (key, value), own = past[0], past[1:]
    group = query.shape[2] // key.shape[2]
    q = query.transpose(1, 2)
    k, v = (x.transpose(1, 2).repeat_interleave(group, 1) for x in (key, value))
    if not own:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
    size, factor = q.shape[2], q.shape[-1] ** -0.5
    hidden = torch.ones(size, size, dtype=torch.bool, device=q.device).triu(1)
    scores = [(q @ k.transpose(-1, -2) * factor).float().masked_fill(hidden, -torch.inf)]
    later = [[x.transpose(1, 2).repeat_interleave(group, 1) for x in pair] for pair in own]
    scores += [((q * later_key).sum(-1, keepdim=True) * factor).float() for later_key, _ in later]
    weights = torch.cat(scores, -1).softmax(-1).to(q.dtype)
    out = weights[..., :size] @ v
    for n, (_, later_value) in enumerate(later):
        out = out + weights[..., size + n, None] * later_value
    return out.transpose(1, 2)
