"""The energy of work over a window of time in joules, from a counter or from a stated power.

- The counter of a GPU is updated about ten times per second. That is much slower than a cycle, so only windows of
  seconds can be measured. Both ends of a window are late by up to one update, so windows under two seconds are not
  used.
- The counter covers the whole board, or the whole processor, and all programs that use it.
- An idle board uses a large part of the power of a busy one. So the idle power is measured too, and its share is
  reported with every figure.
- Without a counter there is no figure, and the reason is reported. `power_model` states a power; figures are then
  marked as estimates.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache

import torch

from slipstream.kernels.energy_counter import NoCounter
from slipstream.kernels.energy_sources import GPU_WINDOW, EnergySource, energy_source, stated_power

REST, IDLE = 1.0, 3.0  # seconds to wait before measuring idle power, and seconds of that measurement
_stated_watts: ContextVar[float | None] = ContextVar("stated_watts", default=None)


@dataclass
class Window:
    """Seconds and joules of a window of time. Valid when the window is over."""

    seconds: float = 0.0
    joules: float = 0.0
    shortest: float = GPU_WINDOW  # seconds that the counter needs

    @property
    def short(self) -> bool:
        """Whether it was too short for the counter."""
        return self.seconds < self.shortest

    @property
    def watts(self) -> float:
        return self.joules / self.seconds if self.seconds else 0.0


class Meter:
    """`with meter.window() as window: …`, then `window.joules`.

    `settle` waits until the device has finished all work, so that work belongs to the window in which it began."""

    def __init__(
        self,
        source: EnergySource,
        settle: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.source, self._settle, self._clock = source, settle, clock

    @staticmethod
    def open(device: str = "auto") -> tuple[Meter | None, str]:
        """The meter of a device: cuda, cpu or auto. (None, reason) if it has no counter and no power is stated."""
        try:
            source = energy_source(device, _stated_watts.get())
        except NoCounter as error:
            return None, str(error)
        on_gpu = torch.cuda.is_available() and device != "cpu"
        return Meter(source, torch.cuda.synchronize if on_gpu else lambda: None), ""

    @contextmanager
    def window(self) -> Iterator[Window]:
        window = Window(shortest=self.source.min_window)
        self._settle()
        began, before = self._clock(), self.source.read()
        try:
            yield window
        finally:
            self._settle()
            window.joules, window.seconds = self.source.read() - before, self._clock() - began

    def idle(self, seconds: float = IDLE, sleep: Callable[[float], None] = time.sleep) -> float | None:
        """Idle power in watts; memory stays allocated. None where power is stated, which says nothing of idling."""
        if self.source.estimate:
            return None
        self._settle()
        sleep(REST)
        with self.window() as window:
            sleep(seconds)
        return window.watts


@contextmanager
def power_model(watts: float | None) -> Iterator[None]:
    """Estimate joules in the `with` block by this power, whatever counters there are. None: by a counter, as always."""
    if watts is not None:
        stated_power(watts)  # refuses an impossible power
    token = _stated_watts.set(watts)
    try:
        yield
    finally:
        _stated_watts.reset(token)


def stated_watts() -> float | None:
    """The power that is stated now; None: a counter is read."""
    return _stated_watts.get()


Gauge = tuple[Meter, float | None]
"""A meter and the idle power in watts."""


def gauge(device: str = "auto") -> Gauge | str:
    """The meter of a device with its idle power, which is measured on first use; the reason where there is no meter."""
    return _gauge(device, _stated_watts.get())


@cache
def _gauge(device: str, watts: float | None) -> Gauge | str:
    meter, reason = Meter.open(device)
    return reason if meter is None else (meter, meter.idle())


@dataclass
class EnergyUse:
    """Joules of some work, and the joules of idling over the same time; None if they are not known."""

    joules: float | None = None
    idle: float | None = None
    source: str | None = None  # what was read; for an estimate, the stated power
    missing: str | None = None  # why there are no joules


@contextmanager
def energy_used(device: str = "auto", find: Callable[[str], Gauge | str] = gauge) -> Iterator[EnergyUse]:
    """The energy of the `with` block. It is None without a counter, or if the block was too short for the counter."""
    use, found = EnergyUse(), find(device)
    if isinstance(found, str):
        use.missing = found
        yield use
        return
    meter, watts = found
    with meter.window() as window:
        yield use
    if window.short:
        use.missing = f"a run took less than {window.shortest:g} s, which {meter.source.name} cannot measure"
        return
    use.joules, use.source = window.joules, meter.source.name
    use.idle = None if watts is None else watts * window.seconds
