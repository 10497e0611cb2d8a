"""Where joules come from: the counters of the GPU and the processor, or a stated power.

`zeus` is used where it is installed. Otherwise the GPU is read through NVIDIA's driver (`energy_counter`), and the
processor through Linux's powercap (RAPL). The figure of a GPU includes the processor's where both have a counter.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from slipstream.kernels.energy_counter import NoCounter, gpu_counter

POWERCAP = Path("/sys/class/powercap")
GPU_WINDOW = 2.0  # seconds of the shortest window: the counter of a GPU is updated about ten times per second
RAPL_WINDOW = 0.1  # RAPL is updated about a thousand times per second


@dataclass(frozen=True)
class EnergySource:
    """A function that reads joules, which only grow."""

    name: str
    read: Callable[[], float]
    min_window: float  # seconds; shorter windows are not measured
    estimate: bool = False  # a stated power times time, not a counter


def energy_source(device: str = "auto", watts: float | None = None) -> EnergySource:
    """The source for work on a device: cuda, cpu or auto. `watts` is the stated power of an estimate, which no counter
    is used beside. NoCounter with the reason where there is none."""
    if watts is not None:
        return stated_power(watts)
    gpu = torch.cuda.is_available() if device == "auto" else device.startswith("cuda")
    try:
        return _zeus(gpu)
    except (ImportError, NoCounter):  # it is not installed, or it finds no counter
        return _direct(gpu)


def stated_power(watts: float, clock: Callable[[], float] = time.perf_counter) -> EnergySource:
    """Joules as a constant power times time."""
    if not 0 < watts < float("inf"):
        raise ValueError(f"watts is {watts:g}; it must be a power above 0, such as 65")
    return EnergySource(f"estimate at {watts:g} W", lambda: watts * clock(), 0.0, estimate=True)


def _direct(gpu: bool) -> EnergySource:
    if not gpu:
        return EnergySource("RAPL", Rapl().read, RAPL_WINDOW)
    read_gpu = gpu_counter()
    try:
        rapl = Rapl()
    except NoCounter:
        return EnergySource("NVML", read_gpu, GPU_WINDOW)
    return EnergySource("NVML and RAPL", lambda: read_gpu() + rapl.read(), GPU_WINDOW)


class Rapl:
    """The energy counters of all processor packages. Each starts again at 0 when it is full."""

    def __init__(self, folder: Path | None = None) -> None:
        folder = folder or POWERCAP
        self._files = sorted(folder.glob("intel-rapl:?*/energy_uj"))
        self._files = [file for file in self._files if file.parent.name.count(":") == 1]  # packages, not their parts
        if not self._files:
            raise NoCounter(f"no energy counter of the processor (RAPL): {folder} has none")
        self._full = [self._number(file.with_name("max_energy_range_uj")) for file in self._files]
        self._last = [self._number(file) for file in self._files]
        self._total = 0

    def read(self) -> float:
        """Joules since this object was made."""
        now = [self._number(file) for file in self._files]
        for before, after, full in zip(self._last, now, self._full, strict=True):
            self._total += after - before if after >= before else after - before + full
        self._last = now
        return self._total / 1e6

    @staticmethod
    def _number(file: Path) -> int:
        try:
            return int(file.read_text())
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise NoCounter(f"cannot read the processor's energy counter {file}: {reason}") from error


def _zeus(gpu: bool) -> EnergySource:
    """ImportError where zeus is not installed."""
    from zeus.monitor import ZeusMonitor

    try:
        number = [torch.cuda.current_device()] if gpu else []
        total = ZeusTotal(ZeusMonitor(gpu_indices=number))
    except Exception as error:  # zeus has many errors of its own
        raise NoCounter(f"zeus finds no energy counter: {error}") from error
    if not (total.parts & {"gpu"} if gpu else total.parts):
        raise NoCounter(f"zeus finds no energy counter of the {'GPU' if gpu else 'processor'}")
    return EnergySource(f"zeus ({', '.join(sorted(total.parts))})", total.read, GPU_WINDOW if gpu else RAPL_WINDOW)


class ZeusTotal:
    """The joules of one window of zeus after the other, as one sum. `monitor`: a `ZeusMonitor`, or a fake in tests."""

    KEY, PARTS = "slipstream", ("gpu", "cpu", "dram")

    def __init__(self, monitor: Any) -> None:
        self._monitor, self._total = monitor, 0.0
        self._monitor.begin_window(self.KEY, sync_execution=False)
        first = self._end()
        self.parts = {part for part in self.PARTS if getattr(first, f"{part}_energy", None)}

    def read(self) -> float:
        window = self._end()
        self._total += sum(sum(_joules(window, part)) for part in self.PARTS)
        return self._total

    def _end(self) -> Any:
        window = self._monitor.end_window(self.KEY, sync_execution=False)
        self._monitor.begin_window(self.KEY, sync_execution=False)
        return window


def _joules(window: Any, part: str) -> Sequence[float]:
    return list((getattr(window, f"{part}_energy", None) or {}).values())
