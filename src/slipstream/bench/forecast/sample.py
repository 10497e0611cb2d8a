"""Measures a sample of each workload for its forecast: a few further prompts, at the greatest depth."""

from __future__ import annotations

from dataclasses import replace

from slipstream.bench.engine_pool import EnginePool
from slipstream.bench.forecast.check import run_of
from slipstream.bench.journal import Journal
from slipstream.bench.matrix import Cell
from slipstream.bench.measure.measurement import Load, Measurement, measure
from slipstream.bench.run import BenchSchedule
from slipstream.bench.workloads import further_prompts
from slipstream.plan.profile.runs import ProfileRun


def sample_runs(
    schedule: BenchSchedule, pool: EnginePool, journal: Journal, workload: str, prompts: int
) -> list[ProfileRun]:
    """One run for each drafter, temperature and workload that has further prompts, at batch 1."""
    if prompts < 0:
        raise ValueError(f"--sample is {prompts}; it must be 0 or more")
    further = {each.name: each for each in (further_prompts(workload, prompts) if prompts else ())}
    runs = []
    for cell in _deepest(schedule):
        if (own := further.get(cell.workload)) is None:
            continue
        options = pool.matrix.options_of(cell.setup)
        key = schedule.key(cell, 0, options) | {"sample": own.digest}
        entry = journal.get(key)
        if entry is None:
            load = Load(1, cell.temperature, schedule.max_tokens, pool.speculation(cell.setup))
            entry = {"measurement": measure(pool.open(cell.setup), own.items, load).data()}
            journal.add(key, entry)
        runs.append(run_of(cell, Measurement.of(entry["measurement"])))
    return runs


def _deepest(schedule: BenchSchedule) -> list[Cell]:
    """The cell of the greatest depth of each drafter, temperature and workload, at batch 1."""
    deepest: dict[tuple[str, float, str], Cell] = {}
    for cell in schedule.cells:
        if not cell.setup.plain:
            key = cell.setup.drafter, cell.temperature, cell.workload
            deepest[key] = max(deepest.get(key, cell), cell, key=lambda each: each.setup.depth or 0)
    return [replace(cell, batch=1) for cell in deepest.values()]
