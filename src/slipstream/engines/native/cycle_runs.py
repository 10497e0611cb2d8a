"""Several cycles in one call of the model, for a row that decodes alone: plain ones, or with chains of a head.

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
from slipstream.core.types import RunCycle
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
        self._seconds: defaultdict[bool, float] = defaultdict(lambda: LONGEST / 2)  # of a cycle, plain and with a draft

    def run(self, jobs: Sequence[Job], decide: Callable[[Sequence[Job]], None]) -> bool:
        """Run the coming cycles of the only job, for which `decide` was called. False, with nothing done, where they
        must be ordinary ones. `decide` is called for each further cycle."""
        if len(jobs) > 1 or not self._suits(jobs[0]):
            return False
        job, depth = jobs[0], jobs[0].budget.depth
        most = max(1, min(MOST, int(LONGEST / self._seconds[depth > 0]), job.row.room(self._model.context)))
        if job.plan.depth is None:
            most = min(most, 1 + self._policy.steady([job.row]))
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
        self._seconds[depth > 0] = (ended - started) / len(cycles)
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
        sampling, draws = job.row.request.sampling, None
        if depth and head is None:
            return []
        if sampling.temperature > 0:
            rule = self._rule(job.plan.rule)
            stream = self._make_noise([job.row], [rule.shared]).stream(0)
            if stream is None or rule.device_rule is None:
                return []
            draws = Draws(sampling, rule.device_rule.verdict, stream)
        return self._model.run_cycles(job.row, most, depth, head, draws)
