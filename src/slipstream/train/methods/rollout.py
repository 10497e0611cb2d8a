"""The loss and the guesses of drafters that predict several tokens from one base.

Base s is the last position that the target has read, and token s + 1 is known. Step j predicts the target's
distribution at position s + j + 1. Arrays are indexed by base, so nothing is shifted. The loss is that of
draft_loss.py, with the weight decay^j for step j.

A drafted token counts only if all tokens before it are accepted. So the share `focus` of a base's weight in step j is
multiplied with the probability that the network gives to the j answer tokens before. A network that does not see these
tokens then learns what follows the tokens that it drafts.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from itertools import islice

import torch
from torch import nn
from torch.nn import functional

from slipstream.core.array_types import Bool, Float, Int, Tensor
from slipstream.train.corpus import SampleBatch
from slipstream.train.method import Guess, Method
from slipstream.train.methods.draft_loss import draft_losses
from slipstream.train.teacher import Teacher, TeacherOutput

RESIDUAL = frozenset({"o", "down", "blocks"})  # modules that write to a residual stream


class AnswerScores:
    """Compares logits over a draft vocabulary with the tokens of the answers."""

    def __init__(self, ids: Int[Tensor, " draft_vocab"], vocab: int) -> None:
        self._slot = torch.full((vocab,), -1, device=ids.device)
        self._slot[ids] = torch.arange(len(ids), device=ids.device)

    def __call__(
        self, logits: Float[Tensor, "n draft_vocab"], token: Int[Tensor, " n"]
    ) -> tuple[Bool[Tensor, " n"], Float[Tensor, " n"]]:
        """Whether each token is the most probable one, and its log-probability; -inf if it cannot be drafted."""
        slot = self._slot[token]
        own = logits.log_softmax(-1).gather(1, slot.clamp(min=0)[:, None])[:, 0]
        return logits.argmax(-1) == slot, torch.where(slot >= 0, own, -torch.inf)


class RolloutMethod(Method):
    """A method whose network predicts `steps` tokens from every base."""

    def __init__(
        self, teacher: Teacher, ids: Int[Tensor, " draft_vocab"], steps: int, decay: float, focus: float = 0.0
    ) -> None:
        self.teacher, self.ids, self._focus = teacher, ids.to(teacher.device), focus
        self._weights = [decay**j for j in range(steps)]
        self._scores = AnswerScores(self.ids, len(teacher.output))

    @abstractmethod
    def rollout(self, batch: SampleBatch, output: TeacherOutput) -> Iterator[Float[Tensor, "rows bases hidden"]]:
        """The network's state of every step, by base."""

    @abstractmethod
    def logits(self, state: Float[Tensor, "n hidden"]) -> Float[Tensor, "n draft_vocab"]:
        """The logits of states that `rollout` yields."""

    def loss(self, batch: SampleBatch, output: TeacherOutput) -> Tensor:
        total = output.last.new_zeros((), dtype=torch.float32)
        supervised = batch.supervised
        number = supervised.flatten().cumsum(0).view(supervised.shape) - 1  # of each supervised position
        target = self.teacher.label_probs(batch, output, self.ids)
        before = torch.ones(batch.tokens[:, 1:].shape, device=total.device)  # probability of the earlier answer tokens
        for step, (weight, state) in enumerate(zip(self._weights, self.rollout(batch, output), strict=False)):
            position = predicted_positions(batch, step)
            exists = position >= 0
            row = torch.arange(len(position), device=position.device)[:, None].expand_as(position)[exists]
            logits = self.logits(state[exists]).float()
            losses = draft_losses(logits, target[number[row, position[exists]]], self.overlap)
            share = 1 - self._focus + self._focus * before[exists]
            # short answers may have no position this far
            total = total + weight * (share * losses).sum() / share.sum().clamp(min=1e-6)
            if self._focus:
                token = batch.tokens[row, position[exists] + 1]
                before[exists] *= self._scores(logits.detach(), token)[1].exp()
        return total / sum(self._weights)

    @torch.no_grad()
    def guesses(self, batch: SampleBatch, output: TeacherOutput, depth: int) -> list[Guess]:
        guesses = []
        for step, state in enumerate(islice(self.rollout(batch, output), depth)):
            position = predicted_positions(batch, step)
            exists = position >= 0
            token = batch.tokens.gather(1, position.clamp(min=0) + 1)
            right = torch.zeros_like(exists)
            log_prob = torch.full(position.shape, -torch.inf, device=position.device)
            right[exists], log_prob[exists] = self._scores(self.logits(state[exists]).float(), token[exists])
            guesses.append(Guess(right, log_prob, position))
        return guesses


def predicted_positions(batch: SampleBatch, step: int) -> Int[Tensor, "rows bases"]:
    """The position whose distribution a step predicts, by base; -1 if it is outside the answer."""
    base = torch.arange(batch.tokens.shape[1] - 1, device=batch.tokens.device)
    position = (base + step + 1).expand(len(batch.tokens), -1)
    first, last = batch.prompt_length[:, None] - 1, batch.length[:, None] - 2
    return torch.where((base >= first) & (position <= last), position, -1)


def next_embedding(teacher: Teacher, batch: SampleBatch, step: int) -> Float[Tensor, "rows bases hidden"]:
    """The embedding of the last token that a step knows, by base: token s + step + 1."""
    token = batch.tokens.roll(-step - 1, 1)[:, :-1]
    return functional.embedding(token, teacher.embedding.weight)


def unit_scales(
    output: TeacherOutput, supervised: Bool[Tensor, "rows length"], hidden: int
) -> Float[Tensor, " features"]:
    """The factors that bring the hidden states of every layer to unit size, so that no layer dominates another."""
    parts = torch.split(output.features[supervised].float(), hidden, -1)
    return torch.stack([part.square().mean().rsqrt() for part in parts])


def initialise(net: nn.Module) -> None:
    """Small random weights; matrices that write to a residual stream start near zero."""
    for name, parameter in net.named_parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.002 if RESIDUAL & set(name.split(".")) else 0.02)


def feature_layers(spec: str, count: int, default: tuple[int, ...]) -> tuple[int, ...]:
    """The layers of the target that an option names, such as 3,16,29."""
    if not spec:
        return default
    try:
        layers = tuple(int(part) for part in spec.split(","))
    except ValueError as error:
        raise ValueError(f"features is {spec!r}; write layers such as 3,16,{count - 1}") from error
    for layer in layers:
        if not 0 <= layer < count:
            raise ValueError(f"features names layer {layer}; the target has layers 0 to {count - 1}")
    return layers


def attention_sizes(teacher: Teacher) -> tuple[int, int, int]:
    """The target's attention heads, key and value heads, and the width of a head."""
    shape = teacher.model.config.get_text_config()
    heads = shape.num_attention_heads
    kv_heads = getattr(shape, "num_key_value_heads", None) or heads
    return heads, kv_heads, getattr(shape, "head_dim", None) or shape.hidden_size // heads
