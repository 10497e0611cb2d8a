"""Estimates from repeats, and verdicts on ratios of speeds.

Speeds vary by factors, so the logarithms of the repeats are averaged. The interval is Student's, which is wide for few
repeats. A bootstrap of three medians is not used, because it covers the true value in only 75 % of runs, not in 95 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slipstream.core.student import student_quantile

FASTER, SLOWER, UNCLEAR = "faster", "slower", "no clear difference"
ONE_REPEAT = "one repeat: no interval"
NOT_DRAFTED = "nothing was drafted: no difference to measure"
SLOWER_NOT_DRAFTED = "slower, though nothing was drafted"


@dataclass(frozen=True)
class Estimate:
    """The geometric mean of repeats and its 95 % confidence interval, which one repeat does not have."""

    value: float
    interval: tuple[float, float] | None

    @property
    def bounds(self) -> list[float] | None:
        """The interval as a JSON list."""
        return None if self.interval is None else list(self.interval)

    def data(self) -> list[float | None]:
        """Value, low and high."""
        low, high = self.interval or (None, None)
        return [None if x is None else round(x, 5) for x in (self.value, low, high)]


def estimate(values: Sequence[float]) -> Estimate:
    """The estimate of positive values. If a value is zero, the result is the arithmetic mean without an interval."""
    assert len(values), "there is nothing to estimate"
    if min(values) <= 0:
        return Estimate(float(np.mean(values)), None)
    logs = np.log(np.asarray(values, dtype=np.float64))
    centre = float(logs.mean())
    if logs.size == 1:
        return Estimate(math.exp(centre), None)
    half = student_quantile(logs.size - 1) * float(logs.std(ddof=1)) / math.sqrt(logs.size)
    return Estimate(math.exp(centre), (math.exp(centre - half), math.exp(centre + half)))


def ratio(values: Sequence[float], base: Sequence[float]) -> Estimate:
    """The ratio per repeat: runs were interleaved, so a temporary slowdown of the machine affected both."""
    return estimate([a / b for a, b in zip(values, base, strict=True)])


Pair = tuple[Sequence[float], Sequence[float]]


def pooled(pairs: Sequence[Pair]) -> Estimate:
    """One ratio over several workloads: the geometric mean of each repeat, then the estimate over repeats."""
    logs = [[math.log(a / b) for a, b in zip(values, base, strict=True)] for values, base in pairs]
    return estimate([math.exp(sum(repeat) / len(repeat)) for repeat in zip(*logs, strict=True)])


def verdict(speed_ratio: Estimate, drafted: bool = True) -> str:
    """The verdict on a ratio of speeds. It is a gain only if its whole interval lies above 1.

    `drafted` is False if a drafter proposed no token. Such a ratio is never a gain, but it can be a loss.
    """
    if speed_ratio.interval is None:
        return ONE_REPEAT if drafted else NOT_DRAFTED
    low, high = speed_ratio.interval
    if not drafted:
        return SLOWER_NOT_DRAFTED if high < 1 else NOT_DRAFTED
    return FASTER if low > 1 else SLOWER if high < 1 else UNCLEAR


def median(values: Sequence[float]) -> float:
    return float(np.median(values))
