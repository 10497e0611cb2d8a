"""Splits a draft of chains by rows, joins chains to a draft, and makes the verdict that accepts them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from slipstream.core.law import concat
from slipstream.core.tree import Tree
from slipstream.core.types import Draft, Verdict
from slipstream.drafters.none import empty_draft


def nodes_of(draft: Draft, row: int) -> list[int]:
    """The nodes of a row, in the order of its chain."""
    return [node for node, (owner, _) in enumerate(draft.tree.lists) if owner == row]


def chain_of(draft: Draft, row: int) -> Draft:
    """The draft of one row."""
    if draft.tree.rows == 1:
        return draft
    index = torch.tensor(nodes_of(draft, row), dtype=torch.long)
    law = draft.law.select(index.to(draft.law.device))
    chance = None if draft.chance is None else draft.chance[index]
    token = draft.token[index.to(draft.token.device)]
    return Draft(Tree.chains([len(index)], token.device), token, law, draft.siblings, chance)


def join_chains(chains: Sequence[Draft], vocab: int) -> Draft:
    """The drafts of single rows as one draft."""
    if len(chains) == 1:
        return chains[0]
    drafted = [chain for chain in chains if len(chain.token)]
    if not drafted:
        return empty_draft(len(chains), vocab)
    token = torch.cat([chain.token for chain in drafted])
    known = [chain.chance for chain in drafted if chain.chance is not None]
    chance = torch.cat(known) if len(known) == len(drafted) else None
    tree = Tree.chains([len(chain.token) for chain in chains], token.device)
    return Draft(tree, token, concat([chain.law for chain in drafted]), drafted[0].siblings, chance)


def accept_all(draft: Draft, rows: Sequence[bool]) -> Verdict:
    """The verdict that accepts the chains of some rows, and nothing of the others. Its last tokens are not known."""
    paths = [nodes_of(draft, r) if accepted else [] for r, accepted in enumerate(rows)]
    longest = max(map(len, paths), default=0)
    path = torch.tensor([[*nodes, *[-1] * (longest - len(nodes))] for nodes in paths], dtype=torch.long)
    token = torch.zeros(len(rows), dtype=torch.long)
    return Verdict(path.reshape(len(rows), longest), token, torch.tensor(list(rows)))
