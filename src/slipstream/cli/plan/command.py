"""`slipstream plan`: show, check, compare and lower plans."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from slipstream.cli import options as flags
from slipstream.cli.flag_groups import SamplingFlags, with_groups
from slipstream.cli.output.show import Json, console, print_json
from slipstream.cli.plan.calibrate import calibrate, choose
from slipstream.cli.plan.flags import PlanFlags

Level = Annotated[
    str, typer.Option("-O", metavar="0-3|e", help="The level: plain, fixed chain, measured, adaptive; e: least energy.")
]
Latency = Annotated[
    float | None,
    typer.Option(metavar="MS", help="With -O e: at most so many milliseconds per token."),
]
Passes = Annotated[list[str] | None, typer.Option("--pass", help="Run this pass, in place of a level's passes.")]
Candidates = Annotated[
    list[str] | None,
    typer.Option("--candidate", metavar="DRAFTER", help="A drafter to measure; default: ngram and shipped ones."),
]

plan = typer.Typer(
    help="A pipeline as a plan: show, compare, explain and lower it.", no_args_is_help=True, rich_markup_mode=None
)
plan.command()(calibrate)
plan.command()(choose)


@plan.command()
@with_groups
def show(
    *,
    context: typer.Context,
    source: PlanFlags,
    full: Annotated[bool, typer.Option("--full", help="Write every argument, defaults too.")] = False,
    as_json: Json = False,
) -> None:
    """Print a plan, or the plan that flags stand for."""
    from slipstream.cli.plan.full import with_defaults
    from slipstream.plan.ir.json_form import to_json
    from slipstream.plan.ir.text import text_of

    shown = source.plan(context)
    text = text_of(with_defaults(shown) if full else shown, full)
    if as_json:
        print_json({"plan": to_json(shown), "text": text})
    else:
        sys.stdout.write(text)


@plan.command("list")
def list_plans(as_json: Json = False) -> None:
    """The plans that come with slipstream."""
    from slipstream.plan.ir.library import library, load_plan

    plans = {name: " ".join(load_plan(name).heading) for name in library()}
    if as_json:
        print_json({"plans": plans})
        return
    for name, about in plans.items():
        print(f"{name:16} {about}")


@plan.command()
def diff(
    first: Annotated[str, typer.Argument(metavar="FILE|NAME", help="A plan.")],
    second: Annotated[str, typer.Argument(metavar="FILE|NAME", help="Another plan.")],
    as_json: Json = False,
) -> None:
    """What differs between two plans, argument by argument. Exit code 1 if anything does."""
    from slipstream.plan.ir.differences import differences
    from slipstream.plan.ir.library import load_plan

    lines = differences(load_plan(first), load_plan(second))
    if as_json:
        print_json({"equal": not lines, "differences": lines})
    else:
        styles, out = {"-": "red", "+": "green"}, console()
        for line in lines:
            out.print(line, style=styles.get(line[0]))
    if lines:
        raise typer.Exit(1)


@plan.command()
@with_groups
def lower(
    *,
    context: typer.Context,
    source: PlanFlags,
    emit: Annotated[
        str, typer.Option(help="python (the cycle as a file that runs), native, vllm, llamacpp or transformers.")
    ] = "native",
    as_json: Json = False,
) -> None:
    """Print what an engine reads to run a plan."""
    from slipstream.cli.plan.lowering import lowered

    text, data = lowered(source.plan(context), emit, source.file or "plan")
    if as_json:
        print_json(data)
    else:
        sys.stdout.write(text)


@plan.command()
@with_groups
def optimise(
    *,
    context: typer.Context,
    source: PlanFlags,
    level: Level = "2",
    passes: Passes = None,
    candidate: Candidates = None,
    watts: flags.Watts = None,
    latency: Latency = None,
    print_before: Annotated[list[str] | None, typer.Option(help="Show the plan before this pass.")] = None,
    print_after: Annotated[list[str] | None, typer.Option(help="Show the plan after this pass.")] = None,
    print_before_all: Annotated[bool, typer.Option("--print-before-all", help="Show it before every pass.")] = False,
    print_after_all: Annotated[bool, typer.Option("--print-after-all", help="Show it after every pass.")] = False,
    as_json: Json = False,
) -> None:
    """Improve a plan for this machine, and print it. Levels 2, 3 and e measure for about a minute."""
    from slipstream.cli.plan.optimise import EnergyBounds, check_shown, explained, show_steps
    from slipstream.cli.plan.optimise import optimise as run
    from slipstream.plan.ir.json_form import to_json
    from slipstream.plan.ir.text import text_of
    from slipstream.plan.passes.levels import passes_of

    start, chosen = source.plan(context), passes or passes_of(level)
    check_shown([*(print_before or []), *(print_after or [])], chosen)
    steps = run(start, chosen, candidate or [], EnergyBounds(watts, latency))
    if print_before_all or print_before:
        show_steps(steps, True, False, print_before or [])
    if print_after_all or print_after:
        show_steps(steps, False, True, print_after or [])
    best = steps[-1].after if steps else start
    if as_json:
        print_json({"plan": to_json(best), "text": text_of(best), "passes": explained(steps)})
    else:
        sys.stdout.write(text_of(best))


@plan.command()
@with_groups
def explain(
    *,
    context: typer.Context,
    source: PlanFlags,
    level: Level = "2",
    passes: Passes = None,
    candidate: Candidates = None,
    watts: flags.Watts = None,
    latency: Latency = None,
    as_json: Json = False,
) -> None:
    """Why this drafter, depth and rule: what each pass would change, and the figures it rests on."""
    from slipstream.cli.plan.optimise import EnergyBounds, explained
    from slipstream.cli.plan.optimise import optimise as run
    from slipstream.plan.passes.levels import passes_of

    steps = run(source.plan(context), passes or passes_of(level), candidate or [], EnergyBounds(watts, latency))
    if as_json:
        print_json({"level": None if passes else f"O{level}", "passes": explained(steps)})
        return
    out = console()
    for step in explained(steps):
        out.print(f"{step['pass']}: {'changed' if step['changed'] else 'unchanged'}", style="bold")
        for reason in step["reasons"]:
            out.print(f"  {reason}")


@plan.command()
@with_groups
def levels(
    *,
    context: typer.Context,
    prompt: Annotated[
        str, typer.Option("--prompt", help="The prompt.")
    ] = "Write a Python function that merges two lists.",
    source: PlanFlags,
    candidate: Candidates = None,
    sampling: SamplingFlags,
    max_tokens: flags.MaxTokens = 64,
    as_json: Json = False,
) -> None:
    """All levels on one prompt, in turns, in one table."""
    from slipstream.cli.plan.optimise import compare_levels, levels_table

    rows = compare_levels(source.plan(context), candidate or [], prompt, sampling.sampling(), max_tokens)
    out = console()
    out.print(levels_table(rows), soft_wrap=False)
    for row in rows:
        out.print(f"{row['level']}: {row['about']}", style="dim")
    if as_json:
        print_json({"levels": rows})


@plan.command()
def forecast(
    model: flags.ModelName = "smollm2-135m",
    drafter: flags.DrafterName = "ngram",
    option: flags.Settings = None,
    depth: Annotated[str, typer.Option(help="Depths, such as 1,2,4 or 1-6.")] = "1-6",
    batch: Annotated[str, typer.Option(help="Numbers of simultaneous requests, such as 1,8.")] = "1",
    temperature: flags.Temperature = 0.0,
    dtype: flags.Dtype = "auto",
    device: flags.Device = "auto",
    bandwidth: Annotated[str | None, typer.Option(help="Of other hardware, such as 3.35TB/s.")] = None,
    flops: Annotated[str | None, typer.Option(help="Operations per second of other hardware, such as 990T.")] = None,
    weights: Annotated[str | None, typer.Option(help="Bytes of the target's weights there, such as 16GB.")] = None,
    acceptance: Annotated[float, typer.Option(help="Of a drafted token there.")] = 0.7,
    draft_cost: Annotated[float, typer.Option(help="Of a drafted token there, as a share of a plain pass.")] = 0.05,
    profile: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Forecast from this profile, without measuring.")
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option(help="Your own prompts: names or .jsonl files. With --profile, acceptance is measured on them."),
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the curves over depth as SVG: speed-up and deviation.")
    ] = None,
    watts: flags.Watts = None,
    as_json: Json = False,
) -> None:
    """Tau, tokens per second, speed-up and joules per token by depth: from a profile or a minute of measuring here, or
    for other hardware from its bandwidth, arithmetic and the size of the weights."""
    from slipstream.bench.journal import write_whole
    from slipstream.bench.matrix import numbers
    from slipstream.bench.measure.energy import power_model
    from slipstream.bench.report.forecast_picture import forecast_picture
    from slipstream.cli.plan.forecast import report_here, report_there
    from slipstream.engines.native.build import build_target

    load = numbers("depth", depth, 1), numbers("batch", batch, 1), temperature
    given = {"bandwidth": bandwidth, "flops": flops, "weights": weights}
    if any(given.values()):
        if profile is not None:
            raise ValueError("--profile is of this machine; leave it out, or leave out --bandwidth, --flops, --weights")
        if workload is not None:
            raise ValueError("--workload is decoded on this machine; for other hardware state --acceptance instead")
        with power_model(watts):  # refuses an impossible power
            report = report_there(given, acceptance, load, draft_cost, watts)
    else:
        if drafter == "none":
            raise ValueError("the drafter is none, so there is nothing to forecast; name a drafter")
        with power_model(watts):
            target = build_target(model, dtype, device)
            report = report_here(target, drafter, flags.settings(option), load, profile, workload)
    if picture is not None:
        write_whole(picture, forecast_picture(report["points"]))
    if as_json:
        print_json(report)


@plan.command()
def advise(
    model: flags.ModelName = "smollm2-135m",
    candidate: Candidates = None,
    dtype: flags.Dtype = "auto",
    device: flags.Device = "auto",
    as_json: Json = False,
) -> None:
    """Measure briefly, then say in five lines what to use, what it brings, and the command to run."""
    from slipstream.bench.figures import measure_figures
    from slipstream.cli.plan.advise import advice
    from slipstream.engines.drafter_catalogue import candidates
    from slipstream.engines.native.build import build_target

    target, errors = build_target(model, dtype, device), console(stderr=True)
    kinds = {name: {} for name in candidate} if candidate else candidates(model)
    with errors.status("measuring") as status:
        figures = measure_figures(
            target, kinds, on_step=lambda way, done, total: status.update(f"measuring {way} ({done + 1} of {total})")
        )
    found = advice(target, figures)
    out = console()
    for line in found["lines"]:
        out.print(line)
    if as_json:
        print_json({"model": target.label, "plain_tokens_per_second": figures.plain, **found})


@plan.command("predictors")
def score_predictors(
    model: flags.ModelName = "smollm2-135m",
    drafter: flags.DrafterName = "ngram",
    option: flags.Settings = None,
    predictor: Annotated[
        list[str] | None, typer.Option(help="A predictor; may be given several times; default: all of them.")
    ] = None,
    depth: Annotated[int, typer.Option(min=1, help="Drafted tokens per cycle of the traces.")] = 6,
    temperature: flags.Temperature = 0.0,
    workload: Annotated[
        str, typer.Option(help="Names or .jsonl files, such as code:2,chat:2.")
    ] = "code:2,chat:2,maths:2",
    draft_cost: Annotated[float, typer.Option(help="Of a drafted token, as a share of a plain pass.")] = 0.1,
    dtype: flags.Dtype = "auto",
    device: flags.Device = "auto",
    picture: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the calibration curves as SVG.")] = None,
    as_json: Json = False,
) -> None:
    """Score predictors of acceptance on traces that are recorded here: log-loss, calibration, speed if obeyed.

    Each workload is held out: its traces are scored after a predictor has learnt those of the other workloads."""
    from dataclasses import asdict

    from slipstream.bench.journal import write_whole
    from slipstream.bench.profile.traces import record_workloads
    from slipstream.bench.report.calibration_picture import calibration_picture
    from slipstream.cli.plan.predictor_table import predictor_table
    from slipstream.engines.native.build import build_target
    from slipstream.plan.predictors import predictors
    from slipstream.plan.predictors.score import score_held_out

    if not 0 < draft_cost < 1:
        raise ValueError(f"--draft-cost is {draft_cost}; it must be between 0 and 1")
    kinds = {name: predictors.get(name) for name in predictor or predictors.names()}
    target, settings = build_target(model, dtype, device), flags.settings(option)
    traces = record_workloads(target, drafter, settings, workload, depth, temperature)
    scores = [score_held_out(name, kind, traces, draft_cost) for name, kind in kinds.items()]
    scores.sort(key=lambda each: each.log_loss)
    console().print(predictor_table(scores), soft_wrap=False)
    if picture is not None:
        write_whole(picture, calibration_picture(scores))
    if as_json:
        found = {"workloads": list(traces), "predictors": [asdict(each) for each in scores]}
        print_json({"model": target.label, "drafter": drafter, "held_out": len(traces) > 1, **found})
