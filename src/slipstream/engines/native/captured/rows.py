"""Rows whose cycles run on the device as a whole (`express`): who they are, what they draft, what came of it."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from slipstream.core.interfaces import Drafter, Verifier
from slipstream.core.types import Row
from slipstream.engines.job import Job
from slipstream.engines.native.groups import limited
from slipstream.engines.native.publisher import ChunkPublisher
from slipstream.plan.graph_size import GraphSizePolicy

if TYPE_CHECKING:
    from slipstream.engines.native.captured.runner import CapturedRunner


class CapturedRows:
    """`drafter` and `rule` give the part of a name, `note` is told why nothing goes this way any more."""

    def __init__(
        self,
        express: CapturedRunner | None,
        drafter: Callable[[str], Drafter],
        rule: Callable[[str], Verifier],
        context: int,
        teller: ChunkPublisher,
        note: Callable[[str], None],
    ) -> None:
        self.express = express  # None: there is none, or it was given up
        self._drafter, self._rule, self._context, self._teller, self._note = drafter, rule, context, teller, note
        self._choosers: defaultdict[tuple[str, str], GraphSizePolicy] = defaultdict(
            GraphSizePolicy
        )  # by drafter and rule
        self.fresh: Collection[Row] = ()  # who has just read its prompt

    def open(self, job: Job) -> bool:
        """A row that begins; whether a tree would cost it its whole cycles, which a chain has."""
        self._choosers[job.way].open(job.row)
        rule = self._rule(job.plan.rule).device_rule
        if self.express is None or rule is None:
            return False
        return self.express.only_chains(self._drafter(job.plan.drafter), rule)

    def close(self, job: Job) -> None:
        for chooser in self._choosers.values():  # a row may have lost its drafter since
            chooser.close(job.row)

    def suits(self, job: Job) -> bool:
        """Whether a row's cycles can run on the device as a whole, once it has read its prompt."""
        if self.express is None:
            return False
        if not job.rides:  # who once does, always will
            rule = self._rule(job.plan.rule).device_rule
            job.rides = job.top is None and rule is not None and self.express.suits(job.row, rule)
        return job.rides

    def ready(self, job: Job) -> bool:
        """Whether its next one can."""
        return self.suits(job) and self.express is not None and self.express.ready(job.row)

    def ride(self, jobs: Sequence[Job], crowd: int) -> list[Job]:
        """Whoever can has a whole cycle, by drafter and rule; the others. `crowd`: rows there are or will soon be."""
        if self.express is None:
            return list(jobs)
        self.express.crowd = crowd
        ready = sorted((job for job in jobs if self.ready(job)), key=lambda job: job.way)
        done: set[Job] = set()
        for _, some in groupby(ready, key=lambda job: job.way):
            alike = list(some)
            done |= {*alike} if self.express is not None and self._whole(self.express, alike) else set()
        return [job for job in jobs if job not in done]

    def _whole(self, express: CapturedRunner, jobs: Sequence[Job]) -> bool:
        """The whole cycle of rows with one drafter and one rule on the device, where it can be. What is known then goes
        to the rows at once; those who wait for text are told while the device works on the next cycle."""
        started, (name, rule_name) = time.perf_counter(), jobs[0].way
        rows, drafter, chooser = [job.row for job in jobs], self._drafter(name), self._choosers[name, rule_name]
        rule = self._rule(rule_name)
        assert rule.device_rule is not None, "rows without a device rule take the ordinary path"
        free = [job for job in jobs if job.plan.depth is None]
        try:
            if free:
                chosen = express.choose([job.row for job in free], drafter, rule.device_rule, chooser)
                for job in free:
                    job.budget = chosen
            budget = limited(jobs, rule, drafter, self._context)
            quiet = self.fresh if drafter.needs.features else ()  # heads begin after the first token, on either way
            done = express.run(
                rows, budget, drafter, rule.device_rule, len(free) == len(jobs), quiet, self._teller.catch_up
            )
        except Exception as error:  # it would fail again, after as long a time
            self._note(f"express, given up: {error}")
            self.express = None
            return False
        if done is None:
            return False
        heard = chooser.heard(len(rows))
        chooser.observe([rows[r] for r in heard], [done[r].judged for r in heard])
        if any(told.tokens for told in done):
            chooser.pace.moved(rows, [len(told.emitted) for told in done])
        for job, told in zip(jobs, done, strict=True):
            if job.done:  # it could not be told of the cycle before
                continue
            kept = job.row.extend(told.emitted, told.origins, self._context)
            self._teller.later(job, told, kept)
        if any(job.stops for job in jobs):  # a text may end where it holds a string
            self._teller.catch_up()
        express.paid(time.perf_counter() - started)
        return True
