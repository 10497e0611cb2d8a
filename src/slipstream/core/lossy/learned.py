"""A learned deferral score: the probability that the small model's answer is right, by logistic regression on its
hidden states.

The features are the outputs of one layer, averaged over the places that predict the tokens of the answer.
`slipstream plan calibrate --score learned --save FILE` trains it on graded answers. The file is JSON: the sha256 of the
model it was trained for, the layer, one weight per feature, the bias, and the figures of its cross-validation.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from slipstream.core.lossy.deferral import AnswerEvidence, DeferralScore

TRAIN = "train one with `slipstream plan calibrate --score learned --save FILE`"


@dataclass(frozen=True)
class DeferralClassifier:
    """A trained classifier, as its file holds it."""

    model: str
    sha256: str  # of the small model's weights
    layer: int
    weights: tuple[float, ...]
    bias: float
    trained_on: str  # the task and the number of its problems
    cross_validation: dict[str, float] = field(default_factory=dict)

    def probability(self, states: Sequence[float]) -> float:
        """The probability that an answer with these averaged states is right."""
        if len(states) != len(self.weights):
            raise ValueError(f"the classifier has {len(self.weights)} weights, and the model {len(states)} features")
        logit = self.bias + sum(w * x for w, x in zip(self.weights, states, strict=True))
        return 1 / (1 + math.exp(-max(-500.0, min(500.0, logit))))

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"kind": "slipstream deferral classifier", **asdict(self)}) + "\n", encoding="utf-8")

    @staticmethod
    def load(path: str) -> DeferralClassifier:
        """The classifier of a file. ValueError if there is none, or if it is another file."""
        try:
            text = Path(path).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"there is no classifier in {path!r}; {TRAIN}") from error
        return _parsed(path, text)


@lru_cache(maxsize=16)
def _parsed(path: str, text: str) -> DeferralClassifier:
    try:
        data: dict[str, Any] = json.loads(text)
        data.pop("kind")
        numbers = tuple(float(weight) for weight in data.pop("weights"))
        return DeferralClassifier(**data, weights=numbers)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} is not the file of a deferral classifier; {TRAIN}") from error


@dataclass(frozen=True)
class LearnedScore(DeferralScore):
    name: ClassVar[str] = "learned"
    file: str = ""

    def __post_init__(self) -> None:
        if not self.file:
            raise ValueError(f'the score learned needs a file, "learned(file=FILE)"; {TRAIN}')
        DeferralClassifier.load(self.file)

    @property
    def top(self) -> None:
        return None

    @property
    def classifier(self) -> DeferralClassifier:
        return DeferralClassifier.load(self.file)

    def score(self, answers: Sequence[AnswerEvidence]) -> float:
        states = answers[0].states
        return self.classifier.probability(states) if states else 0.0
