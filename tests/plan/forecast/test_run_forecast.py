"""Forecasts from runs of other workloads, on machines whose truth is known."""

from __future__ import annotations

import pytest

from slipstream.plan.forecast.cycle_times import cycle_seconds
from slipstream.plan.forecast.formulas import tokens_per_cycle
from slipstream.plan.forecast.run_forecast import forecast_runs
from slipstream.plan.profile.runs import PLAIN, ProfileRun

RATES = {"code": 0.8, "chat": 0.6, "maths": 0.7}


def run(drafter, depth, batch, workload, rate=0.0, temperature=0.0, context=100.0, cycles=4000):
    """A machine on which a pass takes 10 ms, 1 ms for each row and 0.5 ms for each drafted token."""
    seconds = 0.01 + 0.001 * batch + 0.0005 * batch * depth + 1e-6 * batch * (context - 100)
    accepted = tuple(round(cycles * batch * rate ** (i + 1)) for i in range(depth))
    emitted = cycles * batch + sum(accepted)
    counts = (emitted, cycles * batch, emitted, context, accepted, tuple([cycles * batch] * depth))
    return ProfileRun(drafter, depth, batch, temperature, workload, seconds * cycles, *counts)


def runs(rates=RATES, batches=(1, 8), depths=(1, 4, 8)):
    plain = [run(PLAIN, 0, batch, workload) for batch in batches for workload in rates]
    return plain + [run("d", d, b, w, rate) for d in depths for b in batches for w, rate in rates.items()]


@pytest.mark.parametrize("depth", [2, 6, 10])
@pytest.mark.parametrize("batch", [1, 4, 8, 16])
def test_depths_and_batches_that_were_not_measured(depth, batch):
    point = forecast_runs(runs({"one": 0.7, "two": 0.7}), "d", depth, batch, 0.0)
    tau, seconds = tokens_per_cycle([0.7] * depth), 0.01 + 0.001 * batch + 0.0005 * batch * depth
    assert point.tau == pytest.approx(tau, rel=1e-3)
    assert point.tokens_per_second == pytest.approx(batch * tau / seconds, rel=1e-3)
    assert point.speedup == pytest.approx(tau * (0.01 + 0.001 * batch) / seconds, rel=1e-3)
    assert point.tau_interval[1] - point.tau_interval[0] < 0.01
    assert point.joules_per_token is None


def test_the_interval_holds_workloads_that_differ():
    point = forecast_runs(runs(), "d", 4, 1, 0.0)
    for rate in RATES.values():
        assert point.tau_interval[0] < tokens_per_cycle([rate] * 4) < point.tau_interval[1]


def test_temperatures_between_the_measured_ones():
    warm = [run("d", 4, 1, w, rate - 0.2, temperature=1.0) for w, rate in RATES.items()]
    cold, half, hot = (forecast_runs(runs() + warm, "d", 4, 1, t).tau for t in (0.0, 0.5, 1.0))
    assert hot < half < cold
    assert half == pytest.approx((cold + hot) / 2)


def test_a_longer_context_takes_longer():
    contexts = {"short": 100.0, "middle": 500.0, "long": 2000.0}
    own = [run(PLAIN, 0, 1, w, context=c) for w, c in contexts.items()]
    own += [run("d", 4, 1, w, 0.7, context=c) for w, c in contexts.items()]
    assert cycle_seconds(own, PLAIN, 0, 1, context=1000) == pytest.approx(0.011 + 9e-4, rel=1e-3)
    assert cycle_seconds(own, "d", 4, 1, context=1000) == pytest.approx(0.013 + 9e-4, rel=1e-3)


def test_a_sample_and_the_text_count_beside_the_other_workloads():
    few, many = (run("d", 8, 1, "new", 0.4, cycles=count) for count in (20, 4000))
    blind, text, both, sure = (
        forecast_runs(runs(), "d", 4, 1, 0.0, sample=sample, shift=shift).tau
        for sample, shift in (((), 0.0), ((), -1.0), ([few], -1.0), ([many], -1.0))
    )
    assert text < blind, "the text is harder than the others"
    assert sure == pytest.approx(tokens_per_cycle([0.4] * 4), rel=0.01)
    assert both == pytest.approx((text + sure) / 2, rel=0.01), "a sample of as many cycles as the others count"


def stopping(lengths, by_token):
    """Runs of a drafter that stops before the depth of 4, on some texts sooner than on others. A cycle takes 4 ms more
    than a plain one, or 4 ms for each drafted token."""
    made = [run(PLAIN, 0, 1, workload) for workload in lengths]
    for workload, length in lengths.items():
        drafted, accepted = round(4000 * length), round(2000 * length)
        seconds = 4000 * (0.011 + 0.004 * (length if by_token else 1))
        counts = 4000 + accepted, 4000, 4000 + accepted, 100.0, (accepted, 0, 0, 0), (drafted, 0, 0, 0)
        made.append(ProfileRun("d", 4, 1, 0.0, workload, seconds, *counts))
    return made


@pytest.mark.parametrize("by_token", [True, False])
def test_a_drafter_that_stops_sooner_on_this_text_takes_less_time_if_others_did(by_token):
    others, own = stopping({"one": 0.4, "two": 0.8}, by_token), stopping({"new": 0.2}, by_token)[1:]
    point = forecast_runs(others, "d", 4, 1, 0.0, sample=own)
    seconds = 0.011 + 0.004 * (0.2 if by_token else 1)
    assert point.tau / point.tokens_per_second == pytest.approx(seconds, rel=0.02)


def test_joules_by_depth():
    metered = [ProfileRun(**{**each.to_json(), "joules": 2.0 * each.cycles}) for each in runs()]
    point = forecast_runs(metered, "d", 4, 1, 0.0)
    assert point.joules_per_token == pytest.approx(2.0 / point.tau)
    assert point.joules_per_token_interval is not None


@pytest.mark.parametrize("call", [
    lambda: forecast_runs(runs(), "d", 0, 1, 0.0),
    lambda: forecast_runs(runs(), "other", 2, 1, 0.0),
    lambda: forecast_runs([r for r in runs() if r.drafter == "d"], "d", 2, 1, 0.0),
    lambda: run("d", 0, 1, "code"),
    lambda: ProfileRun("d", 1, 1, 0.0, "code", 0.0, 0, 0, 0, 1.0),
])  # fmt: skip
def test_what_cannot_be_forecast_is_one_sentence(call):
    with pytest.raises(ValueError, match=r"must be|there are no runs|only none|a run has"):
        call()
