"""Joules over a window of time, from the counter that NVIDIA's driver keeps for each GPU.

The driver adds up millijoules since it was loaded and renews the sum some ten times a second: far slower than a cycle,
so only windows of seconds can be told. A reading is late by up to a tick at either end, which is why one under two
seconds counts as too short. The counter is the whole board's, whoever uses it. A board that does nothing draws a good
part of what a busy one does, so that share is measured too and stands beside every figure.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial

import torch

from slipstream.kernels.energy_counter import NoCounter, gpu_counter

LEAST = 2.0  # seconds of a window that can be trusted
REST, IDLE = 1.0, 3.0  # seconds to come to rest, and to look at a board that does nothing


@dataclass
class Window:
    """What a stretch of time took; whole once it is over."""

    seconds: float = 0.0
    joules: float = 0.0

    @property
    def short(self) -> bool:
        """Whether it was too short for the counter to be trusted."""
        return self.seconds < LEAST

    @property
    def watts(self) -> float:
        return self.joules / self.seconds if self.seconds else 0.0


class Meter:
    """`with meter.window() as window: …`, then `window.joules`. `settle` waits until the device has done all it was
    asked for, so that work falls into the window it was begun in."""

    def __init__(
        self,
        read: Callable[[], float],
        settle: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._read, self._settle, self._clock = read, settle, clock

    @staticmethod
    def open(device: int | None = None) -> tuple[Meter | None, str]:
        """The meter of a CUDA device, the current one if none is named; without a counter None, and why."""
        try:
            read = gpu_counter(device)
        except NoCounter as error:
            return None, str(error)
        return Meter(read, partial(torch.cuda.synchronize, device)), ""

    @contextmanager
    def window(self) -> Iterator[Window]:
        window = Window()
        self._settle()
        began, before = self._clock(), self._read()
        try:
            yield window
        finally:
            self._settle()
            window.joules, window.seconds = self._read() - before, self._clock() - began

    def idle(self, seconds: float = IDLE, sleep: Callable[[float], None] = time.sleep) -> float:
        """Watts of the board as it is now, with nothing to do: what it holds in memory stays there."""
        self._settle()
        sleep(REST)
        with self.window() as window:
            sleep(seconds)
        return window.watts


@cache
def _here() -> tuple[Meter, float] | None:
    """The meter of the current device and the watts it takes idle, looked at once, when first asked for."""
    meter, _ = Meter.open()
    return None if meter is None else (meter, meter.idle())


@dataclass
class EnergyUse:
    """Joules of something, and those the idle board would have taken meanwhile; None where they cannot be told."""

    joules: float | None = None
    idle: float | None = None


@contextmanager
def energy_used(gauge: Callable[[], tuple[Meter, float] | None] = _here) -> Iterator[EnergyUse]:
    """What the GPU takes for what is done in here; nothing is told without a GPU, or of too short a time."""
    use, idle_gauge = EnergyUse(), gauge()
    if idle_gauge is None:
        yield use
        return
    meter, watts = idle_gauge
    with meter.window() as window:
        yield use
    if not window.short:
        use.joules, use.idle = window.joules, watts * window.seconds
