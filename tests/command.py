"""`slipstream` in this process: what a user would see, without the seconds that a new process takes to import all."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import dataclass
from typing import Any

import pytest

import default
from slipstream.cli import main


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str

    @property
    def report(self) -> Any:
        """What `--json` prints as the last line."""
        assert self.returncode == 0, self.stdout + self.stderr
        return json.loads(self.stdout.splitlines()[-1])


class Command:
    def __init__(self, patch: pytest.MonkeyPatch, captured: pytest.CaptureFixture[str]) -> None:
        self._patch, self._captured = patch, captured
        for place in ("engines.native.build", "engines.native.engine", "bench.engine_pool"):
            patch.setattr(f"slipstream.{place}.build_target", default.build)
        patch.setattr("slipstream.cli.generate.pairs.SECONDS", 0.0)  # the least number of pairs is enough for tests

    def __call__(self, *words: str, stdin: bytes = b"") -> Done:
        self._patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        with pytest.raises(SystemExit) as end:
            main(words)
        sys.stdout.flush()
        shown, errors = self._captured.readouterr()
        return Done(int(end.value.code or 0), shown, errors)
