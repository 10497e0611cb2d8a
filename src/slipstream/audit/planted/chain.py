"""Bugs of real speculative samplers, planted one at a time. The self-test must catch every one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from slipstream.audit.planted.lossy import PLANTED_LOSSY
from slipstream.audit.planted.memory import PLANTED_MEMORIES
from slipstream.audit.planted.stages import PLANTED_STAGES, RowOfLength
from slipstream.audit.planted.tree import PLANTED_TREES
from slipstream.audit.subject import Subject
from slipstream.core import sampling
from slipstream.core.array_types import Tensor
from slipstream.core.interfaces import Drafter, Verifier
from slipstream.core.law import Dense, Law
from slipstream.core.loop import NoiseFactory
from slipstream.core.noise import Noise, Purpose, Site
from slipstream.core.sampling import Sampling
from slipstream.core.tree import Tree
from slipstream.core.types import Budget, Draft, Row, Scores, Verdict
from slipstream.core.verify.token import Token
from slipstream.drafters.table import TableDrafter
from slipstream.models.run.table_model import Table, TableModel

HONEST = Subject(Token)


class ShiftedModel(TableModel):
    """Returns the logits before a drafted token instead of those after it."""

    def score(self, rows: Sequence[Row], draft: Draft) -> Scores:
        before = torch.cat([torch.arange(len(rows)), draft.tree.origin])
        return Scores(super().score(rows, draft).logits[before])


class Misreporting(Drafter):
    """Draws from one law and reports another."""

    def __init__(self, table: Table, draw: Sampling | None, report: Callable[[Tensor, Sampling], Law]) -> None:
        self._inner, self._table, self._draw, self._report = TableDrafter(table), table, draw, report

    def propose(self, rows: Sequence[Row], budget: Sequence[Budget], noise: Noise) -> Draft:
        drawn = [_with_sampling(row, self._draw) for row in rows]
        draft = self._inner.propose(drawn, budget, noise)
        texts: list[list[int]] = []
        for (r, p), token in zip(draft.tree.lists, draft.token.tolist(), strict=True):
            texts.append([*(rows[r].tokens if p < 0 else texts[p]), token])
        if not texts:
            return draft
        logits = torch.stack([self._table.law(text[:-1]) for text in texts]).log()
        return replace(draft, law=self._report(logits, rows[0].request.sampling))


def _with_sampling(row: Row, draw: Sampling | None) -> Row:
    if draw is None:
        return row
    other = Row(replace(row.request, sampling=draw))
    other.tokens = row.tokens
    return other


def report_temperature_one(logits: Tensor, asked: Sampling) -> Law:
    return sampling.law(logits, [Sampling()] * len(logits))


def report_low_precision(logits: Tensor, asked: Sampling) -> Law:
    return Dense(sampling.law(logits, [asked] * len(logits)).dense().bfloat16().double())


def report_as_asked(logits: Tensor, asked: Sampling) -> Law:
    return sampling.law(logits, [asked] * len(logits))


class Regretting(Drafter):
    """Drops a drawn token if it is improbable."""

    def __init__(self, table: Table) -> None:
        self._inner = TableDrafter(table)

    def propose(self, rows: Sequence[Row], budget: Sequence[Budget], noise: Noise) -> Draft:
        draft = self._inner.propose(rows, budget, noise)
        kept, depths = [], [0] * len(rows)
        for i, prob in enumerate(draft.law.prob(draft.token).tolist()):
            r, depth = draft.tree.lists[i][0], int(draft.tree.depth[i])
            if prob >= 0.35 and depths[r] == depth:
                kept.append(i)
                depths[r] += 1
        index = torch.tensor(kept, dtype=torch.long)
        return Draft(Tree.chains(depths), draft.token[index], draft.law.select(index))


class WrongBonus(Verifier):
    """Draws the bonus token from the law before the last drafted token."""

    name, lossless = "token", True

    def verify(self, draft: Draft, target: Law, noise: Noise) -> Verdict:
        tree = draft.tree
        slots = torch.arange(tree.rows + len(tree))
        leaf = ~torch.isin(slots, tree.origin) & (slots >= tree.rows)
        before = torch.cat([torch.arange(tree.rows), tree.origin])
        return Token().verify(draft, target.select(torch.where(leaf, before, slots)), noise)


@dataclass(frozen=True)
class Tampered(Noise):
    """Passes draws on with another purpose or another site."""

    noise: Noise
    purpose: Callable[[Purpose], Purpose] = lambda purpose: purpose
    site: Callable[[Site], Site] = lambda site: site

    def flip(self, prob: Tensor, site: Site) -> Tensor:
        return self.noise.flip(prob, self.site(site))

    def draw(self, law: Law, site: Site, purpose: Purpose) -> Tensor:
        return self.noise.draw(law, site, self.purpose(purpose))


def share_with_residual(make: NoiseFactory) -> NoiseFactory:
    return lambda rows, shared: Tampered(make(rows, shared), purpose=lambda _: Purpose.DRAFT)


def reseed(make: NoiseFactory) -> NoiseFactory:
    def always_first(site: Site) -> Site:
        return Site(site.row, torch.zeros_like(site.node), site.depth)

    return lambda rows, shared: Tampered(make(rows, shared), site=always_first)


def reuse_across_cycles(make: NoiseFactory) -> NoiseFactory:
    """Ignores the committed length: every cycle uses the random numbers of the first."""
    return lambda rows, shared: make([RowOfLength(row, len(row.request.prompt)) for row in rows], shared)


def residual_is_target(weight: Tensor, draft: Law) -> Tensor:
    return weight


def residual_unnormalised(weight: Tensor, draft: Law) -> Tensor:
    """The missing mass falls on the last token, as in a search of the cumulative sum."""
    left = draft.excess(weight)
    left[:, -1] += 1 - left.sum(-1)
    return left


def acceptance_upside_down(target_prob: Tensor, draft_prob: Tensor) -> Tensor:
    return (draft_prob / target_prob.clamp(min=1e-30)).clamp(max=1)


COOL, NUCLEUS = Sampling(temperature=0.6), Sampling(top_p=0.7)
PLANTED: dict[str, Subject] = (
    PLANTED_TREES
    | PLANTED_STAGES
    | PLANTED_MEMORIES
    | PLANTED_LOSSY
    | {
        "target row shifted by one": replace(HONEST, model=ShiftedModel),
        "residual is the target's law": replace(HONEST, rule=lambda: Token(residual=residual_is_target)),
        "residual not renormalised": replace(HONEST, rule=lambda: Token(residual=residual_unnormalised)),
        "noise shared between draft and residual": replace(HONEST, noise=share_with_residual),
        "draws reused across cycles": replace(HONEST, noise=reuse_across_cycles),
        "draft temperature not applied to q": replace(
            HONEST, sampling=COOL, drafter=lambda table: Misreporting(table, None, report_temperature_one)
        ),
        "law in low precision": replace(HONEST, drafter=lambda table: Misreporting(table, None, report_low_precision)),
        "bonus from the wrong row": replace(HONEST, rule=WrongBonus),
        "reseeding before every draw": replace(HONEST, noise=reseed),
        "acceptance ratio upside down": replace(HONEST, rule=lambda: Token(acceptance=acceptance_upside_down)),
        "stopping looks at the drawn token": replace(HONEST, drafter=Regretting),
        "q truncated by top-p in verification only": replace(
            HONEST, sampling=NUCLEUS, drafter=lambda table: Misreporting(table, Sampling(), report_as_asked)
        ),
    }
)
