"""A run: every cell as often as asked for, taking turns, each result kept at once.

Repeats are the outer loop and the setups of one load the inner one, begun one place further in each repeat: what slows
the machine for a while slows all of them, and none always comes first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.bench.fleet import Fleet
from slipstream.bench.journal import Journal
from slipstream.bench.matrix import Cell
from slipstream.bench.measure import Load, Measurement, measure, warm
from slipstream.bench.progress import progress
from slipstream.bench.provenance import commit, load_average
from slipstream.bench.workloads import Workload

SEEDS = 1000  # between the first seeds of two repeats


@dataclass(frozen=True)
class Course:
    """What is run: cells, on which prompts, how often."""

    cells: Sequence[Cell]
    workloads: Mapping[str, Workload]
    repeats: int
    max_tokens: int
    identity: Mapping[str, Any]  # of model, precision and machine: what else a measurement depends on

    def __post_init__(self) -> None:
        for name in ("repeats", "max_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 1 or more")

    def key(self, cell: Cell, repeat: int, options: Mapping[str, str]) -> dict[str, Any]:
        """All that a measurement depends on, so that one is taken up only where it is the same."""
        digest = self.workloads[cell.workload].digest
        return {
            **cell.key(),
            "repeat": repeat,
            "max_tokens": self.max_tokens,
            "digest": digest,
            "options": dict(options),
            **self.identity,
        }

    def order(self) -> Iterator[tuple[int, Cell]]:
        loads = list(dict.fromkeys(cell.load for cell in self.cells))
        for repeat in range(self.repeats):
            for load in loads:
                turn = [cell for cell in self.cells if cell.load == load]
                first = repeat % len(turn)
                yield from ((repeat, cell) for cell in turn[first:] + turn[:first])


Measured = dict[Cell, list[Measurement]]


def run(course: Course, fleet: Fleet, journal: Journal) -> Measured:
    """Measure what the journal does not hold yet; everything, cell by cell in the order of the matrix."""
    work = list(course.order())
    keys = {(cell, n): course.key(cell, n, fleet.matrix.options_of(cell.setup)) for n, cell in work}
    left = [(n, cell) for n, cell in work if journal.get(keys[cell, n]) is None]
    warmed, now = set[Any](), commit()
    with progress(len(work), len(work) - len(left)) as say:
        for repeat, cell in left:
            say(cell.title)
            found = _measure(course, fleet, cell, repeat, warmed)
            engine = fleet.open(cell.setup)
            about = {"model": engine.label, "version": engine.version, "commit": now, "load": load_average()}
            draft = _draft(course, fleet, cell)
            journal.add(keys[cell, repeat], {"measurement": found.data(), **about, "draft": draft})
    return {
        cell: [Measurement.of(_entry(journal, keys[cell, n])["measurement"]) for n in range(course.repeats)]
        for cell in course.cells
    }


def every(course: Course, fleet: Fleet, journal: Journal, field: str) -> list[Any]:
    """What was written beside every measurement, where there is something."""
    keys = (course.key(cell, n, fleet.matrix.options_of(cell.setup)) for n, cell in course.order())
    return [value for key in keys if (value := _entry(journal, key).get(field)) is not None]


def told(course: Course, fleet: Fleet, journal: Journal, field: str) -> dict[Cell, Any]:
    """What was written beside the first measurement of each cell, where there is something."""
    found = {
        cell: _entry(journal, course.key(cell, 0, fleet.matrix.options_of(cell.setup))).get(field)
        for cell in course.cells
    }
    return {cell: value for cell, value in found.items() if value is not None}


def _entry(journal: Journal, key: Mapping[str, Any]) -> dict[str, Any]:
    entry = journal.get(key)
    assert entry is not None, "every measurement of a finished run is in its journal"
    return entry


def _measure(course: Course, fleet: Fleet, cell: Cell, repeat: int, warmed: set[Any]) -> Measurement:
    engine, items = fleet.open(cell.setup), course.workloads[cell.workload].items
    seed = 1 + SEEDS * repeat
    load = Load(cell.batch, cell.temperature, course.max_tokens, fleet.speculation(cell.setup), seed)
    if (cell.setup, cell.batch) not in warmed:
        warm(engine, items, load)
        warmed.add((cell.setup, cell.batch))
    return measure(engine, items, load)


def _draft(course: Course, fleet: Fleet, cell: Cell) -> float | None:
    if cell.setup.plain:
        return None
    return fleet.draft_alone(cell.setup, course.workloads[cell.workload].items[0].turns[0])
