"""The drafter `suffix`: continues the longest suffix of the text that occurred in it, or in earlier outputs.

Continuations are ranked by how often they occurred. The counts only rank: every token is chosen, so its law is one-hot.
A longer match is followed further. Earlier outputs are those of the same tenant (`Request.history`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.core.interfaces import TargetModel
from slipstream.core.types import Row
from slipstream.drafters.per_row import PerRow, RowDrafter
from slipstream.drafters.suffix.automaton import SuffixAutomaton
from slipstream.drafters.suffix.history import History, Match

LONG_CHAIN = 31  # drafted tokens of a cycle at most, if the policy decides


@dataclass(frozen=True)
class SuffixOptions:
    """The options of `suffix`."""

    history: int = 1 << 16  # tokens of earlier outputs that are remembered; 0: none
    factor: float = 4.0  # drafted tokens for each token of the match, at most

    def __post_init__(self) -> None:
        if self.history < 0:
            raise ValueError(f"history is {self.history}; it must be 0 (nothing is remembered) or more tokens")
        if not self.factor > 0:
            raise ValueError(f"factor is {self.factor}; it must be more than 0")


class SuffixRow(RowDrafter):
    """Drafts one row from its own text and from the history that it may read."""

    def __init__(self, factor: float, match: Match | None) -> None:
        self._factor, self._match = factor, match
        self._own = SuffixAutomaton()

    def guess(self, tokens: Sequence[int], depth: int) -> list[int]:
        automaton, state, matched = self._sources(tokens)[0]
        self.matched = matched
        return automaton.chain(state, self._limit(matched, depth)) if state else []

    def guesses(self, tokens: Sequence[int], depth: int, count: int) -> list[list[int]]:
        return [
            path
            for automaton, state, matched in self._sources(tokens)
            if state
            for path in automaton.paths(state, self._limit(matched, depth), count)
        ]

    def _limit(self, matched: int, depth: int) -> int:
        return min(depth, max(1, int(self._factor * matched)))

    def _sources(self, tokens: Sequence[int]) -> list[tuple[SuffixAutomaton, int, int]]:
        """The text itself and the history: automaton, state and matched tokens, the longest match first."""
        own = self._own
        own.extend(tokens[own.size :])
        state = own.link[own.end]  # the longest suffix that occurred before
        sources: list[tuple[SuffixAutomaton, int, int]] = [(own, state, own.length[state])]
        if self._match is not None and (found := self._match.longest(tokens)) is not None:
            sources.append(found)
        return sorted(sources, key=lambda source: -source[2])


class Suffix(PerRow):
    """One `SuffixRow` per row, and the history of finished rows."""

    options_type = SuffixOptions
    longest_chain = LONG_CHAIN

    def __init__(self, vocab: int, options: SuffixOptions | None = None) -> None:
        super().__init__(vocab)
        self.options = options or SuffixOptions()
        self.history = History(self.options.history)

    @classmethod
    def build(cls, target: TargetModel, options: SuffixOptions) -> Suffix:
        return cls(target.vocab, options)

    def new(self, row: Row) -> RowDrafter:
        tenant = row.request.history
        return SuffixRow(self.options.factor, None if tenant is None else Match(self.history, tenant))

    def close(self, rows: Sequence[Row]) -> None:
        super().close(rows)
        for row in rows:
            if row.request.history is not None:
                self.history.add(row.request.history, row.output)
