"""Runs the checks of an audit and prints them: how many there are, how long they take, and the result of each."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from slipstream.cli.output.show import console, mark, print_json

if TYPE_CHECKING:
    from slipstream.audit.check import Check, Planned

Result = TypeVar("Result")


def run_planned(out: Console, plan: Sequence[Planned[Result]], unit: float) -> Iterator[tuple[str, Result]]:
    """Run all checks; yield "n/N" and the result of each. `unit` is the seconds of one unit of cost.

    The first line gives the expected time as a range. A terminal shows the running check and the time left. The last
    line gives the time that the checks took.
    """
    total, left = len(plan), sum(check.cost for check in plan)
    out.print(f"{total} checks, {duration_range(left * unit)}", style="dim")
    began, done = time.perf_counter(), 0.0
    with out.status("") as status:
        for number, check in enumerate(plan, 1):
            status.update(Text(f"check {number} of {total}, {duration(left * unit)} left: {check.name}"))
            yield f"{number:{len(str(total))}}/{total}", check.run()
            done, left = done + check.cost, left - check.cost
            unit = (time.perf_counter() - began) / done if done else unit
    out.print(f"the checks took {time.perf_counter() - began:.0f} s", style="dim")


def duration_range(seconds: float) -> str:
    """An expected time in words. The costs of checks are right within a factor of two on a quiet machine."""
    if seconds < 10:
        return "less than a minute"
    low, high = (duration(bound).removeprefix("about ") for bound in (max(10.0, seconds / 2), 2 * seconds))
    return f"expected to take {low} to {high}, longer on a busy machine"


def duration(seconds: float) -> str:
    """A rough time in words."""
    if seconds < 10:
        return "a few seconds"
    if seconds < 90:
        return f"about {round(seconds, -1):.0f} s"
    return f"about {seconds / 60:.0f} min"


def run_checks(out: Console, plan: Sequence[Planned[Check]], unit: float) -> list[Check]:
    """Run all checks and print a line for each."""
    width = max(len(check.name) for check in plan)
    checks = []
    for number, check in run_planned(out, plan, unit):
        print_line(out, number, check.passed, check.name, width, check.layer, check.detail)
        checks.append(check)
    return checks


def print_line(out: Console, number: str, passed: bool, name: str, width: int, layer: str, detail: str) -> None:
    """Print one line per check. On a narrow terminal the detail is on the next line."""
    indent = 8 + len(number)
    line = Text.assemble(mark(passed), f" {number} {name:{width}} ", (f"{layer:8}", "dim"))
    if out.is_terminal and indent + width + 10 + len(detail) > out.width:
        line.rstrip()
        out.print(line)
        out.print(Padding(Text(detail), (0, 0, 0, indent)), style="dim", soft_wrap=False)
    else:
        out.print(Text.assemble(line, f" {detail}"))


def print_layers(out: Console, layers: Mapping[str, str], used: Sequence[Check]) -> None:
    """Explain the layers of the checks that ran."""
    for layer in dict.fromkeys(check.layer for check in used):
        out.print(f"{layer:9} {layers[layer]}", style="dim")


def conclude(passed: bool, verdict: str, report: Mapping[str, Any], as_json: bool) -> None:
    """Print the verdict, and the report if JSON was requested. Exit code 1 if the audit failed."""
    console().print(verdict, style=f"bold {'green' if passed else 'red'}")
    if as_json:
        print_json({"passed": passed, **report})
    if not passed:
        raise typer.Exit(1)
