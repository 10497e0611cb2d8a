"""Writes docs/cli.md from the command line's own `--help`; with --check, says whether it is up to date."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).with_name("cli.md")


def help_of(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "slipstream", *words, "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": "122", "TERM": "dumb"},
    )
    return f"## `slipstream {' '.join(words)}`\n\n```\n{done.stdout.strip()}\n```\n".replace(
        "slipstream `", "slipstream`"
    )


def page() -> str:
    import typer

    from slipstream.cli.app import app

    verbs = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    parts = ["# Command line\n\nMade from `--help` by `make docs`.\n", help_of()]
    for name, verb in verbs.items():
        parts.append(help_of(name))
        parts += [help_of(name, inner) for inner in getattr(verb, "commands", {})]
    return "\n".join(parts)


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(0 if PAGE.read_text() == page() else "docs/cli.md does not match --help; run `make docs`")
    PAGE.write_text(page())
