"""How long cycles take: read off runs by depth, batch, context and drafted tokens, whatever their text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from statistics import mean, median

import numpy as np

from slipstream.plan.profile.runs import PLAIN, ProfileRun

MIN_PAIRS = 3  # of runs with different contexts, before their times tell what context costs


def cycle_seconds(
    runs: Sequence[ProfileRun], drafter: str, depth: int, batch: int, context: float | None = None
) -> float:
    """Seconds per cycle of a row: on the line between measured depths, then on the line between measured batches."""
    own = [run for run in runs if run.drafter == drafter]
    plain = [run for run in runs if run.drafter == PLAIN]
    batches = sorted({run.batch for run in own})
    seconds = []
    for size in batches:
        there = [run for run in own if run.batch == size]
        slope = _context_slope([run for run in plain if run.batch == size])
        depths = sorted({run.depth for run in there})
        means = [_mean_seconds([run for run in there if run.depth == d], slope, context) for d in depths]
        seconds.append(on_measured(depths, means, depth))
    whole_pass = [size * each for size, each in zip(batches, seconds, strict=True)]  # nearly a line in the batch
    return on_measured(batches, whole_pass, batch) / batch


def _mean_seconds(runs: Sequence[ProfileRun], slope: float, context: float | None) -> float:
    """The median of the runs, each moved to the context that is asked for. One slow run does not count."""
    seconds = []
    for run in runs:
        moved = 0.0 if context is None else slope * (context - run.context)
        seconds.append(max(0.2 * run.cycle_seconds, run.cycle_seconds + moved))
    return median(seconds)


def _context_slope(runs: Sequence[ProfileRun]) -> float:
    """Seconds that a cycle takes longer for each token of context: the median of the slopes between two runs
    (Theil and Sen). 0 where the runs do not tell contexts apart."""
    pairs = [
        (b.cycle_seconds - a.cycle_seconds) / (b.context - a.context)
        for a, b in combinations(runs, 2)
        if max(a.context, b.context) > 2 * min(a.context, b.context)
    ]
    return max(0.0, median(pairs)) if len(pairs) >= MIN_PAIRS else 0.0


def lengthening(runs: Sequence[ProfileRun], own: Sequence[ProfileRun], drafter: str, depth: int) -> float:
    """How many times as many tokens are drafted as on the other workloads. Some drafters stop before the depth, on some
    texts sooner than on others. 1 where that does not tell how long cycles take: what the other workloads took more
    than plain decoding is compared with its mean, and with its mean for each drafted token."""
    there = [run for run in runs if run.drafter == drafter and any(run.drafted)]
    told = [run for run in own if any(run.drafted)]
    same = by_token = 0.0
    for d, size in {(run.depth, run.batch) for run in there}:
        group = [run for run in there if (run.depth, run.batch) == (d, size)]
        plain = median(run.cycle_seconds for run in runs if run.drafter == PLAIN and run.batch == size)
        more, lengths = [run.cycle_seconds - plain for run in group], [drafted_tokens([run]) for run in group]
        usual, each = mean(more), mean(a / b for a, b in zip(more, lengths, strict=True))
        same += sum(abs(time - usual) for time in more)
        by_token += sum(abs(time - each * length) for time, length in zip(more, lengths, strict=True))
    if not told or by_token >= same:
        return 1.0
    depths = sorted({run.depth for run in there})
    lengths = [drafted_tokens([run for run in there if run.depth == d]) for d in depths]
    return drafted_tokens(told, depth) / on_measured(depths, lengths, depth)


def drafted_tokens(runs: Sequence[ProfileRun], depth: int | None = None) -> float:
    """The mean number of tokens that a cycle drafts, up to `depth`."""
    return sum(sum(run.drafted[:depth]) for run in runs) / sum(run.cycles for run in runs)


def time_spread(runs: Sequence[ProfileRun], drafter: str) -> float:
    """The standard deviation of the logarithm of a cycle's time between runs of one size, by the median deviation."""
    groups: dict[tuple[int, int], list[float]] = {}
    for run in runs:
        if run.drafter == drafter:
            groups.setdefault((run.depth, run.batch), []).append(math.log(run.cycle_seconds))
    deviations = [abs(value - median(own)) for own in groups.values() if len(own) > 1 for value in own]
    return 1.4826 * median(deviations) if deviations else 0.0


def on_measured(places: Sequence[float], values: Sequence[float], at: float) -> float:
    """On the line between measured places. Beyond the last one the line of the last two goes on, not falling."""
    if at <= places[-1] or len(places) == 1:
        return float(np.interp(at, places, values))
    slope = (values[-1] - values[-2]) / (places[-1] - places[-2])
    return values[-1] + max(0.0, slope) * (at - places[-1])
