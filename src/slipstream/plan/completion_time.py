"""When rows will be done that move together.

Plain decoding moves all rows alike. Drafts move some further than others, and who falls behind decides when the last
one is done, long after most of the others have left: so it counts when rows are done on the average, and the last one.
How far rows fall apart is learnt from those that have left.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from slipstream.core.types import Row

LAG = 0.07  # by which a row's pace differs from the others', before anything is known
FIRST, RECALL = 16, 128  # rows that this counts as, at first and at most
ENOUGH = 64  # tokens a row must have emitted for its pace to tell something
NEAR = 0.8  # of the longest time: who has so much to go may turn out to be the last
Column = NDArray[np.float64]


class CompletionTime:
    def __init__(self) -> None:
        self._square, self._heard = LAG**2, FIRST
        self._moved: dict[Row, tuple[float, float]] = {}  # tokens of a row, and of a row like the others, with drafts

    def moved(self, rows: Sequence[Row], counts: Sequence[int]) -> None:
        """A cycle with drafts brought each row so many tokens."""
        usual = sum(counts) / len(counts)
        for row, count in zip(rows, counts, strict=True):
            mine, others = self._moved.get(row, (0.0, 0.0))
            self._moved[row] = mine + count, others + usual

    def close(self, row: Row) -> None:
        mine, others = self._moved.pop(row, (0.0, 0.0))
        if others >= ENOUGH and mine != others:  # who is alone is like the others
            self._heard = min(self._heard + 1, RECALL)
            self._square += ((mine / others - 1) ** 2 - self._square) / self._heard

    def seconds(self, cycle: Column, more: Column, left: Column) -> Column:
        """Until rows that have so many tokens left are done, on the average and all of them, for several ways to go on:
        a cycle takes so long, [ways], and brings so many more than one, [ways, rows]."""
        cycles = left / (1 + more)
        longest = cycles.max(1)
        near = (cycles > NEAR * longest[:, None]).sum(1)
        lag = np.array([_highest(count) for count in near.tolist()]) * more.any(1)
        last: Column = longest * (1 + self._square**0.5 * lag)
        found: Column = cycle * (cycles.sum(1) / len(left) + last) / 2
        return found


@cache
def _highest(count: int) -> float:
    """Of so many numbers drawn from a normal law, how far the highest is expected to be from the mean."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))
