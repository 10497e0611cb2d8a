"""Runs a benchmark: measures every cell the requested number of times, interleaved, and stores each result at once.

Repeats are the outer loop and the setups of one load the inner loop, which starts one setup later in each repeat. So a
temporary slowdown of the machine affects all setups, and none is always first. If only some engines can be open at a
time (`hold`), those are interleaved first, then the next ones. Each repeat opens every engine at most once, and an
engine that was opened is warmed up first.
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

T = TypeVar("T")


@dataclass(frozen=True)
class BenchSchedule:
    """The cells, their prompts, and the number of repeats."""

    cells: Sequence[Cell]
    workloads: Mapping[str, Workload]
    repeats: int
    max_tokens: int
    identity: Mapping[str, Any]  # model, precision and machine, which measurements depend on, too
    hold: int | None = None  # engines open at a time; None: all

    def __post_init__(self) -> None:
        for name in ("repeats", "max_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 1 or more")

    def key(self, cell: Cell, repeat: int, options: Mapping[str, str]) -> dict[str, Any]:
        """Everything a measurement depends on. A stored measurement is reused only if its key is equal."""
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
            for cells in self._open_together(repeat):
                for load in grouped(cells, lambda cell: cell.load):
                    yield from ((repeat, cell) for cell in rotated(load, repeat))

    def _open_together(self, repeat: int) -> list[list[Cell]]:
        """Groups of cells whose engines are open at the same time. Engines of one name follow each other, because they
        share a target."""
        by_name = rotated(grouped(self.cells, lambda cell: cell.setup.engine), repeat)
        by_engine = [cells for name in by_name for cells in rotated(_by_engine(name), repeat)]
        size = self.hold or len(by_engine)
        if size >= len(by_engine):
            return [list(self.cells)]
        return [[cell for cells in by_engine[i : i + size] for cell in cells] for i in range(0, len(by_engine), size)]


def grouped(cells: Iterable[Cell], key: Callable[[Cell], Any]) -> list[list[Cell]]:
    """Cells grouped by a key, in the order of the first cell of each key."""
    groups: dict[Any, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(key(cell), []).append(cell)
    return list(groups.values())


def rotated(items: Sequence[T], count: int) -> list[T]:
    """The items rotated to the left by `count`."""
    first = count % len(items)
    return [*items[first:], *items[:first]]


def _by_engine(cells: Sequence[Cell]) -> list[list[Cell]]:
    return grouped(cells, lambda cell: opened_for(cell.setup))


Measured = dict[Cell, list[Measurement]]
Warmed = WeakKeyDictionary[Engine, set[Any]]  # setups and batch sizes that were warmed up, by open engine


def run(schedule: BenchSchedule, pool: EnginePool, journal: Journal) -> Measured:
    """Measure the cells that the journal lacks. Returns the measurements of all cells in the order of the matrix."""
    work = list(schedule.order())
    keys = {(cell, n): schedule.key(cell, n, pool.matrix.options_of(cell.setup)) for n, cell in work}
    missing = [(n, cell) for n, cell in work if journal.get(keys[cell, n]) is None]
    warmed, commit_id = Warmed(), commit()
    with progress(len(work), len(work) - len(missing)) as say:
        for repeat, cell in missing:
            say(cell.title)
            with pool.explain_memory_errors(cell.setup):
                draft = _draft(schedule, pool, cell)  # before the engine is opened, because it may need its memory
                entry = _measure(schedule, pool, cell, warmed)
            about = {"commit": commit_id, "load": load_average(), "draft": draft}
            journal.add(keys[cell, repeat], {**entry, **about})
    return {
        cell: [Measurement.of(_entry(journal, keys[cell, n])["measurement"]) for n in range(schedule.repeats)]
        for cell in schedule.cells
    }


def all_entries(schedule: BenchSchedule, pool: EnginePool, journal: Journal, field: str) -> list[Any]:
    """The values of a field in the entries of all measurements, without None."""
    keys = (schedule.key(cell, n, pool.matrix.options_of(cell.setup)) for n, cell in schedule.order())
    return [value for key in keys if (value := _entry(journal, key).get(field)) is not None]


def first_entries(schedule: BenchSchedule, pool: EnginePool, journal: Journal, field: str) -> dict[Cell, Any]:
    """The value of a field in the entry of each cell's first measurement, without None."""
    entries = {
        cell: _entry(journal, schedule.key(cell, 0, pool.matrix.options_of(cell.setup))).get(field)
        for cell in schedule.cells
    }
    return {cell: value for cell, value in entries.items() if value is not None}


def _entry(journal: Journal, key: Mapping[str, Any]) -> dict[str, Any]:
    entry = journal.get(key)
    assert entry is not None, "every measurement of a finished run is in its journal"
    return entry


def _measure(schedule: BenchSchedule, pool: EnginePool, cell: Cell, warmed: Warmed) -> dict[str, Any]:
    """A measurement with its engine's label and version. No reference to the engine is kept, so it can be closed."""
    engine, items = pool.open(cell.setup), schedule.workloads[cell.workload].items
    load = Load(cell.batch, cell.temperature, schedule.max_tokens, pool.speculation(cell.setup))
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
