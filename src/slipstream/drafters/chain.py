"""Drawing a chain from a model of the next token, all rows side by side, each to its own depth."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from slipstream.core.law import Law, OneHot, concat
from slipstream.core.noise import Noise, Purpose, Site
from slipstream.core.tree import Tree
from slipstream.core.types import Budget, Draft, Row

NextLaw = Callable[[list[int], list[list[int]]], Law]
"""The law of the next token for the rows at these indices, given what each of all rows has drafted so far."""


def draw_chains(
    rows: Sequence[Row], budget: Sequence[Budget], noise: Noise, next_law: NextLaw, vocab: int, stage: int = 0
) -> Draft:
    """Draft up to each row's depth; stop after an end token, and before a law with nothing likely enough in it."""
    drafted: list[list[int]] = [[] for _ in rows]
    laws: list[Law] = []
    owners: list[int] = []
    active = [r for r, spend in enumerate(budget) if spend.depth > 0]
    for depth in range(max((spend.depth for spend in budget), default=0)):
        law = next_law(active, drafted) if active else OneHot(torch.zeros(0, dtype=torch.long), vocab)
        sure = likely(law, [budget[r].stop_below for r in active])
        law, active = law.select(torch.tensor(sure, dtype=torch.long)), [active[i] for i in sure]
        if not active:
            break
        index = torch.tensor(active)
        site = Site(index, torch.full_like(index, depth), torch.full_like(index, depth))
        tokens = noise.draw(law, site, Purpose.DRAFT, stage).tolist()
        laws.append(law)
        owners += active
        for r, token in zip(active, tokens, strict=True):
            drafted[r].append(token)
        active = [r for r in active if budget[r].depth > depth + 1 and drafted[r][-1] not in rows[r].request.ends]
    return pack(drafted, laws, owners, vocab)


def likely(law: Law, floor: Sequence[float]) -> list[int]:
    """Which laws have a token of at least the floor's probability."""
    if not any(floor):
        return list(range(len(law)))
    best = law.support()[1].amax(-1).tolist()
    return [i for i, (p, f) in enumerate(zip(best, floor, strict=True)) if p >= f]


def pack(drafted: Sequence[Sequence[int]], laws: Sequence[Law], owners: Sequence[int], vocab: int) -> Draft:
    """Row-major nodes from laws gathered depth by depth; `owners` says whose law each one is."""
    tree = Tree.chains([len(tokens) for tokens in drafted])
    token = torch.tensor([token for tokens in drafted for token in tokens], dtype=torch.long)
    if not laws:
        return Draft(tree, token, OneHot(token, vocab))
    order = sorted(range(len(owners)), key=lambda i: owners[i])  # stable: depths of a row stay in order
    return Draft(tree, token, concat(laws).select(torch.tensor(order)))
