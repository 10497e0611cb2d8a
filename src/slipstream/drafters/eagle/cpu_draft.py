"""Complete drafts of the EAGLE head in one kernel call (`kernels.cpu.draft`): when this is possible, and the result.

A kernel call supports rows whose draft depends on the head only: no grammar, no penalties, no truncation. Other drafts
grow level by level (`grow`), which is also the reference of the kernel.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from slipstream.core.law import OneHot, Sparse
from slipstream.core.noise import Noise
from slipstream.core.shaping import needs_shaping
from slipstream.core.tree import Siblings, Tree
from slipstream.core.types import Budget, Draft, Row
from slipstream.drafters.eagle.cache import HeadCache
from slipstream.drafters.vocabulary import DraftVocabulary
from slipstream.kernels.cpu.draft import CandidateMode


def candidate_mode(rows: Sequence[Row], budget: Sequence[Budget], shared: bool, vocab: int) -> CandidateMode | None:
    """The candidate mode of a kernel call for the rows that draft; None if some are unsupported or the modes differ.

    `shared`: whether draft and target share the noise of each position."""
    rows_budget = zip(rows, budget, strict=True)
    modes = {_row_mode(row, row_budget, shared, vocab) for row, row_budget in rows_budget if row_budget.depth}
    return modes.pop() if len(modes) == 1 else None


def _row_mode(row: Row, budget: Budget, shared: bool, vocab: int) -> CandidateMode | None:
    shape, params, chosen = budget.shape, row.request.sampling, budget.siblings is Siblings.CHOSEN
    sampled = params.temperature > 0
    if needs_shaping(row) or (sampled and params.truncates):
        return None
    if shape is None:
        return CandidateMode.SURE if not sampled else CandidateMode.LIKELY if chosen else CandidateMode.DRAWN
    if shape.parents or shape.width > vocab:
        return None
    if chosen:
        return CandidateMode.LIKELY
    return CandidateMode.RACED if sampled and shared and budget.siblings is Siblings.DISTINCT else None


def draft_in_one_call(
    slots: HeadCache, rows: Sequence[Row], budget: Sequence[Budget], noise: Noise, vocabulary: DraftVocabulary
) -> Draft | None:
    """The draft that `grow` would make, in one kernel call; None if the kernel does not support it."""
    mode = candidate_mode(rows, budget, noise.has_fields, vocabulary.size) if slots.has_kernel else None
    if mode is None:
        return None
    drafting = [r for r, row_budget in enumerate(budget) if row_budget.depth]
    uses_noise = mode not in (CandidateMode.SURE, CandidateMode.LIKELY)
    keys = [noise.chain_keys(r, budget[r].depth) if uses_noise else [] for r in drafting]
    if uses_noise and not all(keys):
        return None
    drafted = slots.drafts(mode, [rows[r] for r in drafting], [budget[r] for r in drafting], keys)
    lists, tokens, chances = list[tuple[int, int]](), list[int](), list[float]()
    for r, nodes in zip(drafting, drafted, strict=True):
        first = len(tokens)
        lists += [(r, p if p < 0 else first + p) for p in nodes.parent]
        tokens += nodes.token
        chances += nodes.chance
    tree = Tree.from_lists(len(rows), lists)
    token, chance = torch.tensor(tokens, dtype=torch.long), torch.tensor(chances)
    siblings = Siblings.CHOSEN if mode is CandidateMode.RACED else budget[0].siblings
    if mode is not CandidateMode.DRAWN or not tokens:
        return Draft(tree, token, OneHot(token, vocabulary.size), siblings, chance)
    probs = drafted[0].law if len(drafted) == 1 else torch.cat([nodes.law for nodes in drafted])
    return Draft(tree, token, Sparse(vocabulary.ids.expand(len(tokens), -1), probs, vocabulary.size), siblings, chance)
