"""A request may ask for a tree: through the engine, the batch and down to the drafter."""

from __future__ import annotations

import pytest

import batches
import letters
from slipstream.core.sampling import Sampling
from slipstream.core.tree import Shape
from slipstream.core.types import Request
from slipstream.engines.base import Speculation
from slipstream.engines.job import DecodingPlan, Job
from slipstream.engines.native.engine import NativeEngine


def send(batch, rule: str, shape: Shape | None, seed: int = 0, drafter: str = "table", depth: int = 3) -> Job:
    sampling = Sampling(temperature=0) if rule == "greedy" else Sampling(seed=seed)
    job = Job(Request([0, 1], sampling, 10), DecodingPlan(drafter, rule, depth, shape))
    batch.check(job)
    batch.add(job)
    return job


def test_trees_of_all_rules_shapes_and_drafters_in_one_batch():
    batch = batches.batch()
    shapes = [Shape(nodes=8, width=3), Shape.levels([2, 2]), Shape((-1, -1, 0)), None]
    rules = ["greedy", "coupled", "chosen", "replace", "no_replace", "spectr"]
    jobs = [send(batch, rule, shape, i) for i, rule in enumerate(rules) for shape in shapes]
    jobs += [send(batch, rule, shapes[0], 9, "ngram") for rule in rules[:-1]]
    plain = [send(batch, job.plan.rule, None, job.row.seed, "none", 0) for job in jobs]
    batches.finish(batch)
    assert not batch.failures
    for job, other in zip(jobs, plain, strict=True):
        assert len(job.row.output) == 10
        if job.plan.rule in ("greedy", "coupled"):
            assert job.row.output == other.row.output, "one seed, one text, whatever the tree"
    assert any(max(job.stats.drafted, default=0) > job.stats.cycles for job in jobs), "several candidates a place"
    assert sum(sum(job.stats.accepted) for job in jobs) > 20


def test_a_request_may_ask_for_a_tree_of_its_own():
    with NativeEngine(letters.target(), "ngram", "no_replace", shape="3x1") as engine:
        words = [1, 2, 3, 1, 2, 4, 1, 2]
        default, own, off = (
            engine.generate(words, Sampling(temperature=0), max_tokens=12, speculation=speculation)[0]
            for speculation in (Speculation(), Speculation(shape=6, depth=2), Speculation(off=True))
        )
        assert default.token_ids == own.token_ids == off.token_ids
        assert len(default.stats.drafted) <= 2
        assert len(own.stats.drafted) <= 2
        assert not off.stats.drafted


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        (DecodingPlan("table", "token", 2, Shape((-1, -1))), "the rule token verifies chains; use"),
        (DecodingPlan("ngram", "spectr", 2, Shape((-1, -1))), "takes no tree of this drafter's"),
        (DecodingPlan("table", "replace", 2, Shape((-1,) * 5)), "5 candidates after one token; the model has 4 tokens"),
    ],
)
def test_a_tree_that_cannot_be_is_refused_when_it_is_asked_for(plan, why):
    with pytest.raises(ValueError, match=why):
        batches.batch().check(Job(Request([0, 1]), plan))


def test_a_shape_that_is_none_is_refused():
    with pytest.raises(ValueError, match="so that there is no cycle"):
        Speculation(shape="-1,1")
