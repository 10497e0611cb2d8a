"""Runs the problems of a task through an engine, measures time and energy, and grades the answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import torch

from slipstream.bench.measure.energy import energy_used
from slipstream.bench.progress import progress
from slipstream.bench.tasks.outcome import Answered, TaskOutcome, graded
from slipstream.bench.tasks.problems import Problem, TaskSet
from slipstream.core.rules import rules
from slipstream.core.sampling import Sampling
from slipstream.core.types import Origin
from slipstream.engines.base import Completion, Engine, GenerationOptions, RequestHandle, Speculation
from slipstream.engines.cascade.request import RouteEngine

WARM_UP = 8, 96  # tokens of the shortest and the longest request of a warm-up
FEW = 4  # requests of a warm-up on a GPU at least


@dataclass(frozen=True)
class TaskLoad:
    """How the problems are submitted."""

    sampling: Sampling
    max_tokens: int = 512
    batch: int = 1  # problems at a time; if there are several, seconds per request are all seconds over all requests
    speculation: Speculation = field(default_factory=Speculation)
    logprobs: int | None = None  # of each token, with so many of the most probable ones

    def __post_init__(self) -> None:
        for name in ("max_tokens", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 1 or more")


@dataclass(frozen=True)
class TimedCompletion:
    """A completion and the seconds it took."""

    completion: Completion
    seconds: float


def run_task(engine: Engine, task: TaskSet, load: TaskLoad) -> TaskOutcome:
    """Answer all problems, then grade the answers. Loading and warm-up are not timed."""
    return graded([answer_task(engine, task, load)])[0]


def answer_task(engine: Engine, task: TaskSet, load: TaskLoad) -> TaskOutcome:
    """Answer all problems, `load.batch` at a time. The answers are not graded."""
    warm_up(engine, task.problems, load)
    lengths = [load.max_tokens] * len(task.problems)
    with progress(len(lengths)) as say, energy_used() as spent:
        began = time.perf_counter()
        done = _answers(engine, task.problems, lengths, load, say)
        seconds = (time.perf_counter() - began) / len(done)
    if load.batch > 1:
        done = [replace(entry, seconds=seconds) for entry in done]
    answers = [_answered(problem, entry) for problem, entry in zip(task.problems, done, strict=True)]
    first = done[0].completion
    return TaskOutcome(task, tuple(answers), first.lossless, first.rule, spent.joules)


def warm_up(engine: Engine, problems: Sequence[Problem], load: TaskLoad) -> None:
    """Open and warm up every model that may be needed.

    On a GPU the requests of a batch get different lengths, so that cycles are captured for every number of rows."""
    short, long = WARM_UP
    if isinstance(engine, RouteEngine):
        threshold = engine.options.threshold
        for lazy, used in ((engine.small, threshold < 1), (engine.large, threshold > 0)):
            if used:
                with lazy.use() as model:
                    _answers(model, problems[:1], [min(short, load.max_tokens)], load)
    long = long if torch.cuda.is_available() else short
    count = min(max(load.batch, FEW), len(problems)) if torch.cuda.is_available() else 1
    lengths = [min(load.max_tokens, short + (long - short) * (i + 1) // count) for i in range(count)]
    _answers(engine, problems[:count], lengths, load)


def _answers(
    engine: Engine,
    problems: Sequence[Problem],
    max_tokens: Sequence[int],
    load: TaskLoad,
    say: Callable[[str], None] = lambda title: None,
) -> list[TimedCompletion]:
    """The answers, each of at most so many tokens, `load.batch` at a time."""
    handles: list[RequestHandle] = []

    def answer(problem: Problem, tokens: int) -> TimedCompletion:
        began = time.perf_counter()
        prompt, raw, stop = problem.text(engine.text.instruct)
        options = GenerationOptions(tokens, stop=stop, raw=raw, speculation=load.speculation, logprobs=load.logprobs)
        (handle,) = engine.submit(prompt, load.sampling, options)
        handles.append(handle)
        completion = handle.result()
        if completion.error:
            raise ValueError(f"the engine failed on a problem: {completion.error}")
        return TimedCompletion(completion, time.perf_counter() - began)

    with ThreadPoolExecutor(load.batch) as pool:
        waiting = [pool.submit(answer, *entry) for entry in zip(problems, max_tokens, strict=True)]
        try:
            done = []
            for problem, entry in zip(problems, waiting, strict=True):
                say(problem.id)
                done.append(entry.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for handle in handles:
                handle.cancel()
            raise
    return done


def _answered(problem: Problem, timed: TimedCompletion) -> Answered:
    completion = timed.completion
    route, tokens = completion.route, len(completion.token_ids)
    if route is not None:
        large = float(route.model == "large")
    else:
        accepted = 0 if completion.lossless is not False else _drafted(completion)
        large = 1 - accepted / tokens if tokens else 1.0
    return Answered(
        problem.id,
        timed.seconds,
        tokens,
        large,
        None if route is None else route.model,
        None if route is None else route.score,
        completion.text,
        completion=completion,
    )


def _drafted(completion: Completion) -> int:
    """Tokens that the draft model wrote. The last token of a cascade's cycle is drafted, too, unless recovered."""
    kinds = [Origin.ACCEPTED] + ([Origin.BONUS] if rules.get(completion.rule).needs_draft else [])
    return sum(origin in kinds for origin in completion.origins)
