"""Limits the time spent on capturing first graphs that draft, before a policy knows whether drafting pays.

A size of cycle that was never run has to be compiled and captured first, which takes as long as hundreds of cycles.
What a user asked for is captured when it is asked for. A policy may capture a first size whenever there are more rows
than ever, and then for a small share of all time. All others have to be missed first (`graph_cache`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

GRANT = 1.0  # seconds for every number of rows that was the largest so far: those who leave leave captured cycles
SHARE = 0.02  # of the time that cycles take
COUNTED = 0.5  # seconds that one capture counts at most: one that takes longer compiled kernels, which others share


class CaptureBudget:
    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.running = self.spent = 0.0  # seconds
        self._latest = 0.0  # seconds of the last capture
        self._stopped = 0.0  # of the cycle under way
        self._most = self._grants = 0  # rows so far, and how often there were more

    def left(self, rows: int, cost: float | None = None) -> bool:
        """Whether something may be captured that is expected to take so long; None: as long as the last one."""
        if rows > self._most:
            self._most, self._grants = rows, self._grants + 1
        cost = self._latest if cost is None else cost
        return self.spent + cost <= GRANT * self._grants + SHARE * self.running

    @contextmanager
    def runs(self) -> Iterator[None]:
        """A cycle, with what is captured in it."""
        began, self._stopped = self._clock(), 0.0
        try:
            yield
        finally:
            self.running += self._clock() - began - self._stopped

    @contextmanager
    def captures(self, counted: bool = True) -> Iterator[None]:
        """`counted`: it is a policy's wish."""
        began = self._clock()
        try:
            yield
        finally:
            taken = self._clock() - began
            self._stopped += taken
            if counted:
                self._latest = min(taken, COUNTED)
                self.spent += self._latest
