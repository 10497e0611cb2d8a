"""Drafts from a table, under the request's own sampling parameters: the exact draft model of proofs and tests."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from slipstream.core.interfaces import Drafter
from slipstream.core.law import Law
from slipstream.core.noise import Noise
from slipstream.core.shaping import law_at
from slipstream.core.types import Budget, Draft, Row
from slipstream.drafters.chain import draw_chains
from slipstream.models.table import Table


class TableDrafter(Drafter):
    def __init__(self, table: Table) -> None:
        self.table = table

    def propose(self, rows: Sequence[Row], budget: Sequence[Budget], noise: Noise) -> Draft:
        def next_law(active: list[int], drafted: list[list[int]]) -> Law:
            logits = torch.stack([self.table.law([*rows[r].tokens, *drafted[r]]) for r in active]).log()
            return law_at(logits, [(rows[r], drafted[r]) for r in active])

        return draw_chains(rows, budget, noise, next_law, self.table.vocab)
