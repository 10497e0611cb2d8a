"""Runs a benchmark: measures every cell the requested number of times, in turns, and stores each result at once.

Repeats are the outer loop and the setups of one load the inner one, begun one place further in each repeat: what slows
the machine for a while slows all of them, and none always comes first. Where only so many engines are held open, those
take turns first, then the next ones: each repeat opens every engine once at most, and one that was opened is warmed up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from slipstream.bench.engine_pool import EnginePool, opened_for
from slipstream.bench.journal import Journal
from slipstream.bench.matrix import Cell
from slipstream.bench.measure.measurement import Load, Measurement, measure, warm
from slipstream.bench.measure.provenance import commit, load_average
from slipstream.bench.progress import progress
from slipstream.bench.workloads import Workload
from slipstream.engines.base import Engine

SEEDS = 1000  # between the first seeds of two repeats
Some = TypeVar("Some")


@dataclass(frozen=True)
class BenchSchedule:
    """What is run: cells, on which prompts, how often."""

    cells: Sequence[Cell]
    workloads: Mapping[str, Workload]
    repeats: int
    max_tokens: int
    identity: Mapping[str, Any]  # of model, precision and machine: what else a measurement depends on
    hold: int | None = None  # engines open at a time; None: all

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
        for repeat in range(self.repeats):
            for held in self._held(repeat):
                for load in grouped(held, lambda cell: cell.load):
                    yield from ((repeat, cell) for cell in rotated(load, repeat))

    def _held(self, repeat: int) -> list[list[Cell]]:
        """Cells whose engines are open at the same time: those of one name side by side, for what they share."""
        names = rotated(grouped(self.cells, lambda cell: cell.setup.engine), repeat)
        mine = [cells for name in names for cells in rotated(_opened(name), repeat)]
        size = self.hold or len(mine)
        if size >= len(mine):
            return [list(self.cells)]
        return [[cell for cells in mine[i : i + size] for cell in cells] for i in range(0, len(mine), size)]


def grouped(cells: Iterable[Cell], key: Callable[[Cell], Any]) -> list[list[Cell]]:
    """Cells of one key together, in the order in which the keys come."""
    groups: dict[Any, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(key(cell), []).append(cell)
    return list(groups.values())


def rotated(things: Sequence[Some], count: int) -> list[Some]:
    """Begun so many places further."""
    first = count % len(things)
    return [*things[first:], *things[:first]]


def _opened(cells: Sequence[Cell]) -> list[list[Cell]]:
    return grouped(cells, lambda cell: opened_for(cell.setup))


Measured = dict[Cell, list[Measurement]]
Warmed = WeakKeyDictionary[Engine, set[Any]]  # an engine that is opened anew is cold


def run(schedule: BenchSchedule, pool: EnginePool, journal: Journal) -> Measured:
    """Measure what the journal does not hold yet; everything, cell by cell in the order of the matrix."""
    work = list(schedule.order())
    keys = {(cell, n): schedule.key(cell, n, pool.matrix.options_of(cell.setup)) for n, cell in work}
    left = [(n, cell) for n, cell in work if journal.get(keys[cell, n]) is None]
    warmed, now = Warmed(), commit()
    with progress(len(work), len(work) - len(left)) as say:
        for repeat, cell in left:
            say(cell.title)
            with pool.explain_memory_errors(cell.setup):
                draft = _draft(schedule, pool, cell)  # before the engine is opened: it may have to make room for this
                entry = _measure(schedule, pool, cell, repeat, warmed)
            about = {"commit": now, "load": load_average(), "draft": draft}
            journal.add(keys[cell, repeat], {**entry, **about})
    return {
        cell: [Measurement.of(_entry(journal, keys[cell, n])["measurement"]) for n in range(schedule.repeats)]
        for cell in schedule.cells
    }


def all_entries(schedule: BenchSchedule, pool: EnginePool, journal: Journal, field: str) -> list[Any]:
    """What was written beside every measurement, where there is something."""
    keys = (schedule.key(cell, n, pool.matrix.options_of(cell.setup)) for n, cell in schedule.order())
    return [value for key in keys if (value := _entry(journal, key).get(field)) is not None]


def first_entries(schedule: BenchSchedule, pool: EnginePool, journal: Journal, field: str) -> dict[Cell, Any]:
    """What was written beside the first measurement of each cell, where there is something."""
    entries = {
        cell: _entry(journal, schedule.key(cell, 0, pool.matrix.options_of(cell.setup))).get(field)
        for cell in schedule.cells
    }
    return {cell: value for cell, value in entries.items() if value is not None}


def _entry(journal: Journal, key: Mapping[str, Any]) -> dict[str, Any]:
    entry = journal.get(key)
    assert entry is not None, "every measurement of a finished run is in its journal"
    return entry


def _measure(schedule: BenchSchedule, pool: EnginePool, cell: Cell, repeat: int, warmed: Warmed) -> dict[str, Any]:
    """A measurement, and who made it. Nobody keeps the engine: it may have to make room for the next."""
    engine, items = pool.open(cell.setup), schedule.workloads[cell.workload].items
    seed = 1 + SEEDS * repeat
    load = Load(cell.batch, cell.temperature, schedule.max_tokens, pool.speculation(cell.setup), seed)
    done = warmed.setdefault(engine, set())
    if (cell.setup, cell.batch) not in done:
        warm(engine, items, load)
        done.add((cell.setup, cell.batch))
    measured = measure(engine, items, load).data()
    return {"measurement": measured, "model": engine.label, "version": engine.version}


def _draft(schedule: BenchSchedule, pool: EnginePool, cell: Cell) -> float | None:
    if cell.setup.plain:
        return None
    return pool.draft_alone(cell.setup, schedule.workloads[cell.workload].items[0].turns[0])
