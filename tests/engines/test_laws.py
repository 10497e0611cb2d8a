"""The joint law of what the batched engine emits, with every parameter on: by enumeration of all its draws, and by
sampling. Rows of another drafter and rule decode beside the ones under test, so that groups are cut and joined."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import batches
import pytest
from automaton import STATES, automaton

from slipstream.audit.exact import Nosy, check_cycles, check_endings
from slipstream.audit.statistical import fit
from slipstream.audit.subject import Pair, Subject
from slipstream.core.interfaces import Policy
from slipstream.core.loop import NoiseFactory
from slipstream.core.noise import CounterNoise, Noise
from slipstream.core.rules import rules
from slipstream.core.sampling import Penalties, Sampling
from slipstream.core.types import Request, Row
from slipstream.drafters.ngram import NGram
from slipstream.drafters.none import NoDrafter
from slipstream.engines.native.batch import Batch
from slipstream.engines.native.job import Course, Job
from slipstream.engines.native.scheduler import Limits
from slipstream.models.table import Table
from slipstream.plan.policy import Fixed

EVERYTHING = Sampling(
    temperature=1.3,
    top_k=3,
    top_p=0.97,
    min_p=0.05,
    penalties=Penalties(repetition=1.2, presence=0.3, frequency=0.25),
    bias={1: 0.4, 3: -0.3},
    allowed=frozenset({0, 1, 2, 3}),
)
DENSE = Pair(Table.random(3, 2, 11, zeros=0), Table.random(3, 2, 12, zeros=0))  # no dead ends under the automaton


@dataclass(frozen=True)
class Batched(Subject):
    """A subject that is decoded by the batched engine, strangers beside it."""

    depth: int | None = 2
    strangers: int = 2

    def run(self, pair: Pair, rows: Sequence[Row], cycles: int | None = None, noise: NoiseFactory = CounterNoise):
        known = set(rows)

        def mixed(some: Sequence[Row], shared: Sequence[bool]) -> Noise:
            return noise(some, shared) if some[0] in known else CounterNoise(some, shared)

        drafters = {"own": self.drafter(pair.draft), "ngram": NGram(4), "none": NoDrafter(4)}
        parts = {"own": self.rule(), "coupled": rules.get("coupled")()}
        limits = Limits(1 << 20, 1 << 60)
        batch = Batch(
            self.model(pair.target), drafters.__getitem__, parts.__getitem__, self.policy(), limits, self.noise(mixed)
        )
        for i in range(self.strangers):
            batch.add(Job(Request([1, 2, 3, 1, 2], Sampling(seed=i), 1 << 20), Course("ngram", "coupled", 1 + i)))
        for row in rows:
            job = Job(row.request, Course("own", "own", self.depth))
            job.row = row
            batch.add(job)
        while any(row.finish is None for row in rows) and cycles != 0:
            batch.step()
            cycles = None if cycles is None else cycles - 1
        assert not batch.failures
        return []


def nosy() -> Policy:
    return Nosy(2)


@pytest.mark.parametrize("rule", ["token", "block"])
def test_the_law_is_exact_with_everything_on(rule):
    check = check_cycles("x", Batched(rules.get(rule), sampling=EVERYTHING), Pair.random(3))
    assert check.passed, check.detail


@pytest.mark.parametrize("rule", ["token", "block"])
def test_the_law_is_exact_under_a_policy_that_reads_everything(rule):
    subject = Batched(rules.get(rule), nosy, EVERYTHING, depth=None)
    check = check_cycles("x", subject, Pair.random(4))
    assert check.passed, check.detail


@pytest.mark.parametrize("rule", ["token", "block"])
def test_the_law_is_exact_to_the_end_of_a_request(rule):
    subject = Batched(rules.get(rule), sampling=EVERYTHING)
    check = check_endings("x", subject, Pair.random(2), max_tokens=4, end=2, min_tokens=2)
    assert check.passed, check.detail


@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize("drafter", ["table", "ngram"])
@pytest.mark.parametrize("through", [Subject, Batched])
def test_the_law_is_exact_under_a_grammar(rule, drafter, through):
    """A drafter that follows the grammar, and one that knows nothing of it, through the loop and through the engine."""
    subject = through(rules.get(rule), lambda: Fixed(2), replace(EVERYTHING, top_k=0), grammar=automaton(STATES))
    if drafter == "ngram":
        subject = replace(subject, drafter=lambda table: NGram(4))
    check = check_cycles("x", subject, replace(DENSE, prompt=(1, 2, 1, 2)))
    assert check.passed, check.detail


def test_the_enumeration_sees_a_draft_that_was_dropped_for_its_tokens():
    """The proof has teeth: an engine that keeps only drafts it likes is caught."""

    class Picky(NGram):
        def propose(self, rows, budget, noise):
            draft = batches.DRAFTERS["table"]().propose(rows, budget, noise)
            return draft if not len(draft.token) or int(draft.token[0]) != 1 else super().propose(rows, budget, noise)

    subject = Batched(rules.get("token"), sampling=EVERYTHING, drafter=lambda table: Picky(4), strangers=0)
    assert not check_cycles("x", subject, batches.PAIR).passed


@pytest.mark.parametrize("rule", ["token", "block", "coupled"])
def test_samples_follow_the_law_with_everything_on(rule):
    subject, pair, length = Batched(rules.get(rule), sampling=EVERYTHING, grammar=automaton(STATES)), DENSE, 3
    rows = [subject.row(pair, length, seed=i) for i in range(1500)]
    subject.run(pair, rows)
    counts: Counter[Hashable] = Counter(tuple(row.output) for row in rows)
    found = fit(counts, {**subject.joint(pair, length)})
    assert found.passed, str(found)


def test_samples_of_one_seed_follow_the_law_too():
    subject, pair = Batched(rules.get("block"), sampling=EVERYTHING), Pair.random(6)
    rows = [subject.row(pair, 3, seed=7, sample=i) for i in range(1500)]
    subject.run(pair, rows)
    found = fit(Counter(tuple(row.output) for row in rows), {**subject.joint(pair, 3)})
    assert found.passed, str(found)
