"""What is audited on tables: a target, a drafter, a rule and a policy, built anew for every run of the loop."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import islice
from types import MappingProxyType
from typing import Any

import torch

from slipstream.core.interfaces import Drafter, Model, Policy, Verifier
from slipstream.core.loop import NoiseFactory, decode
from slipstream.core.noise import CounterNoise
from slipstream.core.sampling import Sampling
from slipstream.core.shaping import law_at
from slipstream.core.types import Constraint, Request, Row, Step
from slipstream.drafters.table import TableDrafter
from slipstream.models.run.table_model import Table, TableModel
from slipstream.plan.policy.policies import Fixed


@dataclass(frozen=True)
class Pair:
    """Tables of a target and a draft model, and the prompt continuations start from."""

    target: Table
    draft: Table
    prompt: tuple[int, ...] = (0, 1)

    @staticmethod
    def random(seed: int, vocab: int = 4, order: int = 2) -> Pair:
        return Pair(Table.random(vocab, order, 2 * seed), Table.random(vocab, order, 2 * seed + 1), (0, 1 % vocab))


Text = tuple[int, ...]
Joint = dict[Text, float]
START: Mapping[Text, float] = MappingProxyType({(): 1.0})


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
    depth: int = 2  # the largest depth of `policy`

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

    def joint(self, pair: Pair, length: int, start: Mapping[Text, float] = START, **limits: Any) -> Joint:
        """The probability of every text of `length` tokens, where plain decoding continues the texts of `start`."""
        row = self.row(pair, 1 << 20, **limits)
        joint: Joint = defaultdict(float, start)
        for size in range(length):  # shortest first, because shorter texts grow into longer ones
            short = [text for text in joint if len(text) == size]
            if not short:
                continue
            after = torch.tensor([pair.target.context([*pair.prompt, *text]) for text in short])
            laws = law_at(pair.target.probs[after].log(), [(row, text) for text in short]).dense().tolist()
            for text, law in zip(short, laws, strict=True):
                probability = joint.pop(text)
                for token, p in enumerate(law):
                    if p > 0:
                        joint[*text, token] += probability * p
        return joint
