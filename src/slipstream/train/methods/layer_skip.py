"""Finds the blocks that the drafter `layer_skip` leaves out (arXiv 2309.08168, section 3.2). No weight is trained.

A step tries one set on a batch of the target's answers. Its value is the logarithm of the mean agreement, the sum of
min(p, q) over the draft vocabulary: the probability that a drafted token is accepted. Here the whole text is read
without the skipped blocks. A drafter reads the committed text from the target's cache, so its tau is higher.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import torch

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.drafters.layer_skip.skip_set import as_dict, save_skip_set
from slipstream.kernels.cpu.decoder import SkippedBlocks
from slipstream.models.run.layer_blocks import LayerBlocks, attention_of, mlp_of
from slipstream.train.corpus import SampleBatch
from slipstream.train.methods.positions import PositionMethod
from slipstream.train.options import LayerSkipTrainOptions
from slipstream.train.skip_search import SkipSearch
from slipstream.train.teacher import Teacher, TeacherOutput


class LayerSkipMethod(PositionMethod):
    """A search for the blocks to skip."""

    name: ClassVar[str] = "layer_skip"
    options: ClassVar[type] = LayerSkipTrainOptions
    defaults: ClassVar[dict[str, Any]] = {"steps": 150, "tokens": 1024, "answer": 64, "temperatures": "0"}
    drafts_in_prefill: ClassVar[bool] = False
    joint: ClassVar[bool] = False
    net: SkipSearch

    def __init__(self, teacher: Teacher, ids: Int[Tensor, " draft_vocab"], options: LayerSkipTrainOptions) -> None:
        super().__init__(teacher, ids)
        self.layers, self._seed = (), options.search_seed
        blocks = teacher.anatomy.layers
        parts = [[attention_of(layer) for layer in blocks], [mlp_of(layer) for layer in blocks]]
        cost = torch.tensor([[sum(p.numel() for p in part.parameters()) for part in row] for row in parts])
        self._cost, self._blocks = cost, LayerBlocks(blocks)
        self.net = SkipSearch(cost, options.share * float(cost.sum()))

    @torch.no_grad()
    def loss(self, batch: SampleBatch, output: TeacherOutput) -> Tensor:
        """Try one set. There is nothing to differentiate: the search learns from the value itself."""
        skipped = self.net.propose(self._seed)
        draft_probs = self._log_probs(batch, skipped).exp_()
        agreement = torch.minimum(draft_probs, self.teacher.label_probs(batch, output, self.ids)).sum(-1).mean()
        value = agreement.clamp(min=1e-6).log()
        self.net.learn(skipped, float(value))
        return -value

    def logits(self, batch: SampleBatch, output: TeacherOutput) -> Float[Tensor, "supervised draft_vocab"]:
        return self._log_probs(batch, self.net.best)

    @torch.no_grad()
    def _log_probs(self, batch: SampleBatch, skipped: SkippedBlocks) -> Float[Tensor, "supervised draft_vocab"]:
        """Log-probabilities of the draft vocabulary without the skipped blocks, normalised over all tokens."""
        with self._blocks.left_out(skipped):
            last = self.teacher.model.base_model(batch.tokens, use_cache=False)[0]
        return self.teacher.log_probs(last[batch.supervised], self.ids)

    def save(self, folder: Path, about: dict[str, Any], precision: str) -> None:
        save_skip_set(folder, self.net.best, self.teacher.layers, about)

    @property
    def shape(self) -> dict[str, Any]:
        return as_dict(self.net.best, self.teacher.layers)

    @property
    def weights_read(self) -> int:
        best, cost = self.net.best, self._cost
        kept = int(cost.sum() - cost[0, sorted(best.attention)].sum() - cost[1, sorted(best.mlp)].sum())
        return kept + self.teacher.output.numel()
