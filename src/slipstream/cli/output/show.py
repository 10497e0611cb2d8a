"""Output of commands: results on stdout, all other messages on stderr, JSON as the last line if requested.

Consoles do not interpret markup, because file names and errors may hold square brackets. Styles are arguments or
`Text`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")]
INTERRUPTED = 130  # the exit code after Ctrl-C


def console(stderr: bool = False) -> Console:
    return Console(highlight=False, soft_wrap=True, stderr=stderr, markup=False, emoji=False)


def mark(passed: bool) -> Text:
    return Text("ok    ", "green") if passed else Text("FAILED", "bold red")


def print_json(value: Mapping[str, Any]) -> None:
    print(json.dumps(value), flush=True)
