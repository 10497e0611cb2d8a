"""Forecasts: formulas against enumeration, and a profile whose truth is known."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from slipstream.plan.forecast.formulas import tokens_per_cycle, variance_per_cycle
from slipstream.plan.forecast.hardware import Hardware, forecast_hardware, quantity
from slipstream.plan.forecast.profile_forecast import DecodingProfile, PromptProfile, forecast


def enumerated(acceptance):
    """Mean and variance of a cycle's tokens, over every pattern of acceptances."""
    mean = square = 0.0
    for pattern in product((True, False), repeat=len(acceptance)):
        chance = np.prod([a if kept else 1 - a for a, kept in zip(acceptance, pattern, strict=True)])
        tokens = 1 + next((i for i, kept in enumerate(pattern) if not kept), len(pattern))
        mean, square = mean + chance * tokens, square + chance * tokens**2
    return mean, square - mean**2


@pytest.mark.parametrize("acceptance", [(), (0.8,), (0.9, 0.5, 0.2), (1.0, 0.0, 0.7), (0.6,) * 6])
def test_formulas_equal_enumeration(acceptance):
    mean, variance = enumerated(acceptance)
    assert tokens_per_cycle(acceptance) == pytest.approx(mean)
    assert variance_per_cycle(acceptance) == pytest.approx(variance, abs=1e-12)


def profile(depths, rate=0.75, base=1.0, each=0.1, prompts=4, cycles=4096):
    """A machine on which a pass takes base + depth * each, and every token is accepted at one rate."""
    runs = {0: tuple(PromptProfile(base * cycles, cycles, cycles) for _ in range(prompts))}
    for depth in depths:
        seconds = (base + each * depth) * cycles
        accepted = tuple(round(cycles * rate ** (i + 1)) for i in range(depth))
        runs[depth] = tuple(PromptProfile(seconds, cycles, cycles, accepted) for _ in range(prompts))
    return DecodingProfile("m", "d", 1, 0.0, runs)


def test_depths_that_were_not_measured():
    for point in forecast(profile((1, 4, 8)), [2, 3, 6, 8, 10]):
        tau = tokens_per_cycle([0.75] * point.depth)
        speed = tau / (1.0 + 0.1 * point.depth)
        assert point.tau == pytest.approx(tau, rel=1e-3)
        assert point.tokens_per_second == pytest.approx(speed, rel=1e-3)
        assert point.speedup == pytest.approx(speed, rel=1e-3)
        assert point.speedup_interval[0] <= point.speedup <= point.speedup_interval[1]


def test_intervals_hold_the_differences_between_prompts():
    same, runs = profile((4,)), dict(profile((4,)).depths)
    runs[4] = (*runs[4][:2], *profile((4,), rate=0.2).depths[4][:2])
    mixed = DecodingProfile("m", "d", 1, 0.0, runs)
    (narrow,), (wide,) = forecast(same, [4]), forecast(mixed, [4])
    assert narrow.tau_interval[1] - narrow.tau_interval[0] < 1e-9
    assert wide.tau_interval[0] < 2.0 < wide.tau_interval[1]


def test_hardware():
    chip = Hardware(bandwidth=4e12, flops=1e15, weight_bytes=16e9)
    point = forecast_hardware(chip, acceptance=0.8, depth=4, batch=1, draft_cost=0.0)
    assert point.speedup == pytest.approx(tokens_per_cycle([0.8] * 4))  # bound by reading: the drafted tokens are free
    busy = forecast_hardware(chip, 0.8, 4, batch=1000, draft_cost=0.0)
    assert busy.speedup < 1  # bound by arithmetic: five tokens take five times as long
    assert forecast_hardware(chip, 0.8, 4, draft_cost=0.5).speedup < point.speedup


@pytest.mark.parametrize(("text", "value"), [("3.35TB/s", 3.35e12), ("990T", 990e12), ("16GB", 16e9), ("2e3", 2000.0)])
def test_quantities(text, value):
    assert quantity("x", text) == pytest.approx(value)


@pytest.mark.parametrize("call", [
    lambda: quantity("bandwidth", "fast"),
    lambda: quantity("bandwidth", "0GB"),
    lambda: forecast_hardware(Hardware(1e12, 1e15, 1e9), 1.5, 2),
    lambda: forecast_hardware(Hardware(1e12, 1e15, 1e9), 0.5, 0),
    lambda: Hardware(-1.0, 1e15, 1e9),
    lambda: forecast(profile((1,)), [0]),
    lambda: DecodingProfile("m", "d", 1, 0.0, {}),
])  # fmt: skip
def test_impossible_figures_are_refused(call):
    with pytest.raises(ValueError, match=r"must be|write a number|a profile has"):
        call()
