"""Trains a draft model by distillation: a copy of some of the target's layers learns to imitate all of them.

The first layers are fitted to the embeddings and the last ones to the output matrix, so a few of each are a good start.
Embeddings and output rows stay the target's. The loss is the cross-entropy to the target's distribution on the draft
vocabulary, at every position of the target's own answers.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.models.run.layers import keep_layers
from slipstream.train.corpus import SampleBatch
from slipstream.train.method import Guess, Method
from slipstream.train.methods.rollout import AnswerScores
from slipstream.train.options import DraftModelTrainOptions
from slipstream.train.teacher import Teacher, TeacherOutput


class DraftModelMethod(Method):
    """Distillation of a draft model from layers of the target."""

    name: ClassVar[str] = "draft_model"
    options: ClassVar[type] = DraftModelTrainOptions
    drafts_in_prefill: ClassVar[bool] = True

    def __init__(self, teacher: Teacher, ids: Int[Tensor, " draft_vocab"], options: DraftModelTrainOptions) -> None:
        self.teacher, self.ids, self.layers = teacher, ids.to(teacher.device), ()
        last = teacher.layers - 1
        self.kept = options.layers or ",".join(str(i) for i in sorted({0, min(1, last), max(0, last - 1), last}))
        self.net = student(teacher.model, self.kept).float().to(teacher.device)
        self._output = teacher.output[self.ids].float()
        self._scores = AnswerScores(self.ids, len(teacher.output))

    def _states(self, batch: SampleBatch) -> Float[Tensor, "rows length hidden"]:
        embedding = functional.embedding(batch.tokens, self.teacher.embedding.weight).float()
        states: Tensor = self.net(inputs_embeds=embedding, use_cache=False)[0]
        return states

    def loss(self, batch: SampleBatch, output: TeacherOutput) -> Tensor:
        supervised = batch.supervised
        target_probs = self.teacher.log_probs(output.last[supervised], self.ids).exp_()
        logits = functional.linear(self._states(batch)[supervised], self._output)
        return functional.cross_entropy(logits.float(), target_probs)

    @torch.no_grad()
    def guesses(self, batch: SampleBatch, output: TeacherOutput, depth: int) -> list[Guess]:
        """A draft model reads only true tokens here, so one pass gives its guesses at every depth."""
        supervised, length = batch.supervised, batch.tokens.shape[1]
        logits = functional.linear(self._states(batch)[supervised], self._output).float()
        token = batch.tokens.roll(-1, 1)[supervised]
        right = torch.zeros_like(supervised)
        log_prob = torch.full(right.shape, -torch.inf, device=right.device)
        right[supervised], log_prob[supervised] = self._scores(logits, token)
        base = torch.arange(length - 1, device=right.device).expand(len(right), -1)
        first, last = batch.prompt_length[:, None] - 2, batch.length[:, None] - 2
        guesses = []
        for step in range(depth):
            position = base + step + 1
            exists = (base >= first) & (position <= last)
            index = position.clamp(max=length - 1)
            position = torch.where(exists, position, -1)
            guesses.append(Guess(right.gather(1, index) & exists, log_prob.gather(1, index), position))
        return guesses

    def save(self, folder: Path, about: dict[str, Any], precision: str) -> None:
        from slipstream.drafters.files.draft_folder import save_draft

        save_draft(folder, self.net, self.kept, self.ids.cpu(), precision, about)

    @property
    def shape(self) -> dict[str, Any]:
        return {"layers": self.kept}

    @property
    def weights_read(self) -> int:
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
