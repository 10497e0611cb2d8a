"""Lookahead decoding (arXiv 2402.02057): guesses of the target itself, carried from cycle to cycle in a pool.

The score pass gives the target's most probable token after every drafted token, also after rejected ones. These tokens
are used in two ways:

- The pool maps two tokens, and one token, to what the target chose after them. A draft walks through the pool from the
  end of the text.
- Jacobi iteration: where the pool has nothing, the target's choices at the later positions of the last draft are the
  next guesses for these positions. The first guesses are the last tokens of the text.

It needs no second model and no training. Its tokens are chosen, so their law is one-hot. Every drafted token is scored
anyway, so the pool costs nothing but the tokens that are drafted to feed it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from slipstream.core.interfaces import TargetModel
from slipstream.core.noise import Noise
from slipstream.core.types import Budget, Draft, Row, Scores, Verdict
from slipstream.drafters.per_row import PerRow, RowDrafter


@dataclass(frozen=True)
class LookaheadOptions:
    """The options of `lookahead`."""

    pool: int = 1 << 13  # entries of a request's pool; the oldest are dropped

    def __post_init__(self) -> None:
        if self.pool < 1:
            raise ValueError(f"pool is {self.pool}; it must be 1 or more entries")


class LookaheadRow(RowDrafter):
    """The pool of one row, and its guesses for the next positions."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._pool: dict[tuple[int, ...], int] = {}  # the last tokens -> the target's choice, the oldest entry first
        self._window: list[int] = []  # guesses for the positions after the end of the text

    def guess(self, tokens: Sequence[int], depth: int) -> list[int]:
        guess, window, text = list[int](), self._window, [*tokens[-2:]]
        for position in range(depth):
            token = self._pool.get(tuple(text[-2:]), self._pool.get((text[-1],)))
            if token is None:
                token = window[position] if position < len(window) else tokens[(position - depth) % len(tokens)]
            guess.append(token)
            text.append(token)
        return guess

    def guesses(self, tokens: Sequence[int], depth: int, count: int) -> list[list[int]]:
        walk, window = self.guess(tokens, depth), self._window[:depth]
        return [walk, window] if window and window != walk else [walk]

    def learn(self, before: Sequence[int], choice: int) -> None:
        """The target chose a token after the tokens `before`."""
        for size in (1, 2):
            if size <= len(before):
                key = tuple(before[-size:])
                self._pool.pop(key, None)
                self._pool[key] = choice
        while len(self._pool) > self._size:
            del self._pool[next(iter(self._pool))]

    def look_ahead(self, window: list[int]) -> None:
        """The target's choices for the positions after the token that is emitted next."""
        self._window = window


class Lookahead(PerRow):
    """One pool per row. It reads the scores of its drafts, so it runs in the ordinary host loop on every device."""

    options_type = LookaheadOptions
    reads_target: ClassVar[bool] = True

    def __init__(self, vocab: int, options: LookaheadOptions | None = None) -> None:
        super().__init__(vocab)
        self.options = options or LookaheadOptions()
        self._draft: Draft | None = None

    @classmethod
    def build(cls, target: TargetModel, options: LookaheadOptions) -> Lookahead:
        return cls(target.vocab, options)

    def new(self, row: Row) -> LookaheadRow:
        return LookaheadRow(self.options.pool)

    def propose(self, rows: Sequence[Row], budget: Sequence[Budget], noise: Noise) -> Draft:
        self._draft = super().propose(rows, budget, noise)
        return self._draft

    def observe(self, rows: Sequence[Row], verdict: Verdict, scores: Scores) -> None:
        draft, self._draft = self._draft, None
        if draft is None or not len(draft.tree) or draft.tree.rows != len(rows):
            return
        choices, tokens = scores.logits.argmax(-1).tolist(), draft.token.tolist()
        accepted = verdict.accepted.tolist()
        after = [choices[len(rows) + node] for node in range(len(tokens))]
        windows: list[list[int]] = [[] for _ in rows]
        depths: list[int] = []
        for node, (r, parent) in enumerate(draft.tree.lists):
            depths.append(0 if parent < 0 else depths[parent] + 1)
            before = rows[r].tokens[-1] if parent < 0 else tokens[parent]
            self._row(rows[r]).learn((before, tokens[node]), after[node])
            if depths[node] == accepted[r] + len(windows[r]):
                windows[r].append(after[node])
        for r, row in enumerate(rows):
            self._row(row).learn(row.tokens[-2:], choices[r])
            self._row(row).look_ahead(windows[r])

    def _row(self, row: Row) -> LookaheadRow:
        drafter = self._rows[row]
        assert isinstance(drafter, LookaheadRow)
        return drafter
