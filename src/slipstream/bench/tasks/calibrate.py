"""Finds the threshold of a request-level route for a wanted quality or a budget, from the runs of both models, and
compares token-level rules with the large model.

Thresholds are tried from 1 down. The first one whose loss cannot be bounded ends the search, so that the bound of the
one before it holds at its level although several were tried (a fixed sequence of tests).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from slipstream.bench.tasks.intervals import graded_bound, lower_bound, problems_needed
from slipstream.bench.tasks.outcome import TaskOutcome
from slipstream.bench.tasks.pair_runs import Routed, SmallRun
from slipstream.core.lossy.deferral import build_score
from slipstream.core.spec import parse_spec, spec_name
from slipstream.engines.cascade.request import RouteOptions


@dataclass(frozen=True)
class Calibration:
    """A threshold and what it gives on the calibration set."""

    threshold: float
    score: str
    large_share: float
    accuracy: float
    large_accuracy: float
    difference: float
    difference_bound: float  # one-sided lower bound at 95 %
    seconds_per_request: float
    large_seconds_per_request: float
    problems: int
    wanted: str

    def data(self) -> dict[str, Any]:
        return {**asdict(self), "rule": RouteOptions(self.threshold, self.score).rule, "lossless": False}

    @property
    def sentence(self) -> str:
        return (
            f"threshold {self.threshold:.4g} ({self.score}): the large model sees {100 * self.large_share:.0f} % "
            f"of the requests; {100 * self.difference:+.1f} points against it, at least "
            f"{100 * self.difference_bound:+.1f} at 95 % over {self.problems} problems; "
            f"{self.seconds_per_request:.3g} s per request instead of "
            f"{self.large_seconds_per_request:.3g}"
        )


@dataclass(frozen=True)
class RuleFigures:
    """A rule of the verification step with the small model as the draft model, against the large model alone."""

    verify: str | None  # as it is asked for; None: exact speculation
    rule: str  # as it ran
    lossless: bool
    large_share: float  # of the tokens
    accuracy: float
    large_accuracy: float
    difference: float
    difference_bound: float  # one-sided lower bound at 95 %, of this rule alone
    seconds_per_request: float
    large_seconds_per_request: float
    problems: int

    @staticmethod
    def of(outcome: TaskOutcome, large: TaskOutcome, verify: str | None) -> RuleFigures:
        differences = [ours - theirs for ours, theirs in zip(outcome.right, large.right, strict=True)]
        return RuleFigures(
            verify, outcome.rule, bool(outcome.lossless), outcome.large_share, outcome.accuracy, large.accuracy,
            sum(differences) / len(differences), lower_bound(differences), outcome.seconds, large.seconds,
            len(differences),
        )  # fmt: skip

    def allowed(self, margin: float) -> bool:
        """Whether its loss is at most `margin` at 95 %. What is lossless has none."""
        return self.lossless or self.difference_bound >= -margin

    def data(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def sentence(self) -> str:
        return (
            f"{self.verify or 'exact speculation'}: {100 * self.difference:+.1f} points against the large model, "
            f"at least {100 * self.difference_bound:+.1f} at 95 % over {self.problems} problems; "
            f"{self.seconds_per_request:.3g} s per request instead of {self.large_seconds_per_request:.3g}"
        )


def check_margin(margin: float, problems: int) -> None:
    """Refuse a margin outside its range, and a set that cannot bound it even if no answer differs."""
    if not 0 < margin < 1:
        raise ValueError(f"margin is {margin:g}; it must be between 0 and 1, such as 0.02 for 2 points")
    needed = problems_needed(margin, [0.0])
    if problems < needed:
        raise ValueError(
            f"{problems} problems cannot bound a loss of {100 * margin:g} points at 95 %; it takes at least {needed}"
        )


def check_score(score: str, trains: bool) -> None:
    """Refuse scores that cannot be calibrated. `trains`: whether a file for a new classifier is given."""
    if spec_name(score) == "learned" and not parse_spec(score)[1]:
        if not trains:
            raise ValueError(
                'score is learned; add --save FILE to train a classifier, or name one: "learned(file=FILE)"'
            )
        return
    if trains:
        raise ValueError(f"--save is for a new classifier, and score is {score!r}; give --score learned")
    if build_score(score).samples > 1:
        raise ValueError(
            f"score is {score!r}; calibration takes scores of one answer: mean, quantile, entropy or learned"
        )


def within_margin(small: SmallRun, large: TaskOutcome, score: str, margin: float) -> Calibration:
    """The threshold with the least use of the large model whose loss is at most `margin` at 95 %."""
    check_margin(margin, len(large.answers))
    marks, best, kept, gains, losses = small.scores(score), 1.0, 0, 0, 0
    change = [ours - theirs for ours, theirs in zip(small.outcome.right, large.right, strict=True)]
    order = sorted(range(len(marks)), key=lambda i: marks[i], reverse=True)
    for threshold in (*_candidates(marks), 0.0):
        while kept < len(order) and (marks[order[kept]] > threshold or threshold == 0):
            gains += change[order[kept]] > 0
            losses += change[order[kept]] < 0
            kept += 1
        if graded_bound(gains, losses, len(marks)) < -margin:
            break
        best = threshold
    wanted = f"at most {100 * margin:g} points below the large model at 95 %"
    return _calibration(Routed(small, large, score, best), wanted)


def within_share(small: SmallRun, large: TaskOutcome, score: str, share: float) -> Calibration:
    """The largest threshold at which the large model sees at most this share of the requests."""
    if not 0 <= share <= 1:
        raise ValueError(f"max_share is {share:g}; it must be between 0 and 1")
    routes = (Routed(small, large, score, threshold) for threshold in (1.0, *_candidates(small.scores(score)), 0.0))
    best = next(route for route in routes if route.share <= share)
    return _calibration(best, f"at most {100 * share:g} % of the requests")


def _candidates(scores: Sequence[float]) -> list[float]:
    """Thresholds that hand over ever fewer requests, from all but one on."""
    return sorted({value for value in scores if 0 < value < 1}, reverse=True)[1:]


def _differences(route: Routed) -> list[float]:
    return [ours - theirs for ours, theirs in zip(route.right, route.large.right, strict=True)]


def _calibration(route: Routed, wanted: str) -> Calibration:
    differences = _differences(route)
    return Calibration(
        route.threshold,
        route.score,
        route.share,
        sum(route.right) / len(route.right),
        route.large.accuracy,
        sum(differences) / len(differences),
        0.0 if route.threshold == 1 else lower_bound(differences),
        route.seconds,
        route.large.seconds,
        len(differences),
        wanted,
    )
