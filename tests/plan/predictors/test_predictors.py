"""Predictors on traces whose truth is known."""

from __future__ import annotations

import random

import pytest

from slipstream.plan.predictors import predictors
from slipstream.plan.predictors.base import SlotRecord
from slipstream.plan.predictors.score import score, score_held_out


def traces(chance, seed=0, cycles=400, depth=4):
    """Cycles in which a slot is accepted with `chance(confidence, last outcome)`."""
    draw, found, last = random.Random(seed), [], True
    for _ in range(cycles):
        cycle, judged = [], True
        for d in range(1, depth + 1):
            confidence = draw.random()
            accepted = judged and draw.random() < chance(confidence, last)
            cycle.append(SlotRecord(d, confidence, accepted, judged))
            last = accepted if judged else last
            judged = judged and accepted
        found.append(cycle)
    return [found]


@pytest.mark.parametrize("name", predictors.names())
def test_a_constant_rate_is_learnt(name):
    kind = predictors.get(name)
    scored = score(name, kind, traces(lambda confidence, last: 0.7))
    assert scored.log_loss < 0.70
    assert scored.slots > 400
    assert 0 < scored.speed < 4
    assert all(0 <= kind().predict(d, c) <= 1 for d in (1, 20) for c in (0.0, 0.5, 1.0))


def test_confidence_tells_more_where_it_is_right():
    by_confidence = traces(lambda confidence, last: confidence)
    losses = {name: score(name, predictors.get(name), by_confidence).log_loss for name in predictors}
    assert min(losses, key=losses.__getitem__) in ("confidence", "perceptron")
    assert losses["confidence"] < losses["static"] - 0.05


def test_history_tells_more_where_outcomes_repeat():
    sticky = traces(lambda confidence, last: 0.95 if last else 0.15)
    losses = {name: score(name, predictors.get(name), sticky).log_loss for name in predictors}
    assert losses["gshare"] < losses["average"] < losses["static"]


def test_tokens_that_were_never_judged_cost_time_and_teach_nothing():
    rejected = [[[SlotRecord(1, 0.9, False), SlotRecord(2, 0.9, False, judged=False)]]]
    scored = score("static", predictors.get("static"), rejected)
    assert (scored.slots, scored.speed) == (1, pytest.approx(1 / 1.2))


def test_no_traces_are_one_sentence():
    with pytest.raises(ValueError, match="the traces hold no drafted token"):
        score("static", predictors.get("static"), [])


def test_a_held_out_workload_profits_from_what_the_others_taught():
    """A predictor that learnt a rate of 0.2 elsewhere does not start at its first guess."""
    chain = [[SlotRecord(1, 0.5, n % 5 == 0)] for n in range(10)]
    longer = [[SlotRecord(1, 0.5, n % 5 == 0)] for n in range(400)]
    for name in ("average", "counters", "gshare", "confidence", "perceptron"):
        kind = predictors.get(name)
        alone = score(name, kind, [chain]).log_loss
        taught = score(name, kind, [chain], training=[[longer]]).log_loss
        assert taught < alone
        both = score_held_out(name, kind, {"one": [chain], "two": [longer]})
        assert both.slots == 410
        assert score_held_out(name, kind, {"one": [chain]}).log_loss == pytest.approx(alone)
