"""The memory budget is what is allocated, not what was asked for; prompts are read so many tokens a step."""

from __future__ import annotations

import random

import pytest

import batches
import letters
from slipstream.core.sampling import Sampling
from slipstream.core.types import Request
from slipstream.drafters.ngram import NGram
from slipstream.drafters.none import NoDrafter
from slipstream.engines.job import Job
from slipstream.engines.native.batch import Batch
from slipstream.engines.native.engine import NativeEngine
from slipstream.engines.native.scheduler import DeviceLimits, Limits, Scheduler
from slipstream.models.cache import tensors
from slipstream.models.run.torch_model import TorchModel
from slipstream.plan.policy.config import AdaptiveConfig
from slipstream.plan.policy.policies import Adaptive

SHALLOW = AdaptiveConfig(max_depth=4)

SIZE = len(letters.TOKENS)


def real(limits: Limits) -> tuple[Batch, TorchModel]:
    model = letters.target().model
    model.retain(limits.retained)
    parts = {"none": NoDrafter(SIZE), "ngram": NGram(SIZE)}
    return Batch(model, parts.__getitem__, batches.RULES.__getitem__, Adaptive(SHALLOW), limits), model


def ask(batch: Batch, rng: random.Random, prompt: int, tokens: int, depth: int | None = None) -> Job:
    text = [rng.randrange(3, SIZE) for _ in range(prompt)]
    return batches.send(batch, Request(text, Sampling(temperature=0), tokens), "ngram", "greedy", depth)


def drain(batch: Batch, model: TorchModel, limit: int) -> None:
    while batch.step():
        assert model.cache.places <= limit
        model.check_integrity()
    assert not model.rows


@pytest.mark.parametrize("retained", [0, 4096])
def test_a_long_row_after_many_short_ones_stays_within_the_budget(retained):
    limits, rng = Limits(rows=16, tokens=512, retained=retained), random.Random(1)
    batch, model = real(limits)
    for _ in range(16):
        ask(batch, rng, 8, 12)
    drain(batch, model, 512)
    long = ask(batch, rng, 90, 60)
    drain(batch, model, 512)
    assert len(long.row.output) == 60


@pytest.mark.parametrize("retained", [0, 4096])
def test_rows_of_all_lengths_lie_side_by_side(retained, monkeypatch):
    """A rectangle of these rows would take eight times 160 places."""
    monkeypatch.setattr(tensors, "SPARE", 16)
    limits, rng = Limits(rows=8, tokens=512, retained=retained), random.Random(2)
    batch, model = real(limits)
    for size in (130, *(8,) * 7):
        ask(batch, rng, size, 12)
    batch.step()
    assert len(batch.scheduler.running) == 8
    drain(batch, model, 512)


@pytest.mark.parametrize("retained", [0, 4096])
def test_rows_that_outgrow_the_budget_wait_and_go_on_as_if_nothing_had_happened(retained, monkeypatch):
    """Nobody knows how long a text becomes, so rows begin with room for a few tokens more. When all have grown beyond
    the budget, the ones that came last wait, and are read again."""
    monkeypatch.setattr(tensors, "AHEAD", 16)
    monkeypatch.setattr(tensors, "SPARE", 16)
    limits, rng = Limits(rows=8, tokens=512, retained=retained), random.Random(4)
    batch, model = real(limits)
    jobs = [ask(batch, rng, rng.randrange(3, 12), 120, depth) for depth in (0, None, 2, 4, None, 3, 1, 0)]
    batch.step()
    assert len(batch.scheduler.running) == 8, "all of them fit at first"
    drain(batch, model, 512)
    assert batch.scheduler.preemptions > 3
    assert not batch.failures
    lone, _ = real(Limits(rows=16, retained=0))
    again = [batches.send(lone, job.row.request, "none", "greedy", 0) for job in jobs]
    while lone.step():
        pass
    assert lone.scheduler.preemptions == 0
    assert [job.row.output for job in jobs] == [job.row.output for job in again]
    assert all(len(job.row.output) == 120 for job in jobs)


@pytest.mark.parametrize("retained", [0, 4096])
def test_rows_that_stay_are_laid_together_and_go_on_as_if_nothing_had_happened(retained, monkeypatch):
    """Long and short requests come and go at random; every output is what rows that never move give."""
    monkeypatch.setattr(tensors, "SPARE", 16)
    limits, rng = Limits(rows=8, tokens=400, prefill=16, retained=retained), random.Random(7)
    batch, model = real(limits)
    jobs, moved, compact = [], [0], model.cache.compact

    def counted(*grown):
        moves = compact(*grown)
        moved[0] += bool(moves)
        return moves

    model.cache.compact = counted  # type: ignore[method-assign]
    for n in range(48):
        size = 120 if n % 12 == 11 else rng.randrange(3, 10)
        jobs.append(ask(batch, rng, size, rng.randrange(4, 30), rng.choice([None, 0, 2, 4])))
        for _ in range(rng.randrange(3)):
            batch.step()
            assert model.cache.places <= 400
    drain(batch, model, 400)
    assert moved[0] >= 3, "rows in use were laid together"
    assert not batch.failures
    lone, _ = real(Limits(rows=16, retained=0))
    again = [batches.send(lone, job.row.request, "none", "greedy", 0) for job in jobs]
    while lone.step():
        pass
    assert [job.row.output for job in jobs] == [job.row.output for job in again]


@pytest.mark.parametrize("retained", [0, 4096])
def test_requests_wait_for_memory_and_one_that_never_fits_ends(retained, monkeypatch):
    monkeypatch.setattr(tensors, "USUAL", tensors.SMALLEST)
    limits, rng = Limits(rows=8, retained=retained), random.Random(9)
    batch, model = real(limits)
    first = ask(batch, rng, 8, 40)
    while len(first.row.output) < 3:
        batch.step()
    before = model.cache.places
    monkeypatch.setattr(tensors, "free_bytes", lambda _: 0)
    large, *others = (ask(batch, rng, size, 30) for size in (120, 4, 9))
    while not batch.scheduler.tokens < before:
        batch.step()
    batch.check(Job(large.row.request, first.plan))  # nothing is refused because memory is short now
    drain(batch, model, before)
    assert large.row.finish_reason == "error"
    assert "no memory for" in (large.error or "")
    assert [len(job.row.output) for job in (first, *others)] == [40, 30, 30], "they had the places of rows before them"
    assert not batch.failures
    monkeypatch.undo()


@pytest.mark.parametrize("retained", [0, 4096])
def test_rows_that_find_no_memory_while_they_grow_wait_for_each_other(retained, monkeypatch):
    monkeypatch.setattr(tensors, "USUAL", tensors.SMALLEST)
    monkeypatch.setattr(tensors, "AHEAD", 16)
    monkeypatch.setattr(tensors, "SPARE", 16)
    batch, model = real(Limits(rows=4, retained=retained))
    rng = random.Random(3)
    jobs = [ask(batch, rng, 8, 100, depth) for depth in (0, 3, None)]
    batch.step()
    monkeypatch.setattr(tensors, "free_bytes", lambda _: 0)
    drain(batch, model, model.cache.places)
    assert [len(job.row.output) for job in jobs] == [100] * 3
    assert batch.scheduler.preemptions >= 1
    assert not batch.failures
    lone, _ = real(Limits(rows=4, retained=0))
    monkeypatch.undo()
    again = [batches.send(lone, job.row.request, "none", "greedy", 0) for job in jobs]
    while lone.step():
        pass
    assert [job.row.output for job in jobs] == [job.row.output for job in again]


@pytest.mark.parametrize("retained", [0, 4096])
def test_prompts_share_what_may_be_read_in_a_step(retained, monkeypatch):
    """Five long prompts and five short ones: no step reads more than the limit and one token a decoding row."""
    rng, limits = random.Random(3), Limits(rows=10, prefill=20, retained=retained)
    plain = letters.target().model
    model, tokens_run = TorchModel(plain.model, anatomy=plain.anatomy, retained=retained), [0]
    run = model.forward_pass.run

    def counted(pieces, *more, **others):
        tokens_run[-1] += sum(map(len, pieces))
        return run(pieces, *more, **others)

    monkeypatch.setattr(model.forward_pass, "run", counted)
    parts = {"none": NoDrafter(SIZE), "ngram": NGram(SIZE)}
    batch = Batch(model, parts.__getitem__, batches.RULES.__getitem__, Adaptive(SHALLOW), limits)
    jobs = [ask(batch, rng, size, 6, 0) for size in (70, 9, 50, 12, 41, 20, 64, 3, 100, 19)]
    while batch.step():
        tokens_run.append(0)
    assert max(tokens_run) <= 20 + 10
    assert sum(tokens_run) == sum(len(job.row.request.prompt) + 5 for job in jobs)
    assert all(len(job.row.output) == 6 for job in jobs)


def test_decoding_goes_on_while_prompts_are_read():
    rng = random.Random(5)
    batch, _ = real(Limits(rows=4, prefill=8, retained=0))
    first = ask(batch, rng, 4, 40, 0)
    batch.step()
    ask(batch, rng, 70, 4, 0)
    ask(batch, rng, 70, 4, 0)
    for done in range(2, 12):
        batch.step()
        assert len(first.row.output) == done
    while batch.step():
        pass


def test_a_job_that_is_done_while_it_waits_takes_no_row_and_blocks_nobody():
    batch = batches.batch(Limits(rows=1))
    jobs = [batches.send(batch, Request([1], max_tokens=3)) for _ in range(3)]
    jobs[0].end("error", "gone")
    jobs[1].cancel()
    batch.step()
    assert [job.seated for job in jobs] == [False, False, True]
    batches.finish(batch)
    assert [job.row.finish_reason for job in jobs] == ["error", "cancelled", "length"]
    assert [len([c for c in batches.chunks(job) if c.finish_reason]) for job in jobs] == [1, 1, 1]


def test_what_is_kept_for_prompts_that_begin_alike_is_limited_and_shown():
    """Other prompts take the place of those used least recently, and the memory stays within its limit."""
    rng, limit = random.Random(5), 1 << 16
    with NativeEngine(letters.target(), "none", limits=Limits(retained_bytes=limit)) as engine:
        for _ in range(20):
            prompt = [rng.randrange(3, SIZE) for _ in range(100)]
            engine.generate([prompt], Sampling(temperature=0), max_tokens=4)
        stats = engine.stats
    assert stats["retained_max_bytes"] == limit
    assert limit / 2 < stats["retained_bytes"] <= limit
    assert stats["retained_tokens"] <= stats["retained_places"] < 20 * 100
    with NativeEngine(letters.target(), "none") as engine:
        assert 0 < engine.stats["retained_max_bytes"] <= 512 << 20
    with pytest.raises(ValueError, match="retained_bytes is -1; it must be 0"):
        Limits(retained_bytes=-1)


def test_limits_that_are_left_out_are_those_of_the_device():
    device = DeviceLimits(rows=256, tokens=1 << 20, prefill=4096)
    plain, own = Scheduler(Limits(), 64, device), Scheduler(Limits(rows=3, tokens=99, prefill=7), 64, device)
    assert (plain.rows, plain.tokens, plain.chunk) == (256, 1 << 20, 4096)
    assert (own.rows, own.tokens, own.chunk) == (3, 99, 7)
    with pytest.raises(ValueError, match="rows is 0; it must be 1 or more"):
        Limits(rows=0)
