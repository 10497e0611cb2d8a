"""A corpus of tokens with its suffix array, memory-mapped from a folder.

    tokens.bin   int32, the documents one after the other, each followed by -1
    order.bin    int32, the positions sorted by the `SORTED` tokens that begin there
    starts.bin   int32, [vocab + 1], where the positions of each first token begin in `order.bin`

Nothing is read when it is opened. A lookup reads a few pages: it is a binary search among the positions of one token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slipstream.drafters.files.folder import write_atomically

Ids = NDArray[np.int32]
SORTED = 32  # tokens by which positions are sorted, and the longest suffix that can be looked up
SIZES = (2, 3, 4, 6, 8, 12, 16, 24, 32)  # of suffixes that are looked up
OCCURRENCES = 64  # of a suffix, whose continuations are compared
LEAST = 0.1  # a continuation that fewer occurrences share is not followed
NAMES = ("tokens", "order", "starts")


class CorpusIndex:
    """Looks up what followed a sequence of tokens in the corpus."""

    def __init__(self, tokens: Ids, order: Ids, starts: Ids) -> None:
        self._tokens, self._order, self._starts = tokens, order, starts

    @property
    def size(self) -> int:
        """Tokens of the corpus, ends of documents included."""
        return len(self._tokens)

    @staticmethod
    def build(documents: Sequence[Sequence[int]], vocab: int) -> CorpusIndex:
        tokens = np.array([token for document in documents for token in (*document, -1)], dtype=np.int32)
        order = sorted_positions(tokens)
        starts = np.searchsorted(tokens[order], np.arange(vocab + 1)).astype(np.int32)
        return CorpusIndex(tokens, order, starts)

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name, array in zip(NAMES, (self._tokens, self._order, self._starts), strict=True):
            write_atomically(folder / f"{name}.bin", array.tofile)

    @staticmethod
    def open(folder: Path, size: int, vocab: int) -> CorpusIndex:
        """Map the files of an index of so many tokens. ValueError if a file is missing or has another size."""
        arrays = []
        for name, length in zip(NAMES, (size, size, vocab + 1), strict=True):
            path = folder / f"{name}.bin"
            try:
                array = np.memmap(path, np.int32, "r")
            except (OSError, ValueError) as error:
                raise ValueError(f"{path} cannot be read ({error}); build the index again") from error
            if len(array) != length:
                raise ValueError(f"{path} has {len(array)} numbers and should have {length}; build the index again")
            arrays.append(array)
        return CorpusIndex(*arrays)

    def continuations(self, text: Sequence[int], depth: int) -> list[list[int]]:
        """What followed the longest suffix of the text that occurs, at some of its occurrences."""
        low = high = 0
        size = 0
        for longer in SIZES:
            if longer > len(text):
                break
            found = self._range(text[-longer:])
            if found[0] == found[1]:
                break
            (low, high), size = found, longer
        if not size:
            return []
        places = np.linspace(low, high - 1, min(OCCURRENCES, high - low), dtype=np.int64)
        return [self._after(int(self._order[place]) + size, depth) for place in places]

    def _after(self, start: int, depth: int) -> list[int]:
        tokens: list[int] = self._tokens[start : start + depth].tolist()
        return tokens[: tokens.index(-1)] if -1 in tokens else tokens

    def _range(self, pattern: Sequence[int]) -> tuple[int, int]:
        """The positions in `order` whose tokens begin with the pattern."""
        first = pattern[0]
        if first + 1 >= len(self._starts):  # a token that the tokenizer does not have
            return 0, 0
        begin, end = int(self._starts[first]), int(self._starts[first + 1])
        low = self._bound(pattern, begin, end, after=False)
        return low, self._bound(pattern, low, end, after=True)

    def _bound(self, pattern: Sequence[int], low: int, high: int, after: bool) -> int:
        wanted, size = list(pattern), len(pattern)
        while low < high:
            middle = (low + high) // 2
            start = int(self._order[middle])
            here = self._tokens[start : start + size].tolist()
            if here < wanted or (after and here == wanted):
                low = middle + 1
            else:
                high = middle
        return low


def sorted_positions(tokens: Ids) -> Ids:
    """The positions sorted by the `SORTED` tokens that begin there, by prefix doubling."""
    rank = np.unique(tokens, return_inverse=True)[1].astype(np.int64) + 1
    order, width = np.argsort(rank, kind="stable"), 1
    while width < SORTED:
        later = np.zeros_like(rank)  # 0: beyond the end
        later[:-width] = rank[width:]
        key = rank * (len(tokens) + 2) + later
        order = np.argsort(key, kind="stable")
        ordered = key[order]
        rank[order] = np.cumsum(np.concatenate(([True], ordered[1:] != ordered[:-1])))
        width *= 2
    return order.astype(np.int32)


def common_path(continuations: Sequence[Sequence[int]]) -> list[int]:
    """The most frequent continuation, token by token, while enough of them share it."""
    path: list[int] = []
    left = [continuation for continuation in continuations if continuation]
    least = LEAST * len(left)
    while left:
        token, count = Counter(continuation[len(path)] for continuation in left).most_common(1)[0]
        if count < least:
            break
        path.append(token)
        left = [c for c in left if len(c) > len(path) and c[len(path) - 1] == token]
    return path
