"""`slipstream plan forecast`: what speculation will bring, before it is deployed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.table import Table

from slipstream.bench.decoding_profile import WORKLOAD, measure_profile
from slipstream.cli.output.show import console
from slipstream.plan.forecast.hardware import Hardware, HardwarePoint, forecast_hardware, quantity
from slipstream.plan.forecast.profile_forecast import ForecastPoint, forecast
from slipstream.plan.forecast.run_forecast import RunPoint, forecast_runs
from slipstream.plan.profile.key import ProfileKey
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
) -> list[ForecastPoint]:
    """Measure briefly on this machine, and forecast each depth."""
    with Progress(
        SpinnerColumn(), TextColumn("{task.description}"), console=console(stderr=True), transient=True
    ) as bar:
        task = bar.add_task("measuring")

        def on_step(what: str, done: int, total: int) -> None:
            bar.update(task, description=f"measuring {drafter}: {what} ({done + 1} of {total})")

        load: dict[str, Any] = {"batch": batch, "temperature": temperature, "workload": WORKLOAD}
        profile = measure_profile(target, drafter, options, on_step=on_step, **load)
    return forecast(profile, depths)


def forecast_profile(
    path: Path, target: Target, drafter: str, depths: Sequence[int], batches: Sequence[int], temperature: float
) -> list[RunPoint]:
    """Forecast from a profile of this machine; nothing is measured."""
    runs = read_profile(path, ProfileKey.of(target)).runs
    return [forecast_runs(runs, drafter, depth, batch, temperature) for batch in batches for depth in depths]


def forecast_there(
    hardware: Hardware, acceptance: float, depths: Sequence[int], batches: Sequence[int], draft_cost: float
) -> list[HardwarePoint]:
    """Forecast for hardware by its data sheet."""
    return [forecast_hardware(hardware, acceptance, depth, batch, draft_cost) for batch in batches for depth in depths]


def here_table(points: Sequence[ForecastPoint | RunPoint]) -> Table:
    metered = any(isinstance(point, RunPoint) and point.joules_per_token is not None for point in points)
    table = _table("depth", "tau", "deviation", "tokens/s", "speed-up", *(["joules/token"] if metered else []))
    for point in points:
        cells = [
            str(point.depth),
            _with_interval(point.tau, point.tau_interval, 2),
            f"{point.deviation:.2f}",
            _with_interval(point.tokens_per_second, point.tokens_per_second_interval, 1),
            _with_interval(point.speedup, point.speedup_interval, 2),
        ]
        if isinstance(point, RunPoint) and point.joules_per_token and point.joules_per_token_interval:
            cells.append(_with_interval(point.joules_per_token, point.joules_per_token_interval, 3))
        table.add_row(*cells)
    return table


def report_here(
    target: Target,
    drafter: str,
    options: Mapping[str, Any],
    load: tuple[Sequence[int], Sequence[int], float],
    profile: Path | None,
) -> dict[str, Any]:
    """Forecast for this machine, from a profile or a short measurement, and print the tables."""
    (depths, batches, temperature), out = load, console()
    points: list[dict[str, Any]] = []
    for batch in batches:
        here: Sequence[ForecastPoint | RunPoint]
        if profile is None:
            here = forecast_here(target, drafter, options, depths, batch, temperature)
        else:
            here = forecast_profile(profile, target, drafter, depths, [batch], temperature)
        out.print(f"{target.label}, drafted by {drafter}, batch {batch}, temperature {temperature:g}", style="dim")
        out.print(here_table(here), soft_wrap=False)
        points += [{"batch": batch, **row} for row in as_rows(here)]
    source = "a short measurement" if profile is None else str(profile)
    if all(point.get("joules_per_token") is None for point in points):
        out.print(f"no joules per token: {source} has none", style="dim")
    return {
        "model": target.label, "drafter": drafter, "temperature": temperature, "source": source, "points": points,
    }  # fmt: skip


def report_there(
    given: Mapping[str, str | None],
    acceptance: float,
    load: tuple[Sequence[int], Sequence[int], float],
    draft_cost: float,
) -> dict[str, Any]:
    """Forecast for other hardware, and print the table and what is assumed."""
    missing = [name for name, value in given.items() if value is None]
    if missing:
        raise ValueError(f"--{missing[0]} is missing; other hardware is --bandwidth, --flops and --weights together")
    hardware = Hardware(*(quantity(name, str(value)) for name, value in given.items()))
    there, out = forecast_there(hardware, acceptance, load[0], load[1], draft_cost), console()
    out.print(there_table(there), soft_wrap=False)
    for assumption in hardware.assumptions:
        out.print(f"assumed: {assumption}", style="dim")
    return {"assumptions": hardware.assumptions, "points": as_rows(there)}


def there_table(points: Sequence[HardwarePoint]) -> Table:
    table = _table("batch", "depth", "tau", "deviation", "tokens/s", "speed-up")
    for point in points:
        figures = (
            f"{point.tau:.2f}",
            f"{point.deviation:.2f}",
            f"{point.tokens_per_second:.0f}",
            f"{point.speedup:.2f}",
        )
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
