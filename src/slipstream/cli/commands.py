"""Builds the command line from its commands. Only the modules of the commands in it are imported."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

import typer

from slipstream import __version__
from slipstream.cli.plain_values import PlainCommand, PlainGroup

COMMANDS = {  # in the order of the help
    "generate": "slipstream.cli.generate.command",
    "chat": "slipstream.cli.chat.command",
    "transcribe": "slipstream.cli.transcribe.command",
    "audit": "slipstream.cli.audit.command",
    "bench": "slipstream.cli.bench",
    "profile": "slipstream.cli.profile",
    "serve": "slipstream.cli.serve",
    "train": "slipstream.cli.train",
    "models": "slipstream.cli.models",
    "plan": "slipstream.cli.plan.command",
}


def build_app(name: str | None = None) -> typer.Typer:
    """The command line with one command, or with all if `name` is not the name of one."""
    app = typer.Typer(
        cls=PlainGroup,
        help="Speculative sampling of language models: exact, measured, composable. "
        "Errors are one sentence; --debug anywhere shows the traceback.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"max_content_width": 120},  # of a help text; click's own limit is 80
    )
    app.callback()(_top)
    for command in [name] if name in COMMANDS else COMMANDS:
        module: Any = import_module(COMMANDS[command])
        function = getattr(module, command)
        if isinstance(function, typer.Typer):
            app.add_typer(function, name=command)
        else:
            app.command(cls=PlainCommand, epilog=module.options_help() if command == "train" else None)(function)
    return app


def _show_version(requested: bool) -> None:
    if requested:
        print(f"slipstream {__version__}")
        raise typer.Exit


def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass
