"""Runs the problems of a task through an engine, measures time and energy, and grades the answers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from slipstream.bench.measure.energy import energy_used
from slipstream.bench.progress import progress
from slipstream.bench.tasks.grading import correct
from slipstream.bench.tasks.intervals import interval
from slipstream.bench.tasks.problems import Problem, TaskSet
from slipstream.core.rules import rules
from slipstream.core.sampling import Sampling
from slipstream.core.types import Origin
from slipstream.engines.base import Completion, Engine, GenerationOptions, RequestHandle, Speculation
from slipstream.engines.cascade.request import RouteEngine


@dataclass(frozen=True)
class TaskLoad:
    """How the problems are submitted."""

    sampling: Sampling
    max_tokens: int = 512
    batch: int = 1  # problems at a time; seconds per request are those of the group divided by its size
    speculation: Speculation = field(default_factory=Speculation)

    def __post_init__(self) -> None:
        for name in ("max_tokens", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 1 or more")


@dataclass(frozen=True)
class Answered:
    """One problem, and how it was answered."""

    id: str
    correct: bool
    seconds: float
    tokens: int
    large: float  # share of it that the large model wrote
    model: str | None = None  # small or large, on a request-level route
    score: float | None = None
    text: str = ""
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
        return [float(answer.correct) for answer in self.answers]

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
            "answers": [_entry(answer, texts) for answer in self.answers],
        }


def _entry(answer: Answered, texts: bool) -> dict[str, Any]:
    hidden = {"completion"} if texts else {"completion", "text"}
    named = {entry.name: getattr(answer, entry.name) for entry in fields(answer)}
    return {name: value for name, value in named.items() if value is not None and name not in hidden}


def run_task(engine: Engine, task: TaskSet, load: TaskLoad) -> TaskOutcome:
    """Answer all problems, group by group, then grade the answers. Loading and warm-up are not timed."""
    warm_up(engine, task.problems[0], load)
    finished: list[tuple[Completion, float]] = []
    with progress(len(task.problems), 0) as say, energy_used() as spent:
        for start in range(0, len(task.problems), load.batch):
            group = task.problems[start : start + load.batch]
            say(group[0].id)
            began = time.perf_counter()
            done = _answers(engine, group, load)
            seconds = (time.perf_counter() - began) / len(group)
            finished += [(completion, seconds) for completion in done]
    answers = [_graded(problem, *entry) for problem, entry in zip(task.problems, finished, strict=True)]
    first = finished[0][0]
    return TaskOutcome(task, tuple(answers), first.lossless, first.rule, spent.joules)


def warm_up(engine: Engine, problem: Problem, load: TaskLoad) -> None:
    """Open and warm up every model that may be needed."""
    short = replace(load, max_tokens=min(8, load.max_tokens), batch=1)
    if not isinstance(engine, RouteEngine):
        _answers(engine, [problem], short)
        return
    threshold = engine.options.threshold
    needed = [lazy for lazy, used in ((engine.small, threshold < 1), (engine.large, threshold > 0)) if used]
    for lazy in needed:
        with lazy.use() as model:
            _answers(model, [problem], short)


def _answers(engine: Engine, problems: Sequence[Problem], load: TaskLoad) -> list[Completion]:
    handles: list[RequestHandle] = []
    try:
        for problem in problems:
            prompt, raw, stop = problem.text(engine.text.instruct)
            options = GenerationOptions(load.max_tokens, stop=stop, raw=raw, speculation=load.speculation)
            handles += engine.submit(prompt, load.sampling, options)
        done = [handle.result() for handle in handles]
    except BaseException:
        for handle in handles:
            handle.cancel()
        raise
    for completion in done:
        if completion.error:
            raise ValueError(f"the engine failed on a problem: {completion.error}")
    return done


def _graded(problem: Problem, completion: Completion, seconds: float) -> Answered:
    route, tokens = completion.route, len(completion.token_ids)
    if route is not None:
        large = float(route.model == "large")
    else:
        accepted = 0 if completion.lossless is not False else _drafted(completion)
        large = 1 - accepted / tokens if tokens else 1.0
    return Answered(
        problem.id,
        correct(problem, completion.text),
        seconds,
        tokens,
        large,
        None if route is None else route.model,
        None if route is None else route.score,
        completion.text,
        completion,
    )


def _drafted(completion: Completion) -> int:
    """Tokens that the draft model wrote. The last token of a cascade's cycle is drafted, too, unless recovered."""
    kinds = [Origin.ACCEPTED] + ([Origin.BONUS] if rules.get(completion.rule).needs_draft else [])
    return sum(origin in kinds for origin in completion.origins)
