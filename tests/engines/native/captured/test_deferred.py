"""Cycles that are committed later: tokens, origins, counts and ends are the same as of cycles committed at once."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("triton", reason="needs Triton (pip install triton); its interpreter will do")

from slipstream.core.sampling import Sampling
from slipstream.core.types import Request
from slipstream.drafters.device.interface import PlainDecoding
from slipstream.engines.job import DecodingPlan, Job
from slipstream.engines.native.captured import deferred as deferred_cycles
from slipstream.engines.native.captured.deferred import DeferredCycles
from slipstream.engines.native.captured.result import told_chains
from slipstream.engines.native.captured.sizes import BatchShape
from slipstream.engines.native.publisher import ChunkPublisher

VOCAB, CONTEXT = 40, 90


def jobs_of(random: np.random.Generator, count: int) -> list[Job]:
    """Requests of different lengths, some with end tokens."""
    ends = [frozenset(random.integers(VOCAB, size=n).tolist()) for n in random.integers(4, size=count)]
    lengths, limits = random.integers(2, 60, size=count), random.integers(1, 40, size=count)
    plan = DecodingPlan("eagle", "greedy", None)
    return [
        Job(Request([1] * int(length), Sampling(0), int(most), end), plan)
        for length, most, end in zip(lengths, limits, ends, strict=True)
    ]


def record_of(random: np.random.Generator, jobs: dict[int, Job], lines: int, depth: int) -> np.ndarray:
    """What a cycle may say: no more than a row has room for."""
    record = np.zeros((lines, 4 + depth), np.int64)
    for line in range(lines):
        left = jobs[line].row.room(CONTEXT) if line in jobs else depth + 1
        drafted = int(random.integers(0, min(depth, max(0, left - 1)) + 1))
        record[line, :4] = random.integers(0, drafted + 1), random.integers(VOCAB), 1, drafted
        record[line, 4 : 4 + drafted] = random.integers(VOCAB, size=drafted)
    return record


def flight_of(jobs: list[Job], depth: int) -> SimpleNamespace:
    return SimpleNamespace(
        lines=[(line, job.row, depth) for line, job in enumerate(jobs)],
        room=[(100, 10)] * len(jobs),
        key=SimpleNamespace(depth=depth),
        cut=False,
        cycle=SimpleNamespace(told=told_chains),
        device=PlainDecoding(),
    )


class AtOnce:
    """Jobs whose cycles are committed at once."""

    def __init__(self, jobs: list[Job]) -> None:
        self.jobs, self.publisher = dict(enumerate(jobs)), ChunkPublisher()

    @property
    def live(self) -> dict[int, Job]:
        return {line: job for line, job in self.jobs.items() if not job.done}

    def add(self, record: np.ndarray) -> None:
        for line, job in self.live.items():
            (result,) = told_chains([record[line].tolist()])
            self.publisher.later([(job, result, job.row.extend(result.emitted, result.origins, CONTEXT))])
        self.publisher.catch_up()


@pytest.mark.parametrize("depth", [0, 1, 4])
@pytest.mark.parametrize("seed", range(4))
def test_cycles_that_are_committed_later_give_the_same(depth, seed, monkeypatch):
    monkeypatch.setattr(deferred_cycles, "SOME_ROWS", 2)
    monkeypatch.setattr(deferred_cycles, "MOST_CYCLES", 8)
    random = np.random.default_rng(seed)
    jobs, later = jobs_of(np.random.default_rng(seed), 9), jobs_of(np.random.default_rng(seed), 9)
    direct, publisher = AtOnce(jobs), ChunkPublisher()
    flight = flight_of(later, depth)
    deferred = DeferredCycles(flight, later, CONTEXT)
    while direct.live:
        lengths = {line: job.row.length for line, job in direct.live.items()}
        assert (deferred.longest, deferred.cached) == (max(lengths.values()), sum(lengths.values()))
        assert deferred.room(2) == min(max(10, 98 - length) for length in lengths.values())
        record = record_of(random, direct.live, 9, depth)
        direct.add(record)
        results, ended = deferred.add(record)
        assert list(results.accepted) == [record[line, 0] for line in lengths]
        assert results[0] == told_chains([record[next(iter(lengths))].tolist()])[0]
        assert set(ended.tolist()) == lengths.keys() - direct.live.keys()
        publisher.commit(deferred.end(ended), CONTEXT)
        if (due := deferred.due()) is not None:
            publisher.commit(deferred.take(due), CONTEXT)
        if random.random() < 0.3:
            deferred.update_lengths()
            assert [job.row.length for job in later] == [job.row.length for job in jobs]
            assert [job.row.left for job in later] == [job.row.left for job in jobs]
            rows = [job.row for job in direct.live.values()]
            for some in (rows, rows[1:]):
                assert not some or deferred.shape(some, 5) == BatchShape.of(some, 5)
        if random.random() < 0.1:
            publisher.commit(deferred.take(), CONTEXT)
            assert [job.row.tokens for job in later] == [job.row.tokens for job in jobs]
    for own, other in zip(later, jobs, strict=True):
        assert (own.row.tokens, own.row.origins) == (other.row.tokens, other.row.origins)
        assert own.row.finish_reason == other.row.finish_reason
        assert own.result() == other.result()
    assert publisher.stats == direct.publisher.stats


def test_a_row_without_a_law_leaves_everything_as_it_was():
    jobs = jobs_of(np.random.default_rng(0), 3)
    deferred = DeferredCycles(flight_of(jobs, 0), jobs, CONTEXT)
    before = deferred.cached
    assert deferred.add(np.array([[0, 1, 1, 0], [0, 1, 0, 0], [0, 1, 1, 0]])) is None
    assert deferred.cached == before
    assert not deferred.take()
