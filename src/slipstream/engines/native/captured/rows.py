"""Rows whose cycles are captured: which rows these are, what they draft, and what becomes of the results."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from slipstream.core.interfaces import Drafter, Policy, Verifier
from slipstream.core.types import Budget, Row
from slipstream.engines.job import Job
from slipstream.engines.native.captured.free_rows import FreeRows
from slipstream.engines.native.captured.result import RowCycles
from slipstream.engines.native.captured.row_groups import RowGroup, row_groups
from slipstream.engines.native.groups import limited
from slipstream.engines.native.publisher import ChunkPublisher
from slipstream.kernels.machine import warn

if TYPE_CHECKING:
    from slipstream.engines.native.captured.deferred import DeferredCycles, Lines
    from slipstream.engines.native.captured.flight import Flight
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
        self._flight: Flight | None = None  # the cycle whose record was not read yet
        self._jobs: Sequence[Job] = ()  # of that cycle
        self._rule_name = ""  # of that cycle
        self._free, self._drafts = FreeRows(), False  # those of its rows; whether a row is to draft in the next one
        self._repeated: set[Job] = set()  # rows whose last cycle must be repeated on the ordinary path
        self._since = 0.0  # when the last record was read, or a first cycle was begun
        self._whole = True  # whether that cycle has all rows
        self._changed: bool | None = False  # what `_choose` said while it was under way
        self._decided: dict[Job, Budget] = {}  # what the policy wants of a drafter without a device form
        self._deferred: DeferredCycles | None = None  # cycles that are committed to the rows later

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
        if not job.capturable:  # a row that suits always will
            rule = self._rule(job.plan.rule).device_rule
            job.capturable = rule is not None and self.runner.suits(job.row, rule)
        return job.capturable

    def ready(self, job: Job) -> bool:
        """Whether its next cycle can be captured."""
        return self.suits(job) and self.runner is not None and self.runner.ready(job.row)

    def live(self) -> list[Job]:
        """The rows of the cycle whose record was not read yet, without those that have finished."""
        if self._flight is None:
            self._jobs = ()  # nobody waits for the memory of finished ones to be freed
            return []
        return [job for job in self._jobs if job.row.finish_reason is None]

    def run(self, jobs: Sequence[Job], expected_rows: int) -> list[Job]:
        """Run one captured cycle for every row that can have one, by drafter and rule. Returns the other rows.

        `expected_rows`: rows there are or will soon be. Where all rows share a cycle, it is only launched: `go_on` or
        `land` reads its record.
        """
        if self.runner is None:
            return list(jobs)
        self.runner.expected_rows = expected_rows
        repeated, self._repeated = self._repeated, set()
        done: set[Job] = set()
        for group in row_groups((job for job in jobs if self.ready(job) and job not in repeated), self._rule):
            self._whole = whole = len(group.jobs) == len(jobs)
            if (self._on_host(group.jobs) and not whole) or not self._launch(group):
                continue
            done |= {*group.jobs}
            self._publisher.catch_up()
            if not whole:
                done -= self._land(self.live())
        return [job for job in jobs if job not in done]

    def _launch(self, group: RowGroup) -> bool:
        """Launch a cycle of rows that can share one; False where it must take the ordinary path."""
        jobs, drafter, rule = group.jobs, self._drafter(group.drafter), self._rule(group.rule)
        runner, self._since = self.runner, time.perf_counter()
        if runner is None:
            return False
        assert rule.device_rule is not None, "rows without a device rule take the ordinary path"
        rows, self._changed = [job.row for job in jobs], False
        self._free.begin()
        plain = self.fresh if drafter.needs.features else ()  # heads begin after the first token, on either path
        first = all(row in plain for row in rows)  # nobody drafts: first tokens do not wait for the head
        late = first and not self._on_host(jobs)
        with self._giving_up():
            if not late and self._choose(jobs, rule) is None:
                return False
            goals = [Budget(0)] * len(jobs) if first else [_stopping(job.budget, rule.stop_below) for job in jobs]
            budget = goals if first else limited(jobs, rule, drafter, self._context)
            by_policy = all(job.plan.depth is None for job in jobs)
            self._flight = runner.launch(rows, budget, goals, drafter, rule.device_rule, by_policy, plain)
            if late and self._flight is not None:
                self._changed = self._choose(jobs, rule)
        self._jobs, self._rule_name = jobs, group.rule
        self._drafts = any(job.budget.depth for job in jobs)
        return self._flight is not None

    def _choose(self, jobs: Sequence[Job], verifier: Verifier) -> bool | None:
        """Ask the policy for the budget of rows without a fixed depth. Returns whether some budget is another one than
        before; None where the policy wants the ordinary path."""
        if self.runner is None:
            return None
        self._free.look(jobs)
        if not (free := self._free.jobs):
            return False
        if self._on_host(jobs):
            return False if len(free) == len(jobs) and self._idles(jobs, verifier) else None
        drafter, rule = self._drafter(free[0].plan.drafter), verifier.device_rule
        assert rule is not None, "rows without a device rule take the ordinary path"
        chosen = self.runner.choose(self._free.rows, drafter, rule, self._policy, self._deferred)
        if chosen is None:
            return None
        if changed := self._free.assign(chosen):
            self._drafts = any(job.budget.depth for job in jobs)
        return changed

    def _on_host(self, jobs: Sequence[Job]) -> bool:
        """Whether the rows' drafter has no device form."""
        return self.runner is not None and not self.runner.drafts(self._drafter(jobs[0].plan.drafter))

    def _idles(self, jobs: Sequence[Job], verifier: Verifier) -> bool:
        """Ask the policy whether a drafter without a device form drafts nothing in the coming cycle, which can then be
        captured. Otherwise its decision is kept for `budgets`. First cycles are not: some drafters read prompts there.
        """
        drafter, rule = self._drafter(jobs[0].plan.drafter), verifier.device_rule
        if self.runner is None or rule is None or not self.runner.idles(drafter, rule):
            return False
        if self._decided.keys() == {*jobs} or not all(job.stats.cycles for job in jobs):
            return False
        budgets = self._policy.budget([job.row for job in jobs])
        if any(budget.depth for budget in budgets):
            self._decided = dict(zip(jobs, budgets, strict=True))
            return False
        for job, budget in zip(jobs, budgets, strict=True):
            job.budget = budget
        return True

    def budgets(self, jobs: Sequence[Job]) -> list[Budget]:
        """What the policy wants for rows on the ordinary path."""
        decided, self._decided = self._decided, {}
        if jobs and decided.keys() == {*jobs}:
            return [decided[job] for job in jobs]
        return self._policy.budget([job.row for job in jobs])

    def go_on(self, live: Sequence[Job]) -> bool:
        """Launch the next cycle of the rows under way, then read the last one's record. False where that cannot be,
        nothing having changed. While the device works, the policy is asked for the cycle after."""
        runner, flight = self.runner, self._flight
        if runner is None or flight is None or not flight.cycle.repeats:
            return False
        runner.expected_rows = len(live)
        if self._drafts and not (flight.size.depth > 0 and any(goal for _, _, goal in flight.lines)):
            return False  # the last cycle drafted nothing for once
        if live[0].plan.rule != self._rule_name:
            return False  # greedy rows alone have a cycle of their own
        following, rule, late = None, self._rule(self._rule_name), not self._on_host(self._jobs)
        with self._giving_up():
            changed = self._changed if late else self._choose(live, rule)
            if changed is None or (changed and (not flight.by_policy or live[0].budget.shape is not None)):
                return False
            following = runner.launch_next(flight, live[0].budget if changed else None, self._deferred)
            if following is not None:
                self._changed = self._choose(live, rule) if late else False
        if following is None:
            return False
        self._repeated = self._land(live)
        if self._repeated:
            runner.abandon(following)
        else:
            self._flight = following
            if following.cycle is not flight.cycle:
                self._stop_deferring()
        self._publisher.catch_up()
        return True

    def land(self) -> None:
        """Read the record of the cycle under way, if there is one. Rows get their tokens at once, callers at the
        publisher's next `catch_up`."""
        if self._flight is not None:
            self._repeated = self._land(self.live())
        self._stop_deferring()

    def _land(self, live: Sequence[Job]) -> set[Job]:
        """The rows whose cycle must be repeated on the ordinary path."""
        if self._flight is None or self.runner is None:
            return set()
        if not live:
            self.drop()
            return set()
        flight, self._flight, landed = self._flight, None, False
        with self._giving_up():
            record = self.runner.read(flight)
            landed = self._defer(flight, record, live) or self._commit(flight, record, live)
        if not landed:
            self._stop_deferring()
            if self.runner is not None:
                self.runner.abandon(flight)
            return set(live)
        now = time.perf_counter()
        if self.runner is not None:
            if flight.overlapped or not self._whole or not flight.cycle.repeats:  # others wait for the host in between
                cached = sum([len(job.row.tokens) for job in live]) if self._deferred is None else self._deferred.cached
                self.runner.paid(flight, len(live), cached, now - self._since)
            if self.runner.idled(flight) and not flight.captured:
                self._policy.price(0.0, now - self._since, len(live))
        self._since = now
        return set()

    def _commit(self, flight: Flight, record: Lines, live: Sequence[Job]) -> bool:
        """Commit a cycle to its rows; False where it must be repeated on the ordinary path."""
        self._stop_deferring()
        landed = None if self.runner is None else self.runner.land(flight, record)
        if landed is None:
            return False
        if flight.size.depth:
            self._policy.observe_captured([row for row, _ in landed], [result for _, result in landed])
        context = self._context
        self._publisher.later(
            [
                (job, result, row.extend(result.emitted, result.origins, context))
                for job, (row, result) in zip(live, landed, strict=True)
            ]
        )
        if any(job.stops for job in live):  # a text may end where it holds a string
            self._publisher.catch_up()
        return True

    def _defer(self, flight: Flight, record: Lines, live: Sequence[Job]) -> bool:
        """Keep a cycle's record, and commit it later. False where that cannot be, nothing having changed."""
        if self.runner is None or self._policy.reads_rows or any(job.streamed for job in live):
            return False
        deferred = self._deferred = self._deferred or self.runner.defer(flight, live)
        added = None if deferred is None else deferred.add(record)
        if deferred is None or added is None:
            return False
        results, ended = added
        if flight.size.depth:
            self._policy.observe_captured([job.row for job in live], results)
        if len(ended):
            self._commit_deferred(deferred.end(ended))
        if (due := deferred.due()) is not None:
            self._commit_deferred(deferred.take(due))
        return True

    def _commit_deferred(self, cycles: Sequence[RowCycles]) -> None:
        if self.runner is not None:
            self.runner.land_deferred(cycles)
        self._publisher.commit(cycles, self._context)

    def _stop_deferring(self) -> None:
        """Bring all rows up to date."""
        deferred, self._deferred = self._deferred, None
        if deferred is not None:
            deferred.record_lengths()
            self._commit_deferred(deferred.take())

    def drop(self) -> None:
        """Forget the cycle under way, as after a failure."""
        self._stop_deferring()
        if self._flight is not None and self.runner is not None:
            self.runner.abandon(self._flight)
        self._flight, self._jobs = None, ()
        self._free.begin()

    @contextmanager
    def _giving_up(self) -> Iterator[None]:
        """What fails on the device would fail again, after as long a time: cycles are no longer captured."""
        try:
            yield
        except Exception as error:
            self._note(f"captured cycles, given up: {error}")
            self._stop_deferring()
            reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            warn(f"cycles are no longer captured ({reason}); decoding on this GPU is several times slower")
            self.runner = self._flight = None


def _stopping(budget: Budget, stop_below: float) -> Budget:
    """A budget whose draft stops where the rule says so."""
    return budget if budget.stop_below >= stop_below else replace(budget, stop_below=stop_below)
