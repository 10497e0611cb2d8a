"""Grows chains and trees of all rows together: one evaluation of the drafter per level of the deepest draft.

A drafter passes `next_law`, the law of the token after a slot, and gets a complete draft.

- The row's shape decides which slots are opened, how many candidates each gets and which are kept (`growth`).
- The rule decides how candidates are drawn (`Siblings`).
- To stay exact, sampled candidates are never dropped, and their number after a slot is fixed before the first is drawn.

Under the coupled rule the output does not depend on the draft, so drafting may use the shared noise. A best-first tree
then grows by `Noise.odds`, the odds of tokens to win the target's race, and its candidates are chosen, not sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby

import torch

from slipstream.core.array_types import Int, Tensor
from slipstream.core.law import Law, OneHot, concat
from slipstream.core.noise import Noise, Purpose, Site
from slipstream.core.tree import Siblings, Tree
from slipstream.core.types import Budget, Draft, Row
from slipstream.drafters.levels.growth import plan_for

NextLaw = Callable[[Tree, Int[Tensor, " nodes"], list[int]], Law]
"""(tree, tokens, slots) -> the law of the token after each of these slots. Slots are numbered as in `core/tree.py`.

- The tree holds the opened nodes (those that get successors), in the order in which they were opened.
- The first call of a `propose` has an empty tree. Its slots are the committed ends of all rows that draft.
- Each later call has the previous tree with new nodes appended. Its slots are exactly the new nodes. In chains these
  are the tokens drawn last, at most one per row.
- A law whose probabilities are all 0 means that no candidate is possible.
- If candidates are chosen (`Siblings.CHOSEN`), laws are used for ranking only. A request at temperature 0 has a one-hot
  law, so `law_at(…, ranking=True)` gives its law at temperature 1.
"""

Place = tuple[int, int]
"""(row, node within the row); node -1 is the committed end."""


def grow(rows: Sequence[Row], budget: Sequence[Budget], noise: Noise, next_law: NextLaw, vocab: int) -> Draft:
    """Draft what each row's budget allows. Nothing follows an end token or a law below the budget's `stop_below`."""
    growth = BatchGrowth(rows, budget, noise, vocab)
    level = [(r, -1) for r, row_budget in enumerate(budget) if row_budget.depth > 0]
    while level:
        level = growth.level(level, next_law(*growth.open(level)))
    return growth.draft()


class BatchGrowth:
    """The drafts of all rows while they grow."""

    def __init__(self, rows: Sequence[Row], budget: Sequence[Budget], noise: Noise, vocab: int) -> None:
        siblings = next((row_budget.siblings for row_budget in budget), None)
        assert all(row_budget.siblings is siblings for row_budget in budget), "all rows must have one sibling mode"
        best_first = any(row_budget.shape and not row_budget.shape.parents for row_budget in budget)
        self._by_odds = noise.has_fields and siblings is Siblings.DISTINCT and best_first
        self._siblings = Siblings.CHOSEN if self._by_odds else siblings
        budget = [replace(row_budget, siblings=self._siblings) for row_budget in budget]
        self._plans = [plan_for(row, row_budget, vocab) for row, row_budget in zip(rows, budget, strict=True)]
        self._noise, self._vocab = noise, vocab
        self._depth = 0  # levels drawn
        self._number: dict[Place, int] = {}  # index of each opened node, in the order of opening
        self._laws: list[Law] = []
        self._drawn: list[Place] = []  # the nodes that these laws belong to

    def open(self, level: Sequence[Place]) -> tuple[Tree, Int[Tensor, " nodes"], list[int]]:
        """Open nodes. Returns the arguments of `next_law`: all opened nodes as (tree, tokens), and the new slots."""
        for place in level:
            if place[1] >= 0:
                self._number[place] = len(self._number)
        lists = [(r, self._number.get((r, self._plans[r].parent[node]), -1)) for r, node in self._number]
        tree = Tree.from_lists(len(self._plans), lists)
        token = _ints([self._plans[r].token[node] for r, node in self._number])
        return tree, token, [r if node < 0 else tree.rows + self._number[r, node] for r, node in level]

    def level(self, level: Sequence[Place], law: Law) -> list[Place]:
        """Draw candidates after these places from their laws. Returns the places to open next."""
        if self._by_odds:
            row = _ints([r for r, _ in level])
            law = self._noise.odds(law, Site(row, torch.zeros_like(row), torch.full_like(row, self._depth)))
        best, ids = likeliest(law, max(self._plans[r].width for r, _ in level))
        counts: list[int] = []
        for r, places in groupby(range(len(level)), key=lambda i: level[i][0]):
            counts += self._plans[r].candidate_counts([(level[i][1], best[i]) for i in places])
        if self._siblings is Siblings.CHOSEN:
            self._choose(level, counts, best, ids)
        else:
            self._draw(level, counts, law)
        self._depth += 1
        return [(r, node) for r in sorted({r for r, _ in level}) for node in self._plans[r].nodes_to_open(self._depth)]

    def _choose(
        self, level: Sequence[Place], counts: Sequence[int], best: list[list[float]], ids: list[list[int]]
    ) -> None:
        for (r, node), count, chances, tokens in zip(level, counts, best, ids, strict=True):
            for chance, token in list(zip(chances, tokens, strict=True))[:count]:
                if chance > 0:
                    self._plans[r].add(node, token, chance)

    def _draw(self, level: Sequence[Place], counts: Sequence[int], law: Law) -> None:
        """Sample the first candidate after every place, then the second, and so on."""
        remaining, places = law, list(range(len(level)))
        for n in range(max(counts)):
            kept = [i for i, place in enumerate(places) if counts[place] > n]
            if n and self._siblings is Siblings.DISTINCT:
                possible = (remaining.support()[1].amax(-1) > 0).tolist()
                kept = [i for i in kept if possible[i]]
            if not kept:
                return
            if len(kept) < len(places):
                places, remaining = [places[i] for i in kept], remaining.select(_ints(kept))
            row = _ints([level[i][0] for i in places])
            number = [len(self._plans[level[i][0]].token) for i in places]
            for i in range(1, len(places)):  # the places of one row are adjacent and get consecutive node numbers
                number[i] = number[i - 1] + 1 if level[places[i]][0] == level[places[i - 1]][0] else number[i]
            site = Site(row, _ints(number), torch.full_like(row, self._depth))
            token = self._noise.draw(remaining, site, Purpose.DRAFT)
            chance = (law if len(places) == len(law) else law.select(_ints(places))).prob(token)
            for i, x, p in zip(places, token.tolist(), chance.tolist(), strict=True):
                r, node = level[i]
                self._drawn.append((r, self._plans[r].add(node, x, p)))
            self._laws.append(remaining)
            if self._siblings is Siblings.DISTINCT and n + 1 < max(counts):
                remaining = remaining.without(token)

    def draft(self) -> Draft:
        """The finished draft: row after row, the nodes of a row in the order in which they were drawn."""
        lists, tokens, chances = list[tuple[int, int]](), list[int](), list[float]()
        index: dict[Place, int] = {}
        for r, plan in enumerate(self._plans):
            for node in plan.kept():
                index[r, node] = len(index)
                lists.append((r, index.get((r, plan.parent[node]), -1)))
                tokens.append(plan.token[node])
                chances.append(plan.chance[node])
        tree, token = Tree.from_lists(len(self._plans), lists), _ints(tokens)
        if not self._laws:
            return Draft(tree, token, OneHot(token, self._vocab), self._siblings, torch.tensor(chances))
        order = [0] * len(index)
        for n, place in enumerate(self._drawn):
            order[index[place]] = n
        return Draft(tree, token, concat(self._laws).select(_ints(order)), self._siblings, torch.tensor(chances))


def likeliest(law: Law, count: int) -> tuple[list[list[float]], list[list[int]]]:
    """The `count` largest probabilities of each law, and their tokens."""
    ids, probs = law.support()
    best = probs.topk(min(count, probs.shape[1]))
    return best.values.tolist(), ids.gather(1, best.indices).tolist()


def locate(draft: Draft, tree: Tree, token: Int[Tensor, " opened"]) -> list[int]:
    """The index of each drafted node in the last tree passed to `next_law`; -1 if the node was never opened."""
    opened = {(r, p, x): i for i, ((r, p), x) in enumerate(zip(tree.lists, token.tolist(), strict=True))}
    numbers: list[int] = []
    for (r, p), x in zip(draft.tree.lists, draft.token.tolist(), strict=True):
        before = numbers[p] if p >= 0 else -1
        numbers.append(opened.get((r, before, x), -1) if p < 0 or before >= 0 else -1)
    return numbers


def _ints(values: Sequence[int]) -> Int[Tensor, " n"]:
    return torch.tensor(values, dtype=torch.long)
