"""The growth of one row's draft: decides where to draw next, from what is known before drawing.

A static shape says so beforehand. Best-first shapes follow the drafter's own path probability, the product of its
probabilities along a path. Where candidates are *chosen*, nothing is random: more of them than wanted are looked at,
and the best are kept, as EAGLE-2 does (arXiv 2406.16858). Where they are *drawn*, none may be dropped, so the share of
each level is settled first and dealt out among its slots by what a draw there promises.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import ceil

from slipstream.core.tree import Shape, Siblings
from slipstream.core.types import Budget, Row

Open = tuple[int, Sequence[float]]
"""A slot something may follow: its node, -1 for the committed end, and the largest probabilities of its law."""


class DraftGrowth(ABC):
    """The nodes of one row so far, numbered within it in the order of drawing, and the decisions about the next."""

    def __init__(self, row: Row, spend: Budget, width: int) -> None:
        self.depth, self.width = spend.depth, width
        self.token: list[int] = []
        self.parent: list[int] = []
        self.chance: list[float] = []  # probability of each node after its parent
        self.weight: list[float] = []  # and along its whole path
        self._floor, self._ends = spend.stop_below, row.request.ends
        self._fresh = 0  # nodes of earlier levels

    def wants(self, slots: Sequence[Open]) -> list[int]:
        """How many candidates to draw after each open slot: none where nothing is possible, or likely enough."""
        counts = self.share(slots)
        return [
            n if best and best[0] > 0 and best[0] >= self._floor else 0
            for n, (_, best) in zip(counts, slots, strict=True)
        ]

    def add(self, parent: int, token: int, chance: float) -> int:
        """A candidate was drawn after a slot; its number."""
        self.token.append(token)
        self.parent.append(parent)
        self.chance.append(min(1.0, chance))
        self.weight.append(self.reach(parent) * self.chance[-1])
        return len(self.token) - 1

    def reach(self, node: int) -> float:
        return 1.0 if node < 0 else self.weight[node]

    def opens(self, depth: int) -> list[int]:
        """The nodes of the level just drawn that something is to follow; `depth` levels are drawn."""
        level = [i for i in range(self._fresh, len(self.token)) if self.token[i] not in self._ends]
        self._fresh = len(self.token)
        return self.choose(level, depth) if depth < self.depth else []

    def kept(self) -> list[int]:
        """The nodes that make up the draft, ancestors before descendants."""
        return list(range(len(self.token)))

    @abstractmethod
    def share(self, slots: Sequence[Open]) -> list[int]:
        """Candidates after each open slot."""

    @abstractmethod
    def choose(self, level: Sequence[int], depth: int) -> list[int]:
        """Which of these nodes to open, in their order."""


class ChainGrowth(DraftGrowth):
    """One path: a place for the next token after the last one."""

    def __init__(self, row: Row, spend: Budget) -> None:
        super().__init__(row, spend, 1)

    def share(self, slots: Sequence[Open]) -> list[int]:
        return [1]

    def choose(self, level: Sequence[int], depth: int) -> list[int]:
        return list(level)


class StaticTreeGrowth(DraftGrowth):
    """A shape given beforehand. The n-th candidate drawn after a slot takes the n-th place the shape has there. Where a
    token is drawn twice, nothing is drawn after the second of the two: what it should have had goes to the first."""

    def __init__(self, row: Row, spend: Budget, parents: Sequence[int]) -> None:
        self._places: list[list[int]] = [[] for _ in parents]
        first: list[int] = []
        for i, p in enumerate(parents):
            (first if p < 0 else self._places[p]).append(i)
        self._due: dict[int, list[int]] = {-1: first}  # places to fill after each node
        self._next: dict[int, int] = {}  # how many of them are filled
        self._twins: dict[tuple[int, int], int] = {}
        super().__init__(row, spend, max(map(len, [first, *self._places]), default=1))

    def share(self, slots: Sequence[Open]) -> list[int]:
        return [len(self._due[node]) for node, _ in slots]

    def add(self, parent: int, token: int, chance: float) -> int:
        node = super().add(parent, token, chance)
        number = self._next.get(parent, 0)
        self._next[parent] = number + 1
        self._due[node] = []
        first = self._twins.setdefault((parent, token), node)
        self._due[first] += self._places[self._due[parent][number]]
        return node

    def choose(self, level: Sequence[int], depth: int) -> list[int]:
        return [node for node in level if self._due[node]]


class SampledTreeGrowth(DraftGrowth):
    """Best-first where candidates are drawn. Early levels get more of the nodes, the share falling evenly to the last;
    a draw that promises less than the likeliest path would at its end is left out."""

    def __init__(self, row: Row, spend: Budget, shape: Shape, distinct: bool) -> None:
        super().__init__(row, spend, shape.width)
        self._nodes, self._distinct = shape.nodes, distinct
        self._levels = 0

    def share(self, slots: Sequence[Open]) -> list[int]:
        left = self.depth - self._levels
        self._levels += 1
        quota = self._quota(left)
        ends = [self.reach(node) * self._promise(best, 0) * best[0] ** (left - 1) for node, best in slots if best]
        least = max(ends, default=0.0)
        offers = sorted(
            (-self.reach(node) * self._promise(best, n), n, i)
            for i, (node, best) in enumerate(slots)
            for n in range(self.width)
        )
        counts = [0] * len(slots)
        for worth, _, i in offers[:quota]:
            counts[i] += -worth >= least > 0
        return counts

    def _quota(self, left: int) -> int:
        """Of the nodes not drawn yet, the share of the first of `left` levels."""
        return ceil(2 * (self._nodes - len(self.token)) / (left + 1))

    def _promise(self, best: Sequence[float], n: int) -> float:
        """The probability that the n-th draw brings what follows, were the law true. Without replacement the n-th
        largest probability stands for it; with replacement it is the chance to hit what no earlier draw has hit."""
        if self._distinct:
            return best[n] if n < len(best) else 0.0
        return sum(p * p * (1 - p) ** n for p in best)

    def choose(self, level: Sequence[int], depth: int) -> list[int]:
        first: dict[tuple[int, int], int] = {}
        for node in level:
            first.setdefault((self.parent[node], self.token[node]), node)
        ranked = sorted(first.values(), key=lambda node: (-self.weight[node], node))
        return sorted(ranked[: self._quota(self.depth - depth)])


class TopTreeGrowth(DraftGrowth):
    """Best-first where candidates are chosen: the likeliest `nodes` of all paths looked at."""

    def __init__(self, row: Row, spend: Budget, shape: Shape) -> None:
        super().__init__(row, spend, shape.width)
        self._nodes = shape.nodes

    def share(self, slots: Sequence[Open]) -> list[int]:
        return [sum(p > 0 for p in best[: self.width]) for _, best in slots]

    def choose(self, level: Sequence[int], depth: int) -> list[int]:
        """The best of the level that stand among the best of all: what follows the others could not come to count."""
        top = set(self.kept())
        ranked = sorted(level, key=lambda node: (-self.weight[node], node))[: self.width]
        return sorted(node for node in ranked if node in top)

    def kept(self) -> list[int]:
        ranked = sorted(range(len(self.token)), key=lambda node: (-self.weight[node], node))
        return sorted(ranked[: self._nodes])  # a child never outweighs its parent, and stands after it


def plan_for(row: Row, spend: Budget, vocab: int) -> DraftGrowth:
    shape = spend.shape
    if shape is None:
        return ChainGrowth(row, spend)
    if spend.siblings is None:
        raise ValueError("the rule verifies chains; draft chains or use a rule for trees")
    if shape.widest > vocab:
        raise ValueError(f"the tree has {shape.widest} candidates after one token; the model has {vocab} tokens")
    if shape.parents:
        return StaticTreeGrowth(row, spend, shape.parents)
    if spend.siblings is Siblings.CHOSEN:
        return TopTreeGrowth(row, spend, shape)
    return SampledTreeGrowth(row, spend, shape, spend.siblings is Siblings.DISTINCT)
