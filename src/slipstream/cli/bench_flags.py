"""Groups of flags of `bench`: the matrix of setups, and tasks with routes."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slipstream.cli import options as flags

if TYPE_CHECKING:
    from slipstream.bench.matrix import Matrix
    from slipstream.bench.tasks.setups import RouteSetup
    from slipstream.bench.tasks.task_session import TaskOptions
    from slipstream.plan.ir.nodes import Plan

MAX_TOKENS = 512  # of an answer to a problem
NOT_WITH_TASK = ("workload", "repeats", "hold", "against", "plan", "forecast", "sample")
ONLY_WITH_TASK = ("route", "small", "threshold", "score", "curve")


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
        int, typer.Option(help="With --forecast: further prompts of a workload, whose acceptance a second one uses.")
    ] = 2

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
            "20. --max-tokens is 512 then.",
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
        str, typer.Option(help="How far an answer is trusted: mean, quantile(q=0.1), entropy or agreement(n=5).")
    ] = "mean"

    curve: Annotated[
        bool,
        typer.Option("--curve", help="Small, large, exact speculation and cascades on one curve; rules: --verify."),
    ] = False

    def check_unused(self, context: typer.Context) -> None:
        """Raise ValueError for flags that need --task."""
        for name in ONLY_WITH_TASK:
            if given(context, name):
                raise ValueError(f"--{name} is given without --task; a route is measured on the problems of a task")

    def route_setup(self) -> RouteSetup | None:
        from slipstream.bench.tasks.setups import RouteSetup
        from slipstream.engines.cascade.request import RouteOptions
        from slipstream.plan.ir.check_parts import ROUTE_LEVELS

        if self.curve:
            if self.small is None or self.route is not None or self.threshold is not None:
                raise ValueError("--curve needs --small MODEL, and neither --route nor --threshold")
            return None
        if self.route is None:
            if self.small is not None or self.threshold is not None:
                raise ValueError(f"--small and --threshold belong to a route; add --route {' or '.join(ROUTE_LEVELS)}")
            return None
        if self.small is None or self.threshold is None:
            missing = "--small MODEL" if self.small is None else "--threshold T"
            raise ValueError(f"--route {self.route} needs {missing}")
        return RouteSetup(self.route, self.small, RouteOptions(self.threshold, self.score))


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
    from slipstream.bench.tasks.setups import TaskSetup
    from slipstream.bench.tasks.task_run import TaskLoad
    from slipstream.bench.tasks.task_session import TaskOptions
    from slipstream.core.sampling import Sampling

    for name in NOT_WITH_TASK:
        if given(context, name):
            raise ValueError(f"--task and --{name} are both given; --{name} belongs to workloads, so leave it out")
    setup = TaskSetup(
        model,
        one("engine", cells.engine or ["native"]),
        one("drafter", cells.drafter or ["none"]),
        None if cells.verify == "auto" or graded.curve else cells.verify,
        None if cells.depth == "auto" else number("depth", cells.depth, int),
        flags.settings(cells.option),
        loading,
    )
    tokens = max_tokens if given(context, "max_tokens") else MAX_TOKENS
    sampling = Sampling(number("temperature", cells.temperature, float))
    load = TaskLoad(sampling, tokens, number("batch", cells.batch, int))
    return TaskOptions(str(graded.task), setup, load, graded.route_setup(), out, ["slipstream", *sys.argv[1:]])


def one(name: str, values: Sequence[str]) -> str:
    """The only value of a flag. ValueError if there are several."""
    if len(values) > 1:
        raise ValueError(f"--task measures one setup, and {name} has {len(values)} values; give one")
    return values[0]


def number(name: str, text: str, kind: type[Any]) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{name} is {text!r}; with --task it must be one number") from None
