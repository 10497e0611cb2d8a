"""Drafters that choose tokens for one row at a time, on the host. The guesses of all rows become one packed draft."""

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
from slipstream.drafters.match_record import MatchRecord
from slipstream.drafters.none import empty_draft


class RowDrafter(ABC):
    """Chooses tokens for one row without randomness, so that each law is one-hot."""

    matched: int | None = None  # tokens of the text that the last guess rests on; None: this is not known

    @abstractmethod
    def guess(self, tokens: Sequence[int], depth: int) -> list[int]:
        """At most `depth` tokens that may follow the committed `tokens`, which only grow between calls of `rewind`."""

    def rewind(self, length: int) -> bool:
        """Forget the tokens from position `length` on. False: a new drafter is made for the row instead."""
        return False

    def guesses(self, tokens: Sequence[int], depth: int, count: int) -> list[list[int]]:
        """Up to `count` different continuations, the best one first."""
        return [self.guess(tokens, depth)]


class PerRow(Drafter):
    """One `RowDrafter` per open row, made by `new`. Several guesses of a row are merged into a tree."""

    siblings: ClassVar[frozenset[Siblings]] = frozenset({Siblings.CHOSEN})
    reads_target: ClassVar[bool] = False

    def __init__(self, vocab: int) -> None:
        self.vocab = vocab
        self.record = MatchRecord()
        self._rows: dict[Row, RowDrafter] = {}
        self._guessed: dict[Row, tuple[int, int, int]] = {}  # position and token of the last guess, matched tokens

    @classmethod
    def build(cls, target: TargetModel, options: Any) -> PerRow:
        """Make the drafter for a target. A subclass with options overrides it."""
        return cls(target.vocab)

    @abstractmethod
    def new(self, row: Row) -> RowDrafter:
        """Make the drafter of a new row."""

    def open(self, rows: Sequence[Row]) -> None:
        self._rows |= {row: self.new(row) for row in rows}

    def close(self, rows: Sequence[Row]) -> None:
        for row in rows:
            del self._rows[row]
            self._guessed.pop(row, None)

    def rewind(self, row: Row, length: int) -> None:
        self._guessed.pop(row, None)
        if not self._rows[row].rewind(length):
            self._rows[row] = self.new(row)

    def propose(self, rows: Sequence[Row], budget: Sequence[Budget], noise: Noise) -> Draft:
        row, parent, token = list[int](), list[int](), list[int]()
        for r, (request_row, row_budget) in enumerate(zip(rows, budget, strict=True)):
            start = len(token)
            for p, guessed in self._guess(request_row, row_budget):
                row.append(r)
                parent.append(p + start if p >= 0 else -1)
                token.append(guessed)
        if not token:
            return empty_draft(len(rows), self.vocab)
        tree, tokens = Tree.of(len(rows), row, parent), torch.tensor(token, dtype=torch.long)
        return Draft(tree, tokens, OneHot(tokens, self.vocab), Siblings.CHOSEN)

    def chains(self, rows: Sequence[Row], budget: Sequence[Budget]) -> list[list[int]]:
        """The drafted tokens of each row, without laws. The budgets must be those of chains."""
        return [
            [token for _, token in self._guess(row, row_budget)] for row, row_budget in zip(rows, budget, strict=True)
        ]

    def device_form(self, target: Any) -> DeviceDrafter:
        return HostDeviceDrafter(self)

    def _guess(self, row: Row, row_budget: Budget) -> list[tuple[int, int]]:
        """(parent, token) of every node of a row."""
        if not row_budget.depth:
            return []
        drafter, ends = self._rows[row], row.request.ends
        if row_budget.shape is None:
            guess = drafter.guess(row.tokens, row_budget.depth)[: row_budget.depth]
            if row_budget.least_chance and not self._promises(row, guess, drafter.matched, row_budget.least_chance):
                return []
            return list(enumerate(_until_end(guess, ends), -1))
        if row_budget.siblings is None:
            raise ValueError("the rule verifies chains; draft chains or use a rule for trees")
        return merge_guesses(
            drafter.guesses(row.tokens, row_budget.depth, row_budget.shape.size), row_budget.shape, ends
        )

    def _promises(self, row: Row, guess: Sequence[int], matched: int | None, least: float) -> bool:
        """Whether a guess is likely enough to be accepted. What became of the last one is learnt first."""
        if (last := self._guessed.pop(row, None)) is not None:
            position, token, length = last
            if position < len(row.tokens):
                self.record.learn(length, row.tokens[position] == token)
        if not guess or matched is None:
            return True
        self._guessed[row] = len(row.tokens), guess[0], matched
        return self.record.chance(matched) >= least


def _until_end(guess: Sequence[int], ends: frozenset[int]) -> Sequence[int]:
    """A guess up to its first end token."""
    last = next((n for n, token in enumerate(guess, 1) if token in ends), len(guess))
    return guess[:last]


def merge_guesses(guesses: Sequence[Sequence[int]], shape: Shape, ends: frozenset[int]) -> list[tuple[int, int]]:
    """Merge guesses into a tree of this shape, the best guess first. Returns (parent, token) of every node.

    Guesses with a common prefix share its nodes. Nothing follows an end token. A guess is cut where the shape ends."""
    nodes: list[tuple[int, int]] = []
    place: dict[int, int] = {-1: -1}  # of each node in a static shape
    child: dict[tuple[int, int], int] = {}

    def free_place(node: int) -> int | None:
        """The place in the shape of a further candidate after a node; None if there is no room."""
        count = sum(parent == node for parent, _ in nodes)
        if not shape.parents:
            return -1 if count < shape.width and len(nodes) < shape.nodes else None
        places = [i for i, parent in enumerate(shape.parents) if parent == place[node]]
        return places[count] if count < len(places) else None

    for guess in guesses:
        node = -1
        for token in guess:
            if (node, token) not in child:
                free = free_place(node)
                if free is None:
                    break
                place[len(nodes)] = free
                child[node, token] = len(nodes)
                nodes.append((node, token))
            node = child[node, token]
            if token in ends:
                break
    return nodes
