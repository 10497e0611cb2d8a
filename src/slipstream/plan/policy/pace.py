"""When rows that decode together will be done.

Plain decoding moves all rows alike. Drafts move some further than others. The slowest row decides when the last one is
done, long after most others have left. So two times count: when rows are done on average, and when the last one is.
How far rows fall apart is learnt from those that have left. Long drafts drive them further apart than short ones. So
the spread of the rows' acceptance is learnt. The *sensitivity* of a draft size is the relative change of a row's speed
per change of its acceptance.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from slipstream.core.types import Row
from slipstream.plan.policy.config import PaceConfig

Column = NDArray[np.float64]


class Pace:
    def __init__(self, config: PaceConfig | None = None) -> None:
        self._config = config or PaceConfig()
        self._variance, self._weight = self._config.spread**2, self._config.prior
        # tokens in cycles with drafts: a row's, the mean row's, and the mean row's times the sensitivity
        self._moved: dict[Row, tuple[float, float, float]] = {}
        self._together: Sequence[Row] = ()  # rows whose tokens of the latest cycles are not in `_moved` yet
        self._own, self._others, self._weighted = np.zeros(0), 0.0, 0.0  # those tokens
        self._crowd = 0.0  # rows that decoded together lately, at most

    def moved(self, rows: Sequence[Row], counts: Sequence[int] | NDArray[np.int64], sensitivity: float = 1.0) -> None:
        """A cycle with drafts of this sensitivity brought each row so many tokens. Once most rows have left, the others
        are the slow ones: they say nothing about how far rows fall apart."""
        self._crowd = max(len(rows), self._config.fade * self._crowd)
        if 2 * len(rows) < self._crowd:
            return
        if rows != self._together:
            self._settle()
            self._together, self._own = rows, np.zeros(len(rows))
        own = np.array(counts, float)
        mean = float(own.mean())
        self._own += own
        self._others += mean
        self._weighted += mean * sensitivity

    def _settle(self) -> None:
        """Add the tokens of the latest cycles to `_moved`: once for many cycles of the same rows, since adding them row
        by row takes a part of every cycle's time."""
        others, weighted = self._others, self._weighted
        for row, more in zip(self._together, self._own.tolist(), strict=True):
            own, before, so_far = self._moved.get(row, (0.0, 0.0, 0.0))
            self._moved[row] = own + more, before + others, so_far + weighted
        self._together, self._own, self._others, self._weighted = (), np.zeros(0), 0.0, 0.0

    def close(self, row: Row) -> None:
        self._settle()
        own, others, weighted = self._moved.pop(row, (0.0, 0.0, 0.0))
        if others >= self._config.min_tokens and own != others and weighted:  # a row alone is like the others
            self._weight = min(self._weight + 1, self._config.memory)
            self._variance += (((own - others) / weighted) ** 2 - self._variance) / self._weight

    def seconds(
        self, cycle: Column, tail: Column, more: Column, left: Column, sensitivity: Column, alike: float = 1
    ) -> tuple[Column, Column]:
        """Seconds until the average row and the last one of rows with so many tokens left are done, for several ways to
        go on: a cycle takes so long, [ways], and so long once most rows have left. It brings each row so many tokens
        more than one, [ways, rows]; its sensitivity, [ways], is 0 for plain decoding. Each row stands for `alike`."""
        cycles = left / (1 + more)
        near = round(alike * int((left > self._config.near * left.max()).sum()))
        lag = _highest(near) * sensitivity
        usual = left.max() / (1 + more.mean(1)) * (1 + self._variance**0.5 * lag)
        # two views of the slowest row: by what is known of each row, and by how far rows fell apart before
        last: Column = np.maximum(cycles.max(1), usual)
        average = cycles.mean(1)
        return cycle * average, cycle * average + tail * (last - average)


@cache
def _highest(count: int) -> float:
    """Of so many numbers drawn from a normal law, how far the highest is expected to be from the mean."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))
