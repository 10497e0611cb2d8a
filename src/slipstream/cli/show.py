"""What verbs show: marks and colours on a terminal, plain words elsewhere, JSON as the last line where asked for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Console

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")]


def console(stderr: bool = False) -> Console:
    return Console(highlight=False, soft_wrap=True, stderr=stderr)


def mark(passed: bool) -> str:
    return "[green]ok[/]    " if passed else "[bold red]FAILED[/]"


def print_json(value: Mapping[str, Any]) -> None:
    print(json.dumps(value), flush=True)
