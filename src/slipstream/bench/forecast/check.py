"""Compares forecasts with measurements: each workload is forecast from the runs of the other workloads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from slipstream.bench.matrix import Cell, Matrix
from slipstream.bench.measure.measurement import Measurement
from slipstream.bench.statistics import median
from slipstream.engines.drafter_catalogue import candidates
from slipstream.plan.forecast.run_forecast import RunPoint, forecast_runs
from slipstream.plan.forecast.text_shift import TextCertainty, certainty_of, certainty_slope
from slipstream.plan.profile.runs import PLAIN, ProfileRun, by_workload

FIGURES = ("tau", "tokens_per_second", "speedup")
AXES = ("drafter", "depth", "batch", "temperature", "workload")
DEPTHS, WORKLOADS = "1,3,5", "code:2,chat:2,maths:2,summary:2"  # of `bench --forecast` where none are given

Measured = Mapping[Cell, Sequence[Measurement]]


def forecast_defaults(
    model: str, drafters: Sequence[str] | None, depth: str, workload: str
) -> tuple[list[str], str, str]:
    """Drafters, depths and workloads of `--forecast`: those that were given, else some that can be forecast."""
    own_depth = DEPTHS if depth == Matrix().depth else depth
    own_workload = WORKLOADS if workload == "code,chat" else workload
    return list(drafters or candidates(model)), own_depth, own_workload


def check_forecastable(cells: Sequence[Cell]) -> None:
    """Raise ValueError if the cells cannot be forecast from each other."""
    drafting = [cell for cell in cells if not cell.setup.plain]
    if not drafting:
        raise ValueError("--forecast has nothing to forecast; name a drafter with -d")
    if any(cell.setup.depth is None or cell.setup.engine != "native" or cell.setup.plan for cell in drafting):
        raise ValueError("--forecast needs the native engine and fixed depths without plans, such as --depth 1,3,5")
    if len({cell.workload for cell in cells}) < 2:
        raise ValueError("--forecast needs two or more workloads: each is forecast from the others")


def run_of(cell: Cell, measured: Measurement) -> ProfileRun:
    """A measurement as a run of a profile."""
    tally, decoded = measured.tally, measured.decoded and measured.decoding
    return ProfileRun(
        PLAIN if cell.setup.plain else cell.setup.drafter, cell.setup.depth or 0, cell.batch, cell.temperature,
        cell.workload, measured.decoding if decoded else measured.seconds,
        measured.decoded if decoded else measured.tokens, tally.cycles, tally.emitted,
        measured.context / tally.cycles, tuple(tally.accepted), tuple(tally.drafted), measured.joules,
    )  # fmt: skip


def compare_forecasts(
    measured: Measured,
    samples: Sequence[ProfileRun] = (),
    texts: tuple[Sequence[TextCertainty], Sequence[ProfileRun]] = ((), ()),
) -> dict[str, Any]:
    """One point for each cell that drafts, with its forecast, its measurement and the error; then the error table.

    `texts`: what plain decoding tells of the workloads (`forecast_text`). With these there is a second forecast of each
    point. `samples`: runs of the workloads on other prompts. With these there is a third one, from both."""
    runs = {cell: [run_of(cell, each) for each in repeats] for cell, repeats in measured.items()}
    points = []
    for cell in runs:
        if cell.setup.plain:
            continue
        others = [run for other, own in runs.items() if other.workload != cell.workload for run in own]
        plain = next(own for other, own in runs.items() if other.setup.plain and other.load == cell.load)
        context = sum(run.context for run in plain) / len(plain)  # of the prompts, known before anything is measured
        assert cell.setup.depth is not None, "checked by check_forecastable"
        load = (cell.setup.drafter, cell.setup.depth, cell.batch, cell.temperature)
        figures = _figures(runs[cell], plain)
        point = _compared(cell, forecast_runs(others, *load, context), figures)
        if texts[0]:
            second = _compared(cell, _text_forecast(others, cell, load, context, texts), figures)
            point |= {f"{name}_with_text": second[name] for name in ("forecast", "error")}
        if own := [run for run in samples if run.workload == cell.workload and run.drafter == cell.setup.drafter]:
            second = _compared(cell, _text_forecast(others, cell, load, context, texts, own), figures)
            point |= {f"{name}_with_sample": second[name] for name in ("forecast", "error")}
        points.append(point)
    compared: dict[str, Any] = {"points": points, "errors": errors_of(points)}
    for kind in ("text", "sample"):
        own_points = [
            {**point, "error": point[f"error_with_{kind}"]} for point in points if f"error_with_{kind}" in point
        ]
        compared |= {f"errors_with_{kind}": errors_of(own_points)} if own_points else {}
    return compared


def _text_forecast(
    others: Sequence[ProfileRun],
    cell: Cell,
    load: tuple[str, int, int, float],
    context: float,
    texts: tuple[Sequence[TextCertainty], Sequence[ProfileRun]],
    sample: Sequence[ProfileRun] = (),
) -> RunPoint:
    """The forecast from the other workloads, the plain text of this one and a sample of it. A drafter that copies from
    the text was run over the text itself, which tells more than a sample of other prompts."""
    certainties, replays = texts
    own = [run for run in replays if run.workload == cell.workload and run.drafter == cell.setup.drafter]
    if own:
        return forecast_runs(others, *load, context, own)
    known = {workload: certainty_of(certainties, workload, cell.temperature) for workload in by_workload(others)}
    usual = [certainty for certainty in known.values() if certainty is not None]
    here = certainty_of(certainties, cell.workload, cell.temperature)
    slope = certainty_slope(others, certainties, {run.drafter for run in replays})
    shift = slope * (here - sum(usual) / len(usual)) if here is not None and usual else 0.0
    return forecast_runs(others, *load, context, sample, shift)


def _compared(cell: Cell, point: RunPoint, measured: Mapping[str, float]) -> dict[str, Any]:
    key, forecast = cell.key(), asdict(point)
    kept = {name: value for name, value in forecast.items() if name not in AXES}
    errors = {name: forecast[name] / measured[name] - 1 for name in FIGURES}
    return {**{axis: key[axis] for axis in AXES}, "forecast": kept, "measured": dict(measured), "error": errors}


def _figures(runs: Sequence[ProfileRun], plain: Sequence[ProfileRun]) -> dict[str, float]:
    """Medians over the repeats."""
    speed, base = ([run.tau / run.cycle_seconds for run in each] for each in (runs, plain))
    gains = [own / other for own, other in zip(speed, base, strict=True)]
    return {"tau": median([run.tau for run in runs]), "tokens_per_second": median(speed), "speedup": median(gains)}


def errors_of(points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Median and worst relative error of each figure, over all points and by each axis of the matrix."""
    table = {"points": len(points), **_errors(points)}
    by_axis = {}
    for axis in AXES:
        values = list(dict.fromkeys(point[axis] for point in points))
        by_axis[axis] = {str(v): _errors([point for point in points if point[axis] == v]) for v in values}
    return table | {"by": by_axis}


def _errors(points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    sizes = {name: [abs(point["error"][name]) for point in points] for name in FIGURES}
    return {name: {"median": median(values), "worst": max(values)} for name, values in sizes.items()}


def with_forecasts(records: Sequence[dict[str, Any]], compared: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The records, each that was forecast with `forecast`, `measured` and `forecast_error`."""
    points = {tuple(point[axis] for axis in AXES): point for point in compared["points"]}
    shown = []
    for record in records:
        point = points.get(tuple(record[axis] for axis in AXES))
        own = {name: point[name] for name in ("forecast", "measured")} if point else {}
        shown.append(record | own | ({"forecast_error": point["error"]} if point else {}))
    return shown
