"""Requests of every kind come, go, wait and are cancelled at random. Whatever happens around it, each one's output is
what the one-row loop gives for it alone, and all that was taken is given back."""

from __future__ import annotations

from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import batches
from batches import PAIR, VOCAB
from slipstream.core.sampling import Sampling
from slipstream.core.types import Origin, Request
from slipstream.engines.job import Job
from slipstream.engines.native.scheduler import Limits
from slipstream.models.run.table_model import TableModel

CONTEXT = 20


def random_sampling(rng: Random) -> Sampling:
    names = "repetition_penalty", "presence_penalty", "frequency_penalty"
    penalties = dict(zip(names, (rng.choice([1.0, 1.4]), rng.choice([0.0, 0.5]), rng.choice([0.0, -0.3])), strict=True))
    return Sampling(
        temperature=rng.choice([0.0, 0.5, 1.0, 1.7]),
        top_k=rng.choice([0, 0, 3]),
        top_p=rng.choice([1.0, 0.7]),
        min_p=rng.choice([0.0, 0.2]),
        seed=rng.getrandbits(63),
        **rng.choice([penalties, {}]),
        logit_bias=rng.choice([{}, {rng.randrange(VOCAB): rng.uniform(-2, 2)}]),
        allowed_token_ids=rng.choice([None, None, frozenset(range(VOCAB))]),
    )


def random_request(rng: Random) -> Request:
    return Request(
        prompt=[rng.randrange(VOCAB) for _ in range(rng.randint(1, 7))],
        sampling=random_sampling(rng),
        max_tokens=rng.choice([0, 1, 6, 12, 12, 30]),
        ends=rng.choice([frozenset[int](), frozenset({3})]),
        sample=rng.randrange(3),
    )


class Traffic(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 2**32))
    def start(self, seed: int) -> None:
        self.rng = Random(seed)
        rows, places, prefill = self.rng.choice([1, 4, 6, 6]), self.rng.choice([64, 999, 999]), self.rng.choice([3, 9])
        self.model = TableModel(PAIR.target, CONTEXT)
        self.batch = batches.batch(Limits(rows, places, prefill), model=self.model)
        self.all: list[Job] = []

    @rule()
    def submit(self) -> None:
        for _ in range(self.rng.randint(1, 4)):
            request, pick = random_request(self.rng), self.rng.choice
            how = pick(["token", "block", "coupled"]) if request.sampling.temperature else "greedy"
            depth = pick([1, 2, 3, 5, 0, None])
            self.all.append(batches.send(self.batch, request, pick(["table", "table", "ngram", "none"]), how, depth))

    @rule()
    def step(self) -> None:
        for _ in range(self.rng.randint(1, 4)):
            self.batch.step()

    @rule()
    def cancel(self) -> None:
        for job in self.rng.sample(self.all, min(1, len(self.all))):
            job.cancel()

    @invariant()
    def limits_are_kept(self) -> None:
        plan = self.batch.scheduler
        assert len(plan.running) <= plan.rows
        assert plan.taken <= plan.tokens or len(plan.running) == 1
        assert set(self.model._cache) == {job.row for job in plan.running}
        self.model.check_integrity()

    def teardown(self) -> None:
        batches.finish(self.batch)
        for job in self.all:
            compare(job)
        assert self.batch.publisher.stats.emitted == sum(len(job.row.output) for job in self.all)
        assert not self.batch.failures


def compare(job: Job) -> None:
    """With a fixed depth every token and origin is the reference's; a policy's free choice changes neither the greedy
    nor the coupled outcome, and must keep the limits in any case."""
    seen, row = batches.chunks(job), job.row
    assert [token for chunk in seen for token in chunk.token_ids] == row.output
    assert [chunk.finish_reason for chunk in seen[:-1]] == [None] * (len(seen) - 1)
    assert job.stats.emitted == len(row.output) == len(row.origins)
    assert sum(job.stats.accepted) == row.origins.count(Origin.ACCEPTED)
    assert not job.error
    if job.plan.depth is None and job.plan.rule not in ("greedy", "coupled"):
        assert len(row.output) <= min(row.request.max_tokens, CONTEXT - len(row.request.prompt))
        return
    expected = batches.alone(job, CONTEXT)
    size = len(row.output) if row.finish_reason == "cancelled" else len(expected.output)
    assert row.output == expected.output[:size]
    assert row.finish_reason == (
        "cancelled" if job.cancelled and row.finish_reason == "cancelled" else expected.finish_reason
    )
    if job.plan.depth is not None:
        assert row.origins == expected.origins[:size]


TestTraffic = Traffic.TestCase
TestTraffic.settings = settings(max_examples=12, stateful_step_count=12, deadline=None, derandomize=True)
