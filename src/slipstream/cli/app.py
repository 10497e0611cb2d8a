"""The verbs."""

from __future__ import annotations

import typer

from slipstream.cli.audit import audit

app = typer.Typer(
    help="Speculative sampling of language models: exact, measured, composable. "
    "Errors are one sentence; --debug anywhere shows the traceback.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(audit)


@app.callback()
def verbs() -> None:
    pass
