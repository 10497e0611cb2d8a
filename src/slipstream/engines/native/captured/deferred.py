"""Captured cycles of many rows that were read and are committed to the rows later, several at once.

The host's work for a row and a cycle takes 2 to 5 µs. With hundreds of rows that is longer than the device takes for
the cycle. Nobody needs a row's tokens after every cycle where only its result is waited for. So the records of such
cycles are kept as arrays. They also tell which rows have ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.types import Origin, Row
from slipstream.engines.job import Job
from slipstream.engines.native.captured.result import CycleResult, RowCycles
from slipstream.engines.native.captured.sizes import BatchShape

if TYPE_CHECKING:
    from slipstream.engines.native.captured.flight import Flight
    from slipstream.engines.native.captured.graph_cache import Cycle

LEAST_ROWS = 32  # fewer rows get their tokens after every cycle
SOME_ROWS = 16  # that get theirs at once, in less time than the device takes for a cycle
MOST_CYCLES = 32  # whose tokens a row waits for
MOST_SECONDS = 0.02  # until the next rows get theirs

Lines = NDArray[np.int64]
ORIGINS = np.array([Origin.ACCEPTED, Origin.RECOVERED, Origin.BONUS, Origin.PLAIN], dtype=object)
ACCEPTED, RECOVERED, BONUS, PLAIN = range(4)


class RecordedResults(Sequence[CycleResult]):
    """The results of one cycle for all rows. One of a row is made when it is asked for."""

    def __init__(self, cycle: Cycle, record: Lines) -> None:
        self._cycle, self._record = cycle, record
        self.accepted, self.drafted = record[:, 0], record[:, 3]

    def __len__(self) -> int:
        return len(self._record)

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return self._cycle.told(self._record[row].tolist())
        return self._cycle.told([self._record[row].tolist()])[0]


class DeferredCycles:
    """The cycles of one graph. Rows have the lines that they have in it."""

    def __init__(self, flight: Flight, jobs: Sequence[Job], context: int) -> None:
        """`jobs`: of the flight's lines that have not ended."""
        self.cycle, self.device, self._jobs = flight.cycle, flight.device, dict[int, Job]()
        self._depth = flight.key.depth
        count = flight.lines[-1][0] + 1
        # of each row: the text's length, its limit by context and request, by the request alone; `Flight.room`
        self._length, self._limit, self._whole, self._places, self._beyond = np.zeros((5, count), np.int64)
        ends: list[list[int]] = [[] for _ in range(count)]
        lines = [line for line in flight.lines if line[1].finish_reason is None]
        for (line, row, _), job in zip(lines, jobs, strict=True):
            self._jobs[line], ends[line] = job, [*row.request.ends]
            self._length[line], self._limit[line] = row.length, row.length + row.room(context)
            self._whole[line] = row.length + row.left
            self._places[line], self._beyond[line] = flight.room[line]
        self._known, self._cut = self._length.copy(), flight.cut  # lengths that the rows know
        widest = max(map(len, ends))
        self._ends = np.array([own + [-1] * (widest - len(own)) for own in ends], np.int64).reshape(count, 1, widest)
        self._live: Lines = np.array([*self._jobs], np.int64)
        self._records: list[Lines] = []
        self._given = np.zeros(count, np.int64)  # how many of these each row has the tokens of
        self._turns = deque(np.array_split(self._live, -(-len(jobs) // SOME_ROWS)))  # rows that get tokens at once
        self._since = perf_counter(), 0  # when some rows got theirs, and the records there were

    @classmethod
    def of(cls, flight: Flight, jobs: Sequence[Job], context: int) -> DeferredCycles | None:
        """None where rows need their tokens after every cycle."""
        key, simple = flight.key, jobs[0].row.request.processor is None and flight.key.logprobs is None
        if len(jobs) < LEAST_ROWS or key.nodes or key.rule.needs_draft or flight.device.needs_depths:
            return None
        return cls(flight, jobs, context) if simple and flight.cycle.repeats else None

    @property
    def longest(self) -> int:
        return int(self._length[self._live].max())

    @property
    def cached(self) -> int:
        """Tokens of all rows together."""
        return int(self._length[self._live].sum())

    def add(self, record: Lines) -> tuple[RecordedResults, Lines] | None:
        """The results of one more cycle, and the lines of rows that end with it; None where some row had no law."""
        live = record[self._live]
        if not live[:, 2].all():
            return None
        self._records.append(record)
        emitted = live[:, 0] + 1
        self._length[self._live] += emitted
        tokens, new = _emitted(live)
        ended = self._length[self._live] >= self._limit[self._live]
        if self._ends.shape[2]:
            ended |= ((tokens[:, :, None] == self._ends[self._live]).any(2) & new).any(1)
        return RecordedResults(self.cycle, live), self._live[ended]

    def room(self, step: int) -> int:
        """The fewest places that are left of a row once it has up to `step` tokens more (`Flight.rooms`)."""
        live = self._live
        left = np.maximum(self._beyond[live], self._places[live] - self._length[live] - step)
        return int(left.min())

    def update_lengths(self) -> None:
        """Let rows and drafter know how long the texts are. Rows get the tokens later."""
        lines = self._live
        ahead = (self._length - self._known)[lines].tolist()
        for line, count in zip(lines.tolist(), ahead, strict=True):
            self._jobs[line].row.ahead = count
        self.record_lengths()

    def shape(self, rows: Sequence[Row], ahead: int) -> BatchShape:
        """The shape of these rows (`BatchShape.of`), most often all of them. They know how long they are."""
        if len(rows) < len(self._live):
            return BatchShape.of(rows, ahead)
        length, left = self._length[self._live], (self._whole - self._length)[self._live]
        cached = int(length.sum() + np.minimum(ahead, left).sum() // 2)
        return BatchShape(len(length), int(length.max()), self._cut, None, cached)

    def record_lengths(self, lines: Lines | None = None) -> None:
        """Let the drafter know how long texts are: of these lines, or of all rows."""
        own = self._live if lines is None else lines
        rows = [self._jobs[line].row for line in own.tolist()]
        self.device.record_lengths(rows, self._length[own].tolist(), self.cycle, own.tolist())

    def due(self) -> Lines | None:
        """The lines whose rows get their tokens now; None if nobody has waited for long enough."""
        count, (when, before) = len(self._records), self._since
        if (count - before) * len(self._turns) < MOST_CYCLES and perf_counter() - when < MOST_SECONDS:
            return None
        self._since = perf_counter(), count
        self._turns.rotate(-1)
        return np.intersect1d(self._turns[-1], self._live, assume_unique=True)

    def take(self, lines: Lines | None = None) -> list[RowCycles]:
        """Hand out the tokens of these lines, or of all rows that go on."""
        lines = self._live if lines is None else lines
        since = [(lines[self._given[lines] == start], start) for start in np.unique(self._given[lines]).tolist()]
        self._given[lines] = len(self._records)
        cycles = [own for some, start in since if self._records[start:] for own in self._rows(some, start)]
        self._forget()
        return cycles

    def end(self, lines: Lines) -> list[RowCycles]:
        """Hand out the tokens of these lines. Their rows have ended."""
        self.record_lengths(lines)
        self._live = np.setdiff1d(self._live, lines, assume_unique=True)
        return self.take(lines)

    def _forget(self) -> None:
        """Drop the records that all rows have the tokens of."""
        if first := int(self._given[self._live].min(initial=len(self._records))):
            del self._records[:first]
            self._given -= first
            self._since = self._since[0], self._since[1] - first

    def _rows(self, lines: Lines, start: int) -> list[RowCycles]:
        """What the cycles from record `start` on emitted."""
        depth, jobs = self._depth, [self._jobs[line] for line in lines.tolist()]
        self._known[lines] = self._length[lines]
        for job in jobs:
            job.row.ahead = 0
        record = np.stack([record[lines] for record in self._records[start:]], 1)  # by row, then by cycle
        cycles = record.shape[1]
        if not depth:
            origins, counts = [Origin.PLAIN] * cycles, [(0, 0, 1)] * cycles
            return [
                RowCycles(job, own, origins, counts) for job, own in zip(jobs, record[:, :, 1].tolist(), strict=True)
            ]
        record = record.reshape(-1, 4 + depth)
        tokens, new = _emitted(record)
        accepted, drafted = record[:, 0], record[:, 3]
        whence = np.full(tokens.shape, ACCEPTED)
        last = np.where(drafted == 0, PLAIN, np.where(accepted < drafted, RECOVERED, BONUS))
        whence[np.arange(len(record)), accepted] = last
        ends = np.cumsum((accepted + 1).reshape(-1, cycles).sum(1)).tolist()
        parts = [slice(start, end) for start, end in pairwise([0, *ends])]
        said, origins = tokens[new].tolist(), ORIGINS[whence[new]].tolist()
        counted = _counts(depth)[drafted * (depth + 1) + accepted].reshape(-1, cycles).tolist()
        return [
            RowCycles(job, said[part], origins[part], counts)
            for job, part, counts in zip(jobs, parts, counted, strict=True)
        ]


def _emitted(record: Lines) -> tuple[Lines, NDArray[np.bool_]]:
    """The tokens that each line emitted, [lines, depth + 1], and which of them there are."""
    count, depth = record[:, 0], record.shape[1] - 4
    tokens = np.empty((len(record), depth + 1), np.int64)
    tokens[:, :depth] = record[:, 4:]
    tokens[np.arange(len(record)), count] = record[:, 1]
    return tokens, np.arange(depth + 1) <= count[:, None]


@lru_cache
def _counts(depth: int) -> NDArray[np.object_]:
    """What a cycle counts, by drafted * (depth + 1) + accepted tokens."""
    table = np.empty((depth + 1) ** 2, dtype=object)
    for drafted in range(depth + 1):
        for accepted in range(depth + 1):
            table[drafted * (depth + 1) + accepted] = drafted, accepted, accepted + 1
    return table
