"""Forecasts of a workload that was not measured, from runs of other workloads on the same machine.

Two figures decide the speed. Acceptance depends on the text: the share of cycles that accept token i is averaged over
the workloads that were measured. The time of a cycle depends on the machine: it is read off the runs by depth, batch
and context, whatever their text. Tokens per second are tau over the time of a cycle. Intervals are for another
workload: they hold the differences between the measured ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from slipstream.core.student import student_quantile
from slipstream.plan.forecast.cycle_times import cycle_seconds, lengthening, on_measured, time_spread
from slipstream.plan.forecast.formulas import deviation_of
from slipstream.plan.forecast.profile_forecast import continued
from slipstream.plan.forecast.text_shift import moved
from slipstream.plan.profile.runs import PLAIN, ProfileRun, by_workload

OTHERS = 20.0  # cycles that the other workloads count as beside a sample of the workload
Interval = tuple[float, float]


@dataclass(frozen=True)
class RunPoint:
    """The forecast of one drafter, depth, batch and temperature. Intervals are of 95 %, for one workload."""

    drafter: str
    depth: int
    batch: int
    temperature: float
    tau: float
    tau_interval: Interval
    deviation: float  # of the tokens of one cycle
    tokens_per_second: float  # of all rows
    tokens_per_second_interval: Interval
    speedup: float  # over plain decoding
    speedup_interval: Interval
    joules_per_token: float | None = None  # None: the profile has no joules
    joules_per_token_interval: Interval | None = None


def forecast_runs(
    runs: Sequence[ProfileRun],
    drafter: str,
    depth: int,
    batch: int,
    temperature: float,
    context: float | None = None,
    sample: Sequence[ProfileRun] = (),
    shift: float = 0.0,
) -> RunPoint:
    """One point. `context`: mean tokens of a row, if it is known; None: that of the runs. `sample`: runs of the very
    workload, on other prompts or over its plain text; only their acceptance is used. `shift`: of the log-odds of
    acceptance of the others, by what is known of the text (`text_shift`)."""
    if depth < 1 or batch < 1:
        raise ValueError(f"depth is {depth} and batch {batch}; both must be 1 or more")
    used = [run for run in runs if run.drafter in (drafter, PLAIN)]
    if {run.drafter for run in used} != {drafter, PLAIN}:
        names = ", ".join(sorted({run.drafter for run in runs} - {PLAIN})) or "none"
        raise ValueError(f"there are no runs of {drafter} beside plain decoding; the profile has drafters: {names}")
    chances = survival(used, drafter, depth, temperature)
    own = [run for run in sample if run.drafter == drafter]
    if shift:
        chances = moved(chances, shift)
    if own:
        chances = _mixed(own, chances, depth, temperature)
    texts = [runs_of for runs_of in by_workload(used).values() if any(run.drafter == drafter for run in runs_of)]
    taus = [1.0 + sum(survival(each, drafter, depth, temperature)) for each in ([own] if own else texts)]
    tau, spread = 1.0 + sum(chances), _spread(taus)
    seconds, seconds_spread = cycle_seconds(used, drafter, depth, batch, context), time_spread(used, drafter)
    plain, plain_spread = cycle_seconds(used, PLAIN, 0, batch, context), time_spread(used, PLAIN)
    if own:
        seconds = plain + (seconds - plain) * lengthening(used, own, drafter, depth)
    joules = _joules(used, tau, drafter, depth, batch)
    count = max(2, len(texts))
    return RunPoint(
        drafter, depth, batch, temperature,
        tau, _interval(tau, (spread,), count, least=1.0), deviation_of(chances),
        tau / seconds, _interval(tau / seconds, (spread, seconds_spread), count),
        tau * plain / seconds, _interval(tau * plain / seconds, (spread, seconds_spread, plain_spread), count),
        joules, None if joules is None else _interval(joules, (spread, seconds_spread), count),
    )  # fmt: skip


def _mixed(own: Sequence[ProfileRun], others: Sequence[float], depth: int, temperature: float) -> list[float]:
    """The acceptance of the workload's own sample. Where it is small, the other workloads count a little."""
    cycles = sum(run.cycles for run in own)
    weight = cycles / (cycles + OTHERS)
    return [
        weight * a + (1 - weight) * b
        for a, b in zip(survival(own, own[0].drafter, depth, temperature), others, strict=True)
    ]


def survival(runs: Sequence[ProfileRun], drafter: str, depth: int, temperature: float) -> list[float]:
    """The share of cycles that accept token 1, 2, … up to `depth`: the mean of the workloads. Between measured
    temperatures it is a line."""
    own = [run for run in runs if run.drafter == drafter]
    measured = sorted({run.temperature for run in own})
    by_temperature = [_survival([run for run in own if run.temperature == t], depth) for t in measured]
    return [float(np.interp(temperature, measured, shares)) for shares in zip(*by_temperature, strict=True)]


def _survival(runs: Sequence[ProfileRun], depth: int) -> list[float]:
    deepest = max(run.depth for run in runs)
    shares = []
    for i in range(min(depth, deepest)):
        by_text = by_workload(run for run in runs if run.depth > i).values()
        shares.append(_mean(_share(own, i) for own in by_text))
    return continued(shares, depth)


def _share(runs: Sequence[ProfileRun], position: int) -> float:
    accepted = sum(run.accepted[position] for run in runs if position < len(run.accepted))
    return accepted / sum(run.cycles for run in runs)


def _joules(runs: Sequence[ProfileRun], tau: float, drafter: str, depth: int, batch: int) -> float | None:
    """Joules of a cycle by depth and batch, over tau. None where the runs have none."""
    own = [run for run in runs if run.drafter == drafter and run.joules is not None]
    near = min((run.batch for run in own), key=lambda size: abs(size - batch), default=None)
    there = [run for run in own if run.batch == near]
    if not there:
        return None
    depths = sorted({run.depth for run in there})
    spent = [_mean((run.joules or 0.0) / run.cycles for run in there if run.depth == d) for d in depths]
    return on_measured(depths, spent, depth) / tau


def _spread(values: Sequence[float]) -> float:
    """The standard deviation of the logarithms."""
    return float(np.log(np.array(values)).std(ddof=1)) if len(values) > 1 else 0.0


def _interval(value: float, spreads: Sequence[float], count: int, least: float = 0.0) -> Interval:
    """Where the figure of one more workload lies, by Student's distribution of logarithms over `count` workloads."""
    deviation = math.sqrt(sum(spread**2 for spread in spreads))
    half = student_quantile(count - 1) * deviation * math.sqrt(1 + 1 / count)
    return max(least, value * math.exp(-half)), value * math.exp(half)


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))
