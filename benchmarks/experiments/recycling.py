"""Experiment 3: recycling. Does acceptance improve if cached last states are added to the input of the early exit?

A model and its exit head are trained together from scratch. Variants:

- `plain`: the head reads the states after the first layers.
- `recycled`: the first layers run a second time for the head. The input of a position is its embedding plus a matrix
  times the last hidden state of the position before, up to a random place of the text. Half of the texts are recycled.
  Behind that place there are embeddings alone, as in a draft: the last states of drafted tokens are not known.

A draft reads the same weights in both variants, but for the matrix. The target itself never recycles. So the score
pass of `recycled` cannot resume from the draft's layers: it runs the first layers again for the drafted tokens, in the
same pass over the weights. `tau_..._off` are of the recycled model that drafts without.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from settings import Sizes
from small_model import Figures, TrainingRun, answers, new_model, parameters
from text_data import TextData
from torch import nn
from torch.nn import functional

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.train.corpus import SampleBatch
from slipstream.train.method import Guess
from slipstream.train.methods.early_exit import EarlyExitMethod
from slipstream.train.methods.rollout import AnswerScores
from slipstream.train.options import EarlyExitTrainOptions
from slipstream.train.teacher import Teacher, TeacherOutput

VARIANTS = ("plain", "recycled")


class RecycledExit(EarlyExitMethod):
    """An exit head on first layers that read recycled states up to a place of each row."""

    recycle = True  # whether drafts recycle

    def __init__(self, teacher: Teacher, ids: Int[Tensor, " draft_vocab"], options: EarlyExitTrainOptions) -> None:
        super().__init__(teacher, ids, options)
        self.net.recycled = nn.Linear(teacher.output.shape[1], teacher.output.shape[1], bias=False)
        nn.init.zeros_(self.net.recycled.weight)
        self.net.to(teacher.device)
        self._first_layers = first_layers(teacher.model.base_model, self.net.config.layer)
        self._answer_scores = AnswerScores(self.ids, len(teacher.output))

    def logits(self, batch: SampleBatch, output: TeacherOutput) -> Float[Tensor, "supervised draft_vocab"]:
        if not self.recycle:
            return super().logits(batch, output)
        states: Tensor = self.net(self._states(batch, output, random_places(batch)))
        return functional.linear(states[batch.supervised], self._output)

    def _states(self, batch: SampleBatch, output: TeacherOutput, last: Int[Tensor, " rows"]) -> Tensor:
        """The states after the first layers, recycled at positions 1 to `last` of each row."""
        position = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
        before = functional.pad(output.last[:, :-1].detach(), (0, 0, 1, 0))
        chosen = (position >= 1) & (position <= last[:, None])
        embedding = functional.embedding(batch.tokens, self.teacher.embedding.weight)
        states: Tensor = self._first_layers(
            inputs_embeds=embedding + chosen[..., None] * self.net.recycled(before), use_cache=False
        )[0]
        return states.float()

    @torch.no_grad()
    def guesses(self, batch: SampleBatch, output: TeacherOutput, depth: int) -> list[Guess]:
        """A draft from base s recycles at the positions up to s + 1, so every base has a pass of its own."""
        if not self.recycle:
            return super().guesses(batch, output, depth)
        rows, bases = batch.tokens[:, :-1].shape
        device = batch.tokens.device
        right = torch.zeros(depth, rows, bases, dtype=torch.bool, device=device)
        log_prob = torch.full(right.shape, -torch.inf, device=device)
        positions = torch.full(right.shape, -1, device=device)
        row = torch.arange(rows, device=device)[:, None]
        for offset in range(int((batch.length - batch.prompt_length).max()) - 1):
            base = batch.prompt_length - 1 + offset
            states = self.net(self._states(batch, output, base + 1))
            position = base[:, None] + 1 + torch.arange(depth, device=device)
            exists = position <= batch.length[:, None] - 2
            place, owner = position[exists], row.expand_as(position)[exists]
            step, own = torch.arange(depth, device=device).expand_as(position)[exists], base[owner]
            logits = functional.linear(states[owner, place], self._output).float()
            scores = self._answer_scores(logits, batch.tokens[owner, place + 1])
            right[step, owner, own], log_prob[step, owner, own] = scores
            positions[step, owner, own] = place
        return [Guess(*parts) for parts in zip(right, log_prob, positions, strict=True)]


def first_layers(base: Any, count: int) -> nn.Module:
    """A decoder of the first layers, which are shared with `base`, without a final norm."""
    small = copy.copy(base)
    small._modules = dict(base._modules)
    small.layers, small.norm = nn.ModuleList(base.layers[:count]), nn.Identity()
    return small


def random_places(batch: SampleBatch) -> Int[Tensor, " rows"]:
    """The last recycled position of each row; 0 for half of the rows. It depends on the batch alone."""
    generator = torch.Generator(batch.tokens.device).manual_seed(int(batch.tokens.sum()))
    draw = torch.rand(2, len(batch.tokens), generator=generator, device=batch.tokens.device)
    return torch.where(draw[0] < 0.5, (draw[1] * batch.length).long(), 0)


def run(variant: str, seed: int, data: TextData, sizes: Sizes, out: Path, device: str) -> Figures:
    model = new_model(sizes, seed, device)
    teacher = Teacher(model, joint=True)
    torch.manual_seed(seed)
    options = EarlyExitTrainOptions(layer=sizes.exit_layer, intermediate=sizes.exit_intermediate, window=sizes.window)
    kind = RecycledExit if variant == "recycled" else EarlyExitMethod
    method = kind(teacher, torch.arange(sizes.vocab), options)
    training = TrainingRun(method, teacher, data, sizes, seed, out / "work" / f"recycling-{variant}-{seed}")
    prompts = data.prompts(sizes.held_prompts, sizes.prompt, held=True)

    def evaluate() -> Figures:
        held = answers(teacher, prompts, sizes.answer, seed)
        figures = training.text_loss() | training.acceptance(held)
        if isinstance(method, RecycledExit):
            method.recycle = False
            without = training.acceptance(held)
            method.recycle = True
            figures |= {f"{name}_off": value for name, value in without.items()}
        return figures

    return {
        "curve": training.run(data.train, evaluate),
        "parameters": parameters(model),
        "head_parameters": parameters(method.net),
        "weights_read": method.weights_read,
    }
