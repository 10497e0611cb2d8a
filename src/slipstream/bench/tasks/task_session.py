"""`bench --task`: measures one setup on the problems of a task."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slipstream.bench.journal import write_whole
from slipstream.bench.measure.provenance import commit, load_average, provenance
from slipstream.bench.session import rounded
from slipstream.bench.table import ResultTable, text
from slipstream.bench.tasks.problems import load_task
from slipstream.bench.tasks.run_file import CurveScope
from slipstream.bench.tasks.setups import RouteSetup, TaskSetup
from slipstream.bench.tasks.task_run import TaskLoad, run_task
from slipstream.models.sources.catalog import resolve


@dataclass(frozen=True)
class TaskOptions:
    """The options of the command line."""

    task: str
    setup: TaskSetup
    load: TaskLoad
    route: RouteSetup | None = None
    out: Path | None = None
    command: Sequence[str] = ()
    scope: CurveScope = field(default_factory=CurveScope)


def task_bench(options: TaskOptions) -> dict[str, Any]:
    """Measure the setup. Writes `results.json`, with the answers' texts, if a folder is given."""
    task, setup, route = load_task(options.task), options.setup, options.route
    origin = origin_of(setup, None if route is None else route.small, options.command)
    engine = setup.open() if route is None else route.open(setup)
    with engine:
        outcome = run_task(engine, task, options.load)
    results = origin | settings_of(options) | outcome.data()
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        full = results | outcome.data(texts=True)
        write_whole(options.out / "results.json", json.dumps(rounded(full), indent=1) + "\n")
    return results


def origin_of(setup: TaskSetup, small: str | None, command: Sequence[str]) -> dict[str, Any]:
    """Machine, versions, commit, and the models with their sha256."""
    trust = bool(setup.loading.get("trust_remote_code"))
    about = provenance(resolve(setup.model, trust_remote_code=trust), command)
    about |= {"commit": commit(), "load_average": load_average()}
    if small is not None:
        other = provenance(resolve(small, trust_remote_code=trust), command)
        about |= {"small": other["model"], "small_sha256": other["sha256"]}
    return about


def settings_of(options: TaskOptions) -> dict[str, Any]:
    setup, route, load = options.setup, options.route, options.load
    chosen: dict[str, Any] = {
        "engine": setup.engine,
        "drafter": setup.drafter,
        "depth": setup.depth,
        "temperature": load.sampling.temperature,
        "max_tokens": load.max_tokens,
        "batch": load.batch,
    }
    if route is not None:
        chosen |= {"route": route.level, "threshold": route.options.threshold, "score": route.options.score}
    return chosen


def show_task(results: Mapping[str, Any]) -> None:
    """Print the figures, and what they mean."""
    low, high = results["accuracy_interval"]
    joules = results["joules_per_request"]
    columns = ["model", results["metric"], "95 % interval", "s/request", "tokens/request", "large share", "J/request"]
    name = results["model"] if "small" not in results else f"{results['small']} -> {results['model']}"
    row = [
        name,
        f"{results['accuracy']:.3f}",
        f"{low:.3f} to {high:.3f}",
        f"{results['seconds_per_request']:.3g}",
        f"{results['tokens_per_request']:.1f}",
        f"{results['large_share']:.2f}",
        "-" if joules is None else f"{joules:.3g}",
    ]
    print(text(ResultTable(f"{results['task']}, {results['problems']} problems", columns, [row])))
    if results["lossless"] is False:
        print(f"lossless: false; {results['rule']} changes the output, which is not the large model's own")
    sys.stdout.flush()
