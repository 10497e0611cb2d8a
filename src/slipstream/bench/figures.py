"""Measures the figures that passes decide by: plain decoding and drafters at a few depths, in turns, in seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from slipstream.bench.measure.measurement import Load, measure, warm
from slipstream.bench.statistics import median
from slipstream.bench.workloads import load_workloads
from slipstream.engines.base import Speculation
from slipstream.engines.native.engine import NativeEngine
from slipstream.engines.native.scheduler import Limits
from slipstream.models.target import Target
from slipstream.plan.passes.figures import Figures, MeasuredDepth

DEPTHS = (1, 2, 4, 7)
WORKLOAD = "code:1,chat:1"


def measure_figures(
    target: Target,
    drafters: Mapping[str, Mapping[str, Any]],
    depths: Sequence[int] = DEPTHS,
    max_tokens: int = 32,
    repeats: int = 2,
    on_step: Callable[[str, int, int], None] | None = None,
) -> Figures:
    """Tokens per second of every drafter (kind -> options) at every depth: medians over `repeats`."""
    items = [item for workload in load_workloads(WORKLOAD) for item in workload.items]
    ways = [("none", 0), *((kind, depth) for kind in drafters for depth in depths)]
    speeds: dict[tuple[str, int], list[float]] = {way: [] for way in ways}
    taus: dict[tuple[str, int], list[float]] = {way: [] for way in ways}
    engines = {
        kind: NativeEngine(target, kind, options=dict(options), limits=Limits(retained=0))
        for kind, options in {"none": {}, **drafters}.items()
    }
    try:
        for engine in engines.values():
            warm(engine, items, Load(1, 0.0, 8))
        for repeat in range(repeats):
            for n, (kind, depth) in enumerate(ways):
                if on_step:
                    on_step(f"{kind} depth {depth}" if depth else "plain", repeat * len(ways) + n, repeats * len(ways))
                load = Load(1, 0.0, max_tokens, speculation=Speculation(depth=depth or None))
                result = measure(engines[kind], items, load)
                speeds[kind, depth].append(result.speed)
                taus[kind, depth].append(result.tally.tau)
    finally:
        for engine in engines.values():
            engine.close()
    points = {
        kind: tuple(MeasuredDepth(d, median(speeds[kind, d]), median(taus[kind, d])) for d in depths)
        for kind in drafters
    }
    return Figures(target.files.name, median(speeds["none", 0]), points, dict(drafters))
