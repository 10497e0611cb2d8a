"""The loss and the guesses of drafters that read the tokens drafted so far as a language model does.

Such a drafter predicts one token at each position of a text. In training it reads the target's answers. So one pass
over an answer gives its guesses at every depth.
"""

from __future__ import annotations

from abc import abstractmethod

import torch

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.train.corpus import SampleBatch
from slipstream.train.method import Guess, Method
from slipstream.train.methods.draft_loss import draft_losses
from slipstream.train.methods.rollout import AnswerScores
from slipstream.train.teacher import Teacher, TeacherOutput


class PositionMethod(Method):
    """A method that predicts the next token at every position."""

    def __init__(self, teacher: Teacher, ids: Int[Tensor, " draft_vocab"]) -> None:
        self.teacher, self.ids = teacher, ids.to(teacher.device)
        self._scores = AnswerScores(self.ids, len(teacher.output))

    @abstractmethod
    def logits(self, batch: SampleBatch, output: TeacherOutput) -> Float[Tensor, "supervised draft_vocab"]:
        """The logits at every supervised position of a batch."""

    def loss(self, batch: SampleBatch, output: TeacherOutput) -> Tensor:
        labels = self.teacher.label_probs(batch, output, self.ids)
        return draft_losses(self.logits(batch, output).float(), labels, self.overlap).mean()

    @torch.no_grad()
    def guesses(self, batch: SampleBatch, output: TeacherOutput, depth: int) -> list[Guess]:
        supervised, length = batch.supervised, batch.tokens.shape[1]
        token = batch.tokens.roll(-1, 1)[supervised]
        right = torch.zeros_like(supervised)
        log_prob = torch.full(right.shape, -torch.inf, device=right.device)
        right[supervised], log_prob[supervised] = self._scores(self.logits(batch, output).float(), token)
        base = torch.arange(length - 1, device=right.device).expand(len(right), -1)
        first = batch.prompt_length[:, None] - (2 if self.drafts_in_prefill else 1)
        guesses = []
        for step in range(depth):
            position = base + step + 1
            exists = (base >= first) & (position <= batch.length[:, None] - 2)
            index = position.clamp(max=length - 1)
            position = torch.where(exists, position, -1)
            guesses.append(Guess(right.gather(1, index) & exists, log_prob.gather(1, index), position))
        return guesses
