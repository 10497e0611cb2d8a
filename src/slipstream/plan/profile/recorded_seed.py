"""Makes the seed of a policy from what a profile recorded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from slipstream.plan.policy.costs import CostModel
from slipstream.plan.policy.policy_seed import PolicySeed
from slipstream.plan.profile.cost_points import CycleCost
from slipstream.plan.profile.rank_counts import RankCount

TRUST = 24.0  # observations that measured acceptance counts as: new text may differ, and is soon followed


def seed_of(
    cycles: Iterable[CycleCost], counts: Iterable[RankCount], graphs: Mapping[str, Any] | None = None
) -> PolicySeed:
    """The seed from recorded cycles, plain ones first, and from counts of acceptance. `graphs`: captured cycles."""
    costs = CostModel()
    for cycle in sorted(cycles, key=lambda each: each.steps > 0):
        costs.learn(cycle.scoring, cycle.tokens, cycle.tokens - cycle.rows)
        if cycle.steps:
            costs.draft(cycle.drafting, cycle.steps)
    saved = costs.to_json() | ({"graphs": dict(graphs)} if graphs else {})
    counts = list(counts)
    first = [count for count in counts if count.rank == 0]
    tried, accepted = sum(count.tried for count in first), sum(count.accepted for count in first)
    rate = accepted / tried if tried else None
    return PolicySeed(saved, rate, min(TRUST, tried), _ranks(counts))


def _ranks(counts: Sequence[RankCount]) -> list[list[tuple[float, float]]]:
    if not counts:
        return []
    depth, width = max(count.depth for count in counts), max(count.rank for count in counts) + 1
    table = [[(0.0, 0.0)] * width for _ in range(depth)]
    for count in counts:
        hits, tries = table[count.depth - 1][count.rank]
        table[count.depth - 1][count.rank] = hits + count.accepted, tries + count.tried
    return table
