"""Groups of flags of `bench`: the matrix of setups, and tasks with routes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slipstream.cli import options as flags

if TYPE_CHECKING:
    from slipstream.bench.matrix import Matrix
    from slipstream.bench.tasks.task_session import TaskOptions
    from slipstream.plan.ir.nodes import Plan

NOT_WITH_TASK = ("workload", "repeats", "hold", "against", "plan", "forecast", "sample")
ONLY_WITH_TASK = ("route", "small", "threshold", "score", "curve", "limit", "quality_batch", "time_limit")


@dataclass(frozen=True)
class MatrixFlags:
    """Engines, drafters, rules, depths, batches and temperatures."""

    engine: Annotated[
        list[str] | None, typer.Option(help="native, transformers, llamacpp or vllm; may be given several times.")
    ] = None
    drafter: Annotated[
        list[str] | None,
        typer.Option("-d", "--drafter", help="As in generate, or ENGINE:DRAFTER; may be given several times."),
    ] = None
    verify: Annotated[
        str, typer.Option(help="Rules, such as block,coupled; auto is block, and the own rule of other engines.")
    ] = "auto"
    depth: Annotated[str, typer.Option(help="Drafted tokens per cycle, such as auto,2,4 or 1-6.")] = "auto"
    option: Annotated[
        list[str] | None,
        typer.Option(
            "-o", "--option", metavar="KEY=VALUE", help="An option of all drafters, or NAME.KEY=VALUE of one."
        ),
    ] = None
    plan: Annotated[
        list[str] | None,
        typer.Option("--plan", metavar="FILE|NAME", help="A plan, measured beside -d; may be given several times."),
    ] = None
    temperature: Annotated[str, typer.Option(help="Temperatures, such as 0,0.8.")] = "0"
    batch: Annotated[str, typer.Option(help="Numbers of simultaneous requests, such as 1,8.")] = "1"

    def matrix(self, plans: Mapping[str, Plan]) -> Matrix:
        """The cells to measure. Plans are measured beside plain decoding, unless -d names drafters."""
        from slipstream.bench.matrix import Matrix

        engines = tuple(self.engine or Matrix().engines)
        drafters = tuple(self.drafter or (("none",) if plans else Matrix().drafters))
        settings = flags.settings(self.option)
        return Matrix(engines, drafters, self.depth, self.verify, self.batch, self.temperature, settings, plans)


@dataclass(frozen=True)
class ForecastFlags:
    """Forecasts beside measurements."""

    forecast: Annotated[
        bool, typer.Option("--forecast", help="Forecast every workload from the others, and show the errors.")
    ] = False
    sample: Annotated[
        int, typer.Option(help="With --forecast: further prompts of a workload, whose acceptance a third one uses.")
    ] = 4

    def chosen(self, model: str, cells: MatrixFlags, workload: str) -> tuple[MatrixFlags, str]:
        """The cells and workloads: those of the flags, and with --forecast some that can be forecast."""
        from slipstream.bench.forecast.check import forecast_defaults

        if not self.forecast:
            return cells, workload
        drafters, depth, workload = forecast_defaults(model, cells.drafter, cells.depth, workload)
        return replace(cells, drafter=drafters, depth=depth), workload


@dataclass(frozen=True)
class TaskFlags:
    """Problems with graded answers, and a route between two models."""

    task: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Grade answers instead: humaneval, mbpp, gsm8k or a .jsonl file of problems; FILE:20 for the first "
            "20; several with commas. --max-tokens is 512 then.",
        ),
    ] = None
    route: Annotated[
        str | None,
        typer.Option(help="request: --small answers, and -m answers again what scores at most --threshold. Lossy."),
    ] = None
    small: Annotated[str | None, typer.Option(metavar="MODEL", help="The small model of a route.")] = None
    threshold: Annotated[
        float | None, typer.Option(help="0 is the small model alone, 1 the large model alone.", show_default=False)
    ] = None
    score: Annotated[
        str,
        typer.Option(help="How far an answer is trusted: mean, quantile, entropy, agreement or learned(file=FILE)."),
    ] = "mean"

    curve: Annotated[
        bool,
        typer.Option("--curve", help="Small, large, exact speculation and cascades on one curve; rules: --verify."),
    ] = False
    limit: Annotated[
        int | None, typer.Option(help="Of a curve: time so many problems, and take the quality of all of them.")
    ] = None
    quality_batch: Annotated[
        int | None, typer.Option(help="With --limit: problems at a time where only quality is measured; 64 by default.")
    ] = None
    time_limit: Annotated[
        float | None,
        typer.Option(help="Of a curve, in seconds: begin no run that would take longer than is left; 0 only grades."),
    ] = None

    def check_unused(self, context: typer.Context) -> None:
        """Raise ValueError for flags that need --task."""
        for name in ONLY_WITH_TASK:
            if given(context, name):
                flag = name.replace("_", "-")
                raise ValueError(f"--{flag} is given without --task; a route is measured on the problems of a task")


def given(context: typer.Context, name: str) -> bool:
    """Whether a flag was on the command line."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def task_options(
    context: typer.Context,
    graded: TaskFlags,
    cells: MatrixFlags,
    model: str,
    max_tokens: int,
    loading: Mapping[str, Any],
    out: Path | None,
) -> TaskOptions:
    """The measurement that the flags describe."""
    from slipstream.bench.tasks.arguments import curve_scope, route_setup, task_load, task_setup
    from slipstream.bench.tasks.task_session import TaskOptions

    for name in NOT_WITH_TASK:
        if given(context, name):
            raise ValueError(f"--task and --{name} are both given; --{name} belongs to workloads, so leave it out")
    verify = None if cells.verify == "auto" or graded.curve else cells.verify
    options, drafters = flags.settings(cells.option), cells.drafter or []
    setup = task_setup(model, cells.engine or [], drafters, verify, cells.depth, options, loading, cells.batch)
    load = task_load(cells.temperature, max_tokens if given(context, "max_tokens") else None, cells.batch)
    route = route_setup(graded.route, graded.small, graded.threshold, graded.score, graded.curve)
    scope = curve_scope(graded.curve, graded.limit, graded.quality_batch, graded.time_limit)
    return TaskOptions(str(graded.task), setup, load, route, out, ["slipstream", *sys.argv[1:]], scope)
