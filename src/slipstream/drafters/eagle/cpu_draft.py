"""Whole drafts of the EAGLE head in one call (`kernels.cpu.draft`): when this is possible, and the result.

A call drafts what nobody but the head has a say in: no grammar, no penalty, no cut of the law. Everything else grows
step by step (`grow`), which says what a call must give.
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


def how(rows: Sequence[Row], budget: Sequence[Budget], shared: bool, vocab: int) -> CandidateMode | None:
    """How a call would draft for these rows, of which some draft; None where it could not, or not for all alike.
    `shared`: whether draft and target race on the same noise."""
    kinds = {_kind(row, spend, shared, vocab) for row, spend in zip(rows, budget, strict=True) if spend.depth}
    return kinds.pop() if len(kinds) == 1 else None


def _kind(row: Row, spend: Budget, shared: bool, vocab: int) -> CandidateMode | None:
    shape, params, chosen = spend.shape, row.request.sampling, spend.siblings is Siblings.CHOSEN
    warm = params.temperature > 0
    if needs_shaping(row) or (warm and params.truncates):
        return None
    if shape is None:
        return CandidateMode.SURE if not warm else CandidateMode.LIKELY if chosen else CandidateMode.DRAWN
    if shape.parents or shape.width > vocab:
        return None
    if chosen:
        return CandidateMode.LIKELY
    return CandidateMode.RACED if warm and shared and spend.siblings is Siblings.DISTINCT else None


def draft_whole(
    slots: HeadCache, rows: Sequence[Row], budget: Sequence[Budget], noise: Noise, vocabulary: DraftVocabulary
) -> Draft | None:
    """What `grow` would draft, in one call; None where there is none for it."""
    kind = how(rows, budget, noise.has_fields, vocabulary.size) if slots.whole else None
    if kind is None:
        return None
    drafting = [r for r, spend in enumerate(budget) if spend.depth]
    blind = kind in (CandidateMode.SURE, CandidateMode.LIKELY)
    keys = [[] if blind else noise.chain_keys(r, budget[r].depth) for r in drafting]
    if not blind and not all(keys):
        return None
    drafted = slots.drafts(kind, [rows[r] for r in drafting], [budget[r] for r in drafting], keys)
    lists, words, chances = list[tuple[int, int]](), list[int](), list[float]()
    for r, nodes in zip(drafting, drafted, strict=True):
        first = len(words)
        lists += [(r, p if p < 0 else first + p) for p in nodes.parent]
        words += nodes.token
        chances += nodes.chance
    tree = Tree.from_lists(len(rows), lists)
    token, chance = torch.tensor(words, dtype=torch.long), torch.tensor(chances)
    siblings = Siblings.CHOSEN if kind is CandidateMode.RACED else budget[0].siblings
    if kind is not CandidateMode.DRAWN or not words:
        return Draft(tree, token, OneHot(token, vocabulary.size), siblings, chance)
    probs = drafted[0].law if len(drafted) == 1 else torch.cat([nodes.law for nodes in drafted])
    return Draft(tree, token, Sparse(vocabulary.ids.expand(len(words), -1), probs, vocabulary.size), siblings, chance)
