"""Results as tables: printed with rich if it is installed, otherwise as aligned text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.bench.columns import COLUMNS, Row, has_values, is_llamacpp_wheel, legend
from slipstream.bench.forecast.check import AXES, FIGURES

WHEEL = (
    "llamacpp is the wheel of xllamacpp, which is built for any processor of its family. llama.cpp built for a machine "
    "was 2 to 3.5 times as fast on the processors where both were measured (benchmarks/peers/build_llamacpp.sh)."
)


@dataclass(frozen=True)
class ResultTable:
    """A table of texts."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1  # number of left-aligned columns


def tables(results: Mapping[str, Any], narrow: bool = False) -> list[ResultTable]:
    """One table per workload, batch and temperature."""
    loads: dict[tuple[Any, ...], list[Row]] = {}
    for record in results["records"]:
        loads.setdefault((record["workload"], record["batch"], record["temperature"]), []).append(record)
    shown = [column for column in COLUMNS if has_values(column, results["records"]) and (column.needed or not narrow)]
    left = sum(column.left for column in shown)
    return [
        ResultTable(
            load_title(rows[0]),
            [column.title for column in shown],
            [[column.show(row) for column in shown] for row in rows],
            left,
        )
        for rows in loads.values()
    ] + _comparisons(results)


def _comparisons(results: Mapping[str, Any]) -> list[ResultTable]:
    """The comparison with forecasts and with another run, where there is one."""
    forecasts = forecast_tables(results["forecast"]) if "forecast" in results else []
    return forecasts + ([changes(results["against"])] if "against" in results else [])


def load_title(record: Row) -> str:
    return f"{record['workload']}, batch {record['batch']}, temperature {record['temperature']:g}"


def changes(compared: Mapping[str, Any]) -> ResultTable:
    """The comparison with another run."""
    title = f"against {compared['commit']} of {compared['date']}"
    if compared["differs"]:
        title += f" (not comparable as code: {', '.join(compared['differs'])} differ)"
    names = ["engine", "drafter", "rule", "workload", "depth", "batch", "temperature"]
    rows = [
        [
            *(str(r[name]) for name in names),
            f"{r['before']:.1f}",
            f"{r['now']:.1f}",
            f"{r['ratio']:.2f}",
            f"{r['tau_before']:.2f} → {r['tau_now']:.2f}",
            r["verdict"],
        ]
        for r in compared["records"]
    ]
    return ResultTable(title, [*names, "before", "now", "ratio", "tau", "verdict"], rows, 4)


def forecast_tables(compared: Mapping[str, Any]) -> list[ResultTable]:
    """Forecast beside measurement, and the errors."""
    names = [*AXES, "tau", "measured", "error", "tokens/s", "measured", "error", "speed-up", "measured", "error"]
    rows = [[*(str(point[axis]) for axis in AXES), *_cells(point)] for point in compared["points"]]
    found = [ResultTable("forecast from the other workloads, beside the measurement", names, rows, 1)]
    kinds = {
        "errors": "from the other workloads",
        "errors_with_text": "from the other workloads and the plain text of this one",
        "errors_with_sample": "from the other workloads, the plain text of this one and a sample",
    }
    return found + [_errors(title, compared[kind]) for kind, title in kinds.items() if kind in compared]


def _errors(title: str, errors: Mapping[str, Any]) -> ResultTable:
    """Median and worst error of each figure, over all points and by axis."""
    parts = {f"{axis} {value}": own for axis in AXES for value, own in errors["by"][axis].items()}
    rows = [
        [name, *(f"{100 * own[figure][kind]:.1f} %" for figure in FIGURES for kind in ("median", "worst"))]
        for name, own in {"all": errors, **parts}.items()
    ]
    columns = [f"{name} {kind}" for name in ("tau", "tokens/s", "speed-up") for kind in ("median", "worst")]
    return ResultTable(f"error of the forecasts {title}, {errors['points']} points", ["points", *columns], rows)


def _cells(point: Mapping[str, Any]) -> list[str]:
    cells = []
    for name, digits in (("tau", 2), ("tokens_per_second", 1), ("speedup", 2)):
        cells += [f"{point[kind][name]:.{digits}f}" for kind in ("forecast", "measured")]
        cells.append(f"{100 * point['error'][name]:+.0f} %")
    return cells


def headline(results: Mapping[str, Any]) -> str:
    """Model, machine and limits in a line or two."""
    hardware, limits = results["hardware"], results["limits"]
    place = hardware["accelerator"] or f"{hardware['processor']}, {hardware['threads']} threads"
    labels = {record["engine"]: record["model"] or results["model"] for record in results["records"]}
    models = "; ".join(f"{engine}: {label}" for engine, label in labels.items())
    scaled = f"; COST-SCALED TARGET: {results['scaled']}" if results.get("scaled") else ""
    return (
        f"{models} on {place}{scaled}; memory {limits['bandwidth'] / 1e9:.1f} GB/s, "
        f"arithmetic {limits['arithmetic'] / 1e9:.0f} GFLOP/s, weights "
        + ", ".join(f"{size / 1e9:.2f} GB ({name})" for name, size in limits["target_bytes"].items())
    )


def warnings(results: Mapping[str, Any]) -> list[str]:
    """Warnings for readers who compare speeds."""
    wheels = any(map(is_llamacpp_wheel, results["records"]))
    wheel = WHEEL if wheels and not results["hardware"].get("accelerator") else None
    return [warning for warning in (busy(results), wheel, energy_line(results)) if warning]


def energy_line(results: Mapping[str, Any]) -> str | None:
    """Where the joules come from, or why there are none. None for results of versions that did not say."""
    records = results["records"]
    sources = sorted({record["energy_source"] for record in records if record.get("energy_source")})
    if sources:
        return f"Energy: {', '.join(sources)}."
    missing = next((record["energy_missing"] for record in records if record.get("energy_missing")), None)
    return f"No joules per token: {missing}; --watts states a power for an estimate." if missing else None


def busy(results: Mapping[str, Any]) -> str | None:
    """A warning if other programs ran during the measurements; otherwise None."""
    load, cores = results.get("load_average"), results["hardware"].get("cores") or 1
    if load is None or load <= 1.5 * cores + 0.5:
        return None
    return (
        f"The machine was busy: {load:.1f} programs wanted its {cores} cores. Times are longer than they need be; "
        "compare only within one table, and trust what does not depend on time (tau, acceptance, same, quality)."
    )


def show(results: Mapping[str, Any]) -> None:
    """Print all tables, and then the result in one sentence."""
    try:
        from rich.console import Console
    except ImportError:
        parts = [
            headline(results),
            *map(text, tables(results)),
            _legend_text(results),
            *warnings(results),
            results["takeaway"],
        ]
        print("\n\n".join(part for part in parts if part))
        return
    out = Console(highlight=False)
    narrow = out.is_terminal and out.width < 180
    out.print(headline(results), markup=False, soft_wrap=not out.is_terminal)
    for table in tables(results, narrow):
        out.print(_rich(table) if out.is_terminal else text(table), markup=False, soft_wrap=not out.is_terminal)
    out.print(_legend_text(results), markup=False, style="dim", soft_wrap=not out.is_terminal)
    for warning in warnings(results):
        out.print(warning, markup=False, style="yellow", soft_wrap=not out.is_terminal)
    out.print(results["takeaway"], markup=False, style="bold", soft_wrap=not out.is_terminal)


def _rich(table: ResultTable) -> Any:
    from rich import box
    from rich.markup import escape
    from rich.table import Table as Shown

    shown = Shown(title=table.title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for i, name in enumerate(table.columns):
        shown.add_column(name, justify="left" if i < table.left else "right")
    for row in table.rows:
        shown.add_row(*map(escape, row))
    return shown


def text(table: ResultTable) -> str:
    """The table as text, aligned with spaces."""
    lines = [list(table.columns), *map(list, table.rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(table.columns))]
    shown = [
        "  ".join(
            cell.ljust(width) if i < table.left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    return "\n".join([table.title, *shown])


def _legend_text(results: Mapping[str, Any]) -> str:
    return ". ".join(f"{name}: {meaning}" for name, meaning in legend(results["records"]).items()) + "."
