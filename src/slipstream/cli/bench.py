"""`slipstream bench`: engines and drafters side by side on the same prompts, in one interleaved run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from slipstream.cli import options as flags
from slipstream.cli.output.show import Json, print_json


def bench(
    context: typer.Context,
    model: flags.ModelName = "smollm2-135m",
    engine: Annotated[
        list[str] | None, typer.Option(help="native, transformers, llamacpp or vllm; may be given several times.")
    ] = None,
    drafter: Annotated[
        list[str] | None,
        typer.Option("-d", "--drafter", help="As in generate, or ENGINE:DRAFTER; may be given several times."),
    ] = None,
    verify: Annotated[
        str, typer.Option(help="Rules, such as block,coupled; auto is block, and the own rule of other engines.")
    ] = "auto",
    depth: Annotated[str, typer.Option(help="Drafted tokens per cycle, such as auto,2,4 or 1-6.")] = "auto",
    option: Annotated[
        list[str] | None,
        typer.Option(
            "-o", "--option", metavar="KEY=VALUE", help="An option of all drafters, or NAME.KEY=VALUE of one."
        ),
    ] = None,
    plan: Annotated[
        list[str] | None,
        typer.Option("--plan", metavar="FILE|NAME", help="A plan, measured beside -d; may be given several times."),
    ] = None,
    temperature: Annotated[str, typer.Option(help="Temperatures, such as 0,0.8.")] = "0",
    batch: Annotated[str, typer.Option(help="Numbers of simultaneous requests, such as 1,8.")] = "1",
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
    as_json: Json = False,
) -> None:
    """Measure workloads × engines × drafters: speed, tau, quality; a table, and a report page with --out."""
    from slipstream.bench.matrix import Matrix
    from slipstream.bench.session import BenchOptions, rounded
    from slipstream.bench.session import bench as measure
    from slipstream.bench.table import show
    from slipstream.cli.plan.flags import load_plans

    plans, model = load_plans(context, plan or [], model)
    engines = tuple(engine or Matrix().engines)
    drafters = tuple(drafter or (("none",) if plans else Matrix().drafters))
    matrix = Matrix(engines, drafters, depth, verify, batch, temperature, flags.settings(option), plans)
    command = ["slipstream", *sys.argv[1:]]
    load, place = (workload, max_tokens, repeats), (hold, device, trust_remote_code)
    results = measure(BenchOptions(model, matrix, *load, out, against, dtype, command, *place))
    show(results)
    if as_json:
        print_json(rounded(results))
