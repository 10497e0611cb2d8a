"""Lifts a drafter that lives on the host and thinks of one row at a time to the packed seam."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch

from slipstream.core.interfaces import Drafter
from slipstream.core.law import OneHot
from slipstream.core.noise import Noise
from slipstream.core.tree import Tree
from slipstream.core.types import Budget, Draft, Row


class RowDrafter(ABC):
    """Chooses tokens for one row: no randomness, so each law is one-hot."""

    @abstractmethod
    def guess(self, tokens: Sequence[int], depth: int) -> list[int]:
        """At most `depth` tokens that may follow. `tokens` only ever grows between calls."""


class PerRow(Drafter):
    """One `RowDrafter` per open row, made by `new`."""

    def __init__(self, vocab: int) -> None:
        self.vocab = vocab
        self._rows: dict[Row, RowDrafter] = {}

    @abstractmethod
    def new(self, row: Row) -> RowDrafter:
        """The drafter of a row that opens."""

    def open(self, rows: Sequence[Row]) -> None:
        self._rows |= {row: self.new(row) for row in rows}

    def close(self, rows: Sequence[Row]) -> None:
        for row in rows:
            del self._rows[row]

    def propose(self, rows: Sequence[Row], budget: Sequence[Budget], noise: Noise) -> Draft:
        drafted = [self._guess(row, spend.depth) for row, spend in zip(rows, budget, strict=True)]
        token = torch.tensor([token for tokens in drafted for token in tokens], dtype=torch.long)
        return Draft(Tree.chains([len(tokens) for tokens in drafted]), token, OneHot(token, self.vocab))

    def _guess(self, row: Row, depth: int) -> list[int]:
        tokens = self._rows[row].guess(row.tokens, depth) if depth else []
        end = next((i + 1 for i, token in enumerate(tokens) if token in row.request.ends), len(tokens))
        return tokens[:end]
