"""The rows of a cycle whose depth the policy chooses."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.core.types import Budget, Row
from slipstream.engines.job import Job


class FreeRows:
    """They are looked through when a cycle begins, and again when a row has ended: hundreds of rows share a cycle that
    takes a millisecond. `rows` stays the same list meanwhile."""

    def __init__(self) -> None:
        self.jobs: Sequence[Job] = ()
        self.rows: Sequence[Row] = ()
        self._count = -1  # rows of the cycle when they were looked through
        self._chosen: Budget | None = None  # the budget that all of them have

    def begin(self) -> None:
        """A cycle of other rows begins."""
        self._count, self.jobs, self.rows = -1, (), ()

    def look(self, jobs: Sequence[Job]) -> None:
        """These rows share the cycle now: those for which it was begun, or what is left of them."""
        if len(jobs) != self._count:
            self._count, self._chosen = len(jobs), None
            self.jobs = [job for job in jobs if job.plan.depth is None]
            self.rows = [job.row for job in self.jobs]

    def assign(self, chosen: Budget) -> bool:
        """Give all of them a budget. Returns whether one of them had another."""
        if chosen is self._chosen:
            return False
        changed, self._chosen = False, chosen
        for job in self.jobs:
            if job.budget is not chosen:
                changed = changed or job.budget != chosen
                job.budget = chosen
        return changed
