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
from slipstream.core.shaping import Place, law_at
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
Declared = Callable[[list[float], list[float]], list[float]]  # (p, q) -> the law of the token
Laws = Callable[[Text], list[Any]]
Process = Callable[[Laws, Laws, Text, int], dict[tuple[int, Text], Any]]
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
    declared: Declared | None = None  # the law of a lossy rule at every position; None: the target's
    process: Process | None = None  # the law of one cycle of a lossy rule that depends on the depth

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
            where: list[Place] = [(row, text) for text in short]
            laws = law_at(pair.target.probs[after].log(), where).dense().tolist()
            if self.declared is not None:
                drafted = torch.tensor([pair.draft.context([*pair.prompt, *text]) for text in short])
                draft_laws = law_at(pair.draft.probs[drafted].log(), where).dense().tolist()
                laws = [self.declared(p, q) for p, q in zip(laws, draft_laws, strict=True)]
            for text, law in zip(short, laws, strict=True):
                probability = joint.pop(text)
                for token, p in enumerate(law):
                    if p > 0:
                        joint[*text, token] += probability * p
        return joint

    def process_joint(self, pair: Pair, cycles: int | None, max_tokens: int = 1 << 20) -> Joint:
        """The probability of every text after these cycles of `process`, or at the limit of tokens."""
        assert self.process is not None, "only a rule that declares a process has one"
        target, draft = (_float_laws(table) for table in (pair.target, pair.draft))
        joint: Joint = {(): 1.0}
        while (cycles is None or cycles > 0) and any(len(text) < max_tokens for text in joint):
            after: Joint = defaultdict(float)
            for text, mass in joint.items():
                room = max_tokens - len(text)
                if not room:
                    after[text] += mass
                    continue
                outcomes = self.process(target, draft, pair.prompt + text, min(self.depth, room - 1))
                for (_, emitted), chance in outcomes.items():
                    after[text + emitted] += mass * chance
            joint, cycles = after, None if cycles is None else cycles - 1
        return joint


def _float_laws(table: Table) -> Laws:
    rows = table.probs.tolist()
    return lambda text: rows[table.context(text)]
