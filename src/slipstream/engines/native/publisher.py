"""Publishes emitted tokens to waiting requests: at once, or while the device runs the next cycle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from slipstream.core.types import Origin, RunCycle
from slipstream.engines.base import Logprob, SpeculationStats
from slipstream.engines.completion import DraftedTree
from slipstream.engines.job import ChainCounts, Emission, Job
from slipstream.engines.native.captured.result import CycleResult, RowCycles


class ChunkPublisher:
    """Publishes the chunks of all jobs, and counts their tokens."""

    def __init__(self) -> None:
        self.stats = SpeculationStats()
        self._pending: list[tuple[Job, CycleResult, int]] = []  # and how many tokens of it were committed

    def later(self, results: Iterable[tuple[Job, CycleResult, int]]) -> None:
        """Publish the results of a captured cycle at the next `catch_up`, each with the number of tokens that the row
        committed."""
        self._pending += results

    def catch_up(self) -> None:
        """Publish all pending results. A failure ends only the job concerned."""
        pending, self._pending = self._pending, []
        totals: dict[ChainCounts, list[Any]] = {}  # the same tuple for all jobs, and cycles
        for job, result, kept in pending:
            try:
                drafted, parents, path, _, tokens, origins, _, _ = result
                accepted = len(path)
                if kept < len(tokens):
                    tokens, origins, accepted = tokens[:kept], origins[:kept], min(kept, accepted)
                if job.stops or (drafted and type(parents) is not range):  # a tree
                    logprobs = () if job.top is None else _logprobs(result, kept, job.top)
                    shown = None if job.top is None else _drafted(result)
                    self.publish(job, tokens, origins, logprobs, accepted, result.levels, shown)
                    continue
                counts = len(drafted), accepted, kept
                if (total := totals.get(counts)) is None:
                    total = totals[counts] = [counts, 0]
                total[1] += 1
                counts = total[0]
                if job.top is None:  # of many rows most often
                    job.emit(tokens, origins, counts=(counts,))
                else:
                    job.emit(tokens, origins, _logprobs(result, kept, job.top), _drafted(result), (counts,))
            except Exception as error:
                job.end("error", str(error))
        for (depth, accepted, kept), cycles in totals.values():
            self.stats.add(depth, accepted, cycles * kept, cycles)

    def commit(self, cycles: Sequence[RowCycles], context: int) -> None:
        """Commit what several cycles emitted to its rows, and publish it. A failure ends only the job concerned."""
        self.catch_up()
        counted = list[ChainCounts]()
        for job, tokens, origins, counts in cycles:
            try:
                if (kept := job.row.extend(tokens, origins, context)) < len(tokens):
                    tokens, origins, counts = tokens[:kept], origins[:kept], _first_counts(counts, kept)
                counted += counts
                job.emit(tokens, origins, counts=counts)
            except Exception as error:
                job.end("error", str(error))
        for (depth, accepted, kept), count in Counter(counted).items():
            self.stats.add(depth, accepted, count * kept, count)

    def publish(
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
        self._hand_out(
            job,
            Emission(tokens, origins, logprobs, draft=shown),
            lambda stats, kept: stats.book(drafted, min(kept, accepted), kept),
        )

    def publish_run(self, job: Job, cycles: Sequence[RunCycle], kept: int) -> None:
        """Publish the first `kept` tokens of several cycles, which drafted chains or nothing."""
        tokens = [token for cycle in cycles for token in cycle.tokens][:kept]
        origins = [origin for cycle in cycles for origin in cycle.origins][:kept]

        def count(stats: SpeculationStats, left: int) -> None:
            for cycle in cycles:
                own = min(left, len(cycle.tokens))
                if own:
                    stats.book([1] * cycle.drafted, min(own, cycle.accepted), own)
                left -= own

        self._hand_out(job, Emission(tokens, origins), count)

    def _hand_out(self, job: Job, new: Emission, count: Callable[[SpeculationStats, int], None]) -> None:
        """Publish new tokens. `count` adds the number of tokens before a stop string to statistics."""
        tokens, origins, logprobs, shown = new.token_ids, new.origins, new.logprobs, new.draft
        chunk = job.take(tokens, origins, logprobs, shown) if job.stops else None
        kept = len(tokens) if chunk is None else len(chunk.token_ids)
        with job.counting:  # before the chunk is published: its reader may read the counts
            count(job.stats, kept)
        count(self.stats, kept)
        if chunk is None:
            job.emit(tokens, origins, logprobs, shown)
        else:
            job.put(chunk)


def _first_counts(counts: Sequence[ChainCounts], tokens: int) -> list[ChainCounts]:
    """The counts of the cycles that so many tokens came from."""
    first = list[ChainCounts]()
    for drafted, accepted, emitted in counts:
        if tokens:
            own = min(tokens, emitted)
            first.append((drafted, min(own, accepted), own))
            tokens -= own
    return first


def _logprobs(result: CycleResult, kept: int, top: int) -> list[Logprob]:
    """The log-probabilities that a captured cycle recorded for the first `kept` tokens."""
    emitted = result.emitted[:kept]
    tops = result.top_logprobs if top else [()] * len(emitted)
    return [
        Logprob(token, value, tuple(likely[:top]))
        for token, value, likely in zip(emitted, result.logprobs, tops, strict=False)
    ]


def _drafted(result: CycleResult) -> DraftedTree | None:
    """What a row drafted in a captured cycle; None where it drafted nothing."""
    if not result.tokens:
        return None
    return DraftedTree(tuple(result.tokens), tuple(result.parents), tuple(result.path))
