"""Both models on the same problems. Every threshold of a request-level route follows from these two runs.

A request that scores at most the threshold takes the small model's time, the time of its score (only a learned score
takes any) and the large model's time. The large model's own reuse of the small model's answer is left out, so computed
times are upper bounds.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from slipstream.bench.tasks.outcome import Answered, TaskOutcome
from slipstream.bench.tasks.problems import Problem, TaskSet
from slipstream.bench.tasks.setups import TaskSetup
from slipstream.bench.tasks.task_run import TaskLoad, run_task
from slipstream.core.lossy.deferral import AnswerEvidence, build_score
from slipstream.core.lossy.learned import LearnedScore
from slipstream.core.spec import parse_spec, spec_name
from slipstream.engines.base import Engine
from slipstream.engines.cascade.rescore import evidence_of_answer, native, prepare, weights_of, with_states
from slipstream.engines.native.engine import NativeEngine
from slipstream.engines.options import Speculation
from slipstream.plan.lower.routes import TOKEN_DEPTH

TOP = 20  # most probable tokens that scores of one answer look at
SCORES = ("mean", "quantile", "entropy")  # scores that need one answer only
CASCADE_DEPTH = 5  # drafted tokens per cycle, unless a depth is given


@dataclass(frozen=True)
class SmallRun:
    """The small model's answers, what their scores look at, and the seconds that this took per request."""

    outcome: TaskOutcome
    evidence: tuple[AnswerEvidence, ...]
    score_seconds: float
    layer: int | None = None  # whose hidden states are in the evidence
    model: str = ""
    sha256: str = ""  # of the model's weights
    known: Mapping[str, Sequence[float]] = field(default_factory=dict)  # scores that are not computed again

    def scores(self, score: str) -> list[float]:
        if score in self.known:
            return list(self.known[score])
        rate = build_score(score)
        return [rate.score([evidence]) for evidence in self.evidence]


@dataclass(frozen=True)
class Routed:
    """A request-level route at one threshold, computed from the runs of both models."""

    small: SmallRun
    large: TaskOutcome
    score: str
    threshold: float

    @property
    def handed(self) -> list[bool]:
        if self.threshold in (0, 1):
            return [self.threshold == 1] * len(self.large.answers)
        return [score <= self.threshold for score in self.small.scores(self.score)]

    @property
    def right(self) -> list[float]:
        pairs = zip(self.handed, self.small.outcome.right, self.large.right, strict=True)
        return [large if handed else small for handed, small, large in pairs]

    @property
    def share(self) -> float:
        return sum(self.handed) / len(self.handed)

    @property
    def seconds(self) -> float:
        if self.threshold == 1:
            return self.large.seconds
        large = sum(a.seconds for a, handed in zip(self.large.answers, self.handed, strict=True) if handed)
        return self.small.outcome.seconds + self.small.score_seconds + large / len(self.handed)

    @property
    def joules(self) -> float | None:
        """Per request. The energy of the score is left out."""
        small, large, count = self.small.outcome.joules, self.large.joules, len(self.handed)
        return None if small is None or large is None else (small + large * self.share) / count


def run_small(setup: TaskSetup, task: TaskSet, load: TaskLoad, score: str | None = None) -> SmallRun:
    """Answer with a small model, with what a score needs; None: all scores of one answer.

    For the learned score each answer is read once more for its hidden states; without a file, those of the layer to
    train on."""
    if setup.engine != "native":
        raise ValueError(f"log-probabilities of answers are read by the native engine; {setup.engine} cannot")
    with setup.open() as engine:
        layer = None if score is None else _layer(native(engine), score)
        outcome = run_task(engine, task, replace(load, logprobs=logprobs_of(score)))
        if layer is not None:
            evidence_of(engine, task, outcome.answers[:1], layer=layer)  # warm-up
        began = time.perf_counter()
        evidence = evidence_of(engine, task, outcome.answers, load.batch, layer)
        seconds = 0.0 if layer is None else (time.perf_counter() - began) / len(evidence)
        target = native(engine).target
        return SmallRun(outcome, tuple(evidence), seconds, layer, target.files.name, weights_of(target))


def logprobs_of(score: str | None) -> int:
    """The most probable tokens that a score looks at. A learned one is compared with the mean log-probability."""
    if score is None:
        return TOP
    return 0 if spec_name(score) == "learned" else build_score(score).top or 0


def _layer(engine: NativeEngine, score: str) -> int | None:
    """The layer whose hidden states a score needs; two thirds of the way up for one that is not trained yet."""
    if spec_name(score) != "learned":
        return None
    if not parse_spec(score)[1]:
        layer = 2 * engine.target.model.layers // 3
        engine.target.model.declare((layer,))
        return layer
    rate = build_score(score)
    prepare(engine, rate)
    return rate.classifier.layer if isinstance(rate, LearnedScore) else None


def run_alone(setup: TaskSetup, task: TaskSet, load: TaskLoad) -> TaskOutcome:
    with setup.open() as engine:
        return run_task(engine, task, load)


def run_rules(setup: TaskSetup, small: str, names: Sequence[str], task: TaskSet, load: TaskLoad) -> list[TaskOutcome]:
    """Answer with the small model as the draft model: exactly, and by these rules at a fixed depth.

    ValueError where it cannot draft for the large model, as with another tokenizer."""
    ways = [Speculation(), *(Speculation(verify=name, depth=rule_depth(name)) for name in names)]
    with replace(setup, drafter=small).open() as engine:
        return [run_task(engine, task, replace(load, speculation=way)) for way in ways]


def rule_depth(rule: str, depth: int | None = None) -> int:
    """The drafted tokens of each cycle under a lossy rule, unless a depth is given."""
    return depth or (TOKEN_DEPTH if spec_name(rule) == "bild" else CASCADE_DEPTH)


def evidence_of(
    engine: Engine, task: TaskSet, answers: Sequence[Answered], batch: int = 1, layer: int | None = None
) -> list[AnswerEvidence]:
    """What scores look at, of each answer; so many answers are read at a time. `layer`: with its hidden states."""

    def read(problem: Problem, answer: Answered) -> AnswerEvidence:
        assert answer.completion is not None, "a fresh outcome holds its completions"
        evidence = evidence_of_answer(answer.completion)
        if layer is None:
            return evidence
        prompt, raw, _ = problem.text(engine.text.instruct)
        return replace(evidence, states=with_states(engine, prompt, answer.completion, layer, raw).states)

    with ThreadPoolExecutor(batch) as pool:
        return list(pool.map(read, task.problems[: len(answers)], answers))


def thresholds(scores: Sequence[float], shares: Sequence[float] = (0.1, 0.25, 0.5, 0.75, 0.9)) -> list[float]:
    """Thresholds that hand over about these shares of the requests."""
    ordered = sorted(scores)
    chosen = [ordered[max(0, round(share * len(ordered)) - 1)] for share in shares]
    return list(dict.fromkeys(min(1.0, value) for value in chosen))
