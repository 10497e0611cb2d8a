"""Measures the profile that forecasts are made from: a few prompts, plainly and at a few depths, in turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from slipstream.bench.measure.measurement import Load, Measurement, measure, warm
from slipstream.bench.profile.measure import RunSpec, profile_run
from slipstream.bench.workloads import Item, load_workloads
from slipstream.engines.base import Speculation
from slipstream.engines.native.engine import NativeEngine
from slipstream.engines.native.scheduler import Limits
from slipstream.models.target import Target
from slipstream.plan.forecast.profile_forecast import DecodingProfile, PromptProfile
from slipstream.plan.profile.runs import ProfileRun

DEPTHS = (1, 4, 8)
WORKLOAD = "code:2,chat:2"
SAMPLED_TOKENS = 64  # of each prompt of a user's own workload, at most


def measure_profile(
    target: Target,
    drafter: str,
    options: Mapping[str, Any] | None = None,
    depths: Sequence[int] = DEPTHS,
    batch: int = 1,
    temperature: float = 0.0,
    max_tokens: int = 64,
    workload: str = WORKLOAD,
    on_step: Callable[[str, int, int], None] | None = None,
) -> DecodingProfile:
    """The profile of a drafter on this machine. Each prompt is decoded plainly and at every depth, in turns."""
    items = [item for each in load_workloads(workload) for item in each.items]
    prompts: dict[int, list[PromptProfile]] = {depth: [] for depth in (0, *depths)}
    limits = Limits(rows=max(16, batch), retained=0)
    with (
        NativeEngine(target, drafter, options=dict(options or {}), limits=limits) as engine,
        NativeEngine(target, "none", limits=limits) as plain,
    ):
        for depth in prompts:
            warm(engine if depth else plain, items[:1], _load(batch, temperature, 8, depth))
        for n, item in enumerate(items):
            for i, depth in enumerate(prompts):
                if on_step:
                    on_step(f"prompt {n + 1}, depth {depth}", n * len(prompts) + i, len(items) * len(prompts))
                prompts[depth].append(
                    _measured(engine if depth else plain, item, batch, temperature, max_tokens, depth)
                )
    frozen = {depth: tuple(runs) for depth, runs in prompts.items()}
    return DecodingProfile(target.files.name, drafter, batch, temperature, frozen)


def sampled_runs(
    target: Target, drafter: str, options: Mapping[str, Any], depth: int, temperature: float, workload: str
) -> list[ProfileRun]:
    """The drafter's acceptance on a user's own prompts, one request at a time: a run for each workload."""
    runs = []
    with NativeEngine(target, drafter, options=dict(options), limits=Limits(retained=0)) as engine:
        for each in load_workloads(workload):
            done = measure(engine, each.items, _load(1, temperature, SAMPLED_TOKENS, depth))
            runs.append(profile_run(RunSpec(drafter, depth, 1, temperature, each.name), done))
    return runs


def _load(batch: int, temperature: float, max_tokens: int, depth: int) -> Load:
    return Load(batch, temperature, max_tokens, Speculation(depth=depth) if depth else Speculation())


def _measured(
    engine: NativeEngine, item: Item, batch: int, temperature: float, max_tokens: int, depth: int
) -> PromptProfile:
    run: Measurement = measure(engine, [item], _load(batch, temperature, max_tokens, depth))
    turns = len(item.turns)  # the first pass of each turn comes before its first tokens
    return PromptProfile(run.decoding, max(1, run.passes - turns), run.tally.cycles, tuple(run.tally.accepted))
