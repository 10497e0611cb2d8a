"""`slipstream train`: a drafter for your own target."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import Annotated, Any

import typer

from slipstream.cli import options as flags
from slipstream.cli.output.show import Json, console, print_json
from slipstream.train.options import GROUPS, describe


def options_help() -> str:
    """Every option of `-o` with its default, by method. A line with \\b tells click to keep line breaks."""
    paragraphs = []
    for group, kind in GROUPS.items():
        lines = [f"Options of {group}, -o KEY=VALUE:"]
        for name, text, default in describe(kind):
            parts = wrap(f"{text} [default: {default}]", 60)
            lines += [f"  {name if n == 0 else '':14}{part}" for n, part in enumerate(parts)]
        paragraphs.append("\b\n" + "\n".join(lines))
    return "\n\n".join(paragraphs)


def train(
    method: Annotated[
        str,
        typer.Argument(
            help="eagle, medusa, mlp or prophet: heads on the target's hidden states; dflash: a stack that drafts "
            "blocks; draft_model: some of the target's layers; early_exit: a head on the target's first layers; "
            "layer_skip: a search for the blocks of the target to skip; retrieval: an index of a corpus."
        ),
    ],
    out: Annotated[Path, typer.Option(help="A folder for the drafter; an interrupted training resumes there.")],
    data: Annotated[
        list[Path] | None, typer.Option(help="JSONL prompts, plain or .gz; may be given several times.")
    ] = None,
    corpus: Annotated[
        list[Path] | None, typer.Option(help="A text file for the method retrieval; may be given several times.")
    ] = None,
    model: flags.ModelName = "smollm2-135m",
    option: Annotated[
        list[str] | None,
        typer.Option("-o", "--option", metavar="KEY=VALUE", help="An option of the training; all are listed below."),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    trust_remote_code: flags.TrustRemoteCode = False,
    minutes: Annotated[float | None, typer.Option(help="Stop after this time; the same command resumes.")] = None,
    as_json: Json = False,
) -> None:
    """Train a drafter: the target answers prompts, and a small network learns to predict its answers."""
    if method == "retrieval":
        _index(model, corpus or (), out, data, option, trust_remote_code, as_json)
        return
    if corpus or not data:
        raise ValueError(f"{method} learns from prompts; give JSONL files with --data, and no --corpus")
    from slipstream.models.sources.progress import counting
    from slipstream.train.report import draw_curves, summary, write_card
    from slipstream.train.run import train as run

    with counting(console(stderr=True), disable=as_json) as bars:
        tasks: dict[str, Any] = {}
        latest: dict[str, float] = {}

        def show(phase: str, done: int, total: int, figures: dict[str, Any]) -> None:
            if phase not in tasks:
                tasks[phase] = bars.add_task(phase, total=total)
            latest.update(figures)
            text = ", ".join(f"{key.replace('_', ' ')} {value:.3f}" for key, value in latest.items())
            bars.update(tasks[phase], completed=done, description=f"{phase} {text}".strip())

        settings = flags.settings(option)
        loading: dict[str, Any] = {"device": device, "trust_remote_code": trust_remote_code}
        try:
            outcome = run(method, model, data, out, settings, **loading, minutes=minutes, on_progress=show)
        except KeyboardInterrupt:
            raise ValueError(f"stopped; the same command resumes from the last checkpoint in {out}") from None
    write_card(outcome, " ".join(["slipstream", *sys.argv[1:]]), _commit())
    curves = draw_curves(out)
    if as_json:
        print_json(summary(outcome))
    else:
        _show(outcome, model, curves)


def _index(
    model: str,
    corpus: Sequence[Path],
    out: Path,
    data: Sequence[Path] | None,
    option: Sequence[str] | None,
    trust_remote_code: bool,
    as_json: bool,
) -> None:
    """Index a corpus for the drafter `retrieval`."""
    from slipstream.train.retrieval import index_corpus

    if data or option:
        raise ValueError("retrieval takes text files with --corpus, and neither --data nor options")
    index = index_corpus(model, corpus, out, trust_remote_code)
    if as_json:
        print_json({"folder": str(out), "tokens": index.size, "documents": len(corpus)})
    else:
        console().print(f"{out}: {index.size} tokens of {len(corpus)} documents")
        console().print(f'use it: slipstream generate "…" -m {model} -d {out}')


def _show(outcome: Any, model: str, curves: Path | None) -> None:
    from rich.table import Table
    from rich.text import Text

    from slipstream.train.report import NOT_MEASURED, table_rows

    title = Text(f"{outcome.folder}: chain of five, held-out prompts")
    table = Table("task", "tau greedy", "tau at T = 1", title=title)
    rows = table_rows(outcome)
    for row in rows:
        table.add_row(*row)
    out = console()
    out.print(table)
    if any(NOT_MEASURED in row for row in rows):
        out.print(
            f"{NOT_MEASURED}: no held-out answer has that temperature; at T = 1 it must also be longer than the draft"
        )
    out.print(
        f"{outcome.parameters:,} parameters; one drafted token reads {outcome.cost:.1%} of the weights "
        "that the target reads for one token"
    )
    if curves:
        out.print(f"curves: {curves}", style="dim")
    out.print(f'use it: slipstream generate "…" -m {model} -d {outcome.folder}')
    if not outcome.finished:
        out.print("the time was up before the last step; the same command resumes", style="yellow")


def _commit() -> str:
    """The commit of the sources, if they are a git checkout."""
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True
    )
    return done.stdout.strip() or "unknown"
