"""Planted bugs of parts that remember earlier answers: a repeated request meets the same draws again.

With a seed and without shared noise, the second answer to a request uses the random numbers of the first. If the draft
or the depth depends on the first answer, it depends on these numbers, and the second answer is biased.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any

from slipstream.audit.subject import Pair, Subject
from slipstream.core.interfaces import Drafter, Policy
from slipstream.core.loop import NoiseFactory, decode
from slipstream.core.noise import CounterNoise
from slipstream.core.types import Budget, Draft, Request, Row, Step, Verdict
from slipstream.core.verify.token import Token
from slipstream.drafters.suffix.drafter import Suffix
from slipstream.drafters.table import TableDrafter

NUMBERS = count()


class SameDraws(Row):
    """Another run of a request: it equals the first row, so that it gets the same random numbers."""

    def __init__(self, row: Row) -> None:
        super().__init__(row.request)
        self._row, self.seed = row, row.seed

    def __hash__(self) -> int:
        return hash(self._row)

    def __eq__(self, other: object) -> bool:
        return other is self._row or other is self


@dataclass(frozen=True)
class Repeated(Subject):
    """Every request runs twice, with the same drafter and policy. The second answer is audited."""

    remembers: bool = True  # whether the drafter may read and add to earlier outputs
    policy: Callable[[], Policy] = field(default=lambda: RememberedDepth())

    def run(
        self, pair: Pair, rows: Sequence[Row], cycles: int | None = None, noise: NoiseFactory = CounterNoise
    ) -> list[list[Step]]:
        drafter, policy = self.drafter(pair.draft), self.policy()
        self._decode(pair, [SameDraws(row) for row in rows], cycles and 1, drafter, policy, noise)
        return self._decode(pair, rows, cycles, drafter, policy, noise)

    def _decode(
        self,
        pair: Pair,
        rows: Sequence[Row],
        cycles: int | None,
        drafter: Drafter,
        policy: Policy,
        noise: NoiseFactory,
    ) -> list[list[Step]]:
        loop = decode(rows, self.model(pair.target), drafter, self.rule(), policy, self.noise(noise))
        with closing(loop):
            return list(islice(loop, cycles))

    def row(self, pair: Pair, max_tokens: int, seed: int = 0, **limits: Any) -> Row:
        """The prompt twice, so that there is something to look up. Each request has a history of its own."""
        sampling, history = super().row(pair, 1, seed).request.sampling, str(next(NUMBERS)) if self.remembers else None
        prompt = (*pair.prompt, *pair.prompt)
        return Row(Request(prompt, sampling, max_tokens, grammar=self.grammar, history=history, **limits))


class RememberedDepth(Policy):
    """Drafts one token. With `remembers`, nothing if the first draft for the first answer was rejected."""

    def __init__(self, remembers: bool = False) -> None:
        self._remembers = remembers
        self._rejected: dict[Row, bool] = {}

    def budget(self, rows: Sequence[Row]) -> list[Budget]:
        second = [self._remembers and not isinstance(row, SameDraws) for row in rows]
        return [Budget(0 if later and self._rejected.get(row) else 1) for row, later in zip(rows, second, strict=True)]

    def observe(self, rows: Sequence[Row], draft: Draft, verdict: Verdict) -> None:
        for row, accepted in zip(rows, verdict.accepted.tolist(), strict=True):
            self._rejected.setdefault(row, accepted == 0)


def suffix(table: Any) -> Drafter:
    return Suffix(table.vocab)


HONEST_MEMORY = Repeated(Token, drafter=suffix, remembers=False)
HONEST_POLICY = Repeated(Token, drafter=TableDrafter, remembers=False)
PLANTED_MEMORIES: dict[str, Subject] = {
    "suffix history meets the same coins again": Repeated(Token, drafter=suffix),
    "policy remembers the same coins": Repeated(
        Token, drafter=TableDrafter, remembers=False, policy=lambda: RememberedDepth(remembers=True)
    ),
}
