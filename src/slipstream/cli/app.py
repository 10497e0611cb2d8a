"""The commands."""

from __future__ import annotations

from typing import Annotated

import typer

from slipstream import __version__
from slipstream.cli.audit.command import audit
from slipstream.cli.bench import bench
from slipstream.cli.chat.command import chat
from slipstream.cli.generate.command import generate
from slipstream.cli.models import models
from slipstream.cli.plan.command import plan
from slipstream.cli.profile import profile
from slipstream.cli.serve import serve
from slipstream.cli.train import options_help, train
from slipstream.cli.transcribe.command import transcribe

app = typer.Typer(
    help="Speculative sampling of language models: exact, measured, composable. "
    "Errors are one sentence; --debug anywhere shows the traceback.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(generate)
app.command()(chat)
app.command()(transcribe)
app.command()(audit)
app.command()(bench)
app.command()(profile)
app.command()(serve)
app.command(epilog=options_help())(train)
app.add_typer(models, name="models")
app.add_typer(plan, name="plan")


def _show_version(requested: bool) -> None:
    if requested:
        print(f"slipstream {__version__}")
        raise typer.Exit


@app.callback()
def commands(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass
