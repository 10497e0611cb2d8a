"""Predictors that are trained as they run: a perceptron over history and confidence, and confidence alone."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence

from slipstream.plan.policy.config import AcceptanceConfig
from slipstream.plan.predictors.base import Predictor, SlotRecord

RATE = 0.05  # of learning


def _logit(chance: float) -> float:
    chance = min(max(chance, 0.02), 0.98)
    return math.log(chance / (1 - chance))


class _Logistic(Predictor):
    """Logistic regression by stochastic gradient steps. It starts at the rate that `static` always predicts."""

    def __init__(self, weights: Sequence[float]) -> None:
        self._weights = [_logit(AcceptanceConfig().first_rate), *weights]

    @abstractmethod
    def _features(self, depth: int, confidence: float) -> list[float]:
        """The inputs of a slot, one for each weight after the first."""

    def predict(self, depth: int, confidence: float) -> float:
        inputs = [1.0, *self._features(depth, confidence)]
        total = sum(weight * value for weight, value in zip(self._weights, inputs, strict=True))
        return 1 / (1 + math.exp(-max(-8.0, min(8.0, total))))

    def learn(self, slot: SlotRecord) -> None:
        error = slot.accepted - self.predict(slot.depth, slot.confidence)
        inputs = [1.0, *self._features(slot.depth, slot.confidence)]
        self._weights = [weight + RATE * error * value for weight, value in zip(self._weights, inputs, strict=True)]


class Confidence(_Logistic):
    """The confidence of the draft, calibrated on the outcomes so far."""

    def __init__(self) -> None:
        super().__init__([0.5])

    def _features(self, depth: int, confidence: float) -> list[float]:
        return [_logit(confidence)]


class Perceptron(_Logistic):
    """The latest outcomes, the depth and the draft's confidence."""

    LENGTH = 8

    def __init__(self) -> None:
        super().__init__([0.5, 0.0, *[0.05] * self.LENGTH])
        self._history = [0.0] * self.LENGTH

    def _features(self, depth: int, confidence: float) -> list[float]:
        return [_logit(confidence), min(depth, 8) / 8, *self._history]

    def learn(self, slot: SlotRecord) -> None:
        super().learn(slot)
        self._history = [1.0 if slot.accepted else -1.0, *self._history[:-1]]
