"""`slipstream plan forecast`: what speculation will bring, before it is deployed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.table import Table

from slipstream.bench.decoding_profile import WORKLOAD, measure_profile, sampled_runs
from slipstream.bench.measure.energy import Meter, stated_watts
from slipstream.bench.profile.energy import decoding_power
from slipstream.bench.workloads import load_workloads
from slipstream.cli.output.show import console
from slipstream.kernels.energy_sources import stated_power
from slipstream.plan.forecast.hardware import Hardware, HardwarePoint, forecast_hardware, quantity
from slipstream.plan.forecast.profile_forecast import ForecastPoint, forecast
from slipstream.plan.forecast.run_forecast import RunPoint, forecast_runs
from slipstream.plan.profile.energy import DecodingPower
from slipstream.plan.profile.key import ProfileKey
from slipstream.plan.profile.profile import Profile
from slipstream.plan.profile.runs import ProfileRun
from slipstream.plan.profile.store import read_profile

if TYPE_CHECKING:
    from slipstream.models.target import Target


def forecast_here(
    target: Target,
    drafter: str,
    options: Mapping[str, Any],
    depths: Sequence[int],
    batch: int,
    temperature: float,
    workload: str | None = None,
) -> list[ForecastPoint]:
    """Measure briefly on this machine, and forecast each depth. `workload`: the prompts; default: shipped ones."""
    with Progress(
        SpinnerColumn(), TextColumn("{task.description}"), console=console(stderr=True), transient=True
    ) as bar:
        task = bar.add_task("measuring")

        def on_step(what: str, done: int, total: int) -> None:
            bar.update(task, description=f"measuring {drafter}: {what} ({done + 1} of {total})")

        load: dict[str, Any] = {"batch": batch, "temperature": temperature, "workload": workload or WORKLOAD}
        profile = measure_profile(target, drafter, options, on_step=on_step, **load)
    return forecast(profile, depths)


def forecast_there(
    hardware: Hardware, acceptance: float, depths: Sequence[int], batches: Sequence[int], draft_cost: float
) -> list[HardwarePoint]:
    """Forecast for hardware by its data sheet."""
    return [forecast_hardware(hardware, acceptance, depth, batch, draft_cost) for batch in batches for depth in depths]


HerePoint = TypeVar("HerePoint", ForecastPoint, RunPoint)


def with_joules(point: HerePoint, power: DecodingPower | None) -> HerePoint:
    """The point with joules per token: the power of decoding over the tokens per second."""
    if power is None:
        return point
    low, high = point.tokens_per_second_interval
    joules = [power.watts / speed if speed else math.inf for speed in (point.tokens_per_second, high, low)]
    return replace(point, joules_per_token=joules[0], joules_per_token_interval=(joules[1], joules[2]))


def measured_power(
    target: Target, drafter: str, options: Mapping[str, Any], depth: int, batch: int
) -> DecodingPower | str:
    """The power of decoding with a drafter here, or why it is not known."""
    meter, reason = Meter.open(target.model.device.type)
    if meter is None:
        return reason
    items = [item for each in load_workloads(WORKLOAD) for item in each.items]
    return decoding_power(target, drafter, options, depth, batch, items)


def profile_power(profile: Profile, drafter: str, batch: int) -> DecodingPower | str:
    """The power that is stated, or that of a profile, or why it is not known."""
    if (watts := stated_watts()) is not None:
        return DecodingPower(drafter, batch, watts, stated_power(watts).name, estimate=True)
    missing = profile.energy.missing or f"the profile has no power of {drafter}"
    return profile.energy.power(drafter, batch) or missing


def here_table(points: Sequence[ForecastPoint | RunPoint]) -> Table:
    metered = any(point.joules_per_token is not None for point in points)
    table = _table("depth", "tau", "deviation", "tokens/s", "speed-up", *(["joules/token"] if metered else []))
    for point in points:
        cells = [
            str(point.depth),
            _with_interval(point.tau, point.tau_interval, 2),
            f"{point.deviation:.2f}",
            _with_interval(point.tokens_per_second, point.tokens_per_second_interval, 1),
            _with_interval(point.speedup, point.speedup_interval, 2),
        ]
        if point.joules_per_token and point.joules_per_token_interval:
            cells.append(_with_interval(point.joules_per_token, point.joules_per_token_interval, 3))
        table.add_row(*cells)
    return table


def report_here(
    target: Target,
    drafter: str,
    options: Mapping[str, Any],
    load: tuple[Sequence[int], Sequence[int], float],
    profile: Path | None,
    workload: str | None = None,
) -> dict[str, Any]:
    """Forecast for this machine, from a profile or a short measurement, and print the tables.

    `workload`: prompts of the user's own. With a profile, acceptance is measured on them, and costs are the profile's.
    """
    (depths, batches, temperature), out = load, console()
    points: list[dict[str, Any]] = []
    energy = ""
    sample: Sequence[ProfileRun] = ()
    if profile is not None and workload is not None:
        sample = sampled_runs(target, drafter, options, max(depths), temperature, workload)
    for batch in batches:
        here: Sequence[ForecastPoint | RunPoint]
        if profile is None:
            power = measured_power(target, drafter, options, depths[len(depths) // 2], batch)
            measured = forecast_here(target, drafter, options, depths, batch, temperature, workload)
            here = [with_joules(point, _known(power)) for point in measured]
        else:
            saved = read_profile(profile, ProfileKey.of(target))
            power = profile_power(saved, drafter, batch)
            runs = [forecast_runs(saved.runs, drafter, depth, batch, temperature, sample=sample) for depth in depths]
            here = [with_joules(point, _known(power)) for point in runs]
        energy = f"no joules per token: {power}" if isinstance(power, str) else f"joules per token: {power.source}"
        out.print(f"{target.label}, drafted by {drafter}, batch {batch}, temperature {temperature:g}", style="dim")
        out.print(here_table(here), soft_wrap=False)
        points += [{"batch": batch, **row} for row in as_rows(here)]
    source = "a short measurement" if profile is None else str(profile)
    out.print(energy, style="dim")
    return {
        "model": target.label, "drafter": drafter, "temperature": temperature, "source": source,
        "workload": workload, "energy": energy, "points": points,
    }  # fmt: skip


def _known(power: DecodingPower | str) -> DecodingPower | None:
    return None if isinstance(power, str) else power


def report_there(
    given: Mapping[str, str | None],
    acceptance: float,
    load: tuple[Sequence[int], Sequence[int], float],
    draft_cost: float,
    watts: float | None = None,
) -> dict[str, Any]:
    """Forecast for other hardware, and print the table and what is assumed."""
    missing = [name for name, value in given.items() if value is None]
    if missing:
        raise ValueError(f"--{missing[0]} is missing; other hardware is --bandwidth, --flops and --weights together")
    hardware = Hardware(*(quantity(name, str(value)) for name, value in given.items()))
    there, out = forecast_there(hardware, acceptance, load[0], load[1], draft_cost), console()
    out.print(there_table(there, watts), soft_wrap=False)
    assumptions, points = hardware.assumptions, as_rows(there)
    if watts is not None:
        assumptions.append(f"joules per token are an estimate at {watts:g} W, whatever the depth and batch")
        points = [point | {"joules_per_token": watts / point["tokens_per_second"]} for point in points]
    for assumption in assumptions:
        out.print(f"assumed: {assumption}", style="dim")
    return {"assumptions": assumptions, "points": points}


def there_table(points: Sequence[HardwarePoint], watts: float | None = None) -> Table:
    energy = [] if watts is None else ["joules/token"]
    table = _table("batch", "depth", "tau", "deviation", "tokens/s", "speed-up", *energy)
    for point in points:
        figures = [
            f"{point.tau:.2f}",
            f"{point.deviation:.2f}",
            f"{point.tokens_per_second:.0f}",
            f"{point.speedup:.2f}",
        ]
        figures += [] if watts is None else [f"≈{watts / point.tokens_per_second:.3g}"]
        table.add_row(str(point.batch), str(point.depth), *figures)
    return table


def as_rows(points: Sequence[ForecastPoint | RunPoint | HardwarePoint]) -> list[dict[str, Any]]:
    return [asdict(point) for point in points]


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _with_interval(value: float, interval: tuple[float, float], digits: int) -> str:
    low, high = interval
    return f"{value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"
