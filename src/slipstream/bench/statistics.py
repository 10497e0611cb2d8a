"""Medians with bootstrap intervals: machines hiccup, so neither means nor normal distributions are assumed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES, LEVEL = 2000, 0.95


@dataclass(frozen=True)
class Estimate:
    """A median and the interval that holds 95 % of the medians of resampled repeats."""

    value: float
    low: float
    high: float

    def data(self) -> list[float]:
        return [round(x, 5) for x in (self.value, self.low, self.high)]


def estimate(values: Sequence[float]) -> Estimate:
    """With few repeats the interval is wide, as it should be; with one it is a point and says nothing."""
    data = np.asarray(values, dtype=np.float64)
    assert data.size, "there is nothing to estimate"
    if data.size == 1:
        return Estimate(float(data[0]), float(data[0]), float(data[0]))
    drawn = np.random.default_rng(0).integers(data.size, size=(RESAMPLES, data.size))
    low, high = np.quantile(np.median(data[drawn], axis=1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(float(np.median(data)), float(low), float(high))


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Estimate:
    """The median of ratios of repeats that took turns: what slowed the machine for a while slowed both."""
    return estimate([a / b for a, b in zip(ours, theirs, strict=True)])


def spread(values: Sequence[float]) -> float:
    """The standard deviation over repeats; 0 for one."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
