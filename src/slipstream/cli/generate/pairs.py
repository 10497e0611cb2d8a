"""Measures the ratio of two decoding speeds with interleaved runs.

One run of each is not enough: two runs of one command differ by a third on a busy machine. So pairs are run in
alternating order until the confidence interval of the ratio is narrow or the time is up.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from slipstream.bench.statistics import Estimate, estimate, ratio, verdict
from slipstream.cli.generation import Run

MIN_PAIRS, MAX_PAIRS = 5, 25
NARROW = 1.08  # upper end of the interval divided by its lower end, below which measuring stops
SECONDS, LIMIT = 20.0, 120.0  # time after which measuring stops: with at least MIN_PAIRS, and with fewer
FEW = 0.1  # drafted tokens per emitted token, below which speculation and plain decoding do the same work

RunOnce = Callable[[], Run]
OnPair = Callable[[int, int], None]
"""Called before each pair with the number of finished pairs and the minimum number of pairs."""


@dataclass
class Pairs:
    """Decoding speeds in tokens per second, run by run."""

    fast: list[float] = field(default_factory=list)
    plain: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> Estimate | None:
        """Speculation's speed divided by plain decoding's; None if a run decoded nothing after its first tokens."""
        speeds = [*self.fast, *self.plain]
        return ratio(self.fast, self.plain) if speeds and min(speeds) > 0 else None

    def enough(self, seconds: float) -> bool:
        """Whether to stop after `seconds`. The decision depends on the width of the interval, not on its position."""
        done = len(self.plain)
        if done < MIN_PAIRS:
            return done > 0 and seconds > LIMIT
        return done == MAX_PAIRS or seconds > SECONDS or _narrow(self.ratio)


def _narrow(estimate_of_ratio: Estimate | None) -> bool:
    if estimate_of_ratio is None or estimate_of_ratio.interval is None:
        return estimate_of_ratio is None
    low, high = estimate_of_ratio.interval
    return high < NARROW * low


def measure_pairs(fast: RunOnce, plain: RunOnce, on_pair: OnPair) -> Pairs:
    """Run pairs of both in alternating order. Ctrl-C in a run ends the measurement."""
    pairs, started = Pairs(), time.perf_counter()
    while not pairs.enough(time.perf_counter() - started):
        done = len(pairs.plain)
        on_pair(done, MIN_PAIRS)
        both = [(fast, pairs.fast), (plain, pairs.plain)]
        for run_once, speeds in both if done % 2 == 0 else reversed(both):
            speeds.append(speed_of(run_once()))
    return pairs


def speed_of(run: Run) -> float:
    """Tokens per second after the first tokens; 0 if there were no later tokens."""
    if run.interrupted:
        raise KeyboardInterrupt
    return run.times.decoded / run.times.decoding if run.times.decoding else 0.0


def why_not_measured(run: Run) -> str | None:
    """Why a run of speculation cannot differ from plain decoding in speed; None if it can."""
    if not run.times.tokens:
        return "nothing was generated: no difference to measure"
    if not run.drafted:
        return "nothing was drafted: no difference to measure"
    if run.drafted < FEW * run.times.tokens:
        return f"next to nothing was drafted ({run.drafted} tokens): no difference to measure"
    return None


def ratio_report(pairs: Pairs) -> dict[str, Any]:
    """The ratio as JSON values. `gain` is True or False only if the whole interval lies above or below 1."""
    speed_ratio = pairs.ratio
    if speed_ratio is None:
        return not_measured("all tokens came at once: no difference to measure")
    low, high = speed_ratio.interval or (None, None)
    return {
        "ratio": _rounded(speed_ratio.value),
        "ratio_low": _rounded(low),
        "ratio_high": _rounded(high),
        "gain": None if low is None or high is None or low <= 1 <= high else low > 1,
        "note": verdict(speed_ratio),
        "pairs": len(pairs.plain),
        "tokens_per_second": round(estimate(pairs.fast).value, 2),
        "plain_tokens_per_second": round(estimate(pairs.plain).value, 2),
    }


def not_measured(note: str) -> dict[str, Any]:
    return {"ratio": None, "ratio_low": None, "ratio_high": None, "gain": None, "note": note, "pairs": 0}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
