"""Measures a profile: drafters, depths, batches and temperatures on a few prompts of each workload, in turns.

Every run is written to a journal at once, so that an interrupted profile goes on where it was. Temperatures above the
first are measured at the greatest depth and batch 1 alone, larger batches at the first temperature alone: acceptance
hardly depends on the batch, nor the time of a cycle on the temperature."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slipstream.bench.journal import Journal
from slipstream.bench.measure.measurement import Load, Measurement, measure, warm
from slipstream.bench.profile.cycle_recorder import CycleRecorder
from slipstream.bench.progress import progress
from slipstream.bench.workloads import Workload, load_workloads
from slipstream.core.interfaces import sibling_mode
from slipstream.core.rules import rules
from slipstream.engines.base import Speculation
from slipstream.engines.native.engine import NativeEngine
from slipstream.engines.native.scheduler import Limits
from slipstream.models.target import Target
from slipstream.plan.profile.runs import PLAIN, ProfileRun

TREE_NODES = 8  # of the trees whose ranks are counted
WARM_TOKENS = 8


@dataclass(frozen=True)
class ProfileSettings:
    """What is measured."""

    drafters: Mapping[str, Mapping[str, Any]]  # name -> options
    depths: Sequence[int] = (1, 4, 8)
    batches: Sequence[int] = (1, 4)
    temperatures: Sequence[float] = (0.0, 1.0)
    workload: str = "code:2,chat:2,maths:2,summary:2"
    max_tokens: int = 32

    def __post_init__(self) -> None:
        if PLAIN in self.drafters or not self.drafters:
            raise ValueError("a profile needs a drafter; plain decoding is always measured")
        if self.max_tokens < 2:
            raise ValueError(f"max_tokens is {self.max_tokens}; it must be 2 or more")

    def loads(self) -> Iterator[tuple[int, float]]:
        """Batches and temperatures that are measured."""
        first, *others = self.temperatures
        yield from ((batch, first) for batch in self.batches)
        yield from ((self.batches[0], temperature) for temperature in others)


@dataclass(frozen=True)
class RunSpec:
    """One run. `tree`: ranks are counted, and the run is no part of the forecasts."""

    drafter: str
    depth: int
    batch: int
    temperature: float
    workload: str
    tree: bool = False

    @property
    def title(self) -> str:
        what = "plain" if self.drafter == PLAIN else f"{self.drafter} {'tree' if self.tree else f'depth {self.depth}'}"
        return f"{what}, {self.workload}, batch {self.batch}, temperature {self.temperature:g}"


@dataclass
class RecordedRun:
    """What one run gave."""

    spec: RunSpec
    run: ProfileRun | None
    cycles: list[list[float]]
    counts: list[dict[str, Any]]
    host: float  # seconds beside drafting and scoring, in all cycles that were recorded
    graphs: dict[str, Any] = field(default_factory=dict)  # captured cycles of the engine so far


def specs(settings: ProfileSettings, workloads: Sequence[Workload]) -> list[RunSpec]:
    """All runs, workload by workload, so that a slow moment of the machine does not hit one drafter alone."""
    wanted = []
    first = settings.temperatures[0]
    for workload in workloads:
        for batch, temperature in settings.loads():
            wanted.append(RunSpec(PLAIN, 0, batch, temperature, workload.name))
            depths = settings.depths if temperature == first else settings.depths[-1:]
            for drafter in settings.drafters:
                wanted += [RunSpec(drafter, depth, batch, temperature, workload.name) for depth in depths]
        for drafter in settings.drafters:
            depth = settings.depths[-1]
            wanted.append(RunSpec(drafter, depth, 1, first, workload.name, tree=True))
    return wanted


def run_all(
    target: Target, settings: ProfileSettings, journal: Journal, identity: Mapping[str, Any]
) -> list[RecordedRun]:
    """Measure the runs that the journal lacks. Returns all of them."""
    workloads = {workload.name: workload for workload in load_workloads(settings.workload)}
    wanted = specs(settings, list(workloads.values()))
    keys = [_key(spec, workloads[spec.workload], settings, identity) for spec in wanted]
    missing = [n for n, key in enumerate(keys) if journal.get(key) is None]
    limits = Limits(rows=max(16, *settings.batches), retained=0)
    engines: dict[str, tuple[NativeEngine, CycleRecorder]] = {}
    warmed: set[tuple[str, int, int, float, bool]] = set()
    try:
        for name, options in {PLAIN: {}, **settings.drafters}.items() if missing else ():
            recorder = CycleRecorder()
            engines[name] = (
                NativeEngine(target, name, options=dict(options), limits=limits, policy=recorder, profile="none"),
                recorder,
            )
        with progress(len(wanted), len(wanted) - len(missing)) as say:
            for n in missing:
                say(wanted[n].title)
                journal.add(keys[n], _recorded(*engines[wanted[n].drafter], wanted[n], workloads, settings, warmed))
    finally:
        for engine, _ in engines.values():
            engine.close()
    return [_read(spec, journal.get(key) or {}) for spec, key in zip(wanted, keys, strict=True)]


def _key(spec: RunSpec, workload: Workload, settings: ProfileSettings, identity: Mapping[str, Any]) -> dict[str, Any]:
    options = dict(settings.drafters.get(spec.drafter, {}))
    about = {"digest": workload.digest, "max_tokens": settings.max_tokens, "options": options}
    return {**vars(spec), **about, **identity}


def _recorded(
    engine: NativeEngine,
    recorder: CycleRecorder,
    spec: RunSpec,
    workloads: Mapping[str, Workload],
    settings: ProfileSettings,
    warmed: set[tuple[str, int, int, float, bool]],
) -> dict[str, Any]:
    speculation = Speculation(depth=spec.depth) if spec.depth else Speculation()
    if spec.tree:
        rule = rules.get("greedy" if spec.temperature == 0 else "no_replace")()
        if sibling_mode(rule, engine.drafter(spec.drafter)) is None:
            return {}
        speculation = Speculation(shape=TREE_NODES)
    items, size = workloads[spec.workload].items, (spec.drafter, spec.depth, spec.batch, spec.temperature, spec.tree)
    if size not in warmed:
        warm(engine, items, Load(spec.batch, spec.temperature, WARM_TOKENS, speculation))
        warmed.add(size)
    recorder.clear()
    done = measure(engine, items, Load(spec.batch, spec.temperature, settings.max_tokens, speculation))
    told = sum(cycle.drafting + cycle.scoring for cycle in recorder.cycles)
    return {
        "run": None if spec.tree or not done.decoded else profile_run(spec, done).to_json(),
        "cycles": [cycle.to_json() for cycle in recorder.cycles],
        "counts": [count.to_json() for count in recorder.counts(spec.drafter, spec.workload, spec.temperature)],
        "host": max(0.0, done.decoding - told) if recorder.cycles else 0.0,
        "graphs": recorder.costs.to_json()["graphs"],
    }


def profile_run(spec: RunSpec, measured: Measurement) -> ProfileRun:
    """A measurement as a run of a profile."""
    tally = measured.tally
    return ProfileRun(
        spec.drafter, spec.depth, spec.batch, spec.temperature, spec.workload, measured.decoding, measured.decoded,
        tally.cycles, tally.emitted, measured.context / tally.cycles, tuple(tally.accepted), tuple(tally.drafted),
        measured.joules,
    )  # fmt: skip


def _read(spec: RunSpec, entry: Mapping[str, Any]) -> RecordedRun:
    run = entry.get("run")
    return RecordedRun(
        spec, ProfileRun.from_json(run) if run else None, entry.get("cycles", []), entry.get("counts", []),
        entry.get("host", 0.0), entry.get("graphs", {}),
    )  # fmt: skip
