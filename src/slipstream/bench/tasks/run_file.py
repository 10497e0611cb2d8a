"""The runs of a curve in a file, one line each, so that an interrupted measurement resumes."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.bench.tasks.outcome import TaskOutcome, loaded
from slipstream.bench.tasks.problems import TaskSet

QUALITY_BATCH = 64  # problems at a time where only their quality is measured


class OutOfTime(Exception):
    """The time limit leaves no time for another run."""


class TimeLimit:
    """The time that all runs may take together, in seconds from now. None: there is no limit.

    No run is begun if the longer of the last two would take more time than is left. With 0 nothing is run."""

    def __init__(self, seconds: float | None) -> None:
        if seconds is not None and not seconds >= 0:
            raise ValueError(f"time_limit is {seconds:g}; it must be 0 seconds or more")
        self._end = None if seconds is None else time.monotonic() + seconds
        self._last = [0.0, 0.0]

    def run(self, action: Callable[[], TaskOutcome]) -> TaskOutcome:
        began = time.monotonic()
        if self._end is not None and began + max(self._last) >= self._end:
            raise OutOfTime
        outcome = action()
        self._last = [self._last[1], time.monotonic() - began]
        return outcome


@dataclass(frozen=True)
class CurveScope:
    """Where quality and time are measured, and how long all of it may take.

    `limit`: so many problems are timed by themselves, at the batch of the command, and the quality of all problems is
    measured at `quality_batch`. None: both come from one run over all problems."""

    limit: int | None = None
    quality_batch: int | None = None
    time_limit: float | None = None

    def __post_init__(self) -> None:
        for name in ("limit", "quality_batch"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; it must be 1 or more")
        if self.quality_batch is not None and self.limit is None:
            raise ValueError("--quality-batch is for a curve that is timed on some problems; add --limit N")
        TimeLimit(self.time_limit)

    def check(self, task: TaskSet) -> None:
        if self.limit is not None and self.limit > len(task.problems):
            raise ValueError(f"limit is {self.limit}, and the task has {len(task.problems)} problems; give fewer")


class RunFile:
    """The runs so far, in a file if there is one. `settings` must be those that the file was begun with.

    `origin`: machine, versions and models of the first run; from the file if there is one."""

    def __init__(
        self, path: Path | None, settings: Mapping[str, Any], origin: Callable[[], dict[str, Any]], limit: TimeLimit
    ) -> None:
        self._path, self._limit = path, limit
        self._known: dict[str, dict[str, Any]] = {}
        if path is None or not path.exists():
            self.origin = origin()
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._append({"settings": dict(settings), "origin": self.origin})
            return
        first, *lines = _lines(path)
        for key, value in settings.items():
            if (known := first["settings"].get(key)) != value:
                raise ValueError(f"{path} holds answers with {key} {known!r}, not {value!r}; use another --out")
        self.origin = first["origin"]
        self._known = {line["name"]: line for line in lines}

    def run(self, name: str, task: TaskSet, answer: Callable[[], TaskOutcome]) -> TaskOutcome:
        """The answers of the run of this name: from the file, or by `answer`. OutOfTime if there is no time for it."""
        if name in self._known:
            return loaded(task, self._known[name])
        outcome = self._limit.run(lambda: _announced(name, len(task.problems), answer))
        if self._path is not None:
            self._append({"name": name, **outcome.saved()})
        return outcome

    def _append(self, line: Mapping[str, Any]) -> None:
        assert self._path is not None
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _announced(name: str, problems: int, answer: Callable[[], TaskOutcome]) -> TaskOutcome:
    began = time.monotonic()
    print(f"{name}, {problems} problems …", file=sys.stderr, flush=True)
    outcome = answer()
    took = time.monotonic() - began
    print(f"{name}: {took:.1f} s, {outcome.seconds:.4g} s per request", file=sys.stderr, flush=True)
    return outcome


def _lines(path: Path) -> list[dict[str, Any]]:
    """The lines of the file. A last line that was cut off by an interruption is left out, also from the file."""
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole, encoding="utf-8")
    try:
        lines = [json.loads(line) for line in whole.split("\n") if line]
        if lines and "settings" in lines[0] and "origin" in lines[0]:
            return lines
    except ValueError:
        pass
    raise ValueError(f"{path} is not the file of answers of a curve; use another --out")
