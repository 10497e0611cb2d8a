"""Tests whether two samples come from one law, which need not be known.

Every outcome gets its exact hypergeometric tail, with a Bonferroni correction over outcomes. This detects a single
outcome that is off. Pearson's chi-squared over pooled outcomes detects many that are slightly off. Its asymptotics are
not exact in the far tail, so its alarm is set a hundred times lower than the exact one's.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass

import torch

from slipstream.audit.statistical import ALARM

LEAST = 10.0  # expected counts below this are pooled
FAR = ALARM / 100


@dataclass(frozen=True)
class Homogeneity:
    """The result of the test."""

    tail: float  # the smallest, times two and the number of outcomes
    worst: Hashable
    chi_squared: float
    freedom: int
    chance: float  # of so large a chi-squared

    @property
    def passed(self) -> bool:
        return self.tail >= ALARM and self.chance >= FAR

    def __str__(self) -> str:
        chi = f"chi-squared {self.chi_squared:.1f} on {self.freedom} (p {self.chance:.1e}, alarm below {FAR:.0e})"
        return f"{chi}, smallest corrected tail {self.tail:.1e} (alarm below {ALARM:.0e})"


def homogeneous(a: Counter[Hashable], b: Counter[Hashable]) -> Homogeneity:
    sizes, keys = (a.total(), b.total()), sorted(a.keys() | b.keys(), key=repr)
    tails = {key: hypergeometric_tail(a[key], a[key] + b[key], *sizes) for key in keys}
    worst = min(tails, key=lambda key: tails[key])
    smaller = min(sizes) / sum(sizes)
    large = [key for key in keys if (a[key] + b[key]) * smaller >= LEAST]
    small = [key for key in keys if key not in large]
    cells = [(a[key], b[key]) for key in large] + [(sum(a[k] for k in small), sum(b[k] for k in small))] * bool(small)
    total, freedom = chi_squared(cells, sizes), max(1, len(cells) - 1)
    return Homogeneity(min(1.0, 2 * tails[worst] * len(keys)), worst, total, freedom, upper(total, freedom))


def chi_squared(cells: list[tuple[int, int]], sizes: tuple[int, int]) -> float:
    total = 0.0
    for cell in cells:
        for count, size in zip(cell, sizes, strict=True):
            expected = sum(cell) * size / sum(sizes)
            total += (count - expected) ** 2 / expected if expected else 0.0
    return total


def upper(value: float, freedom: int) -> float:
    """P(chi-squared >= value)."""
    half = torch.tensor([freedom / 2, value / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def hypergeometric_tail(count: int, marked: int, first: int, second: int) -> float:
    """The smaller of P(X <= count) and P(X >= count), X the marked ones among `first` of `first + second` drawn."""
    low, high = max(0, marked - second), min(marked, first)
    mean = marked * first / (first + second)
    span = range(count, high + 1) if count > mean else range(low, count + 1)
    whole = _log_choose(first + second, marked)
    terms = (math.exp(_log_choose(first, k) + _log_choose(second, marked - k) - whole) for k in span)
    return min(1.0, math.fsum(terms))


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
