"""What `--compare` makes of two speeds: pairs in alternating order, an interval, and no gain out of noise."""

from __future__ import annotations

import math
import random
import re
from itertools import count

import pytest

from slipstream.bench.measure.measurement import Measurement
from slipstream.cli.generate import pairs as module
from slipstream.cli.generate.completion_report import why_undrafted
from slipstream.cli.generate.pairs import (
    MAX_PAIRS,
    MIN_PAIRS,
    Pairs,
    measure_pairs,
    ratio_report,
    speed_of,
    why_not_measured,
)
from slipstream.cli.generation import Run
from slipstream.engines.base import Completion, Guarantee, SpeculationStats
from slipstream.plan.policy.drafting_cost import DraftingCost


def run(speed: float = 10.0, tokens: int = 100, drafted: int = 50, interrupted: bool = False) -> Run:
    stats = SpeculationStats(cycles=50, emitted=tokens, drafted=[drafted], accepted=[0])
    sample = Completion("", [1] * tokens, "length", [], 3, [], stats, Guarantee("greedy"))
    times = Measurement(tokens=tokens, seconds=1.0, decoded=max(0, tokens - 1), decoding=max(0, tokens - 1) / speed)
    return Run([sample], times, interrupted)


def ignore(done: int, least: int) -> None:
    pass


def test_which_is_first_alternates_and_the_least_is_enough_where_nothing_varies():
    order = []
    pairs = measure_pairs(lambda: order.append("fast") or run(13.0), lambda: order.append("plain") or run(10.0), ignore)
    assert order == (["fast", "plain", "plain", "fast"] * MIN_PAIRS)[: 2 * MIN_PAIRS]
    report = ratio_report(pairs)
    assert report["gain"] is True
    assert report["ratio"] == pytest.approx(1.3)
    assert report["pairs"] == MIN_PAIRS
    assert ratio_report(Pairs(pairs.plain, pairs.fast))["gain"] is False


def test_noise_is_measured_longer_and_is_no_gain():
    """Two runs that are the same but for the machine. One pair of them printed a speed-up of 1.389 once."""
    rng = random.Random(1)
    wrong = 0
    for _ in range(100):
        noisy = lambda: run(10 * math.exp(rng.gauss(0, 0.2)))  # noqa: E731
        pairs = measure_pairs(noisy, noisy, ignore)
        assert len(pairs.plain) > MIN_PAIRS
        wrong += ratio_report(pairs)["gain"] is not None
    assert wrong <= 12, "an interval of 95 % misses one time in twenty"


def test_the_time_is_limited(monkeypatch):
    clock = count(0, 50)
    monkeypatch.setattr(module.time, "perf_counter", lambda: float(next(clock)))
    pairs = measure_pairs(run, run, ignore)
    assert 1 <= len(pairs.plain) < MIN_PAIRS
    assert len(Pairs([1.0] * MAX_PAIRS, [1.0, 2.0] * (MAX_PAIRS // 2) + [1.0]).fast) == MAX_PAIRS
    assert Pairs([1.0] * MAX_PAIRS, [1.0, 2.0] * (MAX_PAIRS // 2) + [1.0]).enough(0.0)


def test_one_pair_has_no_interval_and_is_no_gain():
    report = ratio_report(Pairs([20.0], [10.0]))
    assert (report["gain"], report["ratio_low"], report["ratio_high"]) == (None, None, None)


@pytest.mark.parametrize(
    ("result", "says"),
    [
        (run(tokens=0, drafted=0), "nothing was generated"),
        (run(drafted=0), "nothing was drafted: no difference to measure"),
        (run(drafted=4), r"next to nothing was drafted \(4 tokens\): no difference to measure"),
    ],
)
def test_where_there_is_nothing_to_compare(result, says):
    assert re.match(says, why_not_measured(result) or "")
    assert why_not_measured(run()) is None


@pytest.mark.parametrize(
    ("measured", "requested", "says"),
    [
        (True, 5, "a drafted token costs 0.50 of a target pass, and 30% of them are expected to be accepted"),
        (False, 5, "ngram found nothing to propose"),
        (False, 0, "the text ended before drafting was tried"),
    ],
)
def test_why_nothing_is_drafted_is_said_in_words(measured, requested, says):
    cost = DraftingCost(drafting=0.1, scoring=0.4, acceptance=0.3, measured=measured, requested=requested)
    assert says in (why_undrafted(run(drafted=0), "ngram", None, cost) or "")
    assert "plain decoding to be faster" in (why_undrafted(run(drafted=0), "ngram", None, None) or "")
    for drafter, depth, drafted in (("none", None, 0), ("ngram", 4, 0), ("ngram", None, 50)):
        assert why_undrafted(run(drafted=drafted), drafter, depth, cost) is None


def test_the_reason_fits_the_figures():
    """Where drafts would be expected to pay, plain decoding is not called faster."""
    cost = DraftingCost(drafting=0.1, scoring=0.1, acceptance=0.5, measured=True, requested=5)
    assert "2 tokens were drafted and 0 accepted" in (why_undrafted(run(drafted=2), "eagle", None, cost) or "")
    assert "where drafts have paid before" in (why_undrafted(run(drafted=0), "eagle", None, cost) or "")


def test_an_interrupted_run_ends_the_comparison():
    speeds = iter([run(), run(interrupted=True)])
    with pytest.raises(KeyboardInterrupt):
        measure_pairs(lambda: next(speeds), lambda: next(speeds), ignore)
    assert speed_of(run(tokens=1)) == 0.0
    assert ratio_report(Pairs([0.0], [1.0]))["ratio"] is None
