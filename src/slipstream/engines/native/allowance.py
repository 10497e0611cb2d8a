"""What may be spent on capturing what a policy would like to try.

A size of cycle that was never run has to be compiled and captured first, which takes as long as hundreds of cycles.
What a user asked for is captured when it is asked for. A policy tries many sizes, and would stop everyone again and
again: it may do so for a moment at every number of rows, and then for a small share of all time; beyond that it gets
what is there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

GRANT = 1.5  # seconds for every number of rows
SHARE = 0.05  # of the time that cycles take


class Allowance:
    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.running = self.spent = 0.0  # seconds
        self._latest = 0.0  # what the last one took, which is what the next one is expected to
        self._stopped = 0.0  # of the cycle under way
        self._met: set[int] = set()  # numbers of rows

    def left(self, rows: int) -> bool:
        self._met.add(rows)
        return self.spent + self._latest <= GRANT * len(self._met) + SHARE * self.running

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
                self._latest, self.spent = taken, self.spent + taken
