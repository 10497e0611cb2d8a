"""Trains a draft model by distillation: a copy of some of the target's layers learns to imitate all of them.

The first layers are fitted to the embeddings and the last ones to the output matrix, so a few of each are a good start.
Embeddings and output rows stay the target's. The loss is the cross-entropy to the target's distribution on the draft
vocabulary, at every position of the target's own answers.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, ClassVar

from torch import nn
from torch.nn import functional

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.models.run.layers import keep_layers
from slipstream.train.corpus import SampleBatch
from slipstream.train.methods.positions import PositionMethod
from slipstream.train.options import DraftModelTrainOptions
from slipstream.train.teacher import Teacher, TeacherOutput


class DraftModelMethod(PositionMethod):
    """Distillation of a draft model from layers of the target."""

    name: ClassVar[str] = "draft_model"
    options: ClassVar[type] = DraftModelTrainOptions
    drafts_in_prefill: ClassVar[bool] = True

    def __init__(self, teacher: Teacher, ids: Int[Tensor, " draft_vocab"], options: DraftModelTrainOptions) -> None:
        super().__init__(teacher, ids)
        self.layers = ()
        last = teacher.layers - 1
        self.kept = options.layers or ",".join(str(i) for i in sorted({0, min(1, last), max(0, last - 1), last}))
        self.net = student(teacher.model, self.kept).float().to(teacher.device)
        self.follow_target()

    def follow_target(self) -> None:
        self._output = self.teacher.output[self.ids].float()

    def _states(self, batch: SampleBatch) -> Float[Tensor, "rows length hidden"]:
        embedding = functional.embedding(batch.tokens, self.teacher.embedding.weight).float()
        states: Tensor = self.net(inputs_embeds=embedding, use_cache=False)[0]
        return states

    def logits(self, batch: SampleBatch, output: TeacherOutput) -> Float[Tensor, "supervised draft_vocab"]:
        return functional.linear(self._states(batch)[batch.supervised], self._output)

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
