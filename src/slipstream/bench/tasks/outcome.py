"""Answers to the problems of a task, and the figures of all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from slipstream.bench.tasks.grading import grade
from slipstream.bench.tasks.intervals import interval
from slipstream.bench.tasks.problems import TaskSet
from slipstream.engines.base import Completion

NOT_SAVED = frozenset({"completion", "correct"})  # fields of an answer that are not in the file of texts


@dataclass(frozen=True)
class Answered:
    """One problem, and how it was answered."""

    id: str
    seconds: float
    tokens: int
    large: float  # share of it that the large model wrote
    model: str | None = None  # small or large, on a request-level route
    score: float | None = None
    text: str = ""
    correct: bool | None = None  # None: not graded yet
    completion: Completion | None = None


@dataclass(frozen=True)
class TaskOutcome:
    """All problems of a task under one setup."""

    task: TaskSet
    answers: tuple[Answered, ...]
    lossless: bool | None
    rule: str
    joules: float | None = None  # of all requests; None where nothing measures them

    @property
    def right(self) -> list[float]:
        assert all(answer.correct is not None for answer in self.answers), "answers are graded before they are counted"
        return [float(bool(answer.correct)) for answer in self.answers]

    @property
    def accuracy(self) -> float:
        return sum(self.right) / len(self.right)

    @property
    def seconds(self) -> float:
        """Per request."""
        return sum(answer.seconds for answer in self.answers) / len(self.answers)

    @property
    def large_share(self) -> float:
        """On a request-level route the share of requests that were handed over; otherwise the share of tokens."""
        if any(answer.model for answer in self.answers):
            return sum(answer.model == "large" for answer in self.answers) / len(self.answers)
        tokens = sum(answer.tokens for answer in self.answers)
        return sum(answer.large * answer.tokens for answer in self.answers) / tokens if tokens else 1.0

    def data(self, texts: bool = False) -> dict[str, Any]:
        """As JSON. `texts`: with the answers' texts."""
        count = len(self.answers)
        quality = {} if self.task.metric == "accuracy" else {self.task.metric: self.accuracy}
        hidden = {"completion"} if texts else {"completion", "text"}
        return {
            "task": self.task.name,
            "problems": count,
            "metric": self.task.metric,
            "accuracy": self.accuracy,
            "accuracy_interval": list(interval(self.right)),
            **quality,
            "seconds_per_request": self.seconds,
            "tokens_per_request": sum(answer.tokens for answer in self.answers) / count,
            "large_share": self.large_share,
            "joules_per_request": None if self.joules is None else self.joules / count,
            "lossless": self.lossless,
            "rule": self.rule,
            "answers": [_entry(answer, hidden) for answer in self.answers],
        }

    def saved(self) -> dict[str, Any]:
        """What `loaded` reads again: everything but the grades."""
        answers = [_entry(answer, NOT_SAVED) for answer in self.answers]
        return {"lossless": self.lossless, "rule": self.rule, "joules": self.joules, "answers": answers}


def loaded(task: TaskSet, data: Mapping[str, Any]) -> TaskOutcome:
    """The ungraded outcome that `saved` wrote."""
    answers = tuple(Answered(**entry) for entry in data["answers"])
    return TaskOutcome(task, answers, data["lossless"], data["rule"], data["joules"])


def graded(outcomes: Sequence[TaskOutcome]) -> list[TaskOutcome]:
    """The outcomes with grades. Equal answers to a problem are graded once."""
    pairs = [
        (problem, answer.text)
        for outcome in outcomes
        for problem, answer in zip(outcome.task.problems, outcome.answers, strict=True)
    ]
    grades = iter(grade(pairs))
    return [
        replace(outcome, answers=tuple(replace(answer, correct=next(grades)) for answer in outcome.answers))
        for outcome in outcomes
    ]


def _entry(answer: Answered, hidden: frozenset[str] | set[str]) -> dict[str, Any]:
    named = {entry.name: getattr(answer, entry.name) for entry in fields(answer)}
    return {name: value for name, value in named.items() if value is not None and name not in hidden}
