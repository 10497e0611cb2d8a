"""Rows with different drafters and rules in one score pass.

There is one group of rows for each pair of drafter and rule. Each group drafts and verifies by itself. The target
scores all drafts in one pass: the drafts are merged before it, and the scores are split by group after it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from slipstream.core.array_types import Int, Tensor
from slipstream.core.interfaces import Drafter, Verifier, sibling_mode
from slipstream.core.law import OneHot
from slipstream.core.loop import within_limits
from slipstream.core.noise import Noise
from slipstream.core.tree import Tree
from slipstream.core.types import Budget, Draft, LazyRows, Scores, Verdict
from slipstream.engines.completion import DraftedTree
from slipstream.engines.job import Job


@dataclass(frozen=True, eq=False)
class Group:
    """The rows of one drafter and one rule in one cycle."""

    jobs: list[Job]
    drafter: Drafter
    rule: Verifier
    noise: Noise

    @functools.cached_property
    def asleep(self) -> bool:
        """Whether the drafter is not called in this cycle: no row drafts, and no row is in its first cycle. A drafter
        reads tokens committed meanwhile when it is next called. Some drafters read the prompt in the first cycle."""
        if self.rule.needs_draft:
            return False
        return all(job.budget.depth == 0 and job.stats.cycles > 0 for job in self.jobs)


def limited(jobs: Sequence[Job], rule: Verifier, drafter: Drafter, context: int) -> list[Budget]:
    """The budget of each row, cut to its limits."""
    budget, rows = [job.budget for job in jobs], [job.row for job in jobs]
    return within_limits(budget, rows, context, sibling_mode(rule, drafter), rule)


def merge(drafts: Sequence[Draft], vocab: int) -> Draft:
    """All drafts as one, with rows and nodes renumbered. Laws are left out, since the target does not read them."""
    if len(drafts) == 1:
        return drafts[0]
    rows = nodes = 0
    row, parent = [], []
    for draft in drafts:
        row.append(draft.tree.row + rows)
        parent.append(torch.where(draft.tree.parent < 0, -1, draft.tree.parent + nodes))
        rows += draft.tree.rows
        nodes += len(draft.tree)
    token = torch.cat([draft.token for draft in drafts])
    return Draft(Tree(rows, torch.cat(row), torch.cat(parent)), token, OneHot(token, vocab))


def slots(drafts: Sequence[Draft]) -> list[Int[Tensor, " slots"]]:
    """The slots of each draft within the merged one."""
    if len(drafts) == 1:
        return [_first(drafts[0].tree.rows + len(drafts[0].tree))]
    total = sum(draft.tree.rows for draft in drafts)
    indices, row, node = [], 0, total
    for draft in drafts:
        indices.append(torch.cat([torch.arange(draft.tree.rows) + row, torch.arange(len(draft.tree)) + node]))
        row += draft.tree.rows
        node += len(draft.tree)
    return indices


@functools.lru_cache(maxsize=64)
def _first(count: int) -> Int[Tensor, " count"]:
    return torch.arange(count)


def part(scores: Scores, index: Int[Tensor, " slots"]) -> Scores:
    """The scores of these slots."""
    if len(index) == len(scores.logits):  # one group: all there is, in order
        return scores
    index = index.to(scores.logits.device)
    return Scores(scores.logits[index], LazyRows(scores.features, index))


def join(verdicts: Sequence[Verdict], drafts: Sequence[Draft]) -> Verdict:
    """The verdicts of the groups as one about the merged draft."""
    if len(verdicts) == 1:
        return verdicts[0]
    depth = max(verdict.path.shape[1] for verdict in verdicts)
    paths, nodes = [], 0
    for verdict, draft in zip(verdicts, drafts, strict=True):
        path = torch.where(verdict.path < 0, -1, verdict.path + nodes)
        paths.append(torch.nn.functional.pad(path, (0, depth - path.shape[1]), value=-1))
        nodes += len(draft.tree)
    token = torch.cat([verdict.token for verdict in verdicts])
    return Verdict(torch.cat(paths), token, torch.cat([verdict.bonus for verdict in verdicts]))


def drafted_tree(draft: Draft, row: int, path: Sequence[int]) -> DraftedTree | None:
    """What one row drafted; None where it drafted nothing."""
    nodes = [i for i, (r, _) in enumerate(draft.tree.lists) if r == row]
    number = {-1: -1} | {node: n for n, node in enumerate(nodes)}
    tokens = draft.token.tolist()
    parents = tuple(number[draft.tree.lists[i][1]] for i in nodes)
    accepted = tuple(number[i] for i in path)
    return DraftedTree(tuple(tokens[i] for i in nodes), parents, accepted) if nodes else None


def levels(tree: Tree) -> list[list[int]]:
    """The number of tokens that each row drafted for each position."""
    counts: list[list[int]] = [[] for _ in range(tree.rows)]
    depth: list[int] = []
    for r, p in tree.lists:
        depth.append(0 if p < 0 else depth[p] + 1)
        if depth[-1] == len(counts[r]):
            counts[r].append(0)
        counts[r][depth[-1]] += 1
    return counts
