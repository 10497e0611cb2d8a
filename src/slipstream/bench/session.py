"""A benchmark as a user asks for it, from the words to the files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slipstream.bench.against import compare, read_results
from slipstream.bench.fleet import Fleet, Loading, kind_of
from slipstream.bench.journal import Journal, write_whole
from slipstream.bench.matrix import Cell, Matrix
from slipstream.bench.measure.provenance import hardware, provenance
from slipstream.bench.measure.roofline import Machine, Weights, held_weights, probe_machine, weights_of
from slipstream.bench.records import Ground, records
from slipstream.bench.report.page import html
from slipstream.bench.report.takeaway import takeaway
from slipstream.bench.run import Course, every, run, told
from slipstream.bench.statistics import median
from slipstream.bench.workloads import load_workloads
from slipstream.engines import engines
from slipstream.models.catalog import resolve
from slipstream.models.load import Found

Results = dict[str, Any]


@dataclass(frozen=True)
class Asked:
    """What the command line says."""

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


def bench(asked: Asked) -> Results:
    """Run or take up the matrix; write journal, results and report where a folder is given."""
    before = read_results(asked.against) if asked.against else None
    workloads = {workload.name: workload for workload in load_workloads(asked.workload)}
    cells = asked.matrix.cells(list(workloads))
    fleet = Fleet(Loading(asked.model, max(cell.batch for cell in cells), asked.dtype), asked.matrix, asked.hold)
    fleet.check()
    with Journal(asked.out) as journal:
        found = resolve(asked.model)
        origin = provenance(found, asked.command)
        identity = {"model": asked.model, "sha256": origin["sha256"], "dtype": asked.dtype, "machine": _machine_name()}
        course = Course(cells, workloads, asked.repeats, asked.max_tokens, identity, asked.hold)
        try:
            results = origin | _measured(course, fleet, journal, found, asked)
        finally:
            fleet.close()
    results = {"takeaway": takeaway(results)} | results
    if before is not None:
        results["against"] = compare(results, before)
    if asked.out:
        write_whole(asked.out / "results.json", json.dumps(rounded(results), indent=1) + "\n")
        write_whole(asked.out / "report.html", html(results))
    return results


def _measured(course: Course, fleet: Fleet, journal: Journal, found: Found, asked: Asked) -> Results:
    """The figures and what they depend on."""
    measured = run(course, fleet, journal)
    ground = _ground(course, fleet, journal, found, asked)
    return {
        "commit": ", ".join(sorted(set(every(course, fleet, journal, "commit")))) or "no checkout",
        "load_average": _median(every(course, fleet, journal, "load")),
        "settings": {
            **asked.matrix.described(),
            "workload": asked.workload,
            "max_tokens": asked.max_tokens,
            "repeats": asked.repeats,
            "dtype": asked.dtype,
            "hold": asked.hold,
        },
        "engines": _versions(course, fleet, journal),
        "scaled": found.scaled,
        "limits": {**ground.machine.data(), **_sizes(ground)},
        "records": records(measured, course.workloads, ground),
    }


def _median(values: Sequence[float]) -> float | None:
    """While it was measured: what else ran tells how far to trust a time."""
    return median(values) if values else None


def _machine_name() -> str:
    about = hardware()
    return f"{about['accelerator'] or about['processor']}, {about['threads']} threads"


def _ground(course: Course, fleet: Fleet, journal: Journal, found: Found, asked: Asked) -> Ground:
    labels = told(course, fleet, journal, "model")
    return Ground(
        _probed(journal, asked.dtype, course.identity),
        {cell: held_weights(cell.setup.engine, found, labels[cell], asked.dtype) for cell in course.cells},
        {cell: weights for cell in course.cells if (weights := _draft_weights(fleet, cell, asked.dtype))},
        told(course, fleet, journal, "draft"),
        asked.matrix.engines[0],
        labels,
    )


def _sizes(ground: Ground) -> dict[str, Any]:
    """What one pass reads, by engine, and how many parameters the model has."""
    read = {cell.setup.engine: weights.read for cell, weights in ground.targets.items()}
    return {"target_bytes": read, "parameters": next(iter(ground.targets.values())).parameters}


def _probed(journal: Journal, dtype: str, identity: Mapping[str, Any]) -> Machine:
    """The machine's limits, measured once per journal."""
    key = {"limits": True, **identity}
    known = journal.get(key)
    if known is not None:
        return Machine(**known)
    machine = probe_machine(dtype)
    journal.add(key, machine.data())
    return machine


def _draft_weights(fleet: Fleet, cell: Cell, dtype: str) -> Weights | None:
    """What a draft model reads, where it is a model with a name; of some layers, its share of the layers."""
    setup = cell.setup
    if setup.plain or kind_of(setup, engines.get(setup.engine).capabilities.drafters) != "draft_model":
        return None
    options = fleet.matrix.options_of(setup)
    name = options.get("model", fleet.loading.model if setup.drafter == "draft_model" else setup.drafter)
    return weights_of(resolve(name), dtype, _layers(options.get("layers")))


def _layers(spec: str | None) -> int | None:
    """How many layers `0-9` or `0,1,28` are; None for all."""
    if spec is None:
        return None
    parts = [[int(n) for n in re.findall(r"\d+", part)] for part in spec.split(",")]
    return sum(part[-1] - part[0] + 1 for part in parts)


def _versions(course: Course, fleet: Fleet, journal: Journal) -> dict[str, str]:
    found = told(course, fleet, journal, "version")
    return {cell.setup.engine: version for cell, version in found.items()}


def rounded(value: Any) -> Any:
    """Five digits: more are noise, and two files can be compared by eye."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(inner) for inner in value]
    return value
