"""Several cycles in one call of the model: plain ones of all rows, or of a single row with chains of a head.

Between two passes of a small model the host takes a tenth of a plain cycle and a quarter of one that drafts: what a
pass reads evicts everything else from the caches. Tokens, drafts and counts are those of ordinary cycles. A run is
short enough that tokens still come smoothly, and that a new request waits no longer than a person notices.

Tokens are the most probable ones, or are drawn at a temperature by the rules `token`, `block` and `coupled`. Top-k,
top-p, min-p, penalties, biases, token sets and `min_tokens` may shape their laws; grammars and logits processors take
single cycles.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from slipstream.core.device import DeviceVerdict, Draws
from slipstream.core.interfaces import Drafter, Model, Policy, Verifier
from slipstream.core.loop import NoiseFactory
from slipstream.core.shaping import needs_callback
from slipstream.core.types import Row, RunCycle
from slipstream.engines.job import Job
from slipstream.engines.native.publisher import ChunkPublisher

LONGEST = 0.04  # seconds of a run
MOST = 16  # cycles of a run
COMPARING = DeviceVerdict.TOKEN, DeviceVerdict.BLOCK  # the laws of draft and target


class CycleRuns:
    """`rule` and `drafter` give those of a name, `make_noise` the noise of rows. `note` counts a failure by its
    sentence."""

    def __init__(
        self,
        model: Model,
        policy: Policy,
        rule: Callable[[str], Verifier],
        drafter: Callable[[str], Drafter],
        make_noise: NoiseFactory,
        publisher: ChunkPublisher,
        note: Callable[[str], None],
    ) -> None:
        self._model, self._policy, self._publisher, self._make_noise = model, policy, publisher, make_noise
        self._rule, self._drafter, self._note = rule, drafter, note
        # of a cycle, by the number of rows and whether they draft
        self._seconds: defaultdict[tuple[int, bool], float] = defaultdict(lambda: LONGEST / 2)

    def run(self, jobs: Sequence[Job], decide: Callable[[Sequence[Job]], None]) -> bool:
        """Run the coming cycles of these jobs, for which `decide` was called. False, with nothing done, where they must
        be ordinary ones. `decide` is called for each further cycle."""
        if not self._model.has_cycle_runs or not all(map(self._suits, jobs)):
            return False
        return self._run_row(jobs, decide) if len(jobs) == 1 else self._run_rows(jobs, decide)

    def _run_row(self, jobs: Sequence[Job], decide: Callable[[Sequence[Job]], None]) -> bool:
        job, depth = jobs[0], jobs[0].budget.depth
        most = self._most(jobs)
        started = time.perf_counter()
        try:
            head = self._drafter(job.plan.drafter).chain_head(job.row, most * (depth + 1)) if depth else None
            read = time.perf_counter()
            cycles = self._cycles(job, most, depth, head)
        except MemoryError:  # one token may still fit
            return False
        except Exception as error:  # an ordinary cycle may do, or meets it again and ends whom it concerns
            self._note(f"several cycles: {error}")
            return False
        if not cycles:
            return False
        ended, reading = time.perf_counter(), read - started  # what the head had missed
        self._seconds[1, depth > 0] = (ended - started) / len(cycles)
        between = (ended - read - sum(cycle.drafting + cycle.scoring for cycle in cycles)) / len(cycles)
        with job.blamed():
            kept = 0
            for n, cycle in enumerate(cycles):
                if n:
                    decide(jobs)
                if cycle.drafted:
                    self._policy.observe_chain(job.row, cycle.drafted, cycle.accepted)
                drafting = cycle.drafting + (0.0 if n else reading)
                self._policy.price(drafting, cycle.scoring + between, 1 + cycle.drafted)
                kept += job.row.extend(cycle.tokens, cycle.origins, self._model.context)
            self._publisher.publish_run(job, cycles, kept)
        return True

    def _run_rows(self, jobs: Sequence[Job], decide: Callable[[Sequence[Job]], None]) -> bool:
        if any(job.budget.depth for job in jobs):
            return False
        most, rows = self._most(jobs), [job.row for job in jobs]
        started = time.perf_counter()
        try:
            draws = [self._draws(job) for job in jobs]
            if not all(map(_are_known, draws, rows)):
                return False
            cycles = self._model.run_rows(rows, most, draws)
        except MemoryError:  # one token may still fit
            return False
        except Exception as error:  # an ordinary cycle may do, or meets it again and ends whom it concerns
            self._note(f"several cycles of several rows: {error}")
            return False
        if not cycles[0]:
            return False
        self._seconds[len(jobs), False] = seconds = (time.perf_counter() - started) / len(cycles[0])
        kept = [0] * len(jobs)
        for n in range(len(cycles[0])):
            if n:
                decide(jobs)
            self._policy.price(0.0, seconds, len(jobs))
            for i, (row, own) in enumerate(zip(rows, cycles, strict=True)):
                kept[i] += row.extend(own[n].tokens, own[n].origins, self._model.context)
        for job, own, tokens in zip(jobs, cycles, kept, strict=True):
            with job.blamed():
                self._publisher.publish_run(job, own, tokens)
        return True

    def _most(self, jobs: Sequence[Job]) -> int:
        """How many cycles to run at most."""
        seconds = self._seconds[len(jobs), any(job.budget.depth for job in jobs)]
        most = min(MOST, int(LONGEST / seconds), *(job.row.room(self._model.context) for job in jobs))
        if free := [job.row for job in jobs if job.plan.depth is None]:
            most = min(most, 1 + self._policy.steady(free))
        return max(1, most)

    def chains_only(self, job: Job) -> bool:
        """Whether a tree would keep a row from such runs, which a chain does not."""
        drafter = self._drafter(job.plan.drafter)
        return self._model.has_cycle_runs and drafter.has_chain_head and self._is_simple(job)

    def _suits(self, job: Job) -> bool:
        """Whether a row has read its prompt, and drafts chains or nothing."""
        return job.budget.shape is None and job.stats.cycles > 0 and self._is_simple(job)

    def _is_simple(self, job: Job) -> bool:
        """Whether the next tokens of a row are the most probable ones or are drawn from laws that the kernel knows,
        and nobody wants more than them."""
        rule, sampling = self._rule(job.plan.rule).device_rule, job.row.request.sampling
        if rule is None or rule.lossy or job.top is not None or needs_callback(job.row):
            return False
        if sampling.temperature == 0:
            return rule.greedy
        coupled = rule.verdict is DeviceVerdict.MATCH and rule.shared
        return coupled or rule.verdict in COMPARING

    def _cycles(self, job: Job, most: int, depth: int, head: Any | None) -> list[RunCycle]:
        """`head`: of drafts. There are no cycles without it, or without a stream of draws."""
        draws = self._draws(job)
        if (depth and head is None) or not _are_known(draws, job.row):
            return []
        return self._model.run_cycles(job.row, most, depth, head, draws)

    def _draws(self, job: Job) -> Draws | None:
        """How the tokens of a row are drawn; None at temperature 0 and where there is no stream of draws."""
        sampling, rule = job.row.request.sampling, self._rule(job.plan.rule)
        if sampling.temperature == 0 or rule.device_rule is None:
            return None
        stream = self._make_noise([job.row], [rule.shared]).stream(0)
        return None if stream is None else Draws(sampling, rule.device_rule.verdict, stream)


def _are_known(draws: Draws | None, row: Row) -> bool:
    """Whether the draws of a row are known, if its tokens are sampled."""
    return draws is not None or row.request.sampling.temperature == 0
