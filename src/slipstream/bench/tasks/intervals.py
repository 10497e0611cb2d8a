"""95 % intervals of accuracies, by the bootstrap over problems, and of their paired differences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist

import numpy as np

RESAMPLES, SEED, LEVEL = 10_000, 0, 0.95
FEW = 8  # different values


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

    Of right and wrong answers (-1, 0, 1) it is the smaller of the score bound and the exact bound for the share of
    problems that got worse. The exact bound matters where few problems or none differ. Other values are bounded by the
    bootstrap."""
    if not set(differences) <= {-1.0, 0.0, 1.0}:
        return max(-1.0, float(np.quantile(_resampled(differences), 1 - level)))
    gains, losses = (sum(value == sign for value in differences) for sign in (1, -1))
    return graded_bound(gains, losses, len(differences), level)


@lru_cache(maxsize=1 << 14)
def graded_bound(gains: int, losses: int, total: int, level: float = LEVEL) -> float:
    """`lower_bound` of problems of which so many got better and so many worse."""
    exact = gains / total - upper_share(losses, total, level)
    return max(-1.0, min(exact, score_bound(gains, losses, total, level)))


def score_bound(gains: int, losses: int, total: int, level: float = LEVEL) -> float:
    """Tango's score bound for a difference of paired proportions (Statistics in Medicine 17, 1998), by bisection.

    It covers at its level also where the bootstrap, which knows too little of rare losses, does not."""
    quantile = NormalDist().inv_cdf(level)

    def statistic(difference: float) -> float:
        b = (2 * total - gains + losses) * difference - gains - losses
        c = -losses * difference * (1 - difference)
        share = (math.sqrt(max(0.0, b * b - 8 * total * c)) - b) / (4 * total)  # of losses, if this is the difference
        variance = total * (2 * share + difference * (1 - difference))
        excess = gains - losses - total * difference
        return excess / math.sqrt(variance) if variance > 0 else math.inf

    low, high = -1 + 1e-12, (gains - losses) / total
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if statistic(middle) > quantile else (low, middle)
    return low


@lru_cache(maxsize=1 << 12)
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
    """Means of resamples, with a fixed seed: the same results give the same interval.

    Few different values are drawn by their counts, which has the same law and takes a hundredth of the time."""
    data, chance = np.asarray(values, dtype=np.float64), np.random.default_rng(SEED)
    kinds, counts = np.unique(data, return_counts=True)
    if len(kinds) <= FEW:
        means: np.ndarray = chance.multinomial(len(data), counts / len(data), RESAMPLES) @ kinds / len(data)
        return means
    return np.concatenate([chance.choice(data, (500, len(data))).mean(1) for _ in range(RESAMPLES // 500)])


def paired_interval(differences: Sequence[float]) -> tuple[float, float]:
    """The two-sided 95 % interval of the mean of paired differences."""
    half = (1 + LEVEL) / 2
    return lower_bound(differences, half), -lower_bound([-value for value in differences], half)
