"""`slipstream train`: a drafter for your own target."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from slipstream.cli import options as given
from slipstream.cli.output.show import Json, console, print_json


def train(
    method: Annotated[str, typer.Argument(help="eagle: a head on the target's states; draft_model: a small model.")],
    data: Annotated[list[Path], typer.Option(help="JSONL prompts, plain or .gz; may be given several times.")],
    out: Annotated[Path, typer.Option(help="A folder for the drafter; a killed training goes on there.")],
    model: given.ModelName = "smollm2-135m",
    option: Annotated[
        list[str] | None,
        typer.Option("-o", "--option", metavar="KEY=VALUE", help="Of the training, such as steps=4000 or vocab=8192."),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    trust_remote_code: given.TrustRemoteCode = False,
    minutes: Annotated[float | None, typer.Option(help="Stop after so long; the same command goes on.")] = None,
    as_json: Json = False,
) -> None:
    """Train a drafter: the target answers prompts, a small network learns to foresee it."""
    from slipstream.models.sources.progress import counting
    from slipstream.train.report import draw_curves, summary, write_card
    from slipstream.train.run import train as run

    with counting(console(stderr=True), disable=as_json) as bars:
        phases: dict[str, Any] = {}
        latest: dict[str, float] = {}

        def told(phase: str, done: int, total: int, new: dict[str, Any]) -> None:
            if phase not in phases:
                phases[phase] = bars.add_task(phase, total=total)
            latest.update(new)
            text = ", ".join(f"{key.replace('_', ' ')} {value:.3f}" for key, value in latest.items())
            bars.update(phases[phase], completed=done, description=f"{phase} {text}".strip())

        try:
            loading: dict[str, Any] = {"device": device, "trust_remote_code": trust_remote_code}
            outcome = run(method, model, data, out, given.settings(option), **loading, minutes=minutes, told=told)
        except KeyboardInterrupt:
            raise ValueError(f"stopped; the same command goes on from the last checkpoint in {out}") from None
    write_card(outcome, " ".join(["slipstream", *sys.argv[1:]]), _commit())
    curves = draw_curves(out)
    if as_json:
        print_json(summary(outcome))
    else:
        _show(outcome, curves)


def _show(outcome: Any, curves: Path | None) -> None:
    from rich.table import Table

    from slipstream.train.report import lines

    table = Table("task", "tau greedy", "tau at T = 1", title=f"{outcome.folder}: chain of five, held-out prompts")
    for line in lines(outcome):
        table.add_row(*line)
    out = console()
    out.print(table)
    share = outcome.read / outcome.target
    out.print(f"{outcome.parameters:,} parameters; a drafted token reads {share:.1%} of what the target reads for one")
    out.print(f"curves in {curves}" if curves else "no curves: pip install matplotlib", style="dim")
    if not outcome.finished:
        out.print("the time was up before the last step; the same command goes on", style="yellow")


def _commit() -> str:
    """The commit of the sources, where they are a checkout."""
    git = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True
    )
    return git.stdout.strip() or "unknown"
