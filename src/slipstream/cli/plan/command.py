"""`slipstream plan`: show, check, compare and lower plans."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from slipstream.cli.flag_groups import with_groups
from slipstream.cli.output.show import Json, console, print_json
from slipstream.cli.plan.flags import PlanFlags

plan = typer.Typer(
    help="A pipeline as a plan: show, compare, explain and lower it.", no_args_is_help=True, rich_markup_mode=None
)


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

    text, data = lowered(source.plan(context), emit)
    if as_json:
        print_json(data)
    else:
        sys.stdout.write(text)
