"""Drafts from a probability table: the draft model of proofs and tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch

from slipstream.core.array_types import Tensor
from slipstream.core.interfaces import Drafter
from slipstream.core.law import Law
from slipstream.core.noise import Noise
from slipstream.core.shaping import law_at, places
from slipstream.core.tree import Siblings, Tree
from slipstream.core.types import Budget, Draft, Row
from slipstream.drafters.levels.grow import grow
from slipstream.models.run.table_model import Table, TableModel


class TableDrafter(Drafter):
    """Drafts chains and trees with the laws of a `Table`."""

    reads_target: ClassVar[bool] = False

    def __init__(self, table: Table) -> None:
        self.table = table
        self._own_model = TableModel(table)

    @property
    def own_model(self) -> TableModel:
        return self._own_model

    def propose(self, rows: Sequence[Row], budget: Sequence[Budget], noise: Noise) -> Draft:
        ranking = any(row_budget.siblings is Siblings.CHOSEN for row_budget in budget)

        def next_law(tree: Tree, token: Tensor, slots: list[int]) -> Law:
            slot_places = places(rows, tree, token.tolist())
            where = [slot_places[slot] for slot in slots]
            logits = torch.stack([self.table.law([*row.tokens, *path]) for row, path in where]).log()
            return law_at(logits, where, ranking)

        return grow(rows, budget, noise, next_law, self.table.vocab)
