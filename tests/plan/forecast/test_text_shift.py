"""Acceptance that follows the certainty of a text, on machines whose truth is known."""

from __future__ import annotations

import math

import pytest

from slipstream.plan.forecast.run_forecast import forecast_runs
from slipstream.plan.forecast.text_shift import TextCertainty, certainty_of, certainty_slope, moved
from slipstream.plan.profile.runs import PLAIN, ProfileRun

CERTAINTY = {"code": 0.85, "maths": 0.7, "summary": 0.65, "chat": 0.5}
TEXTS = [TextCertainty(name, 0.0, value) for name, value in CERTAINTY.items()]


def rate(certainty: float, slope: float) -> float:
    return 1 / (1 + math.exp(-slope * (certainty - 0.6) - 0.4))


def run(workload: str, drafter: str = "d", depth: int = 4, slope: float = 2.0) -> ProfileRun:
    own, cycles = rate(CERTAINTY[workload], slope), 100_000
    accepted = tuple(round(cycles * own ** (i + 1)) for i in range(depth)) if drafter != PLAIN else ()
    emitted = cycles + sum(accepted)
    depth = 0 if drafter == PLAIN else depth
    return ProfileRun(
        drafter, depth, 1, 0.0, workload, 0.01 * cycles, emitted, cycles, emitted, 100.0, accepted, accepted
    )


@pytest.mark.parametrize("slope", [0.0, 2.0, 5.0])
def test_the_slope_of_acceptance_over_certainty_is_found_and_shrunk(slope):
    found = certainty_slope([run(name, slope=slope) for name in CERTAINTY], TEXTS)
    assert 0.6 * slope <= found + 1e-6
    assert found <= slope + 1e-3


def test_drafters_that_copy_are_left_out_and_nothing_is_known_of_one_workload():
    runs = [run(name, "copy", slope=9.0) for name in CERTAINTY]
    assert certainty_slope(runs, TEXTS, without={"copy"}) == 0.0
    assert certainty_slope([run("code")], TEXTS) == 0.0
    assert certainty_slope(runs, []) == 0.0
    assert certainty_of(TEXTS, "nothing", 0.0) is None
    assert certainty_of([*TEXTS, TextCertainty("code", 1.0, 0.4)], "code", 0.9) == 0.4


def test_shares_are_moved_acceptance_by_acceptance():
    shares = [0.7**i for i in range(1, 5)]
    assert moved(shares, 0.0) == pytest.approx(shares)
    odds = 0.7 / 0.3 * math.e
    assert moved(shares, 1.0) == pytest.approx([(odds / (1 + odds)) ** i for i in range(1, 5)])
    assert all(0 < share < 1 for share in moved([1.0, 1.0, 0.0, 0.0], -2.0))


def test_a_text_of_known_certainty_is_forecast_better_than_by_the_mean():
    others = [run(name, drafter) for name in CERTAINTY if name != "chat" for drafter in ("d", PLAIN)]
    true = run("chat").tau
    usual = sum(CERTAINTY[name] for name in CERTAINTY if name != "chat") / 3
    shift = certainty_slope(others, TEXTS) * (CERTAINTY["chat"] - usual)
    blind, text = (forecast_runs(others, "d", 4, 1, 0.0, shift=by).tau for by in (0.0, shift))
    assert abs(text / true - 1) < 0.5 * abs(blind / true - 1)
