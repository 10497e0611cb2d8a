"""Records traces for predictors: every judged slot of chains of a fixed depth, with the draft's confidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slipstream.bench.workloads import load_workloads
from slipstream.core.law import Law
from slipstream.core.sampling import Sampling
from slipstream.core.tree import Shape, Siblings
from slipstream.core.types import Draft, Verdict
from slipstream.drafters import drafters
from slipstream.drafters.build import drafter_kind
from slipstream.engines.native.engine import NativeEngine
from slipstream.engines.native.scheduler import Limits
from slipstream.models.target import Target
from slipstream.plan.predictors.base import SlotRecord, Trace


def record_traces(
    target: Target,
    drafter: str,
    options: Mapping[str, Any],
    workload: str,
    depth: int = 6,
    temperature: float = 0.0,
    max_tokens: int = 64,
) -> list[Trace]:
    """One trace for each prompt, decoded alone. The captured path is not used, so laws can be looked at.

    At temperature 0 the law of a chain's token is one-hot and says nothing of the drafter's confidence. A tree with one
    candidate after each slot has the same tokens, and is drafted with their probabilities."""
    cycles: list[Sequence[SlotRecord]] = []

    def watch(draft: Draft, law: Law, verdict: Verdict) -> None:
        if len(draft.tree):
            greedy = temperature == 0 and draft.chance is not None  # then the drafted token is the likeliest one
            confident = draft.chance if greedy else draft.law.support()[1].amax(-1)
            accepted = int(verdict.accepted[0])
            chances = [] if confident is None else confident.tolist()
            cycles.append([SlotRecord(i + 1, chance, i < accepted, i <= accepted) for i, chance in enumerate(chances)])

    traces: list[Trace] = []
    settings: dict[str, Any] = {"options": dict(options), "limits": Limits(retained=0), "profile": "none"}
    settings |= {"shape": Shape.levels([1] * depth)} if temperature == 0 and _ranks(drafter) else {}
    with NativeEngine(target, drafter, depth=depth, watch=watch, **settings) as engine:
        for item in (item for each in load_workloads(workload) for item in each.items):
            cycles.clear()
            engine.generate(item.turns[0], Sampling(temperature), max_tokens=max_tokens)
            traces.append(list(cycles))
    return [trace for trace in traces if trace]


def _ranks(drafter: str) -> bool:
    """Whether a drafter can draft trees of its likeliest tokens."""
    kind = drafters.get(drafter_kind(drafter))
    return Siblings.CHOSEN in kind.siblings


def record_workloads(
    target: Target, drafter: str, options: Mapping[str, Any], workload: str, depth: int, temperature: float
) -> dict[str, list[Trace]]:
    """The traces of each workload of a specification such as code:2,chat:2. Workloads without a draft are left out."""
    traces = {
        part.strip(): record_traces(target, drafter, options, part, depth, temperature) for part in workload.split(",")
    }
    return {name: own for name, own in traces.items() if own}
