"""Predicted output: the request carries the text that its output is likely to repeat, nearly unchanged.

Such a text is a document to correct or a file to edit. The draft copies it from a pointer that follows the output
(input-guided "aggressive" decoding, arXiv 2106.04970). Where the output diverges, the pointer is set again:

- The longest suffix of the tokens since the divergence that occurs in the rest of the prediction is looked up. A single
  token counts only near the divergence. This covers insertions and deletions.
- Without such a suffix, a replacement of equally many tokens is assumed, for a few tokens, and a short draft is made.

While the pointer is lost, and after the end of the prediction, the row's own text is looked up as `ngram` does. A row
without a prediction is drafted by lookup alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slipstream.core.interfaces import TargetModel
from slipstream.core.types import Row
from slipstream.drafters.ngram import NGramIndex, NGramOptions, PromptLookup
from slipstream.drafters.per_row import PerRow, RowDrafter

LONGEST = 4  # tokens of the longest suffix that is looked up in the prediction
NEAR = 16  # tokens after a divergence among which one equal token is enough to go on from
REPLACED = 3  # tokens that are assumed to be replacements before the pointer is lost
UNSURE = 3  # drafted tokens while the pointer is assumed and no token has confirmed it
CONFIRMED = 2  # equal tokens in a row that confirm a pointer
LONG_CHAIN = 31  # drafted tokens of a cycle at most, if the policy decides


class Follower:
    """A pointer into a prediction, moved by the tokens of the output."""

    def __init__(self, prediction: Sequence[int]) -> None:
        self.index = NGramIndex(NGramOptions(longest=LONGEST))
        self.index.extend(prediction)
        self.at: int | None = 0  # the position of the token that is expected next; None: lost
        self._equal = CONFIRMED  # equal tokens since the pointer was set
        self._anchor = 0  # the position after the last confirmed token
        self._since: list[int] = []  # tokens of the output since then

    def read(self, token: int) -> None:
        """Move the pointer past the next token of the output."""
        text, at = self.index.text, self.at
        if at is not None and at < len(text) and text[at] == token:
            self.at = at + 1
            self._equal += 1
        else:
            self._equal = 0
        self._since.append(token)
        if self._equal >= CONFIRMED:
            self._anchor, self._since = self.at or 0, []
        elif not self._equal:
            self.at = self._realigned()

    def draft(self, depth: int) -> list[int]:
        """The next tokens of the prediction. An empty list if the pointer is lost or at the end."""
        if self.at is None:
            return []
        return self.index.text[self.at : self.at + (depth if self._equal else min(depth, UNSURE))]

    def _realigned(self) -> int | None:
        """The position after the divergence; None if the pointer is lost."""
        for size in range(min(LONGEST, len(self._since)), 0, -1):
            places = self.index.follows.get(tuple(self._since[-size:]), ())
            later = next((place for place in places if place > self._anchor), None)
            if later is None and places and size == LONGEST:
                later = places[0]  # the text was moved
            if later is not None and (size > 1 or later <= self._anchor + NEAR):
                self._equal = 1
                return later
        assumed = self._anchor + len(self._since)
        return assumed if len(self._since) <= REPLACED and assumed < len(self.index.text) else None


class PredictedRow(RowDrafter):
    """Drafts one row from its prediction, or by lookup in its own text while the prediction has nothing to offer."""

    def __init__(self, prediction: Sequence[int], prompt: int) -> None:
        self.follower = Follower(prediction)
        self.own = PromptLookup(NGramOptions())
        self.read = prompt  # tokens of the row that the follower has read

    def guess(self, tokens: Sequence[int], depth: int) -> list[int]:
        for token in tokens[self.read :]:
            self.follower.read(token)
        self.read = len(tokens)
        return self.follower.draft(depth) or self.own.guess(tokens, depth)

    def guesses(self, tokens: Sequence[int], depth: int, count: int) -> list[list[int]]:
        first = self.guess(tokens, depth)
        return [first, *(guess for guess in self.own.guesses(tokens, depth, count) if guess != first)]


class Prediction(PerRow):
    """Follows the prediction of every row that has one. An engine chooses it for requests with a prediction."""

    longest_chain = LONG_CHAIN

    @classmethod
    def build(cls, target: TargetModel, options: Any) -> Prediction:
        return cls(target.vocab)

    def new(self, row: Row) -> RowDrafter:
        prediction = row.request.prediction
        return PredictedRow(prediction, len(row.request.prompt)) if prediction else PromptLookup(NGramOptions())
