"""Which cached text has the longest prefix in common with another one.

A text is a string of bytes, four for each token (`text_of`). In the order of these strings, each text shares its
longest prefix with a neighbour. So a look-up bisects a list, and compares bytes rather than tokens.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Sequence
from itertools import pairwise
from typing import Generic, TypeVar

T = TypeVar("T")
TOKEN = 4  # bytes


class PrefixIndex(Generic[T]):
    """A set of texts, each with a value."""

    def __init__(self) -> None:
        self._texts: list[bytes] = []  # in order
        self._values: dict[bytes, T] = {}

    def __len__(self) -> int:
        return len(self._texts)

    def add(self, text: bytes, value: T) -> None:
        assert text not in self._values, "the text is there already"
        insort(self._texts, text)
        self._values[text] = value

    def remove(self, text: bytes) -> None:
        del self._values[text], self._texts[bisect_left(self._texts, text)]

    def longest(self, text: bytes) -> tuple[T | None, int]:
        """The value of the text with the longest common prefix, and how many tokens that prefix has."""
        at = bisect_left(self._texts, text)
        best, size = None, 0
        for other in self._texts[max(0, at - 1) : at + 1]:
            if (shared := common(text, other)) > size:
                best, size = self._values[other], shared
        return best, size

    def check_integrity(self) -> None:
        """Raise AssertionError unless the texts are in order and have one value each."""
        assert self._texts == sorted(self._values), "the texts are not in order, or not those with values"


def text_of(tokens: Sequence[int]) -> bytes:
    """Tokens as a text."""
    return array("I", tokens).tobytes()


def tokens_in(text: bytes) -> int:
    """How many tokens a text has."""
    return len(text) // TOKEN


def common(first: bytes, second: bytes) -> int:
    """How many leading tokens are the same. Bisects, so that slices are compared and not tokens."""
    low, high = 0, min(len(first), len(second)) // TOKEN
    while low < high:
        middle = (low + high + 1) // 2
        if first[low * TOKEN : middle * TOKEN] == second[low * TOKEN : middle * TOKEN]:
            low = middle
        else:
            high = middle - 1
    return low


def leaders(texts: Sequence[bytes], held: Sequence[int], least: int, worth: int) -> dict[int, int]:
    """Which of several texts to read ahead, and how far, so that the others can copy the common prefix.

    In sorted order, each text shares its longest prefix with a neighbour. Neighbours that share `least` tokens which
    neither holds are a group. Its leader is the text that shares most, if that saves the others `worth` tokens.
    """
    order = sorted(range(len(texts)), key=lambda n: texts[n])
    pairs = list(pairwise(order))
    shared = [common(texts[a], texts[b]) for a, b in pairs]
    joined = [size - max(held[a], held[b]) >= least for size, (a, b) in zip(shared, pairs, strict=True)]
    leader_sizes: dict[int, int] = {}
    start = 0
    for end, more in enumerate([*joined, False]):
        if more:
            continue
        if end > start:
            best = max(range(start, end), key=shared.__getitem__)
            others = [n for n in range(start, end + 1) if n != best]
            spared = [min(shared[min(n, best) : max(n, best)]) - held[order[n]] for n in others]
            if sum(max(0, tokens) for tokens in spared) >= worth:
                leader_sizes[order[best]] = shared[best]
        start = end + 1
    return leader_sizes
