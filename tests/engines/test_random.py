"""Requests of every kind come, go, wait and are cancelled at random. Whatever happens around it, each one's output is
what the one-row loop gives for it alone, and all that was taken is given back."""

from __future__ import annotations

import batches
from batches import PAIR, VOCAB
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from slipstream.core.sampling import Penalties, Sampling
from slipstream.core.types import Origin, Request
from slipstream.engines.native.job import Job
from slipstream.engines.native.scheduler import Limits
from slipstream.models.table import TableModel

CONTEXT = 20
tokens = st.integers(0, VOCAB - 1)
samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.5, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 3]),
    top_p=st.sampled_from([1.0, 0.7]),
    min_p=st.sampled_from([0.0, 0.2]),
    seed=st.integers(0, 2**63 - 1),
    penalties=st.builds(
        Penalties,
        repetition=st.sampled_from([1.0, 1.4]),
        presence=st.sampled_from([0.0, 0.5]),
        frequency=st.sampled_from([0.0, -0.3]),
    ),
    bias=st.dictionaries(tokens, st.floats(-2, 2), max_size=2),
)
requests = st.builds(
    Request,
    prompt=st.lists(tokens, min_size=1, max_size=7),
    sampling=samplings,
    max_tokens=st.sampled_from([0, 1, 2, 9, 30]),
    ends=st.sampled_from([frozenset[int](), frozenset({3})]),
    sample=st.integers(0, 2),
)


class Traffic(RuleBasedStateMachine):
    jobs = Bundle("jobs")

    @initialize(rows=st.sampled_from([1, 2, 5]), places=st.sampled_from([32, 64, 4096]), prefill=st.sampled_from([3, 9]))
    def start(self, rows: int, places: int, prefill: int) -> None:
        self.model = TableModel(PAIR.target, CONTEXT)
        self.batch = batches.batch(Limits(rows, places, prefill), model=self.model)
        self.all: list[Job] = []

    @rule(
        target=jobs,
        request=requests,
        drafter=st.sampled_from(["none", "ngram", "table"]),
        how=st.sampled_from(["token", "block", "coupled"]),
        depth=st.sampled_from([None, 0, 1, 2, 5]),
    )
    def submit(self, request: Request, drafter: str, how: str, depth: int | None) -> Job:
        how = "greedy" if request.sampling.temperature == 0 else how
        self.all.append(batches.send(self.batch, request, drafter, how, depth))
        return self.all[-1]

    @rule(times=st.integers(1, 4))
    def step(self, times: int) -> None:
        for _ in range(times):
            self.batch.step()

    @rule(job=jobs)
    def cancel(self, job: Job) -> None:
        job.cancel()

    @invariant()
    def limits_are_kept(self) -> None:
        plan = self.batch.scheduler
        assert len(plan.running) <= plan.limits.rows
        assert not plan.running or plan.footprint(plan.running) <= plan.limits.tokens
        assert set(self.model._cache) == {job.row for job in plan.running}
        self.model.check_integrity()

    def teardown(self) -> None:
        batches.finish(self.batch)
        for job in self.all:
            compare(job)
        assert self.batch.tally.emitted == sum(len(job.row.output) for job in self.all)


def compare(job: Job) -> None:
    """With a fixed depth every token and origin is the reference's; a policy's free choice changes neither the greedy
    nor the coupled outcome, and must keep the limits in any case."""
    seen, row = batches.chunks(job), job.row
    assert [token for chunk in seen for token in chunk.tokens] == row.output
    assert [chunk.finish for chunk in seen[:-1]] == [None] * (len(seen) - 1)
    assert job.tally.emitted == len(row.output) == len(row.origins)
    assert sum(job.tally.accepted) == row.origins.count(Origin.ACCEPTED)
    assert not job.error
    if job.course.depth is None and job.course.rule not in ("greedy", "coupled"):
        assert len(row.output) <= min(row.request.max_tokens, CONTEXT - len(row.request.prompt))
        return
    expected = batches.alone(job, CONTEXT)
    size = len(row.output) if row.finish == "cancelled" else len(expected.output)
    assert row.output == expected.output[:size]
    assert row.finish == ("cancelled" if job.cancelled and row.finish == "cancelled" else expected.finish)
    if job.course.depth is not None:
        assert row.origins == expected.origins[:size]


TestTraffic = Traffic.TestCase
TestTraffic.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
