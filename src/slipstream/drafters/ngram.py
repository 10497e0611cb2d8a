"""Prompt lookup: proposes the tokens that followed the last occurrence of the same n-gram.

The longest suffix of the text that occurred before is looked up, and the tokens after it are copied. A copy that
reaches the end of the text continues with its own beginning, as in LZ77. The index grows with the text, so a guess
takes the same time for any context length. For a tree, other occurrences of the suffix are copied too, the latest
first.

A reference is a text that the output is likely to follow, such as a text to correct or to rewrite. The draft then
copies from a pointer into the reference, beginning at its first token (input-guided "aggressive" decoding, arXiv
2106.04970). If the output diverges, the pointer is set again when the last tokens of the output occur in the reference.
Occurrences after the old position come first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from slipstream.core.interfaces import TargetModel
from slipstream.core.types import Row
from slipstream.drafters.per_row import PerRow, RowDrafter

MAX_OCCURRENCES = 64  # of the suffix, that are tried for a tree


@dataclass(frozen=True)
class NGramOptions:
    """The options of `ngram`."""

    longest: int = 3  # tokens of the longest suffix that is looked up
    shortest: int = 1  # tokens of the shortest one
    reference: str | None = None  # the path of a text that the output is likely to follow

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

    def find(self, suffix: Sequence[int], after: int | None = None) -> int | None:
        """The position after an occurrence of the longest suffix that occurs.

        The latest one; with `after`, the first one at or after that position, or else the first of all."""
        for size in self.sizes:
            places = self.follows.get(tuple(suffix[-size:])) if size <= len(suffix) else None
            if places:
                first = bisect_left(places, after) if after is not None else -1
                return places[first if first < len(places) else 0]
        return None

    def places(self, suffix: Sequence[int]) -> Iterator[int]:
        """The positions after all occurrences of the longest suffix, then of shorter ones, each the latest first."""
        for size in self.sizes:
            if size <= len(suffix):
                yield from reversed(self.follows.get(tuple(suffix[-size:]), ()))

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
        return [] if start is None else self.index.copy(start, depth)

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


class ReferenceLookup(RowDrafter):
    """Guesses for one row from a reference text. While the output diverges from it, from the row's own text."""

    def __init__(self, options: NGramOptions, reference: Sequence[int], prompt: int) -> None:
        self.options = options
        self.reference = NGramIndex(options)
        self.reference.extend(reference)
        self.own = PromptLookup(options)
        self.seen = prompt  # tokens of the row that were compared with the reference
        self.at, self.lost = 0, False  # the pointer, and whether the output has diverged from it

    def guess(self, tokens: Sequence[int], depth: int) -> list[int]:
        for token in tokens[self.seen :]:
            text = self.reference.text
            self.lost |= self.at >= len(text) or text[self.at] != token
            self.at += not self.lost
        if self.lost:
            place = self.reference.find(tokens[self.seen :][-self.options.longest :], self.at)
            if place is not None:
                self.at, self.lost = place, False
        self.seen = len(tokens)
        return self.own.guess(tokens, depth) if self.lost else self.reference.text[self.at : self.at + depth]

    def guesses(self, tokens: Sequence[int], depth: int, count: int) -> list[list[int]]:
        first = self.guess(tokens, depth)
        return [first, *(guess for guess in self.own.guesses(tokens, depth, count) if guess != first)]


class NGram(PerRow):
    """Prompt lookup for every row, each over its own text and the reference, if there is one."""

    options_type = NGramOptions

    def __init__(self, vocab: int, options: NGramOptions | None = None, reference: Sequence[int] = ()) -> None:
        """`reference`: the tokens of the reference text."""
        super().__init__(vocab)
        self.options, self.reference = options or NGramOptions(), reference

    @classmethod
    def build(cls, target: TargetModel, options: NGramOptions) -> NGram:
        return cls(target.vocab, options, _reference_tokens(target, options))

    def new(self, row: Row) -> RowDrafter:
        if self.reference:
            return ReferenceLookup(self.options, self.reference, row.length)
        return PromptLookup(self.options)


def _reference_tokens(target: TargetModel, options: NGramOptions) -> list[int]:
    if options.reference is None:
        return []
    try:
        text = Path(options.reference).read_text()
    except OSError as error:
        raise ValueError(f"cannot read the reference {options.reference}: {error.strerror}") from error
    tokens: list[int] = target.text.encode(text, raw=True)
    return tokens
