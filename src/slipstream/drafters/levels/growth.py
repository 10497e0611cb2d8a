"""The growth of one row's draft: decides after which nodes to draw, and how many candidates.

- A static shape fixes both beforehand.
- A best-first shape follows the drafter's path probability, the product of its probabilities along a path.
- Chosen candidates are not random: more are ranked than needed, and the best are kept, as in EAGLE-2 (arXiv
  2406.16858).
- Sampled candidates must not be dropped. So the number of each level is fixed first, and then distributed over its
  slots by their expected gain.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import ceil

from slipstream.core.tree import Shape, Siblings
from slipstream.core.types import Budget, Row

Open = tuple[int, Sequence[float]]
"""An open slot: its node, -1 for the committed end, and the largest probabilities of its law, in descending order."""


class DraftGrowth(ABC):
    """The nodes of one row so far, numbered in the order of drawing, and the decisions about the next ones."""

    def __init__(self, row: Row, budget: Budget, width: int) -> None:
        self.depth, self.width = budget.depth, width
        self.token: list[int] = []
        self.parent: list[int] = []
        self.chance: list[float] = []  # probability of each node after its parent
        self.weight: list[float] = []  # path probability of each node
        self._stop_below, self._ends = budget.stop_below, row.request.ends
        self._earlier = 0  # number of nodes of earlier levels

    def candidate_counts(self, slots: Sequence[Open]) -> list[int]:
        """How many candidates to draw after each open slot: 0 if none is possible or probable enough."""
        counts = self.planned_counts(slots)
        return [
            n if best and best[0] > 0 and best[0] >= self._stop_below else 0
            for n, (_, best) in zip(counts, slots, strict=True)
        ]

    def add(self, parent: int, token: int, chance: float) -> int:
        """Add a candidate after a node. Returns its number."""
        self.token.append(token)
        self.parent.append(parent)
        self.chance.append(min(1.0, chance))
        self.weight.append(self.path_probability(parent) * self.chance[-1])
        return len(self.token) - 1

    def path_probability(self, node: int) -> float:
        return 1.0 if node < 0 else self.weight[node]

    def nodes_to_open(self, depth: int) -> list[int]:
        """The nodes of the last level that get successors. `depth`: levels drawn so far."""
        level = [i for i in range(self._earlier, len(self.token)) if self.token[i] not in self._ends]
        self._earlier = len(self.token)
        return self.choose(level, depth) if depth < self.depth else []

    def kept(self) -> list[int]:
        """The nodes that make up the draft, ancestors before descendants."""
        return list(range(len(self.token)))

    @abstractmethod
    def planned_counts(self, slots: Sequence[Open]) -> list[int]:
        """The number of candidates after each open slot, before the check of `stop_below`."""

    @abstractmethod
    def choose(self, level: Sequence[int], depth: int) -> list[int]:
        """Which of these nodes to open, in ascending order."""


class ChainGrowth(DraftGrowth):
    """A chain: one candidate after the last token."""

    def __init__(self, row: Row, budget: Budget) -> None:
        super().__init__(row, budget, 1)

    def planned_counts(self, slots: Sequence[Open]) -> list[int]:
        return [1]

    def choose(self, level: Sequence[int], depth: int) -> list[int]:
        return list(level)


class StaticTreeGrowth(DraftGrowth):
    """A static shape. The n-th candidate drawn after a node takes the n-th child of that node's place in the shape.

    If a token is drawn twice after a slot, the second node gets no successors; those of its place go to the first."""

    def __init__(self, row: Row, budget: Budget, parents: Sequence[int]) -> None:
        self._children: list[list[int]] = [[] for _ in parents]  # of each place in the shape
        first: list[int] = []
        for i, p in enumerate(parents):
            (first if p < 0 else self._children[p]).append(i)
        self._places: dict[int, list[int]] = {-1: first}  # places of the shape to fill after each node
        self._filled: dict[int, int] = {}  # how many of them are filled
        self._first_with: dict[tuple[int, int], int] = {}  # first node with a (parent, token)
        super().__init__(row, budget, max(map(len, [first, *self._children]), default=1))

    def planned_counts(self, slots: Sequence[Open]) -> list[int]:
        return [len(self._places[node]) for node, _ in slots]

    def add(self, parent: int, token: int, chance: float) -> int:
        node = super().add(parent, token, chance)
        number = self._filled.get(parent, 0)
        self._filled[parent] = number + 1
        self._places[node] = []
        first = self._first_with.setdefault((parent, token), node)
        self._places[first] += self._children[self._places[parent][number]]
        return node

    def choose(self, level: Sequence[int], depth: int) -> list[int]:
        return [node for node in level if self._places[node]]


class SampledTreeGrowth(DraftGrowth):
    """Best-first growth with sampled candidates.

    The number of nodes per level falls linearly with depth. A draw is left out if its expected gain is below that of
    extending the most probable path to the full depth."""

    def __init__(self, row: Row, budget: Budget, shape: Shape, distinct: bool) -> None:
        super().__init__(row, budget, shape.width)
        self._nodes, self._distinct = shape.nodes, distinct
        self._levels = 0

    def planned_counts(self, slots: Sequence[Open]) -> list[int]:
        levels = self.depth - self._levels
        self._levels += 1
        gains = [
            (-self.path_probability(node) * self._gain(best, n), n, i)
            for i, (node, best) in enumerate(slots)
            for n in range(self.width)
        ]
        deepest = (
            self.path_probability(node) * self._gain(best, 0) * best[0] ** (levels - 1) for node, best in slots if best
        )
        least = max(deepest, default=0.0)
        counts = [0] * len(slots)
        for negative_gain, _, i in sorted(gains)[: self._quota(levels)]:
            counts[i] += -negative_gain >= least > 0
        return counts

    def _quota(self, levels: int) -> int:
        """The number of nodes in the next level, if `levels` levels are still to be drawn."""
        return ceil(2 * (self._nodes - len(self.token)) / (levels + 1))

    def _gain(self, best: Sequence[float], n: int) -> float:
        """The estimated probability that the n-th draw after a slot gives the next token, if the draft law were true.

        Without replacement it is the n-th largest probability. With replacement it is the probability of drawing the
        next token when no earlier draw did."""
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
    """Best-first growth with chosen candidates: keeps the `nodes` nodes with the largest path probability."""

    def __init__(self, row: Row, budget: Budget, shape: Shape) -> None:
        super().__init__(row, budget, shape.width)
        self._nodes = shape.nodes

    def planned_counts(self, slots: Sequence[Open]) -> list[int]:
        return [sum(p > 0 for p in best[: self.width]) for _, best in slots]

    def choose(self, level: Sequence[int], depth: int) -> list[int]:
        """The best nodes of the level that would be kept. Successors of other nodes could not be kept either."""
        top = set(self.kept())
        ranked = sorted(level, key=lambda node: (-self.weight[node], node))[: self.width]
        return sorted(node for node in ranked if node in top)

    def kept(self) -> list[int]:
        ranked = sorted(range(len(self.token)), key=lambda node: (-self.weight[node], node))
        return sorted(ranked[: self._nodes])  # a child has at most its parent's weight and a higher number


def plan_for(row: Row, budget: Budget, vocab: int) -> DraftGrowth:
    """The growth that a row's budget asks for."""
    shape = budget.shape
    if shape is None:
        return ChainGrowth(row, budget)
    if budget.siblings is None:
        raise ValueError("the rule verifies chains; draft chains or use a rule for trees")
    if shape.widest > vocab:
        raise ValueError(f"the tree has {shape.widest} candidates after one token; the model has {vocab} tokens")
    if shape.parents:
        return StaticTreeGrowth(row, budget, shape.parents)
    if budget.siblings is Siblings.CHOSEN:
        return TopTreeGrowth(row, budget, shape)
    return SampledTreeGrowth(row, budget, shape, budget.siblings is Siblings.DISTINCT)
