"""What is audited: a target, a drafter, a rule and a policy, made afresh for every run of the loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import torch

from slipstream.core.interfaces import Drafter, Model, Policy, Verifier
from slipstream.core.loop import NoiseFactory, decode
from slipstream.core.noise import CounterNoise
from slipstream.core.sampling import Sampling
from slipstream.core.shaping import law_at
from slipstream.core.types import Constraint, Request, Row, Step
from slipstream.drafters.table import TableDrafter
from slipstream.models.table import Table, TableModel
from slipstream.plan.policy import Fixed


@dataclass(frozen=True)
class Pair:
    """Tables of a target and a draft model, and the prompt continuations start from."""

    target: Table
    draft: Table
    prompt: tuple[int, ...] = (0, 1)

    @staticmethod
    def random(seed: int, vocab: int = 4, order: int = 2) -> Pair:
        return Pair(Table.random(vocab, order, 2 * seed), Table.random(vocab, order, 2 * seed + 1), (0, 1 % vocab))


Joint = dict[tuple[int, ...], float]


def same(noise: NoiseFactory) -> NoiseFactory:
    return noise


@dataclass(frozen=True)
class Subject:
    """The loop on a pair of tables. A planted bug replaces one of the parts."""

    rule: Callable[[], Verifier]
    policy: Callable[[], Policy] = field(default=lambda: Fixed(2))
    sampling: Sampling = field(default_factory=Sampling)
    model: Callable[[Table], Model] = TableModel
    drafter: Callable[[Table], Drafter] = TableDrafter
    noise: Callable[[NoiseFactory], NoiseFactory] = same
    grammar: Callable[[], Constraint] | None = None

    def run(
        self, pair: Pair, rows: Sequence[Row], cycles: int | None = None, noise: NoiseFactory = CounterNoise
    ) -> list[list[Step]]:
        """Decode the rows, for a number of cycles or to their end."""
        loop = decode(
            rows, self.model(pair.target), self.drafter(pair.draft), self.rule(), self.policy(), self.noise(noise)
        )
        with closing(loop):
            return list(islice(loop, cycles))

    def row(self, pair: Pair, max_tokens: int, seed: int = 0, **limits: Any) -> Row:
        sampling = replace(self.sampling, seed=seed)
        return Row(Request(pair.prompt, sampling, max_tokens, grammar=self.grammar, **limits))

    def joint(self, pair: Pair, length: int, text: tuple[int, ...] = (), **limits: Any) -> Joint:
        """Probability of every continuation of prompt and `text` by `length` tokens, under plain decoding."""
        row = self.row(pair, 1 << 20, **limits)
        joint: Joint = {(): 1.0}
        for _ in range(length):
            logits = torch.stack([pair.target.law([*pair.prompt, *text, *path]).log() for path in joint])
            laws = law_at(logits, [(row, text + path) for path in joint]).dense().tolist()
            joint = {
                (*path, token): probability * p
                for (path, probability), law in zip(joint.items(), laws, strict=True)
                for token, p in enumerate(law)
                if p > 0
            }
        return joint
