"""Joules over a window of time, from the counter that NVIDIA's driver keeps for each GPU.

The driver adds up millijoules since it was loaded and renews the sum some ten times a second: far slower than a cycle,
so only windows of seconds can be told. A reading is late by up to a tick at either end, which is why one under two
seconds counts as too short. The counter is the whole board's, whoever uses it. A board that does nothing draws a good
part of what a busy one does, so that share is measured too and stands beside every figure.

The library comes with the driver and is called through ctypes: nothing need be installed.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch

LIBRARY = "libnvidia-ml.so.1"
LEAST = 2.0  # seconds of a window that can be trusted
REST, IDLE = 1.0, 3.0  # seconds to come to rest, and to look at a board that does nothing


class NoCounter(Exception):
    """Why there is nothing to read."""


class Nvml:
    """The four calls that are needed, of the library or of what stands in for it in tests."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._do("nvmlInit_v2")

    def find(self, uuid: str | None) -> ctypes.c_void_p:
        """The board of this name. A program may see some boards only, under numbers of its own, so a number names none;
        where the name is not known, the only board there is is the one."""
        board = ctypes.c_void_p()
        try:
            if uuid is None:
                raise NoCounter("torch does not tell which GPU it uses")
            self._do("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(board))
        except NoCounter:
            count = ctypes.c_uint()
            self._do("nvmlDeviceGetCount_v2", ctypes.byref(count))
            if count.value != 1:
                raise
            self._do("nvmlDeviceGetHandleByIndex_v2", 0, ctypes.byref(board))
        return board

    def joules(self, board: ctypes.c_void_p) -> float:
        """Since the driver was loaded."""
        spent = ctypes.c_ulonglong()
        self._do("nvmlDeviceGetTotalEnergyConsumption", board, ctypes.byref(spent))
        return spent.value / 1000

    def _do(self, name: str, *arguments: Any) -> None:
        try:
            failed = getattr(self._library, name)(*arguments)
        except AttributeError as error:
            raise NoCounter(f"the driver is too old: its library has no {name}") from error
        if failed:
            raise NoCounter(f"{name} failed with NVML error {failed}")


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
        if not torch.cuda.is_available():
            return None, "torch sees no CUDA device"
        try:
            read = counter(ctypes.CDLL(LIBRARY), _uuid(device))
        except (OSError, NoCounter) as error:
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


def counter(library: Any, uuid: str | None) -> Callable[[], float]:
    """What reads the joules of the board of this name; `NoCounter` where it has none."""
    nvml = Nvml(library)
    board = nvml.find(uuid)
    nvml.joules(board)  # boards before Volta refuse
    return partial(nvml.joules, board)


def _uuid(device: int | None) -> str | None:
    """As NVML spells it."""
    number = torch.cuda.current_device() if device is None else device
    uuid = getattr(torch.cuda.get_device_properties(number), "uuid", None)
    return None if uuid is None else f"GPU-{str(uuid).removeprefix('GPU-')}"


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
