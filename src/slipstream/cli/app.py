"""The command line with all its commands."""

from __future__ import annotations

from slipstream.cli.commands import build_app

app = build_app()
