"""`slipstream bench`: engines and drafters side by side on the same prompts, in one interleaved run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slipstream.cli import options as flags
from slipstream.cli.bench_flags import ForecastFlags, MatrixFlags, TaskFlags, task_options
from slipstream.cli.flag_groups import with_groups
from slipstream.cli.output.show import Json, print_json

if TYPE_CHECKING:
    from slipstream.bench.tasks.task_session import TaskOptions


@with_groups
def bench(
    *,
    context: typer.Context,
    model: flags.ModelName = "smollm2-135m",
    cells: MatrixFlags,
    graded: TaskFlags,
    workload: Annotated[str, typer.Option(help="Names or .jsonl files, such as code,chat:3.")] = "code,chat",
    max_tokens: flags.MaxTokens = 64,
    repeats: Annotated[
        int, typer.Option(help="Interleaved measurements of every cell; five give useful intervals.")
    ] = 5,
    hold: Annotated[int | None, typer.Option(help="Engines in memory at a time; all by default.")] = None,
    dtype: flags.Dtype = "auto",
    device: flags.Device = "auto",
    trust_remote_code: flags.TrustRemoteCode = False,
    out: Annotated[
        Path | None, typer.Option(help="A folder for results and report; an interrupted run resumes there.")
    ] = None,
    against: Annotated[Path | None, typer.Option(help="Compare with the results.json of another run.")] = None,
    watts: flags.Watts = None,
    forecast: ForecastFlags,
    as_json: Json = False,
) -> None:
    """Measure workloads × engines × drafters: speed, tau, quality; a table, and a report page with --out."""
    from slipstream.bench.measure.energy import power_model

    if graded.task is not None:
        loading = {"dtype": dtype, "device": device, "trust_remote_code": trust_remote_code}
        options = task_options(context, graded, cells, model, max_tokens, loading, out)
        with power_model(watts):
            measure_curve(options, graded, cells, as_json) if graded.curve else measure_task(options, as_json)
        return
    graded.check_unused(context)
    from slipstream.bench.session import BenchOptions, rounded
    from slipstream.bench.session import bench as measure
    from slipstream.bench.table import show
    from slipstream.cli.plan.flags import load_plans

    plans, model = load_plans(context, cells.plan or [], model)
    cells, workload = forecast.chosen(model, cells, workload)
    command = ["slipstream", *sys.argv[1:]]
    load, place = (workload, max_tokens, repeats), (hold, device, trust_remote_code)
    with power_model(watts):
        results = measure(
            BenchOptions(model, cells.matrix(plans), *load, out, against, dtype, command, *place, **vars(forecast))
        )
    show(results)
    if as_json:
        print_json(rounded(results))


def measure_task(options: TaskOptions, as_json: bool) -> None:
    """Measure a task, and print its figures."""
    from slipstream.bench.session import rounded
    from slipstream.bench.tasks.task_session import show_task, task_bench

    results = task_bench(options)
    show_task(results)
    if as_json:
        print_json(rounded(results))


def measure_curve(options: TaskOptions, graded: TaskFlags, cells: MatrixFlags, as_json: bool) -> None:
    """Measure quality against time and energy, and print the table."""
    from slipstream.bench.session import rounded
    from slipstream.bench.tasks.curve import curve_rules, run_curve, show_curve

    results = run_curve(options, str(graded.small), curve_rules(cells.verify), graded.score)
    show_curve(results)
    if as_json:
        print_json(rounded(results))
