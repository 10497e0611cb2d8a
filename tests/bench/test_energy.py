"""Energy by a counter that says what the test wants: the calls, the windows, and what comes of them in a record."""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from slipstream.bench.measure import energy, measurement
from slipstream.bench.measure.energy import EnergyUse, Meter, energy_used
from slipstream.bench.measure.measurement import Load, Measurement
from slipstream.bench.records import _energy
from slipstream.bench.table import tables
from slipstream.kernels import energy_counter
from slipstream.kernels.energy_counter import NoCounter, counter

NOT_FOUND, NOT_SUPPORTED = 6, 3


class Driver:
    """Stands in for NVIDIA's library: boards by name, each with the millijoules it says one after another."""

    def __init__(self, boards: dict[str, list[int]], start: int = 0) -> None:
        self.boards, self._start = boards, start

    def nvmlInit_v2(self) -> int:
        return self._start

    def nvmlDeviceGetHandleByUUID(self, name: bytes, board) -> int:
        names = list(self.boards)
        if name.decode() not in names:
            return NOT_FOUND
        board._obj.value = 1 + names.index(name.decode())
        return 0

    def nvmlDeviceGetCount_v2(self, count) -> int:
        count._obj.value = len(self.boards)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, board) -> int:
        board._obj.value = 1 + index
        return 0

    def nvmlDeviceGetTotalEnergyConsumption(self, board: ctypes.c_void_p, spent) -> int:
        said = list(self.boards.values())[board.value - 1]
        if not said:
            return NOT_SUPPORTED
        spent._obj.value = said.pop(0)
        return 0


class Clock:
    """Time goes on only where someone sleeps, and the board takes so many watts meanwhile."""

    def __init__(self, watts: float) -> None:
        self.now, self.watts, self.log = 0.0, watts, list[str]()

    def read(self) -> float:
        self.log.append("read")
        return 5e6 + self.watts * self.now

    def settle(self) -> None:
        self.log.append("settle")

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def meter(self) -> Meter:
        return Meter(self.read, self.settle, lambda: self.now)


def test_the_board_is_found_by_its_name_and_told_in_joules():
    driver = Driver({"GPU-a": [1], "GPU-b": [0, 7_000_000_000_123, 7_000_000_002_623]})
    read = counter(driver, "GPU-b")
    assert (read(), read()) == (7_000_000_000.123, 7_000_000_002.623)  # beyond 32 bits
    assert driver.boards["GPU-a"] == [1], "the other board was read"


def test_a_single_board_needs_no_name():
    for name in (None, "GPU-of-another-spelling"):
        assert counter(Driver({"GPU-a": [0, 2500]}), name)() == 2.5


@pytest.mark.parametrize(
    ("driver", "name", "said"),
    [
        (Driver({"GPU-a": [1], "GPU-b": [1]}), "GPU-c", "nvmlDeviceGetHandleByUUID failed with NVML error 6"),
        (Driver({"GPU-a": [1], "GPU-b": [1]}), None, "torch does not tell which GPU it uses"),
        (Driver({"GPU-a": []}), "GPU-a", "nvmlDeviceGetTotalEnergyConsumption failed with NVML error 3"),
        (Driver({"GPU-a": [1]}, start=9), "GPU-a", "nvmlInit_v2 failed with NVML error 9"),
        (SimpleNamespace(), "GPU-a", "the driver is too old: its library has no nvmlInit_v2"),
    ],
)
def test_without_a_counter_the_reason_is_told(driver, name, said):
    with pytest.raises(NoCounter, match=said):
        counter(driver, name)


def test_opening_tells_what_is_missing(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert Meter.open() == (None, "torch sees no CUDA device")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(energy_counter, "LIBRARY", "libnothing-of-this-name.so")
    meter, why = Meter.open(0)
    assert meter is None
    assert "libnothing-of-this-name.so" in why


def test_opening_asks_for_the_board_that_torch_uses(monkeypatch):
    """Under CUDA_VISIBLE_DEVICES torch's number 0 may be any board."""
    driver, settled = Driver({"GPU-first": [9, 9, 9], "GPU-mine": [0, 1000, 4000]}), list[int]()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="mine"))
    monkeypatch.setattr(torch.cuda, "synchronize", settled.append)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    meter, why = Meter.open()
    assert meter is not None, why
    with meter.window() as window:
        assert settled == [None]
    assert settled == [None, None]
    assert window.joules == 3.0


def test_a_window_covers_what_was_begun_in_it_and_no_more():
    clock = Clock(watts=200)
    meter = clock.meter()
    clock.sleep(50)
    with meter.window() as window:
        clock.sleep(4)
    clock.sleep(50)
    assert (window.seconds, window.joules, window.watts, window.short) == (4, 800, 200, False)
    assert clock.log == ["settle", "read", "settle", "read"]
    with meter.window() as window:
        clock.sleep(1.9)
    assert window.short


def test_a_window_is_whole_where_work_fails():
    clock, found = Clock(watts=100), list[energy.Window]()

    def work() -> None:
        with clock.meter().window() as window:
            found.append(window)
            clock.sleep(3)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        work()
    assert found[0].joules == 300


def test_the_idle_board_comes_to_rest_first():
    clock = Clock(watts=80)
    assert clock.meter().idle(3, clock.sleep) == pytest.approx(80)
    assert clock.now == energy.REST + 3


def test_spending_states_the_idle_share_and_nothing_of_short_windows():
    clock = Clock(watts=300)
    with energy_used(lambda: (clock.meter(), 75.0)) as spent:
        clock.sleep(10)
    assert spent == EnergyUse(3000, 750)
    with energy_used(lambda: (clock.meter(), 75.0)) as spent:
        clock.sleep(1)
    assert spent == EnergyUse(None, None)
    with energy_used(lambda: None) as spent:
        clock.sleep(10)
    assert spent == EnergyUse(None, None)


def test_a_measurement_keeps_it(monkeypatch):
    @contextmanager
    def known():
        yield EnergyUse(120.0, 30.0)

    monkeypatch.setattr(measurement, "energy_used", known)
    found = measurement.measure(SimpleNamespace(), [], Load(1, 0.0, 4))
    assert (found.joules, found.idle) == (120.0, 30.0)
    assert Measurement.of(found.data()) == found
    old = {key: value for key, value in found.data().items() if key not in ("joules", "idle")}
    assert Measurement.of(old).joules is None  # from a journal of before


def test_a_record_has_it_per_token_and_a_table_only_where_some_record_does():
    told = [Measurement(tokens=100, joules=50.0, idle=10.0), Measurement(tokens=100, joules=70.0, idle=14.0)]
    assert _energy([*told, Measurement(tokens=100)]) == {"joules_per_token": 0.6, "idle_share": pytest.approx(0.2)}
    assert _energy([Measurement(tokens=100)]) == {"joules_per_token": None, "idle_share": None}
    row = {
        "engine": "native",
        "drafter": "none",
        "rule": "-",
        "depth": 0,
        "workload": "w",
        "batch": 1,
        "temperature": 0.0,
    }
    row |= {"acceptance": [], "quality": {}}
    shown = {
        name: tables({"records": [row | _energy(runs)]})[0]
        for name, runs in (("with", told), ("without", [Measurement(tokens=100)]))
    }
    assert list(shown["with"].columns)[-2:] == ["J/token", "idle"]
    assert list(shown["with"].rows[0])[-2:] == ["0.600", "20 %"]
    assert {"J/token", "idle"}.isdisjoint(shown["without"].columns)
