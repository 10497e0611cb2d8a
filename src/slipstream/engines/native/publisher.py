"""Publishes emitted tokens to waiting requests: at once, or while the device runs the next cycle."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.core.types import Origin
from slipstream.engines.base import Logprob, SpeculationStats
from slipstream.engines.completion import DraftedTree
from slipstream.engines.job import Job
from slipstream.engines.native.captured.result import CycleResult


class ChunkPublisher:
    """Publishes the chunks of all jobs, and counts their tokens."""

    def __init__(self) -> None:
        self.stats = SpeculationStats()
        self._pending: list[tuple[Job, CycleResult, int]] = []  # with the number of committed tokens

    def later(self, job: Job, result: CycleResult, kept: int) -> None:
        """Publish the result of a captured cycle at the next `catch_up`. `kept`: tokens that the row committed."""
        self._pending.append((job, result, kept))

    def catch_up(self) -> None:
        """Publish all pending results. A failure ends only the job concerned."""
        pending, self._pending = self._pending, []
        for job, result, kept in pending:
            try:
                self.tell(job, result.emitted[:kept], result.origins[:kept], (), len(result.path), result.levels)
            except Exception as error:
                job.end("error", str(error))

    def tell(
        self,
        job: Job,
        tokens: Sequence[int],
        origins: Sequence[Origin],
        logprobs: Sequence[Logprob],
        accepted: int,
        drafted: Sequence[int],
        shown: DraftedTree | None = None,
    ) -> None:
        """Publish the tokens of one cycle. `drafted`: number of drafted tokens by position."""
        chunk = job.take(tokens, origins, logprobs, shown)
        kept = len(chunk.token_ids)
        for stats in (job.stats, self.stats):  # before the chunk is published: its reader may read the counts
            stats.book(drafted, min(kept, accepted), kept)
        job.put(chunk)
