"""A plain draft model by distillation: some of the target's own layers, taught to speak for all of them.

Which layers: the first ones know the input, the last ones the output, so a few of each are a good start, and a short
training brings them together. Embeddings and output rows stay the target's. The loss is the cross-entropy of the
target's law on the draft vocabulary at every position of its own answers.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.models.run.layers import keep_layers
from slipstream.train.corpus import Batch
from slipstream.train.method import Guess, Method
from slipstream.train.teacher import Lesson, Teacher


@dataclass(frozen=True)
class DistillTraining:
    layers: str = ""  # of the target, such as 0,1,28,29; the first two and the last two if not given


class Distill(Method):
    name: ClassVar[str] = "draft_model"
    early: ClassVar[bool] = True
    config: ClassVar[type] = DistillTraining

    def __init__(self, teacher: Teacher, ids: Int[Tensor, " draft_vocab"], config: DistillTraining) -> None:
        self.teacher, self.ids, self.layers = teacher, ids.to(teacher.device), ()
        last = teacher.layers - 1
        self.kept = config.layers or ",".join(str(i) for i in sorted({0, min(1, last), max(0, last - 1), last}))
        self.net = student(teacher.model, self.kept).float().to(teacher.device)
        self._output = teacher.output[self.ids].float()
        self._slot = torch.full((teacher.output.shape[0],), -1, device=teacher.device)
        self._slot[self.ids] = torch.arange(len(ids), device=teacher.device)

    def _states(self, batch: Batch) -> Float[Tensor, "rows length hidden"]:
        embedding = functional.embedding(batch.tokens, self.teacher.embedding.weight).float()
        states: Tensor = self.net(inputs_embeds=embedding, use_cache=False)[0]
        return states

    def loss(self, batch: Batch, lesson: Lesson) -> Tensor:
        supervised = batch.supervised
        law = self.teacher.law(lesson.last[supervised], self.ids).exp_()
        logits = functional.linear(self._states(batch)[supervised], self._output)
        return functional.cross_entropy(logits.float(), law)

    @torch.no_grad()
    def guesses(self, batch: Batch, lesson: Lesson, depth: int) -> list[Guess]:
        """A draft model reads true tokens alone, so one pass says what it guesses at every depth."""
        supervised, length = batch.supervised, batch.tokens.shape[1]
        logits = functional.linear(self._states(batch)[supervised], self._output).float()
        slot = self._slot[batch.tokens.roll(-1, 1)[supervised]]
        right = torch.zeros_like(supervised)
        said = torch.full(right.shape, -torch.inf, device=right.device)
        right[supervised] = logits.argmax(-1) == slot
        own = logits.log_softmax(-1).gather(1, slot.clamp(min=0)[:, None])[:, 0]
        said[supervised] = torch.where(slot >= 0, own, -torch.inf)
        base = torch.arange(length - 1, device=right.device).expand(len(right), -1)
        first, last = batch.prompt[:, None] - 2, batch.whole[:, None] - 2
        found = []
        for step in range(depth):
            place = base + step + 1
            there = (base >= first) & (place <= last)
            index = place.clamp(max=length - 1)
            found.append(Guess(right.gather(1, index) & there, said.gather(1, index), torch.where(there, place, -1)))
        return found

    def save(self, folder: Path, about: dict[str, Any], precision: str) -> None:
        from slipstream.drafters.draft_folder import save_draft

        save_draft(folder, self.net, self.kept, self.ids.cpu(), precision, about)

    @property
    def shape(self) -> dict[str, Any]:
        return {"layers": self.kept}

    @property
    def read(self) -> int:
        return sum(p.numel() for p in self.net.parameters()) + self._output.numel()


def student(model: Any, layers: str) -> nn.Module:
    """A copy of a model's decoder with some of its layers and without its embeddings."""
    base = model.base_model
    embedding = base.get_input_embeddings()
    base.set_input_embeddings(nn.Identity())
    try:
        small: nn.Module = copy.deepcopy(base)
    finally:
        base.set_input_embeddings(embedding)
    keep_layers(small, layers)
    return small.requires_grad_(True).train()
