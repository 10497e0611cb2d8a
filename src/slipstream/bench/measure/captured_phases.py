"""Phases of captured cycles: the counter of a GPU is too slow for single phases, so that each part of a captured cycle
is repeated for seconds. Its power times its time gives its joules."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from slipstream.bench.measure.energy import Meter
from slipstream.bench.measure.measurement import Load, Measurement, add_run, warm
from slipstream.bench.measure.phase_energy import EnergyByPhase, PhaseLoad, PhasePower, WholeRun, by_phase
from slipstream.bench.workloads import Item
from slipstream.engines.base import Speculation
from slipstream.engines.native.captured.chain_cycle import ChainCycle
from slipstream.engines.native.engine import NativeEngine
from slipstream.engines.native.scheduler import Limits
from slipstream.models.target import Target

REPLAYS = 32  # of a part between two looks at the clock


def captured_phases(
    target: Target, load: PhaseLoad, items: Sequence[Item], meter: Meter, idle: float | None
) -> EnergyByPhase | str:
    """Joules per token by phase, or why there are none."""
    limits = Limits(rows=max(16, load.batch), retained=0)
    with NativeEngine(target, load.drafter, options=dict(load.options), limits=limits, profile="none") as engine:
        runs = [_whole_run(engine, load, depth, items, meter) for depth in (0, load.depth)]
        for depth in (0, load.depth):  # a cache that has grown drops what was captured before
            add_run(engine, items, _load(load, depth), Measurement())
        cycles = [cycle for depth in (0, load.depth) if (cycle := _cycle(engine, depth, load.batch)) is not None]
        if len(cycles) < 2:
            return "the counter is too slow for single phases, and these cycles are not captured as graphs"
        length = len(target.text.encode(items[0].turns[0], raw=items[0].raw)) + load.max_tokens // 2
        with torch.inference_mode():
            (score_one,) = _part_powers(cycles[0], length, load, meter, ["score"]).values()
            phases = _part_powers(cycles[1], length, load, meter, ["draft", "score", "verify"])
    plain, whole = runs
    spent = sum(phase.seconds for phase in phases.values())
    host = PhasePower(_host_watts(meter, load.seconds), max(0.0, whole.seconds / whole.cycles - spent))
    source = meter.source.name, meter.source.estimate
    return by_phase({**phases, "host": host}, score_one.joules, whole, plain, idle, load.about, source)


def _load(load: PhaseLoad, depth: int) -> Load:
    speculation = Speculation(depth=depth) if depth else Speculation(off=True)
    return Load(load.batch, load.temperature, load.max_tokens, speculation)


def _whole_run(engine: NativeEngine, load: PhaseLoad, depth: int, items: Sequence[Item], meter: Meter) -> WholeRun:
    how, total = _load(load, depth), Measurement()
    warm(engine, items, how)
    add_run(engine, items, how, Measurement())  # captures the sizes of these rows
    with meter.window() as window:
        began = time.perf_counter()
        while time.perf_counter() - began < load.seconds:
            add_run(engine, items, how, total)
    accepted = sum(total.tally.accepted) / max(1, total.tally.cycles)
    return WholeRun(window.joules, window.seconds, total.tokens, total.passes, accepted)


def _cycle(engine: NativeEngine, depth: int, batch: int) -> ChainCycle | None:
    """The smallest captured chain that such rows fit in."""
    chains = [cycle for cycle in engine.captured_cycles if isinstance(cycle, ChainCycle)]
    fitting = [c for c in chains if c.key.rows >= batch and (c.key.depth >= depth if depth else c.key.depth == 0)]
    return min(fitting, key=lambda cycle: (cycle.key.depth, cycle.key.rows), default=None)


def _part_powers(
    cycle: ChainCycle, length: int, load: PhaseLoad, meter: Meter, names: Sequence[str]
) -> dict[str, PhasePower]:
    cycle.load_rows(load.batch, length, load.temperature)
    powers, replays = {}, cycle.parts(names)
    for name, replay in replays.items():
        count = 0
        with meter.window() as window:
            began = time.perf_counter()
            while time.perf_counter() - began < load.seconds:
                for _ in range(REPLAYS):
                    replay()
                count += REPLAYS
                torch.cuda.synchronize()
        powers[name] = PhasePower(window.watts, window.seconds / count)
    return powers


def _host_watts(meter: Meter, seconds: float) -> float:
    """The power while the host works and the device waits."""
    with meter.window() as window:
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            pass
    return window.watts
