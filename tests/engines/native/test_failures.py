"""What goes wrong with one request harms that request alone: the others come out as ever, and all is given back."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import batches
from automaton import automaton
from batches import PAIR, VOCAB
from slipstream.core.noise import CounterNoise
from slipstream.core.sampling import Sampling
from slipstream.core.types import Constraint, Request, Scores
from slipstream.drafters.table import TableDrafter
from slipstream.engines.completion import DEAD_END
from slipstream.engines.job import DecodingPlan, Job
from slipstream.engines.native.batch import Batch
from slipstream.engines.native.laws import BROKEN
from slipstream.engines.native.scheduler import Limits
from slipstream.models.run.table_model import TableModel

BAD = 77  # the seed that marks the row things go wrong with
GOOD = Request([0, 1, 2], Sampling(seed=1, frequency_penalty=0.2), 6)
WAYS = [
    ("table", "token", 3),
    ("table", "block", 2),
    ("ngram", "token", 3),
    ("ngram", "coupled", 4),
    ("none", "token", 0),
]


def bystanders(batch: Batch) -> list[Job]:
    """Same drafter and rule, same drafter, same rule, neither."""
    ways = [
        ("table", "token", 3),
        ("table", "block", 2),
        ("ngram", "token", 3),
        ("ngram", "coupled", 4),
        ("none", "token", 0),
    ]
    jobs = []
    for i, (drafter, rule, depth) in enumerate(ways):
        request = replace(GOOD, sampling=replace(GOOD.sampling, seed=i))
        jobs.append(batches.send(batch, request, drafter, rule, depth))
    return jobs


def bad(batch: Batch, rule: str = "token", depth: int = 3, **more) -> Job:
    limits = {"max_tokens": 9} | {key: more.pop(key) for key in ("max_tokens", "grammar", "processor") if key in more}
    return batches.send(batch, Request([0, 1, 2], Sampling(seed=BAD, **more), **limits), "table", rule, depth)


def unharmed(batch: Batch, jobs: list[Job]) -> None:
    batches.finish(batch)
    for job in jobs:
        expected = batches.alone(job)
        assert (job.row.output, job.row.origins, job.row.finish_reason) == (
            expected.output,
            expected.origins,
            expected.finish_reason,
        )


class Moody(TableModel):
    """Breaks in its own way for the marked row once that has so many tokens."""

    def __init__(self, how: str, at: int = 5) -> None:
        super().__init__(PAIR.target)
        self.how, self.at = how, at

    def open(self, rows):
        if self.how == "open" and rows[0].seed == BAD:
            raise RuntimeError("no room")
        super().open(rows)

    def prefill(self, rows, limit):
        if self.how == "prefill" and rows[0].seed == BAD:
            raise RuntimeError("cannot read")
        return super().prefill(rows, limit)

    def score(self, rows, draft):
        marked = [r for r, row in enumerate(rows) if row.seed == BAD and row.length >= self.at]
        drafted = [r for r, _ in draft.tree.lists if r in marked]
        if (self.how == "score" and marked) or (self.how == "draft" and drafted):
            raise RuntimeError("device lost")
        if self.how == "crowd" and len(rows) > 2:
            raise RuntimeError("out of memory")
        scores = super().score(rows, draft)
        lost = torch.isin(draft.tree.slot_row, torch.tensor(marked, dtype=torch.long))
        if self.how in ("nan", "inf", "-inf"):
            return Scores(scores.logits.masked_fill(lost[:, None], float(self.how)))
        if self.how == "one nan":
            scores.logits[lost, 2] = math.nan
        return scores


class Clumsy(TableDrafter):
    """Fails at one of its duties, for the marked row alone or always."""

    def __init__(self, duty: str, always: bool = False) -> None:
        super().__init__(PAIR.draft)
        self.duty, self.always, self.rows = duty, always, set()

    def trip(self, duty, rows):
        if duty == self.duty and (self.always or any(row.seed == BAD for row in rows)):
            raise RuntimeError(f"clumsy at {duty}")

    def open(self, rows):
        self.trip("open", rows)
        self.rows |= set(rows)

    def close(self, rows):
        self.rows -= set(rows)
        self.trip("close", rows)

    def propose(self, rows, budget, noise):
        self.trip("propose", rows)
        return super().propose(rows, budget, noise)

    def observe(self, rows, verdict, scores):
        self.trip("observe", rows)


@pytest.mark.parametrize(
    ("how", "rule"), [("nan", "token"), ("nan", "block"), ("inf", "coupled"), ("-inf", "token"), ("one nan", "block")]
)
def test_logits_that_are_no_numbers(how, rule):
    batch = batches.batch(model=Moody(how))
    others, job = bystanders(batch), bad(batch, rule)
    unharmed(batch, others)
    assert (job.row.finish_reason, job.error) == ("error", BROKEN)
    assert job.row.output == batches.alone(job).output[: len(job.row.output)], "what came before is kept"
    assert job.row.length >= 5
    assert batches.chunks(job)[-1].error == BROKEN


@pytest.mark.parametrize("how", ["open", "prefill", "score"])
def test_a_model_that_fails_on_one_row(how):
    batch = batches.batch(Limits(prefill=2), model=Moody(how))
    others, job = bystanders(batch), bad(batch)
    unharmed(batch, others)
    assert job.row.finish_reason == "error"
    assert job.error in ("no room", "cannot read", "the model failed: device lost")


def test_a_model_that_fails_on_one_rows_draft_costs_the_draft():
    batch = batches.batch(model=Moody("draft", 0))
    others, job = bystanders(batch), bad(batch, "coupled")
    unharmed(batch, others)
    assert job.row.output == batches.alone(job).output
    assert sum(job.stats.drafted) == 0


def test_a_pass_too_large_for_the_machine_is_run_in_parts():
    batch = batches.batch(model=Moody("crowd"))
    unharmed(batch, bystanders(batch))
    assert list(batch.failures) == ["score: out of memory"]


@pytest.mark.parametrize("duty", ["open", "propose", "observe", "close"])
@pytest.mark.parametrize("always", [False, True])
def test_a_drafter_that_fails_costs_drafts_alone(duty, always):
    drafter = Clumsy(duty, always)
    batch = batches.batch(drafters={"clumsy": drafter})
    others = bystanders(batch)
    mates = [batches.send(batch, replace(GOOD, sample=i), "clumsy", "coupled", 2) for i in range(3)]
    job = batches.send(batch, Request([0, 1, 2], Sampling(seed=BAD), 9), "clumsy", "coupled", 2)
    unharmed(batch, others)
    for one in [*mates, job]:
        expected = batches.alone(_with_drafter(one, "table"))
        assert (one.row.output, one.row.finish_reason) == (expected.output, expected.finish_reason)
        alone = duty in ("open", "propose") and (always or one is job)
        assert one.plan.drafter == ("none" if alone else "clumsy")
    assert not drafter.rows
    assert f"drafter: clumsy at {duty}" in batch.failures


def _with_drafter(job: Job, drafter: str) -> Job:
    other = Job(job.row.request, replace(job.plan, drafter=drafter))
    other.row.seed = job.row.seed
    return other


def test_a_drafter_that_fails_on_a_crowd_alone_is_left_by_all_of_it():
    class Shy(TableDrafter):
        def propose(self, rows, budget, noise):
            if len(rows) > 1:
                raise RuntimeError("too many")
            return super().propose(rows, budget, noise)

    batch = batches.batch(drafters={"shy": Shy(PAIR.draft)})
    others = bystanders(batch)
    jobs = [batches.send(batch, replace(GOOD, sample=i), "shy", "coupled", 2) for i in range(2)]
    unharmed(batch, others)
    assert [job.plan.drafter for job in jobs] == ["none", "none"]


@pytest.mark.parametrize("rule", ["token", "block", "coupled"])
def test_a_grammar_without_a_way_on_ends_its_own_request(rule):
    """Two tokens, then nothing: whoever drafts past it, the request ends where plain decoding would."""
    dead_end = automaton(({0: 1, 1: 1, 2: 1, 3: 1}, {0: 2, 1: 2, 2: 2, 3: 2}, {}))
    batch = batches.batch()
    others, job = bystanders(batch), bad(batch, rule, grammar=dead_end)
    unharmed(batch, others)
    assert (job.row.finish_reason, job.error) == ("error", DEAD_END)
    assert len(job.row.output) == 2


def test_banned_tokens_that_leave_nothing_end_their_own_request():
    batch = batches.batch()
    others, job = bystanders(batch), bad(batch, suppress_tokens=frozenset(range(VOCAB)))
    unharmed(batch, others)
    assert (job.row.finish_reason, job.error, job.row.output) == ("error", DEAD_END, [])


def test_a_dead_end_beyond_the_end_token_is_none():
    """After an accepted end token a grammar may have nothing to say; the request has ended well."""
    ends = automaton(({0: 1, 1: 1, 2: 1}, {3: 2}, {}))
    batch = batches.batch()
    job = batches.send(
        batch, Request([0, 3], Sampling(seed=1), 9, ends=frozenset({3}), grammar=ends), "table", "coupled", 4
    )
    batches.finish(batch)
    assert (job.row.finish_reason, len(job.row.output), job.error) == ("stop", 2, None)


@pytest.mark.parametrize("part", ["processor", "grammar"])
def test_a_request_whose_own_code_raises(part):
    def processor(tokens, logits):
        if len(tokens) >= 5:
            raise KeyError("mine")
        return logits

    class Angry(Constraint):
        at = 0

        def allowed(self, path):
            if self.at + len(path) >= 2:
                raise KeyError("mine")
            return torch.ones(VOCAB, dtype=torch.bool)

        def advance(self, tokens):
            self.at += len(tokens)

    batch = batches.batch()
    others = bystanders(batch)
    job = bad(batch, **{part: {"processor": processor, "grammar": Angry}[part]})
    unharmed(batch, others)
    assert job.row.finish_reason == "error"
    assert "mine" in (job.error or "")
    assert len(job.row.output) == 2


def test_out_of_room_is_waiting_and_too_large_is_refused():
    limits = Limits(rows=8, tokens=320)  # places for four rows of at most eighty, with those for drafts
    batch = batches.batch(limits)
    jobs = [batches.send(batch, replace(GOOD, sample=i), "table", "token", 2) for i in range(9)]
    with pytest.raises(ValueError, match="need 403 places of the cache; the memory budget holds 320"):
        batches.send(batch, replace(GOOD, max_tokens=400))
    batch.step()
    assert (len(batch.scheduler.running), len(batch.scheduler.waiting)) == (4, 5)
    unharmed(batch, jobs)


def test_cancelled_while_waiting_and_while_running():
    batch = batches.batch(Limits(rows=2))
    jobs = [batches.send(batch, replace(GOOD, sample=i, max_tokens=30), "table", "token", 2) for i in range(4)]
    batch.step()
    jobs[0].cancel()
    jobs[3].cancel()
    batch.step()
    assert [job.row.finish_reason for job in jobs] == ["cancelled", None, None, "cancelled"]
    assert batch.scheduler.running == [jobs[1], jobs[2]], "the row was free at once"
    assert jobs[3].row.output == []
    unharmed(batch, jobs[1:3])
    assert jobs[0].row.output == batches.alone(jobs[0]).output[: len(jobs[0].row.output)] != []


def test_cancelling_what_is_done_changes_nothing():
    batch = batches.batch()
    job = batches.send(batch, GOOD)
    batches.finish(batch)
    job.cancel()
    batch.step()
    assert job.row.finish_reason == "length"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"prompt": [0, VOCAB]}, "outside 0 to 3"),
        ({"sampling": Sampling(logit_bias={9: 1.0})}, "logit_bias names token 9"),
        ({"sampling": Sampling(suppress_tokens=frozenset({-1}))}, "suppress_tokens names token -1"),
        ({"sampling": Sampling(allowed_token_ids=frozenset({4}))}, "allowed_token_ids names token 4"),
        ({"ends": frozenset({4})}, "stop_token_ids names token 4"),
    ],
)
def test_what_cannot_run_is_refused_before_it_starts(wrong, said):
    batch = batches.batch()
    with pytest.raises(ValueError, match=said):
        batches.send(batch, replace(GOOD, **wrong))
    with pytest.raises(ValueError, match="needs temperature 0"):
        batches.send(batch, GOOD, rule="greedy")
    batches.assert_clean(batch)


def test_a_rule_that_breaks_ends_who_is_under_way_and_keeps_who_waits():
    batch = batches.batch(Limits(rows=1))
    first, second = (batches.send(batch, replace(GOOD, sample=i), "none", "token", 0) for i in range(2))
    batch.step()
    batch.fail(RuntimeError("boom"))
    assert (first.row.finish_reason, first.error) == ("error", "the engine failed: boom")
    unharmed(batch, [second])


def test_draws_that_fail_for_one_row_end_that_row_alone():
    def noise(rows, shared):
        if any(row.seed == BAD for row in rows):
            raise TypeError("no such seed")
        return CounterNoise(rows, shared)

    batch = batches.batch(noise=noise)
    others, job = bystanders(batch), bad(batch)
    unharmed(batch, others)
    assert job.error == "the request could not be drafted for: no such seed"


def test_sampling_that_fails_for_one_row_ends_that_row_alone():
    """No request is submitted with such a value; should one be all the same, it is the only one to end."""
    batch = batches.batch()
    others, job = bystanders(batch), bad(batch, top_k=2)
    object.__setattr__(job.row.request.sampling, "top_k", 2.5)
    unharmed(batch, others)
    assert (job.row.finish_reason, job.error is not None) == ("error", True)


@pytest.mark.parametrize("at", ["push", "flush"])
def test_text_that_cannot_be_decoded_ends_its_own_request(at):
    class Broken:
        def push(self, tokens):
            if at == "push":
                raise KeyError("no such token")
            return "a"

        def flush(self):
            raise KeyError("no such token")

    batch = batches.batch()
    others, job = bystanders(batch), Job(replace(GOOD, max_tokens=3), DecodingPlan("table", "token", 3), Broken())
    batch.check(job)
    batch.add(job)
    unharmed(batch, others)
    assert (job.result().finish_reason, job.result().error) == ("error", "'no such token'")


def test_a_model_that_fails_to_close_a_row_goes_on_with_the_others():
    class Sticky(TableModel):
        def close(self, rows):
            super().close(rows)
            if rows[0].seed == BAD:
                raise RuntimeError("stuck")

    batch = batches.batch(model=Sticky(PAIR.target))
    others, job = bystanders(batch), bad(batch, max_tokens=2)
    unharmed(batch, others)
    assert job.row.finish_reason == "length"
    assert batch.failures == {"model: stuck": 1}


def test_ending_a_job_never_raises_and_keeps_its_first_end():
    class Broken:
        def flush(self):
            raise KeyError("no such token")

    job = Job(GOOD, DecodingPlan("none", "token", 0), Broken(), stop=(5,))
    job.end("cancelled")
    job.end("error", "later")
    done = job.result()
    assert (done.finish_reason, done.error, done.text) == ("cancelled", None, "")
