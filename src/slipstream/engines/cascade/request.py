"""The request-level route: the small model answers, and answers of low score are written again by the large model."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from slipstream.core.lossy.deferral import DeferralScore, build_score, check_threshold
from slipstream.core.lossy.learned import LearnedScore
from slipstream.core.sampling import Sampling
from slipstream.engines.base import Capabilities, Engine, GenerationOptions, ModelInfo, Prompt, RequestHandle, checked
from slipstream.engines.cascade.handle import RoutedRequest, RouteHandle
from slipstream.engines.cascade.lazy import LazyEngine
from slipstream.engines.cascade.rescore import evidence_of_answer, prepare, rescored, rescores, with_states
from slipstream.engines.completion import Completion, Guarantee
from slipstream.engines.options import Speculation
from slipstream.models.text.codec import TextCodec

SAMPLING_TEMPERATURE = 0.7  # of the samples that are compared, where the request itself is greedy


@dataclass(frozen=True)
class RouteOptions:
    """When a request is handed over: when its score is at most the threshold.

    At threshold 0 the small model alone answers, at 1 the large model alone."""

    threshold: float = 0.5
    score: str = "mean"  # mean, quantile(q=0.1), entropy(k=20), agreement(n=5) or learned(file=FILE)
    idle_seconds: float | None = None  # close the large model after this time without use; None: never

    def __post_init__(self) -> None:
        check_threshold(self.threshold)
        build_score(self.score)

    @property
    def rule(self) -> str:
        """The name of the route in every output."""
        return f"route(score={self.score}, threshold={self.threshold:g})"


@dataclass
class RouteCounts:
    """Requests and tokens of each model since the start."""

    requests: int = 0
    handed_over: int = 0
    small_tokens: int = 0
    large_tokens: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, small: Completion | None, large: Completion | None) -> None:
        with self._lock:
            self.requests += 1
            self.handed_over += large is not None
            self.small_tokens += 0 if small is None else len(small.token_ids)
            self.large_tokens += 0 if large is None else len(large.token_ids)


class RouteEngine(Engine):
    """Two engines behind one interface. Each is opened on first need.

    The large model takes the small model's answer as a prediction, so it verifies the equal parts in few passes. That
    does not change what it writes."""

    capabilities = Capabilities(drafters=(), logprobs=True, batch=True, origins=True)

    def __init__(
        self, small: Callable[[], Engine], large: Callable[[], Engine], options: RouteOptions | None = None
    ) -> None:
        self.options = options or RouteOptions()
        self._score = build_score(self.options.score)
        self.small, self.large = LazyEngine(self._prepared(small)), LazyEngine(large, self.options.idle_seconds)
        self.counts = RouteCounts()

    def _prepared(self, small: Callable[[], Engine]) -> Callable[[], Engine]:
        def opened() -> Engine:
            engine = small()
            try:
                prepare(engine, self._score)
            except BaseException:
                engine.close()
                raise
            return engine

        return opened

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee(self.options.rule, lossless=False)

    @property
    def score(self) -> DeferralScore | None:
        """The score, where one is needed: at threshold 0 every answer is kept."""
        return self._score if 0 < self.options.threshold < 1 else None

    @property
    def model_info(self) -> ModelInfo:
        """The model that answers first. The label names the route."""
        with self._first.use() as engine:
            info = engine.model_info
        return replace(info, label=f"{info.label}, {self.options.rule}")

    @property
    def text(self) -> TextCodec:
        with self._first.use() as engine:
            return engine.text

    @property
    def _first(self) -> LazyEngine:
        return self.large if self.options.threshold == 1 else self.small

    def submit(
        self, prompt: Prompt, sampling: Sampling | None = None, options: GenerationOptions | None = None
    ) -> list[RequestHandle]:
        sampling, options = checked(sampling, options)
        _check_prompt(prompt)
        request = RoutedRequest(prompt, sampling, options, self)
        return [RouteHandle(request, sample) for sample in range(options.n)]

    def answer_small(self, request: RoutedRequest, engine: Engine, sample: int) -> list[RequestHandle]:
        """Start the small model's answer, and the samples that the score compares it with."""
        speculation = Speculation(off=request.options.speculation.off)  # its other choices are for the large model
        options = replace(request.options, n=1, prompt_logprobs=None, speculation=speculation)
        score = self.score
        if score is not None and score.top is not None and not rescores(engine, score.top):
            if not engine.capabilities.logprobs:
                raise ValueError(
                    f"this engine reports no log-probabilities, which the score {score.name} needs; use agreement"
                )
            options = replace(options, logprobs=max(score.top, options.logprobs or 0))
        sampling = request.sample_sampling(sample)
        handles = engine.submit(request.prompt, sampling, options)
        if score is not None and score.samples > 1:
            warm = replace(sampling, temperature=sampling.temperature or SAMPLING_TEMPERATURE)
            others = replace(options, n=score.samples - 1, logprobs=None)
            handles += engine.submit(request.prompt, warm, others)
        return handles

    def rate(self, request: RoutedRequest, engine: Engine, answers: Sequence[Completion]) -> float | None:
        """The score of the first answer; None where every answer is kept."""
        score = self.score
        if score is None:
            return None
        if isinstance(score, LearnedScore):
            layer = score.classifier.layer
            return score.score([with_states(engine, request.prompt, answers[0], layer, request.options.raw)])
        if score.top is not None and rescores(engine, score.top):
            return score.score([rescored(engine, request.prompt, answers[0], score.top, request.options.raw)])
        return score.score([evidence_of_answer(answer) for answer in answers])

    def answer_large(
        self, request: RoutedRequest, engine: Engine, sample: int, small: Completion | None
    ) -> RequestHandle:
        """Start the large model's answer, with the small model's as its prediction where the engine takes one."""
        options = replace(request.options, n=1)
        plain = getattr(engine, "drafter_name", None) == "none" or options.speculation.drafter == "prediction"
        if small is not None and plain and engine.capabilities.prediction and options.prediction is None:
            options = replace(options, prediction=small.text)
        (handle,) = engine.submit(request.prompt, request.sample_sampling(sample), options)
        return handle

    def close(self) -> None:
        self.small.close()
        self.large.close()

    @property
    def stats(self) -> dict[str, Any]:
        counts = self.counts
        return {
            "requests": counts.requests,
            "handed_over": counts.handed_over,
            "small_tokens": counts.small_tokens,
            "large_tokens": counts.large_tokens,
            "large_loads": self.large.loads,
        }


def _check_prompt(prompt: Prompt) -> None:
    parts: Any = prompt
    if not isinstance(parts, str | list | tuple) or (parts and all(isinstance(part, int) for part in parts)):
        raise ValueError("a route takes text or messages; token ids and audio belong to one model")
