"""Drafts the next cycle while the target scores this one.

The next draft is made for an assumed outcome: the whole chain is accepted, and a guessed token follows it. If the
outcome is another one, the draft is discarded and made anew.

The output is exact, because a draft does not depend on when it was made. Its draws have the keys of the cycle that it
is used in (`Noise.later`), its law is the drafter's own, and the guess only decides whether it is used. The guess is
the drafter's most probable token. Under the coupled rule it is the drafter's choice on the noise of that position.

The drafter runs in one thread (`lane`) on views of the rows (`core/hypothetical`), whose text holds what is assumed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from slipstream.core.hypothetical import HypotheticalRow
from slipstream.core.interfaces import Drafter, TargetModel
from slipstream.core.noise import ArgmaxNoise, Noise
from slipstream.core.tree import Siblings
from slipstream.core.types import Budget, Draft, Row, Scores, Verdict
from slipstream.drafters.overlapped.chains import accept_all, chain_of, join_chains
from slipstream.drafters.overlapped.lane import Lane
from slipstream.drafters.overlapped.options import OptionsWithDrafter, OverlappedOptions, read_overlapped_options

NO_SCORES = Scores(torch.zeros(0, 0))  # the drafter does not read the target's scores
ENDLESS = 1 << 62


@dataclass(frozen=True, eq=False)
class AheadDraft:
    """A draft of one row for the text that its view has, made with this budget."""

    budget: Budget
    chain: Draft


class Overlapped(Drafter):
    """`inner` drafts from the text alone. `context`: of the target. `hits` and `misses` count drafts made ahead."""

    options_type = OverlappedOptions
    siblings: ClassVar[frozenset[Siblings]] = frozenset()

    def __init__(
        self, inner: Drafter, vocab: int, context: int = ENDLESS, shared: bool = True, executor: Executor | None = None
    ) -> None:
        """`shared`: the target runs on the same processor. `executor`: runs the drafter; default: a thread."""
        self.inner, self.vocab, self._context = inner, vocab, context
        model = inner.own_model
        self._lane = Lane(getattr(model, "device", torch.device("cpu")), shared, executor)
        self._views: dict[Row, HypotheticalRow] = {}
        self._ahead: dict[Row, AheadDraft] = {}
        self._assumed: set[Row] = set()  # rows of which `inner` may have read more than the view has
        self._task: Future[None] | None = None
        self.hits = self.misses = 0

    @classmethod
    def read_options(cls, options: Mapping[str, Any], name: str) -> OptionsWithDrafter:
        return read_overlapped_options(options, name)

    @classmethod
    def build(cls, target: TargetModel, options: OptionsWithDrafter) -> Overlapped:
        from slipstream.drafters.build import build_drafter, drafter_kind  # they import the registry

        kind = drafter_kind(options.drafter)
        inner = build_drafter(options.drafter, target, options.inner)
        if inner.reads_target:
            raise ValueError(f"{kind} drafts from what the target has computed, so it cannot overlap with its pass")
        return cls(inner, target.vocab, target.model.context, target.model.device.type == "cpu")

    def open(self, rows: Sequence[Row]) -> None:
        self._settle()
        views = [HypotheticalRow(row) for row in rows]
        self._lane.call(self.inner.open, views)
        self._views |= dict(zip(rows, views, strict=True))

    def close(self, rows: Sequence[Row]) -> None:
        self._settle()
        self._lane.call(self._agree, rows)
        for row in rows:
            self._ahead.pop(row, None)
        self._lane.call(self.inner.close, [self._views.pop(row) for row in rows])
        if not self._views:
            self._lane.leave_cores(False)

    def rewind(self, row: Row, length: int) -> None:
        self._settle()
        self._views[row].doubt(length)

    def propose(self, rows: Sequence[Row], budget: Sequence[Budget], noise: Noise) -> Draft:
        self._lane.leave_cores(True)
        self._settle()
        chains = [self._made_ahead(row, row_budget) for row, row_budget in zip(rows, budget, strict=True)]
        missing = [r for r, chain in enumerate(chains) if chain is None]
        if missing:
            fresh_noise = noise.later(missing, [0] * len(missing))
            new = self._lane.call(self._draft, [rows[r] for r in missing], [budget[r] for r in missing], fresh_noise)
            for r, chain in zip(missing, new, strict=True):
                chains[r] = chain
        made = [chain for chain in chains if chain is not None]
        self._begin(rows, budget, made, noise)
        return join_chains(made, self.vocab)

    def _made_ahead(self, row: Row, budget: Budget) -> Draft | None:
        """The draft that was made ahead, if its text and budget are those of this cycle."""
        ahead, view = self._ahead.pop(row, None), self._views[row]
        if ahead is None:
            return None
        holds = ahead.budget == budget and view.length == row.length == view.common([])
        self.hits, self.misses = self.hits + holds, self.misses + (not holds)
        if not holds:
            return None
        view.follow([])
        return ahead.chain

    def _begin(self, rows: Sequence[Row], budget: Sequence[Budget], chains: Sequence[Draft], noise: Noise) -> None:
        """Start the next draft of the rows that may go on after this one."""
        going = [r for r, chain in enumerate(chains) if self._goes_on(rows[r], chain.token.tolist())]
        if not going:
            return
        counts = [len(chains[r].token) for r in going]
        guess_noise = noise.later(going, counts) if noise.has_fields else ArgmaxNoise()
        next_noise = noise.later(going, [count + 1 for count in counts])
        cycle = [(rows[r], budget[r], chains[r].token.tolist()) for r in going]
        self._task = self._lane.submit(self._draft_ahead, cycle, guess_noise, next_noise)

    def _goes_on(self, row: Row, tokens: Sequence[int]) -> bool:
        """Whether a draft may follow these tokens. The state of a grammar belongs to the committed text alone."""
        return row.constraint is None and bool(tokens) and tokens[-1] not in row.request.ends

    def _settle(self) -> None:
        """Wait for the draft under way. One that fails is discarded: the next draft reports what is wrong."""
        task, self._task = self._task, None
        if task is not None and task.exception() is not None:
            self._ahead.clear()

    # What follows runs in the lane.

    def _agree(self, rows: Sequence[Row]) -> None:
        """Let the views have the text of their rows, and `inner` the state of that text."""
        for row in rows:
            view = self._views[row]
            common = view.common([])
            if common < view.length or row in self._assumed:
                view.cut(common)
                self.inner.rewind(view, common)
            view.follow([])
        self._assumed.difference_update(rows)

    def _draft(self, rows: Sequence[Row], budget: Sequence[Budget], noise: Noise) -> list[Draft]:
        """Draft for the committed text."""
        self._agree(rows)
        return self._propose(rows, budget, noise)

    def _propose(self, rows: Sequence[Row], budget: Sequence[Budget], noise: Noise) -> list[Draft]:
        """Draft for the text of the views, and let `inner` assume that everything is accepted."""
        views = [self._views[row] for row in rows]
        draft = self.inner.propose(views, budget, noise)
        self._assumed.update(rows)
        chains = [chain_of(draft, r) for r in range(len(rows))]
        going = [self._goes_on(row, chain.token.tolist()) for row, chain in zip(rows, chains, strict=True)]
        self.inner.observe(views, accept_all(draft, going), NO_SCORES)
        return chains

    def _draft_ahead(
        self, cycle: Sequence[tuple[Row, Budget, list[int]]], guess_noise: Noise, next_noise: Noise
    ) -> None:
        """Guess the token after each row's draft, and draft what follows it."""
        rows = [row for row, _, _ in cycle]
        for row, _, tokens in cycle:
            self._views[row].tokens += tokens
        self._assumed.update(rows)
        guesses = self._propose(rows, [replace(budget, depth=1) for _, budget, _ in cycle], guess_noise)
        ready: list[int] = []
        budgets: list[Budget] = []
        for r, ((row, budget, _), guess) in enumerate(zip(cycle, guesses, strict=True)):
            view, token = self._views[row], guess.token.tolist()
            if self._goes_on(row, token):
                view.tokens += token
                depth = min(budget.depth, view.room(self._context) - 1)
                if depth > 0:
                    ready.append(r)
                    budgets.append(replace(budget, depth=depth))
        if ready:
            drafted = self._propose([rows[r] for r in ready], budgets, next_noise.later(ready, [0] * len(ready)))
            for r, row_budget, chain in zip(ready, budgets, drafted, strict=True):
                self._ahead[rows[r]] = AheadDraft(row_budget, chain)

    def observe(self, rows: Sequence[Row], verdict: Verdict, scores: Scores) -> None:
        """The next draft finds out whether its assumption holds."""
