"""The verbs."""

from __future__ import annotations

import typer

from slipstream.cli.audit import audit
from slipstream.cli.chat import chat
from slipstream.cli.generate import generate
from slipstream.cli.models import models

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
app.command()(audit)
app.add_typer(models, name="models")


@app.callback()
def verbs() -> None:
    pass
