"""A policy that records every cycle: what it took, and which candidates were accepted.

Requests with a fixed depth do not ask a policy for a budget, but the engine tells it the outcome and the times of every
cycle. So an engine whose requests all have a fixed depth is measured without being changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from slipstream.core.device import RowResult
from slipstream.core.interfaces import Policy
from slipstream.core.types import Budget, Draft, Row, Verdict
from slipstream.plan.policy.costs import CostModel
from slipstream.plan.policy.cycle_record import row_drafts
from slipstream.plan.policy.rank_table import Judged
from slipstream.plan.profile.cost_points import CycleCost
from slipstream.plan.profile.rank_counts import RankCount


class CycleRecorder(Policy):
    """`costs` is filled by captured cycles, which are not recorded one by one."""

    def __init__(self) -> None:
        self._costs = CostModel()
        self.cycles: list[CycleCost] = []
        self._tried: Counter[tuple[int, int]] = Counter()  # by depth and rank
        self._accepted: Counter[tuple[int, int]] = Counter()
        self._rows = self._steps = self._context = 0  # of the cycle under way

    @property
    def costs(self) -> CostModel:
        return self._costs

    def clear(self) -> None:
        """Forget the recorded cycles and counts. The costs of captured cycles stay."""
        self.cycles = []
        self._tried.clear()
        self._accepted.clear()

    def counts(self, drafter: str, workload: str, temperature: float) -> list[RankCount]:
        """What was accepted since the last `clear`."""
        return [
            RankCount(drafter, workload, temperature, depth + 1, rank, tried, self._accepted[depth, rank])
            for (depth, rank), tried in sorted(self._tried.items())
        ]

    def budget(self, rows: Sequence[Row]) -> list[Budget]:
        self._rows = self._steps = self._context = 0
        return [Budget(0)] * len(rows)

    def observe(self, rows: Sequence[Row], draft: Draft, verdict: Verdict) -> None:
        self._rows += len(rows)
        self._context += sum(row.length for row in rows)
        for drafted in row_drafts(draft, verdict):
            self._steps = max(self._steps, drafted.levels)
            self._count(drafted.judged)

    def observe_captured(self, rows: Sequence[Row], results: Sequence[RowResult]) -> None:
        for result in results:
            self._count(result.judged)

    def price(self, drafting: float, scoring: float, tokens: int) -> None:
        if self._rows:
            context = self._context // self._rows
            self.cycles.append(CycleCost(self._rows, tokens, self._steps, context, drafting, scoring))

    def _count(self, judged: Judged) -> None:
        for depth, (rank, candidates) in enumerate(judged):
            for k in range(candidates):
                self._tried[depth, k] += 1
                self._accepted[depth, k] += k == rank
                if k == rank:
                    break
