"""A smaller model drafts: it steps token by token under the request's own sampling, and its law is told as it drew.

Its cache follows the verdicts: what was accepted stays, the rest is forgotten, and whatever the row committed meanwhile
(a recovered token, plain steps, another drafter's turn) is read with the next step. Vocabularies may differ by padding:
ids only the draft knows get no probability, ids only the target knows are never drafted.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from slipstream.core.interfaces import Drafter
from slipstream.core.law import Law, OneHot
from slipstream.core.noise import Noise
from slipstream.core.shapes import Float, Tensor
from slipstream.core.shaping import law_at
from slipstream.core.types import Budget, Draft, Row, Scores, Verdict
from slipstream.drafters.chain import draw_chains, pack
from slipstream.models.torch_model import TorchModel


class DraftModel(Drafter):
    """`vocab` is the target's."""

    def __init__(self, model: TorchModel, vocab: int) -> None:
        self.model, self.vocab = model, vocab
        self._draft: Draft | None = None

    def open(self, rows: Sequence[Row]) -> None:
        self.model.open(rows)

    def close(self, rows: Sequence[Row]) -> None:
        self.model.close(rows)

    def propose(self, rows: Sequence[Row], budget: Sequence[Budget], noise: Noise) -> Draft:
        room = [
            min(spend.depth, max(0, self.model.context - row.length)) for spend, row in zip(budget, rows, strict=True)
        ]
        budget = [Budget(depth, spend.width, spend.stop_below) for depth, spend in zip(room, budget, strict=True)]

        def next_law(active: list[int], drafted: list[list[int]]) -> Law:
            some, tokens = [rows[r] for r in active], [drafted[r] for r in active]
            ends = self._ends(some, tokens)
            return law_at(self._fit(self.model.logits(ends)), list(zip(some, tokens, strict=True)))

        self._draft = draw_chains(rows, budget, noise, next_law, self.vocab)
        return self._draft

    def _ends(self, rows: Sequence[Row], drafted: Sequence[Sequence[int]]) -> Float[Tensor, "rows hidden"]:
        """The draft model's last hidden state at the end of each row's draft so far; only the new token is read."""
        draft = self._chosen(drafted)
        slots = self.model.peek(rows, draft, self.model.layers)
        return slots[draft.tree.end(draft.tree.chain)]

    def _chosen(self, drafted: Sequence[Sequence[int]]) -> Draft:
        owners = [r for r, tokens in enumerate(drafted) for _ in tokens]
        flat = torch.tensor([token for tokens in drafted for token in tokens], dtype=torch.long)
        return pack(drafted, [OneHot(flat, self.vocab)] if owners else [], owners, self.vocab)

    def _fit(self, logits: Float[Tensor, "n draft_vocab"]) -> Float[Tensor, "n vocab"]:
        """Cut or pad to the target's vocabulary."""
        missing = self.vocab - logits.shape[1]
        if missing <= 0:
            return logits[:, : self.vocab]
        return torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)

    def observe(self, rows: Sequence[Row], verdict: Verdict, scores: Scores) -> None:
        self.model.commit(rows, verdict, self._draft)
