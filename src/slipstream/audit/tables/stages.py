"""Staged drafts on tables: small enough for every draw of both stages to be enumerated."""

from __future__ import annotations

import torch

from slipstream.drafters.staged.continuation import VerifiedContinuations
from slipstream.drafters.staged.drafter import Staged
from slipstream.drafters.table import TableDrafter
from slipstream.models.run.table_model import Table


def two_tokens(table: Table) -> Table:
    """A table in which only the two most probable tokens follow a context."""
    best = table.probs.topk(2)
    return _on_tokens(table, best.indices, best.values / best.values.sum(-1, keepdim=True))


def swapped(table: Table) -> Table:
    """`two_tokens`, each with the other's probability."""
    best = table.probs.topk(2)
    return _on_tokens(table, best.indices.flip(1), best.values / best.values.sum(-1, keepdim=True))


def second_token(table: Table) -> Table:
    """A table in which only the second most probable token follows a context, as if it were chosen."""
    best = table.probs.topk(2)
    return _on_tokens(table, best.indices[:, 1:], torch.ones_like(best.values[:, 1:]))


def _on_tokens(table: Table, tokens: torch.Tensor, probs: torch.Tensor) -> Table:
    return Table(torch.zeros_like(table.probs).scatter(1, tokens, probs), table.order)


def two_stages(
    table: Table,
    first: Table | None = None,
    kind: type[Staged] = Staged,
    continuations: type[VerifiedContinuations] = VerifiedContinuations,
) -> Staged:
    """A table drafts for another one, which drafts. `first`: the first stage; default: `swapped`."""
    stages = TableDrafter(swapped(table) if first is None else first), TableDrafter(two_tokens(table))
    return kind(*stages, table.vocab, depth=1, continuations=continuations)
