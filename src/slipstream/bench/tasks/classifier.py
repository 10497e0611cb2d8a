"""Trains the learned deferral score: logistic regression of right or wrong on hidden states, with a ridge penalty.

The scores that a threshold is calibrated with are out of fold: each comes from a classifier that did not see its
problem. The strength of the penalty is chosen inside each training part, by a further cross-validation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

FOLDS, SEED = 5, 0
RIDGES = (10.0, 100.0, 1000.0, 10000.0)  # of standardised features
Array = np.ndarray


@dataclass(frozen=True)
class LinearClassifier:
    """Weights on the features as they are, and a bias."""

    weights: Array
    bias: float

    def logits(self, features: Array) -> Array:
        logits: Array = features @ self.weights + self.bias
        return logits


@dataclass(frozen=True)
class TrainedScore:
    """A classifier of all problems, and the scores of classifiers that did not see the problem."""

    classifier: LinearClassifier
    out_of_fold: list[float]
    figures: dict[str, float]


def check_labels(right: Sequence[float], folds: int = FOLDS) -> None:
    """Refuse answers from which nothing can be learned."""
    least = min(sum(right), len(right) - sum(right))
    if least < folds:
        raise ValueError(
            f"{len(right)} answers of which {sum(right):g} are right cannot train a classifier; "
            f"it takes at least {folds} right and {folds} wrong ones"
        )


def train_score(states: Sequence[Sequence[float]], right: Sequence[float]) -> TrainedScore:
    """Train on averaged hidden states and grades (1: right)."""
    check_labels(right)
    features, labels = np.asarray(states, dtype=np.float64), np.asarray(right, dtype=np.float64)
    scores = np.empty(len(labels))
    for held in folds(labels):
        rest = np.setdiff1d(np.arange(len(labels)), held)
        scores[held] = sigmoid(_tuned(features[rest], labels[rest]).logits(features[held]))
    figures = {"folds": float(FOLDS), "auc": auc(scores, labels), "log_loss": log_loss(scores, labels)}
    return TrainedScore(_tuned(features, labels), scores.tolist(), figures)


def folds(labels: Array, count: int = FOLDS) -> list[Array]:
    """The problems in random parts with about equal shares of right answers."""
    order = np.random.default_rng(SEED).permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    return [np.sort(order[start::count]) for start in range(count)]


class RidgeRegression:
    """Logistic regression of some examples, for any ridge penalty.

    It is solved in the space of the examples, of which there are fewer than features."""

    def __init__(self, features: Array, labels: Array) -> None:
        self._centre, self._scale, self._labels = features.mean(0), features.std(0) + 1e-6, labels
        left, size, self._basis = np.linalg.svd((features - self._centre) / self._scale, full_matrices=False)
        self._inputs = np.column_stack([left * size, np.ones(len(labels))])

    def fit(self, ridge: float, steps: int = 30) -> LinearClassifier:
        """The classifier of the least penalised log-loss, by Newton's method."""
        inputs, penalty = self._inputs, np.full(self._inputs.shape[1], ridge)
        penalty[-1] = 1e-3  # of the bias
        theta = np.zeros(inputs.shape[1])
        for _ in range(steps):
            probs = sigmoid(inputs @ theta)
            gradient = inputs.T @ (probs - self._labels) + penalty * theta
            hessian = (inputs * (probs * (1 - probs))[:, None]).T @ inputs + np.diag(penalty)
            step = np.linalg.solve(hessian, gradient)
            theta = theta - step
            if np.abs(step).max() < 1e-6:
                break
        weights = (theta[:-1] @ self._basis) / self._scale
        return LinearClassifier(weights, float(theta[-1] - weights @ self._centre))


def _tuned(features: Array, labels: Array) -> LinearClassifier:
    """The classifier with the penalty of the least log-loss out of fold."""
    scores = np.empty((len(RIDGES), len(labels)))
    for held in folds(labels):
        rest = np.setdiff1d(np.arange(len(labels)), held)
        regression = RidgeRegression(features[rest], labels[rest])
        for number, ridge in enumerate(RIDGES):
            scores[number, held] = sigmoid(regression.fit(ridge).logits(features[held]))
    best = min(range(len(RIDGES)), key=lambda number: log_loss(scores[number], labels))
    return RidgeRegression(features, labels).fit(RIDGES[best])


def sigmoid(logits: Array) -> Array:
    values: Array = 1 / (1 + np.exp(-np.clip(logits, -500, 500)))
    return values


def log_loss(scores: Array, labels: Array) -> float:
    clipped = np.clip(scores, 1e-12, 1 - 1e-12)
    return float(-np.mean(labels * np.log(clipped) + (1 - labels) * np.log(1 - clipped)))


def auc(scores: Array | Sequence[float], labels: Array | Sequence[float]) -> float:
    """The probability that a right answer has a higher score than a wrong one; ties count half."""
    values, right = np.asarray(scores), np.asarray(labels) > 0
    above = values[right][:, None] - values[~right][None, :]
    return float(np.mean((above > 0) + 0.5 * (above == 0)))
