"""Staged drafting: a drafter drafts for a draft model, which drafts for the target (arXiv 2308.04623).

The draft model verifies what the drafter in front of it proposes, in a lossless loop of its own. So its drafts have its
own law, and it runs fewer passes for them than it drafts tokens. Stages nest: the drafter in front may be staged too.
Each stage has rows of its own, which view the committed text and the tokens drafted so far (`core/hypothetical`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from slipstream.core.hypothetical import HypotheticalRow
from slipstream.core.interfaces import Drafter, TargetModel
from slipstream.core.law import concat
from slipstream.core.noise import Noise
from slipstream.core.tree import Shape, Siblings, Tree
from slipstream.core.types import Budget, Draft, Row
from slipstream.drafters.none import empty_draft
from slipstream.drafters.staged.branches import RowTree, branches
from slipstream.drafters.staged.continuation import Continuation, Stage, VerifiedContinuations
from slipstream.drafters.staged.options import StagedOptions, read_staged_options


class Staged(Drafter):
    """`first` drafts for `middle`, which is a draft model. `depth` and `shape`: what `first` drafts at once."""

    options_type = StagedOptions
    siblings: ClassVar[frozenset[Siblings]] = frozenset({Siblings.IID})

    def __init__(
        self,
        first: Drafter,
        middle: Drafter,
        vocab: int,
        depth: int = 4,
        shape: Shape | None = None,
        number: int = 1,
        continuations: type[VerifiedContinuations] = VerifiedContinuations,
    ) -> None:
        """`number`: the number of stages in front of `middle`."""
        model = middle.own_model
        assert model is not None, "the second stage verifies, so it is a language model"
        self.stage, self.vocab = Stage(first, middle, model, depth, shape, number), vocab
        self._continuations = continuations
        self._views: dict[Row, HypotheticalRow] = {}

    @classmethod
    def read_options(cls, options: Mapping[str, Any], name: str) -> StagedOptions:
        return read_staged_options(options, name)

    @classmethod
    def build(cls, target: TargetModel, options: StagedOptions) -> Drafter:
        from slipstream.drafters.staged.build import build_stages  # it imports this module

        return build_stages(target, options)

    def open(self, rows: Sequence[Row]) -> None:
        views = [HypotheticalRow(row) for row in rows]
        self.stage.model.open(views)
        try:
            self.stage.first.open(views)
        except Exception:
            self.stage.model.close(views)
            raise
        self._views |= dict(zip(rows, views, strict=True))

    def close(self, rows: Sequence[Row]) -> None:
        views = [self._views.pop(row) for row in rows]
        for view in views:  # a drafter may remember the texts of closed rows, which must not hold drafted tokens
            view.cut(view.common([]))
            view.follow([])
        try:
            self.stage.first.close(views)
        finally:
            self.stage.model.close(views)

    def rewind(self, row: Row, length: int) -> None:
        self._views[row].doubt(length)

    def propose(self, rows: Sequence[Row], budget: Sequence[Budget], noise: Noise) -> Draft:
        for row in rows:
            self._continue_from(row, [])
        room = [max(0, self.stage.model.context - row.length) for row in rows]
        plans = [branches(each, min(each.depth, left)) for each, left in zip(budget, room, strict=True)]
        plans = [  # at temperature 0 all continuations are equal
            plan[:1] if row.request.sampling.temperature == 0 else plan for row, plan in zip(rows, plans, strict=True)
        ]
        trees, laws = [RowTree() for _ in rows], self._continuations(self.stage, noise)
        for number in range(max(map(len, plans), default=0)):
            lines: dict[int, Continuation] = {}
            for r, plan in enumerate(plans):
                path = trees[r].path_to(plan[number].after) if number < len(plan) else None
                if path is not None:
                    view = self._continue_from(rows[r], path)
                    lines[r] = Continuation(view, len(plan[number].places), budget[r].stop_below)
            laws.run(lines, number)
            for r, line in lines.items():
                trees[r].add(plans[r][number], line.tokens, line.laws)
        return self._draft(trees, laws, next((each.siblings for each in budget if each.shape), None))

    def _continue_from(self, row: Row, path: Sequence[int]) -> HypotheticalRow:
        """The view of a row, with the row's committed text and `path` after it.

        All stages drop their state of other tokens."""
        view = self._views[row]
        common = view.common(path)
        if common < view.length:
            view.cut(common)
            self.stage.first.rewind(view, common)
            self.stage.model.rewind(view, common)
        view.follow(path)
        return view

    def _draft(self, trees: Sequence[RowTree], laws: VerifiedContinuations, siblings: Siblings | None) -> Draft:
        """The trees of all rows as one draft."""
        lists, tokens, order = list[tuple[int, int]](), list[int](), list[int]()
        for r, tree in enumerate(trees):
            start = len(lists)
            lists += [(r, parent + start if parent >= 0 else -1) for parent in tree.parent]
            tokens += tree.token
            order += tree.law
        if not lists:
            return empty_draft(len(trees), self.vocab)
        token, law = torch.tensor(tokens), concat(laws.laws)
        law = law.select(torch.tensor(order, device=law.device))
        chance = law.prob(token.to(law.device)).cpu()
        return Draft(Tree.from_lists(len(trees), lists), token, law, siblings, chance)
