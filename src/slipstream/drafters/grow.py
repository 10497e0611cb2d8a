"""Grows drafts, chains and trees, of all rows together: one evaluation of laws per level of the deepest draft.

A drafter that can say what may follow a slot hands in `next_law` and gets a whole draft back. Which slots are opened,
how many candidates are drawn after each and which are kept is decided by the row's shape (`drafters/growth.py`), how
they are drawn by what the rule asked for (`Siblings`). Candidates that were drawn are never dropped; how many are drawn
after a slot is settled before the first of them is seen.

Under a rule that emits the winner of the target's race on shared noise, whatever was drafted, that noise may be looked
at: a best-first tree then grows where tokens are likely to win given it (`Noise.odds`), and nothing is drawn.
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
from slipstream.drafters.growth import plan_for

NextLaw = Callable[[Tree, Int[Tensor, " nodes"], list[int]], Law]
"""The laws of the token after these slots of the draft grown so far, as (tree, tokens); slots are numbered as in
`core/tree.py`, row ends first.

The tree holds only nodes that something is to follow, in the order in which they were opened. The first call of a
`propose` has an empty tree and asks after row ends, one for every row that drafts at all; each later one has the tree
of the call before with new nodes at its end and asks after exactly those. A chain is the case of at most one open slot
per row, so the new nodes are then the tokens drawn last.

A law with no probability at all stands for nothing to draw. Where candidates are *chosen* (`Budget.siblings`), laws
only rank: a request at temperature 0 has one candidate under its own law, so `law_at(…, ranking=True)` gives it the law
at temperature 1 instead.
"""

Place = tuple[int, int]
"""A row, and a node within it; -1 is its committed end."""


def grow(
    rows: Sequence[Row], budget: Sequence[Budget], noise: Noise, next_law: NextLaw, vocab: int, stage: int = 0
) -> Draft:
    """Draft what each row's budget allows; nothing follows an end token or a law with nothing likely enough in it."""
    growth = BatchGrowth(rows, budget, noise, vocab, stage)
    level = [(r, -1) for r, spend in enumerate(budget) if spend.depth > 0]
    while level:
        level = growth.level(level, next_law(*growth.open(level)))
    return growth.draft()


class BatchGrowth:
    """The drafts of all rows while they grow."""

    def __init__(self, rows: Sequence[Row], budget: Sequence[Budget], noise: Noise, vocab: int, stage: int) -> None:
        how = next((spend.siblings for spend in budget), None)
        assert all(spend.siblings is how for spend in budget), "one rule, one way of drawing"
        best_first = any(spend.shape and not spend.shape.parents for spend in budget)
        self._raced = noise.has_fields and how is Siblings.DISTINCT and best_first
        self._how = Siblings.CHOSEN if self._raced else how
        spends = [replace(spend, siblings=self._how) for spend in budget]
        self._plans = [plan_for(row, spend, vocab) for row, spend in zip(rows, spends, strict=True)]
        self._noise, self._vocab, self._stage = noise, vocab, stage
        self._depth = 0  # levels drawn
        self._number: dict[Place, int] = {}  # nodes that were opened, in that order
        self._laws: list[Law] = []
        self._drawn: list[Place] = []  # whose laws they are

    def open(self, level: Sequence[Place]) -> tuple[Tree, Int[Tensor, " nodes"], list[int]]:
        """What `next_law` is asked: the nodes opened so far with the new ones at their end, and their slots."""
        for place in level:
            if place[1] >= 0:
                self._number[place] = len(self._number)
        lists = [(r, self._number.get((r, self._plans[r].parent[node]), -1)) for r, node in self._number]
        tree = Tree.from_lists(len(self._plans), lists)
        token = _ints([self._plans[r].token[node] for r, node in self._number])
        return tree, token, [r if node < 0 else tree.rows + self._number[r, node] for r, node in level]

    def level(self, level: Sequence[Place], law: Law) -> list[Place]:
        """Draw what follows these places under their laws; the places to open next."""
        if self._raced:
            row = _ints([r for r, _ in level])
            law = self._noise.odds(law, Site(row, torch.zeros_like(row), torch.full_like(row, self._depth)))
        best, ids = likeliest(law, max(self._plans[r].width for r, _ in level))
        counts: list[int] = []
        for r, places in groupby(range(len(level)), key=lambda i: level[i][0]):
            counts += self._plans[r].wants([(level[i][1], best[i]) for i in places])
        if self._how is Siblings.CHOSEN:
            self._choose(level, counts, best, ids)
        else:
            self._draw(level, counts, law)
        self._depth += 1
        return [(r, node) for r in sorted({r for r, _ in level}) for node in self._plans[r].opens(self._depth)]

    def _choose(
        self, level: Sequence[Place], counts: Sequence[int], best: list[list[float]], ids: list[list[int]]
    ) -> None:
        for (r, node), count, chances, tokens in zip(level, counts, best, ids, strict=True):
            for chance, token in list(zip(chances, tokens, strict=True))[:count]:
                if chance > 0:
                    self._plans[r].add(node, token, chance)

    def _draw(self, level: Sequence[Place], counts: Sequence[int], law: Law) -> None:
        """The first candidate after every place, then the second, and so on."""
        left, places = law, list(range(len(level)))
        for n in range(max(counts)):
            going = [i for i, place in enumerate(places) if counts[place] > n]
            if n and self._how is Siblings.DISTINCT:
                possible = (left.support()[1].amax(-1) > 0).tolist()
                going = [i for i in going if possible[i]]
            if not going:
                return
            if len(going) < len(places):
                places, left = [places[i] for i in going], left.select(_ints(going))
            row = _ints([level[i][0] for i in places])
            number = [len(self._plans[level[i][0]].token) for i in places]
            for i in range(1, len(places)):  # places of one row stand side by side: each is one node further
                number[i] = number[i - 1] + 1 if level[places[i]][0] == level[places[i - 1]][0] else number[i]
            site = Site(row, _ints(number), torch.full_like(row, self._depth))
            token = self._noise.draw(left, site, Purpose.DRAFT, self._stage)
            chance = (law if len(places) == len(law) else law.select(_ints(places))).prob(token)
            for i, x, p in zip(places, token.tolist(), chance.tolist(), strict=True):
                r, node = level[i]
                self._drawn.append((r, self._plans[r].add(node, x, p)))
            self._laws.append(left)
            if self._how is Siblings.DISTINCT and n + 1 < max(counts):
                left = left.without(token)

    def draft(self) -> Draft:
        """Row after row, each row's nodes in the order in which they were drawn."""
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
            return Draft(tree, token, OneHot(token, self._vocab), self._how, torch.tensor(chances))
        order = [0] * len(index)
        for n, place in enumerate(self._drawn):
            order[index[place]] = n
        return Draft(tree, token, concat(self._laws).select(_ints(order)), self._how, torch.tensor(chances))


def likeliest(law: Law, count: int) -> tuple[list[list[float]], list[list[int]]]:
    """The largest probabilities of each law, and whose they are."""
    ids, probs = law.support()
    best = probs.topk(min(count, probs.shape[1]))
    return best.values.tolist(), ids.gather(1, best.indices).tolist()


def locate(draft: Draft, tree: Tree, token: Int[Tensor, " opened"]) -> list[int]:
    """The number each node of a draft had in the last tree `next_law` was shown, -1 for one that was never opened."""
    opened = {(r, p, x): i for i, ((r, p), x) in enumerate(zip(tree.lists, token.tolist(), strict=True))}
    numbers: list[int] = []
    for (r, p), x in zip(draft.tree.lists, draft.token.tolist(), strict=True):
        before = numbers[p] if p >= 0 else -1
        numbers.append(opened.get((r, before, x), -1) if p < 0 or before >= 0 else -1)
    return numbers


def _ints(values: Sequence[int]) -> Int[Tensor, " n"]:
    return torch.tensor(values, dtype=torch.long)
