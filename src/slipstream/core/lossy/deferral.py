"""Deferral scores: how far a small model's answer is trusted, between 0 and 1.

A request is handed to the large model when its score is at most a threshold.

mean        the geometric mean of the tokens' probabilities: exp of the mean log-probability
quantile    the probability at a quantile of the tokens, by default the lowest tenth (arXiv 2404.10136)
entropy     1 - H / log(k + 1), averaged over the tokens. H is the entropy over the k most probable tokens and the rest.
agreement   the share of n samples whose result equals that of the answer. The result is the last number of a text that
            has one, otherwise the text without white space.
learned     the probability that the answer is right, by a classifier on the small model's hidden states (`learned.py`)
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from slipstream.core.registry import Registry, read_options
from slipstream.core.spec import parse_spec

NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


@dataclass(frozen=True)
class AnswerEvidence:
    """What a score may look at: the text, the log-probability of each token, those of the most probable tokens, and the
    hidden states of one layer, averaged over the tokens."""

    text: str
    logprobs: Sequence[float] = ()
    top_logprobs: Sequence[Sequence[float]] = ()
    states: Sequence[float] = ()


class DeferralScore(ABC):
    """A score of the small model's answer."""

    name: ClassVar[str]

    @property
    def top(self) -> int | None:
        """The number of most probable tokens whose log-probabilities it needs; None if it needs no log-probability."""
        return 0

    @property
    def samples(self) -> int:
        """The number of answers it compares, the answer itself included."""
        return 1

    @abstractmethod
    def score(self, answers: Sequence[AnswerEvidence]) -> float:
        """The score of the first answer, between 0 and 1. An answer without tokens has the score 0."""


@dataclass(frozen=True)
class MeanScore(DeferralScore):
    name: ClassVar[str] = "mean"

    def score(self, answers: Sequence[AnswerEvidence]) -> float:
        logprobs = answers[0].logprobs
        return _probability(sum(logprobs) / len(logprobs)) if logprobs else 0.0


@dataclass(frozen=True)
class QuantileScore(DeferralScore):
    name: ClassVar[str] = "quantile"
    q: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.q <= 1:
            raise ValueError(f"q of the score quantile is {self.q}; it must be between 0 and 1")

    def score(self, answers: Sequence[AnswerEvidence]) -> float:
        ordered = sorted(answers[0].logprobs)
        return _probability(ordered[round(self.q * (len(ordered) - 1))]) if ordered else 0.0


@dataclass(frozen=True)
class EntropyScore(DeferralScore):
    name: ClassVar[str] = "entropy"
    k: int = 20

    def __post_init__(self) -> None:
        if not 1 <= self.k <= 100:
            raise ValueError(f"k of the score entropy is {self.k}; it must be between 1 and 100")

    @property
    def top(self) -> int:
        return self.k

    def score(self, answers: Sequence[AnswerEvidence]) -> float:
        entropies = [_entropy(tops) for tops in answers[0].top_logprobs]
        if not entropies:
            return 0.0
        return min(1.0, max(0.0, 1 - sum(entropies) / len(entropies) / math.log(self.k + 1)))


@dataclass(frozen=True)
class AgreementScore(DeferralScore):
    name: ClassVar[str] = "agreement"
    n: int = 5

    def __post_init__(self) -> None:
        if self.n < 2:
            raise ValueError(f"n of the score agreement is {self.n}; it must be 2 or more")

    @property
    def top(self) -> None:
        return None

    @property
    def samples(self) -> int:
        return self.n

    def score(self, answers: Sequence[AnswerEvidence]) -> float:
        own = _result(answers[0].text)
        return sum(_result(answer.text) == own for answer in answers) / len(answers)


def _probability(logprob: float) -> float:
    return min(1.0, math.exp(logprob))


def _entropy(logprobs: Sequence[float]) -> float:
    probs = [math.exp(value) for value in logprobs]
    probs.append(max(0.0, 1 - sum(probs)))
    return -sum(p * math.log(p) for p in probs if p > 0)


def _result(text: str) -> str | float:
    numbers = NUMBER.findall(text.replace(",", ""))
    return float(numbers[-1]) if numbers else "".join(text.split())


scores: Registry[DeferralScore] = Registry(
    "score",
    {
        "mean": "slipstream.core.lossy.deferral:MeanScore",
        "quantile": "slipstream.core.lossy.deferral:QuantileScore",
        "entropy": "slipstream.core.lossy.deferral:EntropyScore",
        "agreement": "slipstream.core.lossy.deferral:AgreementScore",
        "learned": "slipstream.core.lossy.learned:LearnedScore",
    },
)


def build_score(spec: str) -> DeferralScore:
    """The score of `mean`, `quantile(q=0.2)` and so on. ValueError for unknown names and options."""
    name, options = parse_spec(spec)
    return read_options(scores.get(name), options, f"the score {name}")


def check_threshold(threshold: float) -> float:
    """A threshold between 0 and 1, or ValueError."""
    if not 0 <= threshold <= 1:  # also refuses NaN
        raise ValueError(
            f"threshold is {threshold:g}; it must be between 0 (the small model alone) and 1 (the large model alone)"
        )
    return threshold
