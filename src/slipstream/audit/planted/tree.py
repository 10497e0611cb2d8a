"""Bugs that only trees and several candidates make possible, planted one at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from slipstream.audit.subject import Subject
from slipstream.core.array_types import Tensor
from slipstream.core.interfaces import Drafter
from slipstream.core.noise import Noise
from slipstream.core.tree import Shape, Tree
from slipstream.core.types import Budget, Draft, Row, Scores, Verdict
from slipstream.core.verify.spectr import SpecTr
from slipstream.core.verify.token import acceptance
from slipstream.core.verify.tree import Chosen, Replace, offer
from slipstream.drafters.table import TableDrafter
from slipstream.models.run.table_model import Table, TableModel
from slipstream.plan.policy.policies import Fixed


def forgetful(probs: Tensor, draft: Draft, nodes: Tensor) -> tuple[Tensor, Tensor]:
    """Verifies every sibling against the target's law, as if no sibling had been rejected before it."""
    _, rest = offer(probs, draft, nodes)
    accept = torch.zeros(nodes.shape, dtype=torch.float64)
    for n in range(nodes.shape[1]):
        (slots,) = torch.nonzero(nodes[:, n] >= 0, as_tuple=True)
        token = draft.token[nodes[slots, n]]
        target_prob = probs[slots].gather(1, token[:, None])[:, 0]
        accept[slots, n] = acceptance(target_prob, draft.law.select(nodes[slots, n]).prob(token)).double()
    return accept, rest


class Dropping(Drafter):
    """Drafts a tree and then removes some of its leaves."""

    def __init__(self, table: Table, drops: Callable[[Draft], set[int]]) -> None:
        self._inner, self._drops = TableDrafter(table), drops

    def propose(self, rows: Sequence[Row], budget: Sequence[Budget], noise: Noise) -> Draft:
        draft = self._inner.propose(rows, budget, noise)
        dropped = self._drops(draft)
        kept = [i for i in range(len(draft.tree)) if i not in dropped]
        place = {-1: -1} | {i: n for n, i in enumerate(kept)}
        lists = [draft.tree.lists[i] for i in kept]
        tree = Tree.of(len(rows), [r for r, _ in lists], [place[p] for _, p in lists])
        return Draft(tree, draft.token[kept], draft.law.select(torch.tensor(kept).long()), draft.siblings)


def twins(draft: Draft) -> set[int]:
    """Later nodes of a token that was drawn twice after one slot; merging them loses the count."""
    tokens = draft.token.tolist()
    return {
        later
        for nodes in draft.tree.children
        for n, later in enumerate(nodes)
        if tokens[later] in [tokens[earlier] for earlier in nodes[:n]]
    }


def unlikely(draft: Draft) -> set[int]:
    """Leaves whose drawn token is unlikely."""
    leaf = [not nodes for nodes in draft.tree.children[draft.tree.rows :]]
    return {i for i, prob in enumerate(draft.law.prob(draft.token).tolist()) if leaf[i] and prob < 0.35}


class WrongAncestor(TableModel):
    """A node attends to the sibling before its parent instead of its parent."""

    def score(self, rows: Sequence[Row], draft: Draft) -> Scores:
        lists = draft.tree.lists
        wrong = [(r, p - 1 if p >= 1 and lists[p - 1] == lists[p] else p) for r, p in lists]
        seen = Tree.of(len(rows), [r for r, _ in wrong], [p for _, p in wrong])
        scores = super().score(rows, replace(draft, tree=seen))
        self._draft = draft
        return scores


class ReversedCommit(TableModel):
    """Commits the accepted nodes in reverse order."""

    def commit(self, rows: Sequence[Row], verdict: Verdict) -> None:
        super().commit(rows, replace(verdict, path=verdict.path.flip(1)))


PAIR, BUSHY = Shape((-1, -1)), Shape.levels((2, 2))
HONEST_PAIR = Subject(Replace, lambda: Fixed(1, shape=PAIR))
HONEST_SPECTR = Subject(SpecTr, lambda: Fixed(1, shape=PAIR))
HONEST_TREE = Subject(Chosen, lambda: Fixed(2, shape=BUSHY))
PLANTED_TREES: dict[str, Subject] = {
    "sibling judged without the residual of the last": replace(HONEST_PAIR, rule=lambda: Replace(forgetful)),
    "equal candidates merged, their count lost": replace(HONEST_SPECTR, drafter=lambda table: Dropping(table, twins)),
    "a drawn node pruned from the tree": replace(HONEST_PAIR, drafter=lambda table: Dropping(table, unlikely)),
    "tree mask off by one ancestor": replace(HONEST_TREE, model=WrongAncestor),
    "accepted path kept in the wrong order": replace(HONEST_TREE, model=ReversedCommit),
}
