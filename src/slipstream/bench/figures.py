"""Measures the figures that passes decide by: plain decoding, drafters at a few depths, trees and stages, in turns.

Many drafters are shipped for some models. All of them are tried once, and the best few are measured further.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from slipstream.bench.measure.measurement import Load, measure, warm
from slipstream.bench.measure.token_energy import token_energy
from slipstream.bench.measure.variants import drafter_variants
from slipstream.bench.statistics import median
from slipstream.bench.workloads import Item, load_workloads
from slipstream.core.rules import rules
from slipstream.drafters import drafters as registry
from slipstream.engines.base import Speculation
from slipstream.engines.native.engine import NativeEngine
from slipstream.engines.native.scheduler import Limits
from slipstream.models.target import Target
from slipstream.plan.ir.build import TREE_RULE
from slipstream.plan.lower.native import overlapped
from slipstream.plan.passes.figures import FRONT, Figures, MeasuredDepth, Variant

DEPTHS = (1, 2, 4, 7)
TREES = (8, 16)  # nodes
FURTHER = 3  # drafters that are measured at all depths
WORKLOAD = "code:1,chat:1"
ENERGY_SECONDS = 2.5  # of a window in which joules are counted, at least
STAGED = ("draft_model",)  # drafters that others can draft for, and whose own tokens cost enough

Way = tuple[str, int, int]
"""A drafter, a depth, and the nodes of a tree, 0 for a chain."""


def measure_figures(
    target: Target,
    drafters: Mapping[str, Mapping[str, Any]],
    depths: Sequence[int] = DEPTHS,
    max_tokens: int = 32,
    repeats: int = 2,
    on_step: Callable[[str, int, int], None] | None = None,
    always: Collection[str] = (),
    kept: str | None = None,
) -> Figures:
    """Tokens per second of the best drafters (kind -> options), and of those in `always`, at every depth: medians over
    `repeats`. `kept`: the drafter that the plan keeps; trees, variants and stages are those of this one, or else of the
    fastest."""
    with ExitStack() as stack:
        turns = Turns(target, drafters, max_tokens, stack, on_step)
        middle = depths[len(depths) // 2]
        if len(drafters) > FURTHER:
            turns.run([(kind, middle, 0) for kind in drafters], 1)
        order = sorted(drafters, key=lambda kind: -turns.speed((kind, middle, 0)))
        best = [kind for n, kind in enumerate(order) if n < FURTHER or kind in always]
        turns.run([("none", 0, 0), *((kind, depth, 0) for kind in best for depth in depths)], repeats)
        figures = turns.figures(best)
        if (fastest := kept or figures.best_drafter()) is None:
            return figures
        depth = figures.best_depth(fastest).depth
        if not registry.get(fastest).siblings.isdisjoint(rules.get(TREE_RULE).siblings):
            turns.run([(fastest, max(depth, 3), nodes) for nodes in TREES], repeats)
        variants = turns.variants(fastest, depth, repeats)
        staged = {}
        if fastest in STAGED:
            own = {f"{fastest}.{key}": value for key, value in drafters[fastest].items()}
            turns.open("staged", {"stages": f"{FRONT},{fastest}", **own})
            turns.run([("staged", depth, 0)], repeats)
            staged = {fastest: turns.point(("staged", depth, 0))}
        return replace(turns.figures(best), staged=staged, variants=variants)


def measure_energy_figures(
    target: Target,
    drafters: Mapping[str, Mapping[str, Any]],
    depths: Sequence[int] = (1, 4),
    max_tokens: int = 32,
    on_step: Callable[[str, int, int], None] | None = None,
) -> Figures:
    """Joules and seconds per token of plain decoding and of every drafter (kind -> options), prompts included.

    ValueError with the reason where there is no counter and no stated power."""
    with ExitStack() as stack:
        turns = Turns(target, drafters, max_tokens, stack, on_step)
        ways: list[Way] = [("none", 0, 0), *((kind, depth, 0) for kind in drafters for depth in depths)]
        points = {way: turns.metered(way, n, len(ways)) for n, way in enumerate(ways)}
        plain, source = points[ways[0]]
        by_kind = {kind: tuple(point for way, (point, _) in points.items() if way[0] == kind) for kind in drafters}
        return Figures(
            target.files.name, plain.tokens_per_second, by_kind, drafters, plain_joules=plain.joules, energy=source
        )


class Turns:
    """Ways that are measured in turns, each drafter in an engine of its own."""

    def __init__(
        self,
        target: Target,
        drafters: Mapping[str, Mapping[str, Any]],
        max_tokens: int,
        stack: ExitStack,
        on_step: Callable[[str, int, int], None] | None,
    ) -> None:
        self._target, self._drafters, self._max_tokens = target, drafters, max_tokens
        self._stack, self._on_step = stack, on_step
        self._items: list[Item] = [item for workload in load_workloads(WORKLOAD) for item in workload.items]
        self._engines: dict[str, NativeEngine] = {}
        self._runs: dict[Way, list[tuple[float, float]]] = {}
        for kind, options in {"none": {}, **drafters}.items():
            self.open(kind, options)

    def open(self, name: str, options: Mapping[str, Any], kind: str | None = None) -> None:
        """Open the engine of a drafter, which is called `name` here. `kind` None: its kind is its name."""
        kind = kind or name
        engine = NativeEngine(self._target, kind, options=dict(options), limits=Limits(retained=0))
        self._engines[name] = self._stack.enter_context(engine)
        warm(engine, self._items, Load(1, 0.0, 8))

    def run(self, ways: Sequence[Way], repeats: int) -> None:
        """Measure each way `repeats` times more."""
        for repeat in range(repeats):
            for n, (kind, depth, nodes) in enumerate(ways):
                if self._on_step:
                    shown = (
                        "plain" if kind == "none" else f"{kind} tree of {nodes}" if nodes else f"{kind} depth {depth}"
                    )
                    self._on_step(shown, repeat * len(ways) + n, repeats * len(ways))
                wanted = Speculation(depth=depth or None, shape=nodes or None)
                result = measure(self._engines[kind], self._items, Load(1, 0.0, self._max_tokens, speculation=wanted))
                self._runs.setdefault((kind, depth, nodes), []).append((result.speed, result.tally.tau))

    def metered(self, way: Way, done: int, total: int) -> tuple[MeasuredDepth, str]:
        """Energy and speed of one way, and where the joules come from."""
        kind, depth, _ = way
        if self._on_step:
            self._on_step("plain" if kind == "none" else f"{kind} depth {depth}", done, total)
        load = Load(1, 0.0, self._max_tokens, speculation=Speculation(depth=depth or None))
        energy = token_energy(self._engines[kind], self._items, load, ENERGY_SECONDS)
        if energy.joules_per_token is None:
            raise ValueError(f"-O e needs joules per token: {energy.missing}; --watts states a power for an estimate")
        point = MeasuredDepth(depth, 1 / (energy.seconds_per_token or 1), energy.tau or 1.0, 0, energy.joules_per_token)
        return point, energy.source or ""

    def variants(self, kind: str, depth: int, repeats: int) -> dict[str, dict[str, Variant]]:
        """The drafter with fewer tokens, with weights of 8 bits and while the target scores, where it can do so."""
        possible = drafter_variants(kind, self._drafters[kind], self._target)
        for name, variant in possible.items():
            if not variant.reason:
                settings = kind, {**self._drafters[kind], **variant.options}
                run_kind, options = overlapped(*settings) if variant.overlap else settings
                self.open(name, options, run_kind)
        ways = [(name, depth, 0) for name, variant in possible.items() if not variant.reason]
        self.run([*ways, (kind, depth, 0)], repeats)
        measured = {way[0]: self.point(way) for way in ways}
        return {name: {kind: replace(variant, point=measured.get(name))} for name, variant in possible.items()}

    def speed(self, way: Way) -> float:
        return median([speed for speed, _ in self._runs[way]]) if way in self._runs else 0.0

    def point(self, way: Way) -> MeasuredDepth:
        return MeasuredDepth(way[1], self.speed(way), median([tau for _, tau in self._runs[way]]), way[2])

    def figures(self, kinds: Iterable[str]) -> Figures:
        """What was measured of these drafters."""
        points = {kind: tuple(self.point(way) for way in self._runs if way[0] == kind) for kind in kinds}
        options = {kind: self._drafters[kind] for kind in points}
        return Figures(self._target.files.name, self.speed(("none", 0, 0)), points, options)
