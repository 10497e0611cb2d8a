"""What one cycle drafted, as the policy observes it group by group, and what each row's draft teaches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.core.tree import Tree
from slipstream.core.types import Draft, Verdict


@dataclass
class CycleRecord:
    """Sums over the rows whose drafts the policy chose, except `steps` and `branched`, which are of all rows."""

    steps: int = 0  # levels of the deepest draft
    branched: bool = False  # whether some draft was a tree
    drafted: int = 0  # tokens
    accepted: int = 0  # tokens
    missed: int = 0  # tokens that the drafter had to read first, of rows with many such tokens
    late: bool = False  # whether some row's drafter had more to read than usual
    setup: bool = False  # whether it was the first draft of a row for which the drafter had to set up state


@dataclass
class RowDraft:
    """One row's draft and what verification made of it."""

    nodes: int
    levels: int
    judged: list[tuple[int, int]]  # `rank_table.Judged`


def row_drafts(draft: Draft, verdict: Verdict) -> list[RowDraft]:
    count = len(verdict.path)
    nodes, levels, depth = [0] * count, [0] * count, list[int]()
    for row, parent in draft.tree.lists:
        depth.append(1 if parent < 0 else depth[parent] + 1)
        nodes[row] += 1
        levels[row] = max(levels[row], depth[-1])
    drafts = []
    for row, path in enumerate(verdict.path.tolist()):
        accepted = [node for node in path if node >= 0]
        chain = nodes[row] == levels[row]
        judged = judge_chain(levels[row], len(accepted)) if chain else judge_tree(draft.tree, row, accepted)
        drafts.append(RowDraft(nodes[row], levels[row], judged))
    return drafts


def chain_draft(drafted: int, accepted: int) -> RowDraft:
    return RowDraft(drafted, drafted, judge_chain(drafted, accepted))


def judge_chain(drafted: int, accepted: int) -> list[tuple[int, int]]:
    return [(0, 1)] * accepted + [(-1, 1)] * (accepted < drafted)


def judge_tree(tree: Tree, row: int, path: Sequence[int]) -> list[tuple[int, int]]:
    """Of each slot along an accepted path that had candidates: the accepted one's rank, -1 for none; their number."""
    judged, slot = [], row
    for node in [*path, -1]:
        candidates = tree.children[slot]
        if candidates:
            judged.append((candidates.index(node) if node >= 0 else -1, len(candidates)))
        slot = tree.rows + node
    return judged
