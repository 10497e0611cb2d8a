"""95 % intervals of accuracies and of their paired differences, by the bootstrap over problems."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

RESAMPLES, SEED, LEVEL = 10_000, 0, 0.95


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the mean of values between 0 and 1, by the percentile bootstrap.

    If all values are equal, the bootstrap has no width. The exact bound of the binomial distribution is used then."""
    low, high = (1 - LEVEL) / 2, (1 + LEVEL) / 2
    if min(values) == max(values):
        width = 1 - low ** (1 / len(values))
        return max(0.0, values[0] - width), min(1.0, values[0] + width)
    below, above = np.quantile(_resampled(values), [low, high])
    return float(below), float(above)


def lower_bound(differences: Sequence[float], level: float = LEVEL) -> float:
    """The one-sided lower bound of the mean of paired differences between -1 and 1.

    It is the smaller of the bootstrap's bound and the exact bound for the share of problems that got worse. The exact
    bound matters where few problems or none differ, of which the bootstrap knows too little."""
    boot = float(np.quantile(_resampled(differences), 1 - level))
    losses = sum(difference < 0 for difference in differences)
    gains = sum(max(0.0, difference) for difference in differences) / len(differences)
    return max(-1.0, min(boot, gains - upper_share(losses, len(differences), level)))


def upper_share(count: int, total: int, level: float = LEVEL) -> float:
    """The upper bound of a share of which `count` in `total` were seen (Clopper and Pearson), by bisection."""
    if count >= total:
        return 1.0
    low, high = count / total, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _at_most(count, total, middle) > 1 - level else (low, middle)
    return high


def problems_needed(margin: float, differences: Sequence[float], level: float = LEVEL) -> int:
    """How many problems it takes to bound a loss by `margin`, if further problems differ as these do."""
    assert margin > 0
    mean, spread = float(np.mean(differences)), float(np.std(differences))
    room = margin + mean
    exact = math.log(1 - level) / math.log(1 - min(margin, 1 - 1e-9))  # no problem got worse
    if room <= 0:
        return 0  # the loss itself exceeds the margin: no number of problems helps
    normal = 1.6449  # one-sided 95 %
    return math.ceil(max(exact, (normal * spread / room) ** 2))


def _at_most(count: int, total: int, share: float) -> float:
    """The probability of at most `count` in `total`."""
    logs = [
        math.lgamma(total + 1) - math.lgamma(k + 1) - math.lgamma(total - k + 1)
        + k * math.log(share) + (total - k) * math.log1p(-share)
        for k in range(count + 1)
    ]  # fmt: skip
    return sum(map(math.exp, logs))


def _resampled(values: Sequence[float]) -> np.ndarray:
    """Means of resamples, with a fixed seed: the same results give the same interval."""
    data, chance = np.asarray(values, dtype=np.float64), np.random.default_rng(SEED)
    means = [chance.choice(data, (500, len(data))).mean(1) for _ in range(RESAMPLES // 500)]
    return np.concatenate(means)


def paired_interval(differences: Sequence[float]) -> tuple[float, float]:
    """The two-sided 95 % interval of the mean of paired differences."""
    half = (1 + LEVEL) / 2
    return lower_bound(differences, half), -lower_bound([-value for value in differences], half)
