"""How acceptance follows the text: where the target is more certain of its tokens, more drafted ones are accepted.

The certainty of a text is the mean of the target's largest probability at its tokens, which plain decoding tells. Over
the measured workloads, the logarithm of the odds of acceptance rises with it. The slope of that line is fitted within
each drafter and temperature, so that only differences between workloads count, and shrunk for noise. The acceptance of
a text that no drafter was run on is then the mean of the others, moved along the line.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from slipstream.plan.profile.runs import PLAIN, ProfileRun

SHRINKAGE = 0.004  # squared difference of certainties that noise is taken to explain, for each workload in the fit
SURE = 0.99  # probabilities are kept between 1 - SURE and SURE


@dataclass(frozen=True)
class TextCertainty:
    """The mean of the target's largest probability, over the tokens of a workload that were decoded plainly."""

    workload: str
    temperature: float
    certainty: float


def certainty_of(texts: Sequence[TextCertainty], workload: str, temperature: float) -> float | None:
    """The certainty of a workload at the nearest temperature; None if it is not known."""
    own = [text for text in texts if text.workload == workload]
    nearest = min(own, key=lambda text: abs(text.temperature - temperature), default=None)
    return None if nearest is None else nearest.certainty


def certainty_slope(runs: Sequence[ProfileRun], texts: Sequence[TextCertainty], without: Collection[str] = ()) -> float:
    """How much the log-odds of acceptance rise with the certainty. `without`: drafters that do not follow the model."""
    product = square = 0.0
    for drafter in sorted({run.drafter for run in runs} - {PLAIN, *without}):
        own = [run for run in runs if run.drafter == drafter]
        for temperature in {run.temperature for run in own}:
            points = _points([run for run in own if run.temperature == temperature], texts)
            if len(points) > 1:
                x, y = (np.array(column) - np.mean(column) for column in zip(*points, strict=True))
                product += float(x @ y)
                square += float(x @ x) + SHRINKAGE * len(points)
    return max(0.0, product / square) if square else 0.0


def _points(runs: Sequence[ProfileRun], texts: Sequence[TextCertainty]) -> list[tuple[float, float]]:
    """Certainty and log-odds of acceptance of each workload."""
    points = []
    for workload in sorted({run.workload for run in runs}):
        own = [run for run in runs if run.workload == workload]
        certainty = certainty_of(texts, workload, own[0].temperature)
        reached = sum(run.cycles + sum(run.accepted[: run.depth - 1]) for run in own)
        if certainty is not None and reached:
            points.append((certainty, log_odds(sum(sum(run.accepted) for run in own) / reached)))
    return points


def moved(shares: Sequence[float], by: float) -> list[float]:
    """Shares of cycles that accept token 1, 2, …, with the log-odds of every single acceptance moved."""
    moved_shares, before, here = [], 1.0, 1.0
    for share in shares:
        here *= 1 / (1 + math.exp(-log_odds(share / before if before else 0.0) - by))
        moved_shares.append(here)
        before = share
    return moved_shares


def log_odds(share: float) -> float:
    share = min(max(share, 1 - SURE), SURE)
    return math.log(share / (1 - share))
