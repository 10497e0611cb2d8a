"""Trains the eagle head by rolling it out on its own states (arXiv 2408.15766; training-time test, 2503.01840).

Base s is the last position that the target has read. Step 0 reads the target's hidden state there. Step j reads the
state of step j - 1 and the next token of the answer, and predicts the target's distribution at position s + j + 1.
Arrays are indexed by base, so the roll-out shifts nothing: step j at base s attends to the true positions up to s and
to its own j earlier steps. The loss is the cross-entropy to the target's distribution on the draft vocabulary, with the
weight decay^j for step j.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch.nn import functional

from slipstream.core.array_types import Bool, Float, Int, Tensor
from slipstream.drafters.eagle.folder import save_head
from slipstream.drafters.eagle.network import EagleConfig, EagleNet
from slipstream.train.corpus import SampleBatch
from slipstream.train.method import Guess, Method
from slipstream.train.options import EagleTrainOptions
from slipstream.train.teacher import Teacher, TeacherOutput


class EagleMethod(Method):
    """Training of an EAGLE head."""

    name: ClassVar[str] = "eagle"
    options: ClassVar[type] = EagleTrainOptions
    drafts_in_prefill: ClassVar[bool] = False
    net: EagleNet

    def __init__(self, teacher: Teacher, ids: Int[Tensor, " draft_vocab"], options: EagleTrainOptions) -> None:
        self.teacher, self.ids, self.settings = teacher, ids.to(teacher.device), options
        self.layers = _layers(options.features, teacher.layers)
        shape = teacher.model.config.get_text_config()
        heads = shape.num_attention_heads
        config = EagleConfig(
            hidden=shape.hidden_size,
            heads=heads,
            kv_heads=getattr(shape, "num_key_value_heads", None) or heads,
            head_dim=getattr(shape, "head_dim", None) or shape.hidden_size // heads,
            intermediate=options.intermediate or getattr(shape, "intermediate_size", 4 * shape.hidden_size),
            features=self.layers,
            draft_vocab=len(ids),
        )
        self.net = EagleNet(config, teacher.output[self.ids].float()).to(teacher.device)
        _initialise(self.net)
        self._slot = torch.full((teacher.output.shape[0],), -1, device=teacher.device)
        self._slot[self.ids] = torch.arange(len(ids), device=teacher.device)

    @torch.no_grad()
    def prepare(self, output: TeacherOutput, supervised: Bool[Tensor, "rows length"]) -> None:
        """Scale the hidden states of every layer to unit size, so that no layer dominates another."""
        parts = torch.split(output.features[supervised].float(), self.net.config.hidden, -1)
        self.net.scale.copy_(torch.stack([part.square().mean().rsqrt() for part in parts]))

    def rollout(self, batch: SampleBatch, output: TeacherOutput, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
        """For each step: the head's states by base, and the position whose distribution they predict (-1: none)."""
        net, length = self.net, batch.tokens.shape[1]
        base = torch.arange(length - 1, device=batch.tokens.device)
        first, last = batch.prompt_length[:, None] - 1, batch.length[:, None] - 2
        state = net.fuse(output.features[:, :-1].to(net.scale.dtype))
        past: list[tuple[Tensor, Tensor]] = []
        for step in range(steps):
            token = batch.tokens.roll(-step - 1, 1)[:, :-1]
            embedding = functional.embedding(token, self.teacher.embedding.weight).to(state.dtype)
            query, key, value = net.project(embedding, state, (base + step).expand_as(token))
            past.append((key, value))
            state = net.finish(state, attend(query, past).flatten(-2))
            position = (base + step + 1).expand_as(token)
            yield state, torch.where((base >= first) & (position <= last), position, -1)

    def loss(self, batch: SampleBatch, output: TeacherOutput) -> Tensor:
        total = output.last.new_zeros((), dtype=torch.float32)
        supervised = batch.supervised
        number = supervised.flatten().cumsum(0).view(supervised.shape) - 1  # of each supervised position
        target = self.teacher.log_probs(output.last[supervised], self.ids).exp_()
        weights = [self.settings.decay**j for j in range(self.settings.unroll)]
        for weight, (state, position) in zip(weights, self.rollout(batch, output, len(weights)), strict=True):
            exists = position >= 0
            row = torch.arange(len(position), device=position.device)[:, None].expand_as(position)[exists]
            target_probs = target[number[row, position[exists]]]
            logits = self.net.logits(state[exists]).float()
            loss = functional.cross_entropy(logits, target_probs, reduction="sum")
            total = total + weight * loss / max(1, len(target_probs))  # short answers may have no position this far
        return total / sum(weights)

    @torch.no_grad()
    def guesses(self, batch: SampleBatch, output: TeacherOutput, depth: int) -> list[Guess]:
        guesses = []
        for state, position in self.rollout(batch, output, depth):
            exists = position >= 0
            token = batch.tokens.gather(1, position.clamp(min=0) + 1)
            right = torch.zeros_like(exists)
            log_prob = torch.full(position.shape, -torch.inf, device=position.device)
            logits = self.net.logits(state[exists]).float()
            slot = self._slot[token[exists]]
            right[exists] = logits.argmax(-1) == slot
            own = logits.log_softmax(-1).gather(1, slot.clamp(min=0)[:, None])[:, 0]
            log_prob[exists] = torch.where(slot >= 0, own, -torch.inf)
            guesses.append(Guess(right, log_prob, position))
        return guesses

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


def _initialise(net: EagleNet) -> None:
    """Small random weights; matrices that write to the residual stream start near zero."""
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
