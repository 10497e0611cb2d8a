"""Rows whose cycles are captured: which rows these are, what they draft, and what becomes of the results."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from slipstream.core.interfaces import Drafter, Policy, Verifier
from slipstream.core.types import Row
from slipstream.engines.job import Job
from slipstream.engines.native.groups import limited
from slipstream.engines.native.publisher import ChunkPublisher

if TYPE_CHECKING:
    from slipstream.engines.native.captured.runner import CapturedRunner


class CapturedRows:
    """`drafter` and `rule` give the component of a name. `note` is told why cycles are no longer captured."""

    def __init__(
        self,
        runner: CapturedRunner | None,
        policy: Policy,
        drafter: Callable[[str], Drafter],
        rule: Callable[[str], Verifier],
        context: int,
        publisher: ChunkPublisher,
        note: Callable[[str], None],
    ) -> None:
        self.runner = runner  # None: there is none, or it was given up
        self._policy, self._drafter, self._rule = policy, drafter, rule
        self._context, self._publisher, self._note = context, publisher, note
        self.fresh: Collection[Row] = ()  # rows that have just read their prompt

    def chains_only(self, job: Job) -> bool:
        """Whether a tree would keep a row from captured cycles, which a chain does not."""
        rule = self._rule(job.plan.rule).device_rule
        if self.runner is None or rule is None:
            return False
        return self.runner.only_chains(self._drafter(job.plan.drafter), rule)

    def suits(self, job: Job) -> bool:
        """Whether a row's cycles can be captured, once it has read its prompt."""
        if self.runner is None:
            return False
        if not job.rides:  # a row that suits always will
            rule = self._rule(job.plan.rule).device_rule
            job.rides = job.top is None and rule is not None and self.runner.suits(job.row, rule)
        return job.rides

    def ready(self, job: Job) -> bool:
        """Whether its next cycle can be captured."""
        return self.suits(job) and self.runner is not None and self.runner.ready(job.row)

    def run(self, jobs: Sequence[Job], expected_rows: int) -> list[Job]:
        """Run one captured cycle for every row that can have one, by drafter and rule. Returns the other rows.
        `expected_rows`: rows there are or will soon be."""
        if self.runner is None:
            return list(jobs)
        self.runner.expected_rows = expected_rows
        ready = sorted((job for job in jobs if self.ready(job)), key=lambda job: job.way)
        done: set[Job] = set()
        for _, members in groupby(ready, key=lambda job: job.way):
            group = list(members)
            done |= {*group} if self.runner is not None and self._run_group(self.runner, group) else set()
        return [job for job in jobs if job not in done]

    def _run_group(self, runner: CapturedRunner, jobs: Sequence[Job]) -> bool:
        """Run a captured cycle of rows with one drafter and one rule; False where it must take the ordinary path. Rows
        get their tokens at once. Callers get their text while the device works on the next cycle."""
        started = time.perf_counter()
        rows, drafter, rule = (
            [job.row for job in jobs],
            self._drafter(jobs[0].plan.drafter),
            self._rule(jobs[0].plan.rule),
        )
        assert rule.device_rule is not None, "rows without a device rule take the ordinary path"
        free = [job for job in jobs if job.plan.depth is None]
        try:
            if free:
                chosen = runner.choose([job.row for job in free], drafter, rule.device_rule, self._policy)
                if chosen is None:
                    return False
                for job in free:
                    job.budget = chosen
            budget = limited(jobs, rule, drafter, self._context)
            plain = self.fresh if drafter.needs.features else ()  # heads begin after the first token, on either path
            by_policy = len(free) == len(jobs)
            results = runner.run(rows, budget, drafter, rule.device_rule, by_policy, plain, self._publisher.catch_up)
        except Exception as error:  # it would fail again, after as long a time
            self._note(f"captured cycles, given up: {error}")
            self.runner = None
            return False
        if results is None:
            return False
        self._policy.observe_captured(rows, results)
        for job, result in zip(jobs, results, strict=True):
            if job.done:  # publishing the cycle before failed
                continue
            kept = job.row.extend(result.emitted, result.origins, self._context)
            self._publisher.later(job, result, kept)
        if any(job.stops for job in jobs):  # a text may end where it holds a string
            self._publisher.catch_up()
        runner.paid(time.perf_counter() - started)
        return True
