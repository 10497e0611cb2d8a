"""Drafts that one kernel call makes: when this is possible, the noise it needs, and the result as a `Draft`.

A kernel call supports rows whose draft depends on the drafter only: no grammar, no penalties, and top-k, top-p or min-p
only in sampled chains. Other drafts grow level by level (`grow`), which is also the reference of the kernels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from slipstream.core.law import OneHot, Sparse
from slipstream.core.noise import Noise
from slipstream.core.shaping import needs_shaping
from slipstream.core.tree import Siblings, Tree
from slipstream.core.types import Budget, Draft, Row
from slipstream.drafters.vocabulary import DraftVocabulary
from slipstream.kernels.cpu.draft import CandidateMode, DraftedNodes


def candidate_mode(rows: Sequence[Row], budget: Sequence[Budget], shared: bool, vocab: int) -> CandidateMode | None:
    """The candidate mode of a kernel call for the rows that draft; None if some are unsupported or the modes differ.

    `shared`: whether draft and target share the noise of each position."""
    rows_budget = zip(rows, budget, strict=True)
    modes = {_row_mode(row, row_budget, shared, vocab) for row, row_budget in rows_budget if row_budget.depth}
    return modes.pop() if len(modes) == 1 else None


def _row_mode(row: Row, budget: Budget, shared: bool, vocab: int) -> CandidateMode | None:
    shape, params, chosen = budget.shape, row.request.sampling, budget.siblings is Siblings.CHOSEN
    sampled = params.temperature > 0
    if needs_shaping(row):
        return None
    if shape is None and sampled and not chosen:
        return CandidateMode.DRAWN
    if sampled and params.truncates:
        return None
    if shape is None:
        return CandidateMode.LIKELY if sampled else CandidateMode.SURE
    if shape.parents or shape.width > vocab:
        return None
    if chosen:
        return CandidateMode.LIKELY
    return CandidateMode.RACED if sampled and shared and budget.siblings is Siblings.DISTINCT else None


def noise_keys(mode: CandidateMode, budget: Sequence[Budget], noise: Noise) -> list[list[int]] | None:
    """The noise keys of the next positions of each row that drafts; empty ones if the mode needs no noise. None if the
    noise has no keys."""
    drafting = [r for r, row_budget in enumerate(budget) if row_budget.depth]
    if mode in (CandidateMode.SURE, CandidateMode.LIKELY):
        return [[] for _ in drafting]
    keys = [list(noise.chain_keys(r, budget[r].depth)) for r in drafting]
    return keys if all(keys) else None


def drafted(
    mode: CandidateMode, budget: Sequence[Budget], nodes: Sequence[DraftedNodes], vocabulary: DraftVocabulary
) -> Draft:
    """The draft of all rows. `nodes`: of each row that drafts."""
    drafting = [r for r, row_budget in enumerate(budget) if row_budget.depth]
    lists, tokens, chances = list[tuple[int, int]](), list[int](), list[float]()
    for r, own in zip(drafting, nodes, strict=True):
        first = len(tokens)
        lists += [(r, p if p < 0 else first + p) for p in own.parent]
        tokens += own.token
        chances += own.chance
    tree = Tree.from_lists(len(budget), lists)
    token, chance = torch.tensor(tokens, dtype=torch.long), torch.tensor(chances)
    siblings = Siblings.CHOSEN if mode is CandidateMode.RACED else budget[drafting[0]].siblings
    if mode is not CandidateMode.DRAWN or not tokens:
        return Draft(tree, token, OneHot(token, vocabulary.size), siblings, chance)
    probs = nodes[0].law if len(nodes) == 1 else torch.cat([own.law for own in nodes])
    return Draft(tree, token, Sparse(vocabulary.ids.expand(len(tokens), -1), probs, vocabulary.size), siblings, chance)
