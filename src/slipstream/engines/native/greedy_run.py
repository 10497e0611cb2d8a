"""Several cycles of plain greedy decoding in one call of the model, for a row that decodes alone.

Between two passes of a small model the host takes a tenth of the time: what a pass reads evicts everything else from
the caches. The tokens are those of ordinary cycles, which they count as. A run is short enough that tokens still come
smoothly, and that a new request waits no longer than a person notices.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from slipstream.core.interfaces import Model, Policy, Verifier
from slipstream.core.shaping import needs_shaping
from slipstream.core.types import Origin
from slipstream.engines.job import Job
from slipstream.engines.native.publisher import ChunkPublisher

LONGEST = 0.03  # seconds of a run
MOST = 8  # tokens of a run


class GreedyRuns:
    """`rule` gives the rule of a name."""

    def __init__(
        self, model: Model, policy: Policy, rule: Callable[[str], Verifier], publisher: ChunkPublisher
    ) -> None:
        self._model, self._policy, self._rule, self._publisher = model, policy, rule, publisher
        self._seconds = LONGEST / 2  # of a token in the last run

    def run(self, jobs: Sequence[Job], decide: Callable[[Sequence[Job]], None]) -> bool:
        """Run the coming cycles of the only job, for which `decide` was called. False, with nothing done, where they
        must be ordinary ones. `decide` is called for each further cycle."""
        if len(jobs) > 1 or not self._suits(jobs[0]):
            return False
        job = jobs[0]
        count = min(MOST, int(LONGEST / self._seconds), job.row.room(self._model.context))
        if job.plan.depth is None:
            count = min(count, 1 + self._policy.resting([job.row]))
        if count < 2:
            return False
        started = time.perf_counter()
        try:
            tokens = self._model.continue_greedily(job.row, count)
        except MemoryError:  # one token may still fit
            return False
        if not tokens:
            return False
        self._seconds = (time.perf_counter() - started) / len(tokens)
        for n in range(len(tokens)):
            if n:
                decide(jobs)
            self._policy.price(0.0, self._seconds, 1)
        with job.blamed():
            kept = job.row.extend(tokens, [Origin.PLAIN] * len(tokens), self._model.context)
            self._publisher.publish_plain(job, tokens[:kept])
        return True

    def _suits(self, job: Job) -> bool:
        """Whether the next tokens of a row are the most probable ones, and nobody wants more than them."""
        rule = self._rule(job.plan.rule).device_rule
        if job.budget.depth or rule is None or not rule.greedy or not job.stats.cycles:
            return False
        return job.top is None and job.row.request.sampling.temperature == 0 and not needs_shaping(job.row)
