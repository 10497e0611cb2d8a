"""The batched engine on tables, and what one row alone would have done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from slipstream.audit.subject import Pair
from slipstream.core.interfaces import Drafter, Model, Policy
from slipstream.core.loop import NoiseFactory, decode
from slipstream.core.noise import CounterNoise
from slipstream.core.rules import rules
from slipstream.core.types import Request, Row
from slipstream.drafters.ngram import NGram
from slipstream.drafters.none import NoDrafter
from slipstream.drafters.table import TableDrafter
from slipstream.engines.base import Chunk
from slipstream.engines.job import DecodingPlan, Job
from slipstream.engines.native.batch import Batch
from slipstream.engines.native.scheduler import Limits
from slipstream.models.run.table_model import TableModel
from slipstream.plan.policy.config import AdaptiveConfig
from slipstream.plan.policy.policies import Adaptive, Fixed

SHALLOW = AdaptiveConfig(max_depth=4)

PAIR = Pair.random(5)
VOCAB = PAIR.target.vocab
DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "none": lambda: NoDrafter(VOCAB),
    "ngram": lambda: NGram(VOCAB),
    "table": lambda: TableDrafter(PAIR.draft),
}
RULES = {name: rules.get(name)() for name in rules.names()}


def batch(
    limits: Limits | None = None,
    policy: Policy | None = None,
    model: Model | None = None,
    drafters: Mapping[str, Drafter] | None = None,
    noise: NoiseFactory = CounterNoise,
) -> Batch:
    parts = {name: make() for name, make in DRAFTERS.items()} | dict(drafters or {})
    model = model or TableModel(PAIR.target)
    return Batch(
        model,
        parts.__getitem__,
        RULES.__getitem__,
        policy or Adaptive(SHALLOW),
        limits or Limits(),
        noise,
    )


def send(to: Batch, request: Request, drafter: str = "table", rule: str = "token", depth: int | None = 3) -> Job:
    job = Job(request, DecodingPlan(drafter, rule, depth))
    to.check(job)
    to.add(job)
    return job


def finish(some: Batch, steps: int = 2000) -> None:
    """Step until nothing is left; everything must have been given back by then."""
    while some.step():
        steps -= 1
        assert steps, "the batch does not come to an end"
    assert_clean(some)


def assert_clean(some: Batch) -> None:
    assert not some.scheduler.running
    assert not some.scheduler.waiting
    assert not some.model._cache  # type: ignore[attr-defined]


def alone(job: Job, context: int = 1 << 30) -> Row:
    """The same request by the one-row loop with its own drafter, rule and depth; 0 where the policy was free."""
    request, plan = job.row.request, job.plan
    bare = replace(request, grammar=None, processor=None)
    key = repr((bare, plan, context))
    if key not in _ALONE:
        row = _ALONE[key] = Row(bare)
        model = TableModel(PAIR.target, context)
        for _ in decode([row], model, DRAFTERS[plan.drafter](), RULES[plan.rule], Fixed(plan.depth or 0)):
            pass
    return _ALONE[key]


_ALONE: dict[str, Row] = {}  # bystanders are the same in many tests


def chunks(job: Job) -> list[Chunk]:
    assert job.done
    return list(job)
