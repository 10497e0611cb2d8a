"""A model wrapper that keeps the logits of every emitted token."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch

from slipstream.core.array_types import Float, Tensor
from slipstream.core.interfaces import Model
from slipstream.core.loop import read
from slipstream.core.types import Draft, Row, Scores, Verdict


class LogitsRecorder(Model):
    """Wraps a model and keeps the logits along the committed path, as plain `generate` would compute them."""

    def __init__(self, model: Model) -> None:
        self._model, self.vocab, self.context = model, model.vocab, model.context
        self._kept: dict[Row, list[Tensor]] = defaultdict(list)
        self._last: tuple[Draft, Scores] | None = None

    def open(self, rows: Sequence[Row]) -> None:
        self._model.open(rows)

    def close(self, rows: Sequence[Row]) -> None:
        self._model.close(rows)

    def prefill(self, rows: Sequence[Row], limit: int) -> list[int]:
        return self._model.prefill(rows, limit)

    def score(self, rows: Sequence[Row], draft: Draft) -> Scores:
        scores = self._model.score(rows, draft)
        self._last = draft, scores
        return scores

    def commit(self, rows: Sequence[Row], verdict: Verdict) -> None:
        assert self._last is not None, "commit follows score"
        draft, scores = self._last
        for r, (row, outcome) in enumerate(zip(rows, read(draft, verdict), strict=True)):
            slots = [r, *(len(rows) + node for node in outcome.path)]
            self._kept[row] += scores.logits[slots].float().unbind()
        self._model.commit(rows, verdict)

    def logits(self, row: Row) -> list[Float[Tensor, " vocab"]]:
        """The logits of each token that the row emitted. A few more may follow if the row was cut short."""
        return self._kept[row]


def stack_steps(rows: Sequence[Sequence[Float[Tensor, " vocab"]]], device: torch.device) -> tuple[Tensor, ...]:
    """One [batch, vocab] tensor per step, as plain `generate` returns them; zeros for rows that had ended."""
    zeros = torch.zeros_like(rows[0][0], device=device)
    steps = range(max(map(len, rows)))
    return tuple(torch.stack([own[n].to(device) if n < len(own) else zeros for own in rows]) for n in steps)
