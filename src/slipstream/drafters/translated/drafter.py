"""Drafts with a model that has another tokenizer (token-level intersection, arXiv 2502.05202).

The draft model reads the committed text in its own tokens (`retokenizer`). Its law is restricted to the tokens that
both vocabularies have, and normalised. A token is drawn from this law and drafted under the target's id, so every rule
is as exact as with any other drafter.

The rows of the draft model are separate from those of the target. When the text is tokenized again, its KV cache is
kept up to the first token that differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.core.interfaces import TargetModel
from slipstream.core.types import Draft, Row, Verdict
from slipstream.drafters.device.interface import DeviceDrafter
from slipstream.drafters.draft_model import DraftModel
from slipstream.drafters.draft_target import DraftTarget
from slipstream.drafters.translated.draft_texts import DraftTexts
from slipstream.models.run.torch_model import TorchModel
from slipstream.models.text.codec import TextCodec
from slipstream.models.text.token_map import TokenMap


class TranslatedDraft(DraftModel):
    """`vocab`: size of the target's vocabulary. `tokens`: what both vocabularies have in common."""

    def __init__(
        self, model: TorchModel, vocab: int, tokens: TokenMap, target_text: TextCodec, draft_text: TextCodec
    ) -> None:
        known = (tokens.target < vocab) & (tokens.draft < model.vocab)  # a model may have fewer ids than its tokenizer
        target_ids, draft_ids = torch.from_numpy(tokens.target[known]), torch.from_numpy(tokens.draft[known])
        super().__init__(model, vocab, target_ids.to(model.device))
        self._draft_ids = draft_ids.to(model.device)
        self._draft_id_of = torch.full((vocab,), -1, dtype=torch.long)
        self._draft_id_of[target_ids] = draft_ids
        self._texts = DraftTexts(model, target_text, draft_text)

    def as_target(self, target: TargetModel) -> DraftTarget | None:
        """None: it has token ids of its own, so it cannot verify the tokens of an earlier stage."""
        return None

    def open(self, rows: Sequence[Row]) -> None:
        self._texts.open(rows)

    def close(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._proposals.pop(row, None)
        self._texts.close(rows)

    def rewind(self, row: Row, length: int) -> None:
        self._proposals.pop(row, None)
        self._texts.rewind(row, length)

    def model_rows(self, rows: Sequence[Row]) -> list[Row]:
        return self._texts.rows(rows)

    def follow(self, rows: Sequence[Row]) -> list[int]:
        return self._texts.follow(rows)

    def model_tokens(self, token: Int[Tensor, " nodes"]) -> Int[Tensor, " nodes"]:
        return self._draft_id_of[token]

    def model_logits(self, states: Float[Tensor, "n hidden"]) -> Float[Tensor, "n draft_vocab"]:
        return self.model.logits(states)[:, self._draft_ids]

    def commit(self, rows: Sequence[Row], run: Draft, verdict: Verdict) -> None:
        model_rows, tokens = self.model_rows(rows), run.token.tolist()
        self.model.commit(model_rows, verdict, run)
        for row, path in zip(model_rows, verdict.path.tolist(), strict=True):
            row.tokens = [*row.tokens, *(tokens[node] for node in path if node >= 0)]

    def device_form(self, target: Any) -> DeviceDrafter | None:
        return None
