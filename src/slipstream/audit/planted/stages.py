"""Bugs that only staged drafts make possible, planted one at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from slipstream.audit.subject import Subject
from slipstream.audit.tables.stages import two_stages
from slipstream.audit.tables.trees import Alternating
from slipstream.core.array_types import Tensor
from slipstream.core.law import Dense, Law
from slipstream.core.loop import NoiseFactory
from slipstream.core.noise import InnerCycle, Noise, Purpose, Site
from slipstream.core.types import Budget, Draft, Origin, Row, RowOutcome
from slipstream.core.verify.token import Token
from slipstream.drafters.staged.continuation import Continuation, VerifiedContinuations
from slipstream.drafters.staged.drafter import Staged
from slipstream.drafters.table import TableDrafter


class ReportsFirstLaw(Staged):
    """Reports the law of the first stage instead of the law of the stage that verified it."""

    def propose(self, rows: Sequence[Row], budget: Sequence[Budget], noise: Noise) -> Draft:
        draft, first = super().propose(rows, budget, noise), self.stage.first
        assert isinstance(first, TableDrafter)
        laws, texts = list[Tensor](), list[list[int]]()
        for (r, p), token in zip(draft.tree.lists, draft.token.tolist(), strict=True):
            before = rows[r].tokens if p < 0 else texts[p]
            laws.append(first.table.law(before))
            texts.append([*before, token])
        return replace(draft, law=Dense(torch.stack(laws))) if laws else draft


class BonusTwice(VerifiedContinuations):
    """Appends the bonus token of an inner cycle twice."""

    def _extend(self, line: Continuation, outcome: RowOutcome, slots: Sequence[int]) -> None:
        if outcome.origins[-1] is Origin.BONUS:
            tokens, origins = [*outcome.tokens, outcome.tokens[-1]], [*outcome.origins, Origin.BONUS]
            outcome, slots = replace(outcome, tokens=tokens, origins=origins), [*slots, slots[-1]]
        super()._extend(line, outcome, slots)


@dataclass(frozen=True)
class OtherInner(Noise):
    """Passes draws on. Inner cycles get other draws than they should."""

    noise: Noise
    make_inner: Callable[[InnerCycle], Noise]

    def flip(self, prob: Tensor, site: Site) -> Tensor:
        return self.noise.flip(prob, site)

    def draw(self, law: Law, site: Site, purpose: Purpose) -> Tensor:
        return self.noise.draw(law, site, purpose)

    def inner(self, cycle: InnerCycle) -> Noise:
        return self.make_inner(cycle)


class RowOfLength(Row):
    """Equals another row, but has another length."""

    def __init__(self, row: Row, length: int) -> None:
        super().__init__(row.request)
        self._row, self.seed, self.tokens = row, row.seed, [0] * length

    def __hash__(self) -> int:
        return hash(self._row)

    def __eq__(self, other: object) -> bool:
        return other is self._row


def without_inner_start(make: NoiseFactory) -> NoiseFactory:
    def noise(rows: Sequence[Row], shared: Sequence[bool]) -> Noise:
        outer = make(rows, shared)
        return OtherInner(outer, lambda cycle: outer.inner(replace(cycle, drafted=[0] * len(cycle.rows))))

    return noise


def without_outer_length(make: NoiseFactory) -> NoiseFactory:
    """The key of an inner cycle holds the length of the text at its own start, and no other length."""

    def noise(rows: Sequence[Row], shared: Sequence[bool]) -> Noise:
        starts = [row.length for row in rows]
        first = make([RowOfLength(row, 0) for row in rows], shared)

        def inner(cycle: InnerCycle) -> Noise:
            lengths = [starts[r] + drafted for r, drafted in zip(cycle.rows, cycle.drafted, strict=True)]
            return first.inner(replace(cycle, drafted=lengths))

        return OtherInner(make(rows, shared), inner)

    return noise


def shared_between_stages(make: NoiseFactory) -> NoiseFactory:
    """An inner cycle draws as an outer one would that starts at the same length."""

    def noise(rows: Sequence[Row], shared: Sequence[bool]) -> Noise:
        starts = [row.length for row in rows]

        def inner(cycle: InnerCycle) -> Noise:
            lengths = [starts[r] + drafted for r, drafted in zip(cycle.rows, cycle.drafted, strict=True)]
            views = [RowOfLength(rows[r], length) for r, length in zip(cycle.rows, lengths, strict=True)]
            return make(views, [False] * len(views))

        return OtherInner(make(rows, shared), inner)

    return noise


HONEST_STAGES = Subject(Token, drafter=two_stages)
PLANTED_STAGES: dict[str, Subject] = {
    "noise shared between stages": replace(HONEST_STAGES, noise=shared_between_stages),
    "inner draws keyed without the outer length": replace(HONEST_STAGES, noise=without_outer_length),
    "inner draws keyed without the inner start": replace(HONEST_STAGES, noise=without_inner_start),
    "law of the first stage reported": replace(
        HONEST_STAGES, drafter=lambda table: two_stages(table, kind=ReportsFirstLaw)
    ),
    "inner bonus token counted twice": replace(
        HONEST_STAGES,
        drafter=lambda table: two_stages(table, continuations=BonusTwice),
        policy=lambda: Alternating(Budget(0), Budget(3)),  # a draft of more than one inner cycle
        depth=3,
    ),
}
