"""The rows of a draft model that has another tokenizer: the target's texts in the draft model's own tokens."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.core.types import Request, Row
from slipstream.drafters.translated.retokenizer import Retokenizer
from slipstream.models.run.torch_model import TorchModel
from slipstream.models.text.codec import TextCodec


class DraftText:
    """A row of the target and its text as a row of the draft model."""

    def __init__(self, row: Row, retokenizer: Retokenizer) -> None:
        self._row, self.retokenizer = row, retokenizer
        self.legible = True  # whether the draft model has tokens for the whole text
        self.row = Row(Request(self._tokens() or [0]))

    def _tokens(self) -> list[int]:
        tokens = self.retokenizer.tokens(self._row.tokens)
        self.legible = bool(tokens)
        return tokens or []

    def follow(self, model: TorchModel) -> None:
        """Tokenize the row's text again. The model's cache is kept as far as the tokens agree."""
        tokens, row = self._tokens(), self.row
        if not tokens:
            return
        same = next((n for n, pair in enumerate(zip(tokens, row.tokens, strict=False)) if pair[0] != pair[1]), None)
        same = min(len(tokens), row.length) if same is None else same
        if same < row.length:
            row.tokens = tokens[:same]
            model.rewind(row, same)
        row.tokens = tokens


class DraftTexts:
    """The open rows of a draft model."""

    def __init__(self, model: TorchModel, target_text: TextCodec, draft_text: TextCodec) -> None:
        self._model, self.target, self.draft = model, target_text, draft_text
        self._texts: dict[Row, DraftText] = {}

    def open(self, rows: Sequence[Row]) -> None:
        texts = {row: DraftText(row, Retokenizer(self.target, self.draft)) for row in rows}
        self._model.open([text.row for text in texts.values()])
        self._texts |= texts

    def close(self, rows: Sequence[Row]) -> None:
        self._model.close([self._texts.pop(row).row for row in rows])

    def rewind(self, row: Row, length: int) -> None:
        self._texts[row].retokenizer.rewind(length)

    def rows(self, rows: Sequence[Row]) -> list[Row]:
        """The rows of the draft model."""
        return [self._texts[row].row for row in rows]

    def follow(self, rows: Sequence[Row]) -> list[int]:
        """Bring the texts up to date. Returns how many tokens the model's context allows each row to draft."""
        texts = [self._texts[row] for row in rows]
        for text in texts:
            text.follow(self._model)
        return [max(0, self._model.context - text.row.length) if text.legible else 0 for text in texts]
