"""The runs of a curve: small alone, exact speculation, large alone, the request-level route at five thresholds, and
each lossy rule at five settings.

With a folder, every run is appended to `answers.jsonl` there. The same command finds them again, so an interrupted
curve resumes, and a curve that was measured on one machine can be graded on another.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from slipstream.bench.tasks.outcome import TaskOutcome, loaded
from slipstream.bench.tasks.pair_runs import evidence_of, thresholds
from slipstream.bench.tasks.problems import TaskSet
from slipstream.bench.tasks.task_run import TaskLoad, answer_task
from slipstream.bench.tasks.task_session import TaskOptions
from slipstream.core.lossy.deferral import build_score
from slipstream.core.lossy.learned import LearnedScore
from slipstream.core.spec import spec_name
from slipstream.engines.cascade.lazy import LazyEngine
from slipstream.engines.cascade.request import RouteEngine, RouteOptions
from slipstream.engines.cascade.rescore import prepare
from slipstream.engines.options import Speculation
from slipstream.plan.lower.routes import TOKEN_DEPTH

GRIDS: Mapping[str, Sequence[str]] = {
    "cascade_chow": [f"alpha={value}" for value in (0.1, 0.2, 0.4, 0.6, 0.8)],
    "cascade_difference": [f"alpha={value}" for value in (0.0, 0.05, 0.1, 0.2, 0.4)],
    "cascade_tv": [f"alpha={value}" for value in (0.0, 0.1, 0.2, 0.4, 0.8)],
    "cascade_token": [f"alpha={value}" for value in (0.1, 0.3, 0.5, 0.7, 0.9)],
    "typical": [f"epsilon={value}" for value in (0.5, 0.3, 0.2, 0.09, 0.03)],
    "lenient": [f"factor={value}" for value in (1.25, 1.5, 2, 4, 8)],
    "bild": [f"fallback={value}" for value in (0.9, 0.7, 0.5, 0.3, 0.1)],
}
CASCADE_DEPTH = 5  # drafted tokens per cycle, unless a depth is given
SAMPLED = (0.2, 0.4, 0.6, 0.8, 0.95)  # thresholds of a score that compares samples


@dataclass(frozen=True)
class CurveRun:
    """The answers of one setup, not graded."""

    name: str
    kind: str  # small, large, exact, request or the name of a rule
    outcome: TaskOutcome


class RunFile:
    """The runs so far, in a file if there is one. `settings` must be those that the file was begun with.

    `origin`: machine, versions and models of the first run; from the file if there is one."""

    def __init__(
        self, path: Path | None, task: TaskSet, settings: Mapping[str, Any], origin: Callable[[], dict[str, Any]]
    ) -> None:
        self._path, self._task = path, task
        self._known: dict[str, dict[str, Any]] = {}
        if path is None or not path.exists():
            self.origin = origin()
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._append({"settings": dict(settings), "origin": self.origin})
            return
        first, *lines = _lines(path)
        for key, value in settings.items():
            if (known := first["settings"].get(key)) != value:
                raise ValueError(f"{path} holds answers with {key} {known!r}, not {value!r}; use another --out")
        self.origin = first["origin"]
        self._known = {line["name"]: line for line in lines}

    def run(self, name: str, kind: str, answer: Callable[[], TaskOutcome]) -> CurveRun:
        """The run of this name: from the file, or by `answer`."""
        if name in self._known:
            return CurveRun(name, kind, loaded(self._task, self._known[name]))
        print(f"{name} …", file=sys.stderr, flush=True)
        outcome = answer()
        if self._path is not None:
            self._append({"name": name, **outcome.saved()})
        return CurveRun(name, kind, outcome)

    def _append(self, line: Mapping[str, Any]) -> None:
        assert self._path is not None
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _lines(path: Path) -> list[dict[str, Any]]:
    """The lines of the file. A last line that was cut off by an interruption is left out, also from the file."""
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole, encoding="utf-8")
    try:
        lines = [json.loads(line) for line in whole.splitlines()]
        if lines and "settings" in lines[0] and "origin" in lines[0]:
            return lines
    except ValueError:
        pass
    raise ValueError(f"{path} is not the file of answers of a curve; use another --out")


def curve_runs(
    options: TaskOptions, task: TaskSet, small: str, names: Sequence[str], score: str, runs: RunFile
) -> list[CurveRun]:
    """Every run of a curve. Models are opened when a run first needs them."""
    setup, load = options.setup, options.load
    drafting = replace(setup, drafter=small if setup.drafter == "none" else setup.drafter, verify=None)
    models = LazyEngine(setup.alone(small).open), LazyEngine(drafting.open)
    small_model, large_model = models
    plain = replace(load, speculation=Speculation(off=True))

    def large(chosen: TaskLoad) -> TaskOutcome:
        with large_model.use() as engine:
            return answer_task(engine, task, chosen)

    def alone() -> TaskOutcome:
        rate = build_score(score)
        with small_model.use() as engine:
            prepare(engine, rate)
            outcome = answer_task(engine, task, load)
            if rate.samples > 1:
                return outcome
            layer = rate.classifier.layer if isinstance(rate, LearnedScore) else None
            evidence = evidence_of(engine, task, outcome.answers, load.batch, layer)
        answers = [replace(a, score=rate.score([e])) for a, e in zip(outcome.answers, evidence, strict=True)]
        return replace(outcome, answers=tuple(answers))

    def routed(threshold: float) -> TaskOutcome:
        with small_model.use() as first, large_model.use() as second:
            route = RouteEngine(lambda: first, lambda: second, RouteOptions(threshold, score))
            return answer_task(route, task, replace(load, speculation=Speculation(drafter="prediction")))

    try:
        done = [runs.run("small alone", "small", alone)]
        done.append(runs.run("large alone", "large", partial(large, plain)))
        done.append(runs.run("exact speculation", "exact", partial(large, load)))
        for threshold in _thresholds(score, done[0].outcome):
            name = RouteOptions(threshold, score).rule
            done.append(runs.run(name, "request", partial(routed, threshold)))
        for rule, depth in _lossy(names, setup.depth):
            lossy = replace(load, speculation=Speculation(verify=rule, depth=depth))
            done.append(runs.run(rule, spec_name(rule), partial(large, lossy)))
    finally:
        for model in models:
            model.close()
    return done


def _lossy(names: Sequence[str], depth: int | None) -> Iterator[tuple[str, int]]:
    for rule in (f"{name}({setting})" for name in names for setting in GRIDS[name]):
        yield rule, depth or (TOKEN_DEPTH if spec_name(rule) == "bild" else CASCADE_DEPTH)


def _thresholds(score: str, small: TaskOutcome) -> Sequence[float]:
    if build_score(score).samples > 1:
        return SAMPLED
    return thresholds([answer.score for answer in small.answers if answer.score is not None])
