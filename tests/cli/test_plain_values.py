"""Plain values of options are read as typer reads them, without pydantic."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from slipstream.cli.plain_values import PlainCommand, PlainGroup


def app(**classes) -> typer.Typer:
    app = typer.Typer(rich_markup_mode=None, **({"cls": PlainGroup} if classes else {}))

    @app.callback()
    def top(quiet: Annotated[bool, typer.Option("--quiet")] = False) -> None:
        print(quiet)

    @app.command(**classes)
    def verb(
        text: Annotated[str | None, typer.Argument()] = None,
        number: int = 3,
        share: float = 0.5,
        few: Annotated[int, typer.Option(min=1, max=4)] = 2,
        maybe: Annotated[bool | None, typer.Option("--maybe/--no-maybe")] = None,
        words: Annotated[list[str] | None, typer.Option()] = None,
        ids: Annotated[list[int] | None, typer.Option()] = None,
        file: Annotated[Path | None, typer.Option()] = None,
    ) -> None:
        print([text, number, share, few, maybe, words, ids, file])

    return app


@pytest.mark.parametrize(
    "words",
    [
        "",
        "a --number 8 --share 0.25",
        "--number -7 --share -2 --maybe",
        "--number 007",
        "--number 1_000",
        "--number 99999999999999999999999",
        "--number 4.0",
        "--number x",
        "--share 1e-3",
        "--share nan",
        "--share .5",
        "--share x",
        "--few 3",
        "--few 9",
        "--words a --words 5 --no-maybe",
        "--ids 5 --ids 6",
        "--ids 5 --ids x",
        "--file a/b",
    ],
)
def test_values_are_those_that_typer_reads(words):
    plain, full = (CliRunner().invoke(each, ["verb", *words.split()]) for each in (app(cls=PlainCommand), app()))
    assert (plain.output, plain.exit_code) == (full.output, full.exit_code)


def test_generate_is_parsed_without_pydantic():
    code = """if True:
        import sys
        from slipstream.cli.commands import build_app
        words = "generate Hello --max-tokens 8 --temperature 0.5 --stop x --stop-token-ids 7 --seed 1 --no-invariant"
        try: build_app("generate")([*words.split(), "--top-k", "-5"])
        except ValueError as error: print("top" in str(error), "torch" in sys.modules, "pydantic" in sys.modules)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "False"]
