"""The joint law of what the batched engine emits, with every parameter on: by enumeration of all its draws, and by
sampling. Rows of another drafter and rule decode beside the ones under test, so that groups are cut and joined."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields, replace

import pytest

from automaton import STATES, automaton
from slipstream.audit.planted.chain import PLANTED
from slipstream.audit.statistical import fit
from slipstream.audit.subject import Pair, Subject
from slipstream.audit.tables.exact import HistoryPolicy, check_cycles, check_endings
from slipstream.core.interfaces import Policy
from slipstream.core.loop import NoiseFactory
from slipstream.core.noise import CounterNoise, Noise
from slipstream.core.rules import rules
from slipstream.core.sampling import Sampling
from slipstream.core.types import Request, Row
from slipstream.drafters.ngram import NGram
from slipstream.drafters.none import NoDrafter
from slipstream.engines.job import DecodingPlan, Job
from slipstream.engines.native.batch import Batch
from slipstream.engines.native.scheduler import Limits
from slipstream.models.run.table_model import Table
from slipstream.plan.policy.policies import Fixed

BARE = Sampling(top_k=2)
EVERYTHING = Sampling(
    temperature=1.3,
    top_k=2,
    top_p=0.95,
    min_p=0.05,
    repetition_penalty=1.2,
    presence_penalty=0.3,
    frequency_penalty=0.25,
    logit_bias={1: 0.4, 2: -0.3},
    allowed_token_ids=frozenset({0, 1, 2}),
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

        drafters = {
            "own": self.drafter(pair.draft),
            "ngram": NGram(pair.target.vocab),
            "none": NoDrafter(pair.target.vocab),
        }
        parts = {"own": self.rule(), "coupled": rules.get("coupled")()}
        limits = Limits(1 << 20, 1 << 60)
        batch = Batch(
            self.model(pair.target), drafters.__getitem__, parts.__getitem__, self.policy(), limits, self.noise(mixed)
        )
        for i in range(self.strangers):
            batch.add(Job(Request([1, 2, 0, 1, 2], Sampling(seed=i), 1 << 20), DecodingPlan("ngram", "coupled", 1 + i)))
        for row in rows:
            job = Job(row.request, DecodingPlan("own", "own", self.depth))
            job.row = row
            batch.add(job)
        while any(row.finish_reason is None for row in rows) and cycles != 0:
            batch.step()
            cycles = None if cycles is None else cycles - 1
        assert not batch.failures
        return []


def nosy() -> Policy:
    return HistoryPolicy(2)


@pytest.mark.parametrize("rule", ["token", "block"])
def test_the_law_is_exact_with_everything_on(rule):
    check = check_cycles("x", Batched(rules.get(rule), sampling=EVERYTHING), Pair.random(3, vocab=3))
    assert check.passed, check.detail


@pytest.mark.parametrize("rule", ["token", "block"])
def test_the_law_is_exact_under_a_policy_that_reads_everything(rule):
    subject = Batched(rules.get(rule), nosy, EVERYTHING, depth=None)
    check = check_cycles("x", subject, Pair.random(4, vocab=3), depth=2)
    assert check.passed, check.detail


@pytest.mark.parametrize("rule", ["token", "block"])
def test_the_law_is_exact_to_the_end_of_a_request(rule):
    subject = Batched(rules.get(rule), sampling=EVERYTHING)
    check = check_endings("x", subject, Pair.random(2, vocab=3), max_tokens=4, end=2, min_tokens=2)
    assert check.passed, check.detail


@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize(("through", "drafter"), [(Subject, "table"), (Batched, "table"), (Batched, "ngram")])
def test_the_law_is_exact_under_a_grammar(rule, through, drafter):
    """A drafter that follows the grammar, and one that knows nothing of it, through the loop and through the engine."""
    subject = through(
        rules.get(rule), lambda: Fixed(2), BARE if through is Subject else EVERYTHING, grammar=automaton(STATES, 3)
    )
    if drafter == "ngram":
        subject = replace(subject, drafter=lambda table: NGram(table.vocab))
    check = check_cycles("x", subject, replace(DENSE, prompt=(1, 2, 1, 2)))
    assert check.passed, check.detail


@pytest.mark.parametrize("bug", ["target row shifted by one", "stopping looks at the drawn token"])
def test_the_proof_has_teeth(bug):
    """What the audit plants into the one-row loop is found in the batched engine as well."""
    planted = Batched(**{field.name: getattr(PLANTED[bug], field.name) for field in fields(Subject)})
    assert not check_cycles("x", planted, Pair.random(3, vocab=3)).passed


@pytest.mark.parametrize("rule", ["block", "coupled"])
def test_samples_follow_the_law_with_everything_on(rule):
    subject, pair, length = Batched(rules.get(rule), sampling=EVERYTHING, grammar=automaton(STATES, 3)), DENSE, 3
    rows = [subject.row(pair, length, seed=i) for i in range(250)]
    subject.run(pair, rows)
    counts: Counter[Hashable] = Counter(tuple(row.output) for row in rows)
    found = fit(counts, {**subject.joint(pair, length)})
    assert found.passed, str(found)


def test_samples_of_one_seed_follow_the_law_too():
    subject, pair = Batched(rules.get("block"), sampling=EVERYTHING), Pair.random(6, vocab=3)
    rows = [subject.row(pair, 3, seed=7, sample=i) for i in range(250)]
    subject.run(pair, rows)
    found = fit(Counter(tuple(row.output) for row in rows), {**subject.joint(pair, 3)})
    assert found.passed, str(found)
