"""A forecast from a short profile: accepted tokens by position and seconds per pass, measured at a few depths.

The depth that is forecast need not have been measured. How many cycles accept token i comes from the runs that are at
least so deep. The seconds of a pass are read off the line between the nearest measured depths. Intervals come from
resampling prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slipstream.plan.forecast.formulas import deviation_of

RESAMPLES = 400
INTERVAL = (2.5, 97.5)  # percentiles


@dataclass(frozen=True)
class PromptProfile:
    """One prompt, or one batch of it, at one depth."""

    seconds: float  # of decoding, from the first tokens on
    passes: int  # of the target in this time
    cycles: int  # of all rows
    accepted: tuple[int, ...] = ()  # cycles that accepted token 1, 2, …


@dataclass(frozen=True)
class DecodingProfile:
    """Prompts by depth; depth 0 is plain decoding. Every depth has the same prompts."""

    model: str
    drafter: str
    batch: int
    temperature: float
    depths: Mapping[int, tuple[PromptProfile, ...]]

    def __post_init__(self) -> None:
        if 0 not in self.depths or len(self.depths) < 2:
            raise ValueError("a profile has plain decoding, depth 0, and at least one other depth")
        if len({len(prompts) for prompts in self.depths.values()}) != 1 or not self.depths[0]:
            raise ValueError("a profile has the same prompts at every depth")


@dataclass(frozen=True)
class ForecastPoint:
    """The forecast of one depth, each figure with its 95 % interval."""

    depth: int
    tau: float
    tau_interval: tuple[float, float]
    deviation: float  # of the tokens of one cycle
    tokens_per_second: float
    tokens_per_second_interval: tuple[float, float]
    speedup: float
    speedup_interval: tuple[float, float]
    joules_per_token: float | None = None  # None: the power is not known
    joules_per_token_interval: tuple[float, float] | None = None


def forecast(profile: DecodingProfile, depths: Sequence[int], seed: int = 0) -> list[ForecastPoint]:
    """One point for each depth."""
    for depth in depths:
        if depth < 1:
            raise ValueError(f"depth is {depth}; it must be 1 or more")
    count = len(profile.depths[0])
    random = np.random.default_rng(seed)
    resamples = [random.integers(0, count, count) for _ in range(RESAMPLES)] if count > 1 else []
    points = []
    for depth in depths:
        figures = _figures(profile, depth, range(count))
        spread = np.array([_figures(profile, depth, chosen.tolist()) for chosen in resamples] or [figures])
        low, high = np.percentile(spread, INTERVAL, axis=0)
        tau, speed, gain = ((float(low[i]), float(high[i])) for i in range(3))
        deviation = deviation_of(survival(profile, depth, range(count)))
        points.append(ForecastPoint(depth, figures[0], tau, deviation, figures[1], speed, figures[2], gain))
    return points


def _figures(profile: DecodingProfile, depth: int, chosen: Sequence[int]) -> tuple[float, float, float]:
    """tau, tokens per second and speed-up, from the chosen prompts."""
    tau = 1.0 + sum(survival(profile, depth, chosen))
    plain, seconds = _pass_seconds(profile, 0, chosen), _seconds_at(profile, depth, chosen)
    return tau, profile.batch * tau / seconds, tau * plain / seconds


def survival(profile: DecodingProfile, depth: int, chosen: Sequence[int]) -> list[float]:
    """The share of cycles that accept token 1, 2, …, up to `depth`. Beyond the deepest run it falls on as before."""
    shares: list[float] = []
    deepest = max(profile.depths)
    for i in range(min(depth, deepest)):
        runs = [prompts[n] for d, prompts in profile.depths.items() if d > i for n in chosen]
        accepted = sum(run.accepted[i] for run in runs if i < len(run.accepted))
        shares.append(accepted / max(1, sum(run.cycles for run in runs)))
    return continued(shares, depth)


def continued(shares: Sequence[float], depth: int) -> list[float]:
    """The shares of cycles that accept token 1, 2, …, continued to `depth`: they fall on as they fell last."""
    shares = list(shares)
    while len(shares) < depth:
        shares.append(shares[-1] * (shares[-1] / shares[-2] if len(shares) > 1 and shares[-2] else shares[-1]))
    return shares


def _seconds_at(profile: DecodingProfile, depth: int, chosen: Sequence[int]) -> float:
    measured = sorted(d for d in profile.depths if d)
    seconds = [_pass_seconds(profile, d, chosen) for d in measured]
    if depth <= measured[-1] or len(measured) == 1:
        return float(np.interp(depth, measured, seconds))
    slope = (seconds[-1] - seconds[-2]) / (measured[-1] - measured[-2])  # the line of the two deepest goes on
    return seconds[-1] + slope * (depth - measured[-1])


def _pass_seconds(profile: DecodingProfile, depth: int, chosen: Sequence[int]) -> float:
    prompts = [profile.depths[depth][n] for n in chosen]
    return sum(prompt.seconds for prompt in prompts) / max(1, sum(prompt.passes for prompt in prompts))
