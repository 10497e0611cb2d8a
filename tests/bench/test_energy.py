"""Energy by a counter that says what the test wants: the calls, the windows, and what comes of them in a record."""

from __future__ import annotations

import ctypes
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from slipstream.bench.measure import energy, measurement
from slipstream.bench.measure import token_energy as token_energy_module
from slipstream.bench.measure.energy import EnergyUse, Meter, energy_used, power_model
from slipstream.bench.measure.measurement import Load, Measurement
from slipstream.bench.measure.token_energy import TokenEnergy, metered, token_energy
from slipstream.bench.records import _energy
from slipstream.bench.table import energy_line, tables
from slipstream.kernels import energy_counter, energy_sources
from slipstream.kernels.energy_counter import NoCounter, counter
from slipstream.kernels.energy_sources import EnergySource, Rapl, energy_source

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

    def meter(self, min_window: float = 2.0) -> Meter:
        return Meter(EnergySource("fake", self.read, min_window), self.settle, lambda: self.now)


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


def test_opening_tells_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.setattr(energy_sources, "POWERCAP", tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert Meter.open("cuda") == (None, "torch sees no CUDA device")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(energy_counter, "LIBRARY", "libnothing-of-this-name.so")
    meter, why = Meter.open()
    assert meter is None
    assert "libnothing-of-this-name.so" in why


def test_opening_asks_for_the_board_that_torch_uses(monkeypatch):
    """Under CUDA_VISIBLE_DEVICES torch's number 0 may be any board."""
    driver, settled = Driver({"GPU-first": [9, 9, 9], "GPU-mine": [0, 1000, 4000]}), list[str]()
    monkeypatch.setattr(energy_sources, "POWERCAP", Path("no-such-folder"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="mine"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: settled.append("all work"))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    meter, why = Meter.open()
    assert meter is not None, why
    with meter.window() as window:
        assert settled == ["all work"]
    assert settled == ["all work"] * 2
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


def test_spending_states_the_idle_share_and_why_short_windows_have_none():
    clock = Clock(watts=300)
    with energy_used(find=lambda device: (clock.meter(), 75.0)) as spent:
        clock.sleep(10)
    assert spent == EnergyUse(3000, 750, "fake")
    with energy_used(find=lambda device: (clock.meter(), 75.0)) as spent:
        clock.sleep(1)
    assert spent == EnergyUse(missing="a run took less than 2 s, which fake cannot measure")
    with energy_used(find=lambda device: "no counter") as spent:
        clock.sleep(10)
    assert spent == EnergyUse(missing="no counter")


def test_stated_power_is_an_estimate_of_any_window_and_says_nothing_of_idling():
    with power_model(65.0):
        meter, why = Meter.open("cpu")
        assert meter is not None, why
        assert (meter.source.name, meter.source.estimate, meter.idle()) == ("estimate at 65 W", True, None)
        with energy_used("cpu") as spent:
            pass
    assert (spent.source, spent.idle) == ("estimate at 65 W", None)
    assert 0 < spent.joules < 65
    for watts in (0.0, -3.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="it must be a power above 0, such as 65"), power_model(watts):
            pass


def powercap(folder: Path, values: dict[str, tuple[int, int]]) -> None:
    for name, (spent, full) in values.items():
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "energy_uj").write_text(f"{spent}\n")
        (folder / name / "max_energy_range_uj").write_text(f"{full}\n")


def test_the_processor_counts_its_packages_and_starts_again_when_full(tmp_path):
    full = 9_000_000
    powercap(tmp_path, {"intel-rapl:0": (8_000_000, full), "intel-rapl:1": (0, full), "intel-rapl:0:0": (5, full)})
    rapl = Rapl(tmp_path)
    assert rapl.read() == 0
    powercap(
        tmp_path, {"intel-rapl:0": (1_500_000, full), "intel-rapl:1": (250_000, full), "intel-rapl:0:0": (9, full)}
    )
    assert rapl.read() == pytest.approx(2.75)
    (tmp_path / "intel-rapl:1" / "energy_uj").write_text("nonsense")
    with pytest.raises(NoCounter, match="cannot read the processor's energy counter"):
        rapl.read()
    with pytest.raises(NoCounter, match="has none"):
        Rapl(tmp_path / "nothing")


class Zeus:
    """Stands in for `ZeusMonitor`: each window has so many joules."""

    def __init__(self, gpu_indices: list[int]) -> None:
        self.gpus, self._open = gpu_indices, False

    def begin_window(self, key: str, sync_execution: bool) -> None:
        assert not self._open
        self._open = True

    def end_window(self, key: str, sync_execution: bool):
        assert self._open
        self._open = False
        return SimpleNamespace(gpu_energy=dict.fromkeys(self.gpus, 5.0), cpu_energy={0: 1.0, 1: 2.0}, dram_energy=None)


def test_zeus_is_used_where_it_is_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "zeus", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "zeus.monitor", SimpleNamespace(ZeusMonitor=Zeus))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    for device, name, joules in (("cpu", "zeus (cpu)", 3.0), ("cuda", "zeus (cpu, gpu)", 8.0)):
        source = energy_source(device)
        assert (source.name, source.read(), source.read()) == (name, joules, 2 * joules)


def test_a_measurement_keeps_it(monkeypatch):
    @contextmanager
    def known(device):
        yield EnergyUse(120.0, 30.0, "fake")

    monkeypatch.setattr(measurement, "energy_used", known)
    found = measurement.measure(SimpleNamespace(), [], Load(1, 0.0, 4))
    assert (found.joules, found.idle, found.energy_source) == (120.0, 30.0, "fake")
    assert Measurement.of(found.data()) == found
    old = {key: value for key, value in found.data().items() if key not in ("joules", "idle")}
    assert Measurement.of(old).joules is None  # from a journal of before


def test_a_record_has_it_per_token_and_a_table_only_where_some_record_does():
    told = [Measurement(tokens=100, joules=joules, idle=joules / 5, energy_source="fake") for joules in (50.0, 70.0)]
    nothing = Measurement(tokens=100, energy_missing="no counter")
    named = {"energy_source": "fake", "energy_missing": None}
    assert _energy([*told, nothing]) == {"joules_per_token": 0.6, "idle_share": pytest.approx(0.2), **named}
    without = {"joules_per_token": None, "idle_share": None, "energy_source": None, "energy_missing": "no counter"}
    assert _energy([nothing]) == without
    assert (
        energy_line({"records": [without]})
        == "No joules per token: no counter; --watts states a power for an estimate."
    )
    assert energy_line({"records": [_energy(told)]}) == "Energy: fake."
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


def test_joules_per_token_of_an_engine_are_those_of_seconds_of_decoding(monkeypatch):
    clock, runs = Clock(watts=100), list[Load]()

    def add_run(engine, items, load, measurement):
        clock.sleep(1.0)
        runs.append(load)
        measurement.tokens += 40
        measurement.tally.add(3, 1, 2)

    monkeypatch.setattr(token_energy_module, "add_run", add_run)
    found = metered(clock.meter(), SimpleNamespace(), [], Load(1, 0.0, 4), 2.5, lambda: clock.now)
    assert found == TokenEnergy(2.5, 100.0, 0.025, 2.0, "fake")
    assert len(runs) == 3


def test_without_a_counter_nothing_runs_and_the_reason_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(energy_sources, "POWERCAP", tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = token_energy(SimpleNamespace(), [], Load(1, 0.0, 4))
    assert found.joules_per_token is None
    assert "no energy counter of the processor" in found.missing
