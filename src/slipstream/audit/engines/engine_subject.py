"""The engine under audit, with and without speculation, and the target computed here in float32."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from slipstream.audit.engines.continuations import Path
from slipstream.audit.real import RealPair, next_law
from slipstream.core.sampling import Sampling
from slipstream.drafters.none import NoDrafter
from slipstream.engines.base import Completion, Engine
from slipstream.models.run.torch_model import TorchModel

LENGTH = 4  # tokens of a continuation; the first token of a reply is not drafted
TOP = 20  # logprobs requested for a position
BATCH = 64  # requests submitted together


@dataclass
class EngineSubject:
    """An engine with speculation, the same engine without, and the target computed here in float32."""

    fast: Engine
    plain: Engine
    model: TorchModel
    ends: frozenset[int]
    short: Sequence[int]  # a prompt that is continued many times; drafters that look up text find repeats in it
    prompts: Sequence[Sequence[int]]
    temperature: float = 1.0
    figures: dict[str, float] = field(default_factory=dict)  # measured values, for reports

    def record(self, **figures: float) -> None:
        self.figures |= figures

    def reference(self, paths: Sequence[Path]) -> list[dict[int, float]]:
        """The float32 law after each path: the 200 likeliest tokens."""
        pair = RealPair(self.model, NoDrafter(self.model.vocab), (), self.short)
        laws = []
        for path in paths:
            law = next_law(pair, [*self.short, *path], Sampling(self.temperature))
            best = law.topk(min(200, len(law)))
            laws.append(dict(zip(best.indices.tolist(), best.values.tolist(), strict=True)))
        return laws

    def own(self, paths: Sequence[Path]) -> list[dict[int, float]] | None:
        """The engine's law after each path, from its logprobs; None where it gives none.

        Only at temperature 1: the top logprobs do not tell the normaliser of another temperature.
        """
        if not self.plain.capabilities.logprobs or self.temperature != 1:
            return None
        texts = [[*self.short, *path] for path in paths]
        done = self.plain.generate(texts, Sampling(1.0, seed=1), max_tokens=1, logprobs=TOP)
        check_done(done)
        return [{token: math.exp(value) for token, value in c.logprobs[0].top_logprobs} for c in done]

    def sample(self, engine: Engine, samples: int, first_seed: int) -> list[list[int]]:
        """A few tokens after the short prompt, many times, with one seed each."""
        texts: list[list[int]] = []
        for first in range(first_seed, first_seed + samples, BATCH):
            seeds = range(first, min(first + BATCH, first_seed + samples))
            samplings = [Sampling(self.temperature, seed=seed) for seed in seeds]
            done = engine.generate([list(self.short)] * len(samplings), samplings, max_tokens=LENGTH)
            check_done(done)
            texts += [completion.token_ids for completion in done]
        return texts


def check_done(done: Sequence[Completion]) -> None:
    for completion in done:
        if completion.error:
            raise ValueError(completion.error)
