"""The runs of a curve: small alone, large alone, exact speculation, the request-level route at five thresholds, and
each lossy rule at five settings, in this order.

Quality is always that of all problems. Time may be measured on some of them with fewer requests at a time
(`CurveScope`). With a folder, every run is appended to a file there: `answers.jsonl` with the graded answers, and
`times-batch-B.jsonl` with the timed ones. The same command finds them again, so an interrupted curve resumes, and a
curve that was measured on one machine can be graded on another, or timed on a third.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from slipstream.bench.tasks.outcome import TaskOutcome
from slipstream.bench.tasks.pair_runs import evidence_of, rule_depth, thresholds
from slipstream.bench.tasks.problems import TaskSet
from slipstream.bench.tasks.run_file import QUALITY_BATCH, OutOfTime, RunFile, TimeLimit
from slipstream.bench.tasks.task_run import TaskLoad, answer_task
from slipstream.bench.tasks.task_session import TaskOptions, origin_of
from slipstream.core.lossy.deferral import build_score
from slipstream.core.lossy.learned import LearnedScore
from slipstream.core.spec import spec_name
from slipstream.engines.cascade.lazy import LazyEngine
from slipstream.engines.cascade.request import RouteEngine, RouteOptions
from slipstream.engines.cascade.rescore import prepare
from slipstream.engines.options import Speculation

GRIDS: Mapping[str, Sequence[str]] = {
    "cascade_chow": [f"alpha={value}" for value in (0.1, 0.2, 0.4, 0.6, 0.8)],
    "cascade_difference": [f"alpha={value}" for value in (0.0, 0.05, 0.1, 0.2, 0.4)],
    "cascade_tv": [f"alpha={value}" for value in (0.0, 0.1, 0.2, 0.4, 0.8)],
    "cascade_token": [f"alpha={value}" for value in (0.1, 0.3, 0.5, 0.7, 0.9)],
    "typical": [f"epsilon={value}" for value in (0.5, 0.3, 0.2, 0.09, 0.03)],
    "lenient": [f"factor={value}" for value in (1.25, 1.5, 2, 4, 8)],
    "bild": [f"fallback={value}" for value in (0.9, 0.7, 0.5, 0.3, 0.1)],
}
SAMPLED = (0.2, 0.4, 0.6, 0.8, 0.95)  # thresholds of a score that compares samples

Answer = Callable[[TaskSet, TaskLoad], TaskOutcome]


@dataclass(frozen=True)
class CurveRun:
    """The answers of one setup, not graded. `timed`: those whose time counts, where they are others."""

    name: str
    kind: str  # small, large, exact, request or the name of a rule
    outcome: TaskOutcome
    timed: TaskOutcome | None = None


class CurveMeasurement:
    """All runs of one curve. Models are opened when a run first needs them."""

    def __init__(self, options: TaskOptions, task: TaskSet, small: str, names: Sequence[str], score: str) -> None:
        scope = options.scope
        self._task, self._names, self._score = task, names, score
        self._timed_load = None if scope.limit is None else options.load
        batch = options.load.batch if scope.limit is None else scope.quality_batch or QUALITY_BATCH
        self._load = replace(options.load, batch=batch)
        setup = replace(options.setup, rows=max(options.load.batch, batch))
        self._depth, self._scope = setup.depth, scope
        drafting = replace(setup, drafter=small if setup.drafter == "none" else setup.drafter, verify=None)
        self._small, self._large = LazyEngine(setup.alone(small).open), LazyEngine(drafting.open)
        self.settings = {
            "task": task.name,
            "problems": len(task.problems),
            "temperature": self._load.sampling.temperature,
            "max_tokens": self._load.max_tokens,
            "batch": batch,
            "score": score,
        }
        limit, out = TimeLimit(scope.time_limit), options.out
        file = None if out is None else out / "answers.jsonl"
        origin = partial(origin_of, setup, small, options.command)
        self.answers = RunFile(file, self.settings, origin, limit)
        self.times: RunFile | None = None
        if self._timed_load is not None:
            timed = self.settings | {"problems": scope.limit, "batch": self._timed_load.batch}
            file = None if out is None else out / f"times-batch-{self._timed_load.batch}.jsonl"
            self.times = RunFile(file, timed, origin, limit)
        self.missing: list[str] = []  # setups that the time limit left out

    def runs(self) -> list[CurveRun]:
        """Every setup that is measured, in order. The time limit may leave out the last ones."""
        done: list[CurveRun] = []
        try:
            for name, kind, answer in self._setups(done):
                try:
                    done.append(self._measured(name, kind, answer, done))
                except OutOfTime:
                    self.missing.append(name)
        finally:
            for model in (self._small, self._large):
                model.close()
        return done

    def _measured(self, name: str, kind: str, answer: Answer, done: Sequence[CurveRun]) -> CurveRun:
        outcome = self.answers.run(name, self._task, partial(answer, self._task, self._load))
        if self.times is None or self._timed_load is None or self._scope.limit is None:
            return CurveRun(name, kind, outcome)
        chosen = spread(self._task, (done[0].outcome if done else outcome), self._scope.limit)
        return CurveRun(name, kind, outcome, self.times.run(name, chosen, partial(answer, chosen, self._timed_load)))

    def _setups(self, done: Sequence[CurveRun]) -> Iterator[tuple[str, str, Answer]]:
        """Name, kind and run of every setup. `done`: the runs so far; the thresholds follow from the first."""
        yield "small alone", "small", self._alone
        yield "large alone", "large", partial(self._one, Speculation(off=True))
        yield "exact speculation", "exact", partial(self._one, Speculation())
        small = next((run.outcome for run in done if run.kind == "small"), None)
        for threshold in () if small is None else _thresholds(self._score, small):
            yield RouteOptions(threshold, self._score).rule, "request", partial(self._routed, threshold)
        for rule, depth in _lossy(self._names, self._depth):
            yield rule, spec_name(rule), partial(self._one, Speculation(verify=rule, depth=depth))

    def _one(self, speculation: Speculation, task: TaskSet, load: TaskLoad) -> TaskOutcome:
        with self._large.use() as engine:
            return answer_task(engine, task, replace(load, speculation=speculation))

    def _alone(self, task: TaskSet, load: TaskLoad) -> TaskOutcome:
        rate = build_score(self._score)
        with self._small.use() as engine:
            prepare(engine, rate)
            outcome = answer_task(engine, task, replace(load, logprobs=rate.top))
            if rate.samples > 1:
                return outcome
            layer = rate.classifier.layer if isinstance(rate, LearnedScore) else None
            evidence = evidence_of(engine, task, outcome.answers, load.batch, layer)
        answers = [replace(a, score=rate.score([e])) for a, e in zip(outcome.answers, evidence, strict=True)]
        return replace(outcome, answers=tuple(answers))

    def _routed(self, threshold: float, task: TaskSet, load: TaskLoad) -> TaskOutcome:
        with self._small.use() as first, self._large.use() as second:
            route = RouteEngine(lambda: first, lambda: second, RouteOptions(threshold, self._score))
            return answer_task(route, task, replace(load, speculation=Speculation(drafter="prediction")))


def spread(task: TaskSet, small: TaskOutcome, count: int) -> TaskSet:
    """So many problems, evenly spaced in the order of the small model's scores, so that about the same share of them is
    handed over at every threshold. They keep the order of the task."""
    total = len(task.problems)
    order = sorted(range(total), key=lambda i: (small.answers[i].score or 0.0, i))
    chosen = sorted(order[(2 * n + 1) * total // (2 * count)] for n in range(count))
    return TaskSet(task.name, tuple(task.problems[i] for i in chosen))


def _lossy(names: Sequence[str], depth: int | None) -> Iterator[tuple[str, int]]:
    for rule in (f"{name}({setting})" for name in names for setting in GRIDS[name]):
        yield rule, rule_depth(rule, depth)


def _thresholds(score: str, small: TaskOutcome) -> Sequence[float]:
    if build_score(score).samples > 1:
        return SAMPLED
    return thresholds([answer.score for answer in small.answers if answer.score is not None])


def same_texts(runs: Sequence[CurveRun]) -> float | None:
    """The share of timed answers that are the graded ones, letter for letter; None where no others were timed."""
    pairs = list[tuple[Any, Any]]()
    for run in runs:
        if run.timed is not None:
            texts = {answer.id: answer.text for answer in run.outcome.answers}
            pairs += [(texts[answer.id], answer.text) for answer in run.timed.answers]
    return sum(graded == timed for graded, timed in pairs) / len(pairs) if pairs else None
