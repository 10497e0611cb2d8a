"""What may be spent on capturing what a policy would like to try.

A size of cycle that was never run has to be compiled and captured first, which takes as long as hundreds of cycles.
What a user asked for is captured when it is asked for. A policy tries many sizes, and would stop everyone again and
again: it may do so for a moment at first, and then for a small share of all time; beyond that it gets what is there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

GRANT = 1.0  # seconds at first
SHARE = 0.05  # of the time that cycles take


class Allowance:
    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.running = self.spent = 0.0  # seconds

    @property
    def left(self) -> bool:
        return self.spent < GRANT + SHARE * self.running

    @contextmanager
    def runs(self) -> Iterator[None]:
        """A cycle, with what is captured in it."""
        began, before = self._clock(), self.spent
        try:
            yield
        finally:
            self.running += self._clock() - began - (self.spent - before)

    @contextmanager
    def captures(self) -> Iterator[None]:
        began = self._clock()
        try:
            yield
        finally:
            self.spent += self._clock() - began
