"""Runs a benchmark from its options: reads the workloads, measures, and writes the files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slipstream.bench.against import compare, read_results
from slipstream.bench.engine_pool import EnginePool, EngineSettings, kind_of
from slipstream.bench.forecast.check import check_forecastable, compare_forecasts, with_forecasts
from slipstream.bench.forecast.sample import sample_runs
from slipstream.bench.forecast.text import text_forecast
from slipstream.bench.journal import Journal, write_whole
from slipstream.bench.matrix import Cell, Matrix
from slipstream.bench.measure.energy import stated_watts
from slipstream.bench.measure.provenance import hardware, provenance
from slipstream.bench.measure.roofline import Machine, Weights, held_weights, probe_machine, weights_of
from slipstream.bench.records import RecordContext, records
from slipstream.bench.report.page import html
from slipstream.bench.report.takeaway import takeaway
from slipstream.bench.run import BenchSchedule, all_entries, first_entries, run
from slipstream.bench.statistics import median
from slipstream.bench.workloads import load_workloads
from slipstream.engines import engines
from slipstream.models.sources.catalog import resolve
from slipstream.models.sources.load import ModelFiles

Results = dict[str, Any]


@dataclass(frozen=True)
class BenchOptions:
    """The options of the command line."""

    model: str = "smollm2-135m"
    matrix: Matrix = field(default_factory=Matrix)
    workload: str = "code,chat"
    max_tokens: int = 64
    repeats: int = 5
    out: Path | None = None
    against: Path | None = None
    dtype: str = "auto"
    command: Sequence[str] = ()
    hold: int | None = None
    device: str = "auto"
    trust_remote_code: bool = False
    forecast: bool = False  # each workload is also forecast from the others
    sample: int = 0  # further prompts of each workload, whose acceptance a third forecast uses


def bench(options: BenchOptions) -> Results:
    """Run or resume the matrix. Write journal, results and report if a folder is given."""
    before = read_results(options.against) if options.against else None
    workloads = {workload.name: workload for workload in load_workloads(options.workload)}
    cells = options.matrix.cells(list(workloads))
    if options.forecast:
        check_forecastable(cells)
    rows, trust = max(cell.batch for cell in cells), options.trust_remote_code
    settings = EngineSettings(options.model, rows, options.dtype, options.device, trust)
    pool = EnginePool(settings, options.matrix, options.hold)
    pool.check()
    with Journal(options.out) as journal:
        files = resolve(options.model, trust_remote_code=trust)
        origin = provenance(files, options.command)
        identity = {
            "model": options.model,
            "sha256": origin["sha256"],
            "dtype": options.dtype,
            "device": options.device,
            "machine": _machine_name(),
        }
        if (watts := stated_watts()) is not None:
            identity["watts"] = watts
        schedule = BenchSchedule(cells, workloads, options.repeats, options.max_tokens, identity, options.hold)
        try:
            results = origin | _measured(schedule, pool, journal, files, options)
        finally:
            pool.close()
    results = {"takeaway": takeaway(results)} | results
    if before is not None:
        results["against"] = compare(results, before)
    if options.out:
        write_whole(options.out / "results.json", json.dumps(rounded(results), indent=1) + "\n")
        write_whole(options.out / "report.html", html(results))
    return results


def _measured(
    schedule: BenchSchedule, pool: EnginePool, journal: Journal, files: ModelFiles, options: BenchOptions
) -> Results:
    """The measured figures and the settings that they depend on."""
    measured = run(schedule, pool, journal)
    context = _context(schedule, pool, journal, files, options)
    measured_records = records(measured, schedule.workloads, context)
    compared = None
    if options.forecast:
        samples = sample_runs(schedule, pool, journal, options.workload, options.sample)
        compared = compare_forecasts(measured, samples, text_forecast(schedule, pool, journal))
    return {
        "commit": ", ".join(sorted(set(all_entries(schedule, pool, journal, "commit")))) or "no checkout",
        "load_average": _median(all_entries(schedule, pool, journal, "load")),  # shows whether the machine was busy
        "settings": {
            **options.matrix.as_dict(),
            "workload": options.workload,
            "max_tokens": options.max_tokens,
            "repeats": options.repeats,
            "dtype": options.dtype,
            "device": options.device,
            "hold": options.hold,
        },
        "engines": _versions(schedule, pool, journal),
        "scaled": files.scaled,
        "limits": {**context.machine.data(), **_sizes(context)},
        "records": measured_records if compared is None else with_forecasts(measured_records, compared),
        **({} if compared is None else {"forecast": compared}),
    }


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def _machine_name() -> str:
    about = hardware()
    return f"{about['accelerator'] or about['processor']}, {about['threads']} threads"


def _context(
    schedule: BenchSchedule, pool: EnginePool, journal: Journal, files: ModelFiles, options: BenchOptions
) -> RecordContext:
    labels = first_entries(schedule, pool, journal, "model")
    return RecordContext(
        _probed(journal, options, schedule.identity),
        {cell: held_weights(cell.setup.engine, files, labels[cell], options.dtype) for cell in schedule.cells},
        {cell: weights for cell in schedule.cells if (weights := _draft_weights(pool, cell, options.dtype))},
        first_entries(schedule, pool, journal, "draft"),
        options.matrix.engines[0],
        labels,
    )


def _sizes(context: RecordContext) -> dict[str, Any]:
    """Bytes that one pass reads, by engine, and the number of parameters."""
    read = {cell.setup.engine: weights.read for cell, weights in context.targets.items()}
    return {"target_bytes": read, "parameters": next(iter(context.targets.values())).parameters}


def _probed(journal: Journal, options: BenchOptions, identity: Mapping[str, Any]) -> Machine:
    """The machine's limits, measured once per journal."""
    key = {"limits": True, **identity}
    limits = journal.get(key)
    if limits is not None:
        return Machine(**limits)
    machine = probe_machine(options.dtype, options.device)
    journal.add(key, machine.data())
    return machine


def _draft_weights(pool: EnginePool, cell: Cell, dtype: str) -> Weights | None:
    """The weights that a named draft model reads; with the option `layers`, those of these layers."""
    setup = cell.setup
    if setup.plain or kind_of(setup, engines.get(setup.engine).capabilities.drafters) != "draft_model":
        return None
    options = pool.matrix.options_of(setup)
    name = options.get("model", pool.settings.model if setup.drafter == "draft_model" else setup.drafter)
    files = resolve(name, trust_remote_code=pool.settings.trust_remote_code)
    return weights_of(files, dtype, _layers(options.get("layers")))


def _layers(spec: str | None) -> int | None:
    """The number of layers in `0-9` or `0,1,28`; None for all."""
    if spec is None:
        return None
    parts = [[int(n) for n in re.findall(r"\d+", part)] for part in spec.split(",")]
    return sum(part[-1] - part[0] + 1 for part in parts)


def _versions(schedule: BenchSchedule, pool: EnginePool, journal: Journal) -> dict[str, str]:
    versions = first_entries(schedule, pool, journal, "version")
    return {cell.setup.engine: version for cell, version in versions.items()}


def rounded(value: Any) -> Any:
    """Values rounded to five significant digits; further digits are noise."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(inner) for inner in value]
    return value
