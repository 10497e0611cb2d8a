"""Workloads: the prompts of a benchmark. Shipped ones are given by name, a user's own by the path of a file."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from pathlib import Path

from slipstream.bench.workloads.formats import Item, name_of, read_items

__all__ = ["Item", "Workload", "further_prompts", "load_workloads", "shipped"]

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Workload:
    """Prompts with a name. Two results were measured on the same prompts if their digests are equal."""

    name: str
    items: tuple[Item, ...]

    @property
    def digest(self) -> str:
        text = json.dumps([asdict(item) for item in self.items], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def shipped() -> list[str]:
    return sorted(_files())


def _files() -> dict[str, Path]:
    return {name_of(path): path for path in HERE.glob("*.jsonl*")}


def load_workloads(spec: str) -> list[Workload]:
    """Parse `code,chat:3,my.jsonl`: names or files, each optionally with the number of prompts to use."""
    workloads = [_load(part.strip()) for part in spec.split(",")]
    names = [workload.name for workload in workloads]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"the workload {min(twice)} is named twice")
    return workloads


def further_prompts(spec: str, count: int) -> list[Workload]:
    """The next `count` prompts of each workload, after those that `spec` uses; without workloads that have no more."""
    further = []
    for part in spec.split(","):
        name, used = _parts(part.strip())
        items = read_items(_path(name))
        if rest := tuple(items[int(used) : int(used) + count] if used else ()):
            further.append(Workload(name_of(Path(name)), rest))
    return further


def _parts(spec: str) -> tuple[str, str]:
    """Name and number of prompts; no number means all."""
    name, colon, count = spec.rpartition(":")
    return (name, count) if colon and count.isdigit() else (spec, "")


def _load(spec: str) -> Workload:
    name, count = _parts(spec)
    items = read_items(_path(name))
    if count and not 1 <= int(count) <= len(items):
        raise ValueError(f"the workload {name} holds {len(items)} prompts; {spec} asks for {count}")
    return Workload(name_of(Path(name)), tuple(items[: int(count)] if count else items))


def _path(name: str) -> Path:
    if name in shipped():
        return _files()[name]
    path = Path(name).expanduser()
    if path.is_file():
        return path
    near = get_close_matches(name, shipped(), 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise ValueError(f"there is no workload {name!r}; one of {', '.join(shipped())}, or a .jsonl file{hint}")
