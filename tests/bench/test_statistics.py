"""Intervals from few repeats, and what a ratio may be called."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream.bench.statistics import (
    FASTER,
    NOT_DRAFTED,
    ONE_REPEAT,
    SLOWER,
    SLOWER_NOT_DRAFTED,
    UNCLEAR,
    Estimate,
    estimate,
    median,
    pooled,
    ratio,
    verdict,
)


def test_a_geometric_mean_and_students_interval():
    found = estimate([1.0, 2.0, 4.0])
    half = 4.3027 * np.log(2) / 3**0.5
    assert found.value == pytest.approx(2.0)
    assert found.interval == pytest.approx((2 * np.exp(-half), 2 * np.exp(half)))
    assert found.bounds == list(found.interval)
    assert estimate([5.0]) == Estimate(pytest.approx(5.0), None)
    assert estimate([5.0]).data() == [5.0, None, None]
    assert estimate([0.0, 4.0]) == Estimate(2.0, None)  # no logarithm
    assert median([1.0, 9.0, 2.0]) == 2.0


@pytest.mark.parametrize("repeats", [2, 3, 5, 12, 40])
def test_the_interval_holds_the_true_value_as_often_as_it_says(repeats):
    """The bootstrap of medians it replaced held it in 50 % of runs of two repeats and 75 % of three."""
    draws = np.random.default_rng(0).lognormal(0.0, 0.1, size=(2000, repeats))
    intervals = [estimate(list(row)).interval for row in draws]
    held = np.mean([low <= 1 <= high for low, high in intervals])
    assert held == pytest.approx(0.95, abs=0.015)


def test_a_ratio_is_of_pairs_so_that_a_slow_moment_cancels():
    found = ratio([2.0, 30.0, 4.0], [1.0, 15.0, 2.0])
    assert found.value == pytest.approx(2.0)
    assert found.interval == pytest.approx((2.0, 2.0))
    both = pooled([([2.0, 4.0], [1.0, 1.0]), ([8.0, 4.0], [1.0, 1.0])])
    assert both.value == pytest.approx(4.0)
    assert both.interval == pytest.approx((4.0, 4.0))


@pytest.mark.parametrize(
    ("low", "high", "drafted", "says"),
    [
        (1.01, 1.5, True, FASTER),
        (0.8, 0.99, True, SLOWER),
        (0.97, 1.9, True, UNCLEAR),
        (1.0, 1.4, True, UNCLEAR),
        (1.01, 1.5, False, NOT_DRAFTED),
        (0.97, 1.02, False, NOT_DRAFTED),
        (0.93, 0.96, False, SLOWER_NOT_DRAFTED),
    ],
)
def test_only_an_interval_above_one_is_a_gain(low, high, drafted, says):
    assert verdict(Estimate((low + high) / 2, (low, high)), drafted) == says


def test_one_repeat_is_never_a_gain():
    assert verdict(Estimate(1.389, None)) == ONE_REPEAT
    assert verdict(Estimate(1.389, None), drafted=False) == NOT_DRAFTED


def test_the_ratios_of_one_noisy_command_are_no_gain():
    """Four runs of one command that drafted 4 tokens at tau 1.009 printed these as its speed-up."""
    assert verdict(estimate([1.389, 1.287, 0.972, 0.95])) == UNCLEAR
