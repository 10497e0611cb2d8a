"""`slipstream plan forecast`: what speculation will bring, before it is deployed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.table import Table

from slipstream.bench.decoding_profile import WORKLOAD, measure_profile
from slipstream.cli.output.show import console
from slipstream.plan.forecast.hardware import Hardware, HardwarePoint, forecast_hardware
from slipstream.plan.forecast.profile_forecast import ForecastPoint, forecast

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


def forecast_there(
    hardware: Hardware, acceptance: float, depths: Sequence[int], batches: Sequence[int], draft_cost: float
) -> list[HardwarePoint]:
    """Forecast for hardware by its data sheet."""
    return [forecast_hardware(hardware, acceptance, depth, batch, draft_cost) for batch in batches for depth in depths]


def here_table(points: Sequence[ForecastPoint]) -> Table:
    table = _table("depth", "tau", "tokens/s", "speed-up")
    for point in points:
        table.add_row(
            str(point.depth),
            _with_interval(point.tau, point.tau_interval, 2),
            _with_interval(point.tokens_per_second, point.tokens_per_second_interval, 1),
            _with_interval(point.speedup, point.speedup_interval, 2),
        )
    return table


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


def as_rows(points: Sequence[ForecastPoint | HardwarePoint]) -> list[dict[str, Any]]:
    return [asdict(point) for point in points]


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _with_interval(value: float, interval: tuple[float, float], digits: int) -> str:
    low, high = interval
    return f"{value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"
