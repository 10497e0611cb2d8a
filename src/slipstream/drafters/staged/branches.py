"""Trees of verified continuations: the tree of one row, and the order in which its branches are drawn.

A branch is a path of the shape: it begins after a place of an earlier branch, or at the committed end, and always goes
on to the first child. Every branch is a continuation of its own, so the candidates after a slot are drawn
independently from one law (`Siblings.IID`). A token that is drawn twice after a slot gives two nodes, and what follows
the second is attached to the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.core.types import Budget


@dataclass(frozen=True)
class Branch:
    """Places of a shape that one continuation fills. `after`: the place before them, -1 for the committed end."""

    after: int
    places: tuple[int, ...]


def branches(budget: Budget, depth: int) -> list[Branch]:
    """The branches of a row's draft of at most `depth` levels, in the order in which they are drawn."""
    if not depth:
        return []
    parents = _parents(budget, depth)
    levels, first_child, taken, result = list[int](), dict[int, int](), set[int](), list[Branch]()
    for place, parent in enumerate(parents):
        levels.append(0 if parent < 0 else levels[parent] + 1)
        first_child.setdefault(parent, place)
    for place, parent in enumerate(parents):
        path = []
        while place not in taken and levels[place] < depth:
            taken.add(place)
            path.append(place)
            place = first_child.get(place, place)
        if path:
            result.append(Branch(parent, tuple(path)))
    return result


def _parents(budget: Budget, depth: int) -> Sequence[int]:
    """The shape as a list of parents. A tree that the drafter grows has up to `width` separate paths."""
    shape = budget.shape
    if shape is None:
        return range(-1, depth - 1)
    if budget.siblings is None:
        raise ValueError("the rule verifies chains; draft chains or use a rule for trees")
    if shape.parents:
        return shape.parents
    parents: list[int] = []
    count = min(shape.width, shape.nodes)
    for n in range(count):
        length = min(depth, -(-(shape.nodes - len(parents)) // (count - n)))
        parents += [-1, *range(len(parents), len(parents) + length - 1)]
    return parents


class RowTree:
    """The nodes that one row has drafted."""

    def __init__(self) -> None:
        self.parent: list[int] = []
        self.token: list[int] = []
        self.law: list[int] = []  # index of each node's law
        self._node_at: dict[int, int] = {-1: -1}  # the node that successors of a place are attached to
        self._first: dict[tuple[int, int], int] = {}  # the first node with a (parent, token)

    def path_to(self, place: int) -> list[int] | None:
        """The tokens up to a place; None if no node fills it."""
        if place not in self._node_at:
            return None
        node, tokens = self._node_at[place], list[int]()
        while node >= 0:
            tokens.append(self.token[node])
            node = self.parent[node]
        return tokens[::-1]

    def add(self, branch: Branch, tokens: Sequence[int], laws: Sequence[int]) -> None:
        """Add a continuation, which may be shorter than its branch."""
        node = self._node_at[branch.after]
        for place, token, law in zip(branch.places, tokens, laws, strict=False):
            self.parent.append(node)
            self.token.append(token)
            self.law.append(law)
            node = self._first.setdefault((node, token), len(self.token) - 1)
            self._node_at[place] = node
