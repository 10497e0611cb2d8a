"""Publishes emitted tokens to waiting requests: at once, or while the device runs the next cycle."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.core.types import Origin
from slipstream.engines.base import Logprob, SpeculationStats
from slipstream.engines.completion import DraftedTree
from slipstream.engines.job import Job
from slipstream.engines.native.captured.result import CycleResult


class ChunkPublisher:
    def __init__(self) -> None:
        self.stats = SpeculationStats()
        self._untold: list[tuple[Job, CycleResult, int]] = []  # and how many tokens of it were committed

    def later(self, job: Job, told: CycleResult, kept: int) -> None:
        """What a cycle on the device came to, of which the row has kept so many tokens."""
        self._untold.append((job, told, kept))

    def catch_up(self) -> None:
        """Tell all that is still to be told. What goes wrong with one job ends that job alone."""
        untold, self._untold = self._untold, []
        for job, told, kept in untold:
            try:
                self.tell(job, told.emitted[:kept], told.origins[:kept], (), len(told.path), told.levels)
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
        chunk = job.take(tokens, origins, logprobs, shown)
        kept = len(chunk.token_ids)
        for stats in (job.stats, self.stats):  # before the chunk is out: whoever waits for the last one reads them
            stats.book(drafted, min(kept, accepted), kept)
        job.put(chunk)
