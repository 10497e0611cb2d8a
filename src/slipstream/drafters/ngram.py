"""Prompt lookup: proposes the tokens that followed the last occurrence of the same n-gram.

The longest suffix of the text that occurred before is looked up, and the tokens after it are copied. A copy that
reaches the end of the text continues with its own beginning, as in LZ77. The index grows with the text, so a guess
takes the same time for any context length. For a tree, other occurrences of the suffix are copied too, the latest
first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from slipstream.core.interfaces import TargetModel
from slipstream.core.types import Row
from slipstream.drafters.per_row import PerRow, RowDrafter

MOST_MATCHED = 32  # tokens of a match that are counted
MAX_OCCURRENCES = 64  # of the suffix, that are tried for a tree


@dataclass(frozen=True)
class NGramOptions:
    """The options of `ngram`."""

    longest: int = 3  # tokens of the longest suffix that is looked up
    shortest: int = 1  # tokens of the shortest one

    def __post_init__(self) -> None:
        if not 1 <= self.shortest <= self.longest:
            raise ValueError(
                f"shortest is {self.shortest} and longest {self.longest}; 1 <= shortest <= longest is needed"
            )


class NGramIndex:
    """The positions after each occurrence of every n-gram of a growing text."""

    def __init__(self, options: NGramOptions) -> None:
        self.sizes = range(options.longest, options.shortest - 1, -1)
        self.text: list[int] = []
        self.follows: dict[tuple[int, ...], list[int]] = {}

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            end = len(self.text)
            for size in self.sizes:
                if size <= end:
                    self.follows.setdefault(tuple(self.text[end - size : end]), []).append(end)
            self.text.append(token)

    def truncate(self, length: int) -> None:
        """Remove the tokens from position `length` on."""
        for end in range(len(self.text) - 1, length - 1, -1):
            for size in self.sizes:
                if size <= end:
                    self.follows[tuple(self.text[end - size : end])].pop()
            self.text.pop()

    def find(self, suffix: Sequence[int]) -> int | None:
        """The position after the latest occurrence of the longest suffix that occurs."""
        return next(self.places(suffix), None)

    def places(self, suffix: Sequence[int]) -> Iterator[int]:
        """The positions after all occurrences of the longest suffix, then of shorter ones, each the latest first."""
        for size in self.sizes:
            if size <= len(suffix):
                yield from reversed(self.follows.get(tuple(suffix[-size:]), ()))

    def matched(self, start: int) -> int:
        """How many tokens before `start` equal those at the end of the text."""
        text, most = self.text, min(start, MOST_MATCHED)
        return next((n for n in range(most) if text[start - 1 - n] != text[-1 - n]), most)

    def copy(self, start: int, depth: int) -> list[int]:
        """`depth` tokens from `start` on. At the end of the text the copy continues at `start`."""
        period = len(self.text) - start
        return [self.text[start + i % period] for i in range(depth)] if period else []


class PromptLookup(RowDrafter):
    """Guesses for one row from its own text."""

    def __init__(self, options: NGramOptions) -> None:
        self.options = options
        self.index = NGramIndex(options)

    def guess(self, tokens: Sequence[int], depth: int) -> list[int]:
        self.index.extend(tokens[len(self.index.text) :])
        start = self.index.find(tokens[-self.options.longest :])
        if start is None:
            return []
        self.matched = self.index.matched(start)
        return self.index.copy(start, depth)

    def rewind(self, length: int) -> bool:
        self.index.truncate(length)
        return True

    def guesses(self, tokens: Sequence[int], depth: int, count: int) -> list[list[int]]:
        first = self.guess(tokens, depth)
        guesses = {tuple(first): None}
        for start in islice(self.index.places(tokens[-self.options.longest :]), MAX_OCCURRENCES):
            guesses.setdefault(tuple(self.index.copy(start, depth)))
            if len(guesses) == count:
                break
        return [list(guess) for guess in guesses]


class NGram(PerRow):
    """Prompt lookup for every row, each over its own text."""

    options_type = NGramOptions

    def __init__(self, vocab: int, options: NGramOptions | None = None) -> None:
        super().__init__(vocab)
        self.options = options or NGramOptions()

    @classmethod
    def build(cls, target: TargetModel, options: NGramOptions) -> NGram:
        return cls(target.vocab, options)

    def new(self, row: Row) -> RowDrafter:
        return PromptLookup(self.options)
