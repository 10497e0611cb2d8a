"""Training the eagle head by rolling it out on its own states (arXiv 2408.15766; training-time test, 2503.01840).

Base s is the last position the target has read. Step 0 reads the target's state there; step j reads what step j - 1
gave, and the token that really came, and is held against the target's law at position s + j + 1. Arrays are indexed by
base, so a roll-out needs no shifting of its own: step j at base s attends over the true slots up to s and over its own
j earlier steps. The loss is the cross-entropy of the target's law on the draft vocabulary, step j weighted decay^j.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch.nn import functional

from slipstream.core.array_types import Bool, Float, Int, Tensor
from slipstream.drafters.eagle.folder import save_head
from slipstream.drafters.eagle.network import EagleConfig, EagleNet
from slipstream.train.corpus import Batch
from slipstream.train.method import Guess, Method
from slipstream.train.teacher import Lesson, Teacher


@dataclass(frozen=True)
class EagleTraining:
    features: str = ""  # three layers of the target, such as 3,16,29; low, middle and last if not given
    intermediate: int = 0  # width of the feed-forward part; the target's if not given
    unroll: int = 5  # steps of the roll-out
    decay: float = 0.8

    def __post_init__(self) -> None:
        if self.unroll < 1:
            raise ValueError(f"unroll is {self.unroll}; it must be 1 or more")
        if not 0 < self.decay <= 1:
            raise ValueError(f"decay is {self.decay}; it must be above 0 and at most 1")


class Eagle(Method):
    name: ClassVar[str] = "eagle"
    early: ClassVar[bool] = False
    config: ClassVar[type] = EagleTraining
    net: EagleNet

    def __init__(self, teacher: Teacher, ids: Int[Tensor, " draft_vocab"], config: EagleTraining) -> None:
        self.teacher, self.ids, self.training = teacher, ids.to(teacher.device), config
        self.layers = _layers(config.features, teacher.layers)
        shape = teacher.model.config.get_text_config()
        heads = shape.num_attention_heads
        own = EagleConfig(
            hidden=shape.hidden_size,
            heads=heads,
            kv_heads=getattr(shape, "num_key_value_heads", None) or heads,
            head_dim=getattr(shape, "head_dim", None) or shape.hidden_size // heads,
            intermediate=config.intermediate or getattr(shape, "intermediate_size", 4 * shape.hidden_size),
            features=self.layers,
            draft_vocab=len(ids),
        )
        self.net = EagleNet(own, teacher.output[self.ids].float()).to(teacher.device)
        _begin(self.net)
        self._slot = torch.full((teacher.output.shape[0],), -1, device=teacher.device)
        self._slot[self.ids] = torch.arange(len(ids), device=teacher.device)

    @torch.no_grad()
    def prepare(self, lesson: Lesson, supervised: Bool[Tensor, "rows length"]) -> None:
        """Learn how large the target's states are, once, so that no layer drowns another."""
        parts = torch.split(lesson.features[supervised].float(), self.net.config.hidden, -1)
        self.net.scale.copy_(torch.stack([part.square().mean().rsqrt() for part in parts]))

    def rollout(self, batch: Batch, lesson: Lesson, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
        """For each step: the head's states by base, and the position whose law they foresee (-1: none)."""
        net, length = self.net, batch.tokens.shape[1]
        base = torch.arange(length - 1, device=batch.tokens.device)
        first, last = batch.prompt[:, None] - 1, batch.whole[:, None] - 2
        state = net.fuse(lesson.features[:, :-1].to(net.scale.dtype))
        past: list[tuple[Tensor, Tensor]] = []
        for step in range(steps):
            token = batch.tokens.roll(-step - 1, 1)[:, :-1]
            embedding = functional.embedding(token, self.teacher.embedding.weight).to(state.dtype)
            query, key, value = net.project(embedding, state, (base + step).expand_as(token))
            past.append((key, value))
            state = net.finish(state, attend(query, past).flatten(-2))
            place = (base + step + 1).expand_as(token)
            yield state, torch.where((base >= first) & (place <= last), place, -1)

    def loss(self, batch: Batch, lesson: Lesson) -> Tensor:
        total = lesson.last.new_zeros((), dtype=torch.float32)
        supervised = batch.supervised
        number = supervised.flatten().cumsum(0).view(supervised.shape) - 1  # of each supervised position
        target = self.teacher.law(lesson.last[supervised], self.ids).exp_()
        weights = [self.training.decay**j for j in range(self.training.unroll)]
        for weight, (state, place) in zip(weights, self.rollout(batch, lesson, len(weights)), strict=True):
            wanted = place >= 0
            row = torch.arange(len(place), device=place.device)[:, None].expand_as(place)[wanted]
            law = target[number[row, place[wanted]]]
            logits = self.net.logits(state[wanted]).float()
            missed = functional.cross_entropy(logits, law, reduction="sum")
            total = total + weight * missed / max(1, len(law))  # a batch of short answers may have none this far
        return total / sum(weights)

    @torch.no_grad()
    def guesses(self, batch: Batch, lesson: Lesson, depth: int) -> list[Guess]:
        found = []
        for state, place in self.rollout(batch, lesson, depth):
            wanted = place >= 0
            token = batch.tokens.gather(1, place.clamp(min=0) + 1)
            right = torch.zeros_like(wanted)
            said = torch.full(place.shape, -torch.inf, device=place.device)
            logits = self.net.logits(state[wanted]).float()
            slot = self._slot[token[wanted]]
            right[wanted] = logits.argmax(-1) == slot
            own = logits.log_softmax(-1).gather(1, slot.clamp(min=0)[:, None])[:, 0]
            said[wanted] = torch.where(slot >= 0, own, -torch.inf)
            found.append(Guess(right, said, place))
        return found

    def save(self, folder: Path, about: dict[str, Any], precision: str) -> None:
        save_head(folder, self.net, self.ids.cpu(), precision, about)

    @property
    def shape(self) -> dict[str, Any]:
        return self.net.config.as_dict()

    @property
    def read(self) -> int:
        return sum(p.numel() for p in self.net.parameters()) + self.net.output.numel()


def attend(
    query: Float[Tensor, "rows bases heads dim"], past: list[tuple[Tensor, Tensor]]
) -> Float[Tensor, "rows bases heads dim"]:
    """Over the true slots up to each base, and over the base's own later steps."""
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


def _begin(net: EagleNet) -> None:
    """Small random weights; what is added to the residual starts near zero."""
    for name, parameter in net.named_parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.002 if name.startswith(("o.", "down.")) else 0.02)


def _layers(spec: str, count: int) -> tuple[int, ...]:
    if not spec:
        return tuple(sorted({min(3, count - 1), count // 2 + 1 if count > 2 else 0, count - 1}))
    try:
        layers = tuple(int(part) for part in spec.split(","))
    except ValueError as error:
        raise ValueError(f"features is {spec!r}; write layers such as 3,16,{count - 1}") from error
    for layer in layers:
        if not 0 <= layer < count:
            raise ValueError(f"features names layer {layer}; the target has layers 0 to {count - 1}")
    return layers
