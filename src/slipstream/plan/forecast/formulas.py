"""The formulas of speculative sampling: tokens per cycle, and how they spread, by depth and acceptance.

A cycle emits the accepted tokens and one more. With the probability a_i that token i is accepted if those before it
were, it emits more than i tokens with probability a_1 * ... * a_i (arXiv 2302.01318, 2211.17192)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate


def tokens_per_cycle(acceptance: Sequence[float]) -> float:
    """Expected emitted tokens of a cycle (tau). `acceptance`: by position, one for each drafted token."""
    return 1.0 + sum(reached(acceptance))


def variance_per_cycle(acceptance: Sequence[float]) -> float:
    """The variance of a cycle's emitted tokens."""
    return deviation_of(reached(acceptance)) ** 2


def reached(acceptance: Sequence[float]) -> list[float]:
    """The probability that token 1, 2, … is accepted together with all before it."""
    return list(accumulate(acceptance, lambda before, own: before * own))


def deviation_of(chances: Sequence[float]) -> float:
    """The standard deviation of a cycle's emitted tokens. `chances`: as `reached` gives them."""
    square = 1.0 + sum((2 * i + 1) * chance for i, chance in enumerate(chances, 1))
    return float(max(0.0, square - (1.0 + sum(chances)) ** 2) ** 0.5)
