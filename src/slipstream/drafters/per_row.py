"""Drafters that choose tokens for one row at a time, on the host: their guesses become one packed draft."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from slipstream.core.interfaces import Drafter, TargetModel
from slipstream.core.law import OneHot
from slipstream.core.noise import Noise
from slipstream.core.tree import Shape, Siblings, Tree
from slipstream.core.types import Budget, Draft, Row
from slipstream.drafters.device.host import HostDeviceDrafter
from slipstream.drafters.device.interface import DeviceDrafter
from slipstream.drafters.none import nothing


class RowDrafter(ABC):
    """Chooses tokens for one row: no randomness, so each law is one-hot."""

    @abstractmethod
    def guess(self, tokens: Sequence[int], depth: int) -> list[int]:
        """At most `depth` tokens that may follow. `tokens` only ever grows between calls."""

    def guesses(self, tokens: Sequence[int], depth: int, count: int) -> list[list[int]]:
        """Up to `count` different continuations, the best one first."""
        return [self.guess(tokens, depth)]


class PerRow(Drafter):
    """One `RowDrafter` per open row, made by `new`. Several guesses are laid over one another as a tree."""

    siblings: ClassVar[frozenset[Siblings]] = frozenset({Siblings.CHOSEN})

    def __init__(self, vocab: int) -> None:
        self.vocab = vocab
        self._rows: dict[Row, RowDrafter] = {}

    @classmethod
    def build(cls, target: TargetModel, options: Any) -> PerRow:
        """Make the drafter for a target. One with options of its own has a `build` of its own."""
        return cls(target.vocab)

    @abstractmethod
    def new(self, row: Row) -> RowDrafter:
        """The drafter of a row that opens."""

    def open(self, rows: Sequence[Row]) -> None:
        self._rows |= {row: self.new(row) for row in rows}

    def close(self, rows: Sequence[Row]) -> None:
        for row in rows:
            del self._rows[row]

    def propose(self, rows: Sequence[Row], budget: Sequence[Budget], noise: Noise) -> Draft:
        row, parent, token = list[int](), list[int](), list[int]()
        for r, (mine, spend) in enumerate(zip(rows, budget, strict=True)):
            start = len(token)
            for p, word in self._guess(mine, spend):
                row.append(r)
                parent.append(p + start if p >= 0 else -1)
                token.append(word)
        if not token:
            return nothing(len(rows), self.vocab)
        tree, tokens = Tree.of(len(rows), row, parent), torch.tensor(token, dtype=torch.long)
        return Draft(tree, tokens, OneHot(tokens, self.vocab), Siblings.CHOSEN)

    def chains(self, rows: Sequence[Row], budget: Sequence[Budget]) -> list[list[int]]:
        """The tokens of each row's chain alone."""
        return [[token for _, token in self._guess(row, spend)] for row, spend in zip(rows, budget, strict=True)]

    def device_form(self, target: Any) -> DeviceDrafter:
        return HostDeviceDrafter(self)

    def _guess(self, row: Row, spend: Budget) -> list[tuple[int, int]]:
        """(parent, token) of every node of a row."""
        if not spend.depth:
            return []
        drafter, ends = self._rows[row], row.request.ends
        if spend.shape is None:
            return lay([drafter.guess(row.tokens, spend.depth)], Shape(nodes=spend.depth), ends)
        if spend.siblings is None:
            raise ValueError("the rule verifies chains; draft chains or use a rule for trees")
        return lay(drafter.guesses(row.tokens, spend.depth, spend.shape.size), spend.shape, ends)


def lay(guesses: Sequence[Sequence[int]], shape: Shape, ends: frozenset[int]) -> list[tuple[int, int]]:
    """Guesses over one another, the best one first, as far as the shape has room; nothing follows an end token. Gives
    (parent, token) of every node."""
    nodes: list[tuple[int, int]] = []
    place: dict[int, int] = {-1: -1}  # of each node in a static shape
    child: dict[tuple[int, int], int] = {}

    def vacancy(at: int) -> int | None:
        """The place in the shape of a further candidate after a node; None where there is no room."""
        taken = sum(parent == at for parent, _ in nodes)
        if not shape.parents:
            return -1 if taken < shape.width and len(nodes) < shape.nodes else None
        places = [i for i, parent in enumerate(shape.parents) if parent == place[at]]
        return places[taken] if taken < len(places) else None

    for guess in guesses:
        at = -1
        for token in guess:
            if (at, token) not in child:
                free = vacancy(at)
                if free is None:
                    break
                place[len(nodes)] = free
                child[at, token] = len(nodes)
                nodes.append((at, token))
            at = child[at, token]
            if token in ends:
                break
    return nodes
