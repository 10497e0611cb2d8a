"""The energy of a GPU over a window of time in joules, from the counter of NVIDIA's driver.

- The driver counts millijoules since it was loaded, and updates the counter about ten times per second. That is much
  slower than a cycle, so only windows of seconds can be measured. Both ends of a window are late by up to one update,
  so windows under two seconds are not used.
- The counter covers the whole board and all programs that use it.
- An idle board uses a large part of the power of a busy one. So the idle power is measured too, and its share is
  reported with every figure.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial

import torch

from slipstream.kernels.energy_counter import NoCounter, gpu_counter

MIN_WINDOW = 2.0  # seconds
REST, IDLE = 1.0, 3.0  # seconds to wait before measuring idle power, and seconds of that measurement


@dataclass
class Window:
    """Seconds and joules of a window of time. Valid when the window is over."""

    seconds: float = 0.0
    joules: float = 0.0

    @property
    def short(self) -> bool:
        """Whether it was too short for the counter."""
        return self.seconds < MIN_WINDOW

    @property
    def watts(self) -> float:
        return self.joules / self.seconds if self.seconds else 0.0


class Meter:
    """`with meter.window() as window: …`, then `window.joules`.

    `settle` waits until the device has finished all work, so that work belongs to the window in which it began."""

    def __init__(
        self,
        read: Callable[[], float],
        settle: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._read, self._settle, self._clock = read, settle, clock

    @staticmethod
    def open(device: int | None = None) -> tuple[Meter | None, str]:
        """The meter of a CUDA device, by default the current one. (None, reason) if it has no counter."""
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
        """Idle power of the board in watts. Its memory stays allocated."""
        self._settle()
        sleep(REST)
        with self.window() as window:
            sleep(seconds)
        return window.watts


@cache
def _here() -> tuple[Meter, float] | None:
    """The meter of the current device and its idle power in watts, measured on first use."""
    meter, _ = Meter.open()
    return None if meter is None else (meter, meter.idle())


@dataclass
class EnergyUse:
    """Joules of some work, and the joules of the idle board over the same time; None if they are not known."""

    joules: float | None = None
    idle: float | None = None


@contextmanager
def energy_used(gauge: Callable[[], tuple[Meter, float] | None] = _here) -> Iterator[EnergyUse]:
    """The GPU energy of the `with` block. It is None without a GPU, or if the block was too short."""
    use, idle_gauge = EnergyUse(), gauge()
    if idle_gauge is None:
        yield use
        return
    meter, watts = idle_gauge
    with meter.window() as window:
        yield use
    if not window.short:
        use.joules, use.idle = window.joules, watts * window.seconds
