"""Results as tables: columns and rows once, shown by rich where it is installed, as aligned text elsewhere, and in the
report as HTML."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    title: str
    show: Callable[[Row], str]
    left: bool = False
    needed: bool = False  # also where there is little room


@dataclass(frozen=True)
class Table:
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1  # so many columns hold words


def number(name: str, digits: int = 2, unit: str = "") -> Callable[[Row], str]:
    def show(row: Row) -> str:
        value = row.get(name)
        return "-" if value is None else f"{value:.{digits}f}{unit}"

    return show


def interval(value: str, bounds: str, digits: int) -> Callable[[Row], str]:
    def show(row: Row) -> str:
        if row.get(value) is None:
            return "-"
        low, high = row[bounds]
        point = f"{row[value]:.{digits}f}"
        return point if low == high else f"{point} [{low:.{digits}f}, {high:.{digits}f}]"

    return show


def percent(name: str) -> Callable[[Row], str]:
    def show(row: Row) -> str:
        return "-" if row.get(name) is None else f"{100 * row[name]:.0f} %"

    return show


def _memory(row: Row) -> str:
    size = row.get("peak_memory_bytes")
    return "-" if size is None else f"{size / 1e9:.2f}"


def _acceptance(row: Row) -> str:
    return " ".join(f"{100 * share:.0f}" for share in row["acceptance"][:6]) or "-"


def _quality(row: Row) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in row["quality"].items()) or "-"


def _depth(row: Row) -> str:
    return "-" if row["drafter"] == "none" else str(row["depth"])


COLUMNS = (
    Column("engine", lambda row: str(row["engine"]), left=True, needed=True),
    Column("drafter", lambda row: str(row["drafter"]), left=True, needed=True),
    Column("rule", lambda row: str(row["rule"]), left=True, needed=True),
    Column("depth", _depth, needed=True),
    Column("tokens/s", interval("tokens_per_second", "tokens_per_second_interval", 1), needed=True),
    Column("whole calls/s", number("end_to_end_tokens_per_second", 1)),
    Column("speedup", interval("speedup", "speedup_interval", 2), needed=True),
    Column("whole", number("speedup_end_to_end")),
    Column("to reference", number("speedup_reference")),
    Column("first s", number("seconds_to_first_token")),
    Column("tau", number("tau"), needed=True),
    Column("accepted %", _acceptance),
    Column("draft alone/s", number("draft_tokens_per_second", 1), needed=True),
    Column("of limit", percent("share_of_limit"), needed=True),
    Column("same", percent("same_answers")),
    Column("quality", _quality),
    Column("GB", _memory),
    Column("J/token", number("joules_per_token", 3)),
    Column("idle", percent("idle_share")),
)
LEGEND = (
    "tokens/s: after the first tokens, median [95 % interval of the median]; whole calls/s: prompts included; speedup: "
    "against plain decoding of the same engine, repeat by repeat; to reference: against plain decoding of the first "
    "engine; accepted %: by position; draft alone: the draft model's own plain speed; of limit: against bytes read / "
    "measured bandwidth; same: answers equal to plain decoding's at temperature 0; GB: highest memory of the process; "
    "J/token: energy of the GPU for whole calls; idle: the share it would have taken for doing nothing."
)


def tables(results: Mapping[str, Any], narrow: bool = False) -> list[Table]:
    """One table per workload, batch and temperature."""
    loads: dict[tuple[Any, ...], list[Row]] = {}
    for record in results["records"]:
        loads.setdefault((record["workload"], record["batch"], record["temperature"]), []).append(record)
    shown = [column for column in COLUMNS if _worth(column, results["records"]) and (column.needed or not narrow)]
    left = sum(column.left for column in shown)
    return [
        Table(
            f"{workload}, batch {batch}, temperature {temperature:g}",
            [column.title for column in shown],
            [[column.show(row) for column in shown] for row in rows],
            left,
        )
        for (workload, batch, temperature), rows in loads.items()
    ] + ([_against(results["against"])] if "against" in results else [])


def _worth(column: Column, records: Sequence[Row]) -> bool:
    """Whether a column says anything here."""
    if column.title == "to reference" and len({record["engine"] for record in records}) == 1:
        return False
    return any(column.show(record) != "-" for record in records)


def _against(compared: Mapping[str, Any]) -> Table:
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
    return Table(title, [*names, "before", "now", "ratio", "tau", "verdict"], rows, 4)


def headline(results: Mapping[str, Any]) -> str:
    """Model, machine and limits in a line or two."""
    hardware, limits = results["hardware"], results["limits"]
    place = hardware["accelerator"] or f"{hardware['processor']}, {hardware['threads']} threads"
    labels = {record["engine"]: record["model"] or results["model"] for record in results["records"]}
    told = "; ".join(f"{engine}: {label}" for engine, label in labels.items())
    scaled = f"; COST-SCALED TARGET: {results['scaled']}" if results.get("scaled") else ""
    return (
        f"{told} on {place}{scaled}; memory {limits['bandwidth'] / 1e9:.1f} GB/s, "
        f"arithmetic {limits['arithmetic'] / 1e9:.0f} GFLOP/s, weights "
        + ", ".join(f"{size / 1e9:.2f} GB ({name})" for name, size in limits["target_bytes"].items())
    )


def busy(results: Mapping[str, Any]) -> str | None:
    """A warning where other programs ran beside the measurements."""
    load, cores = results.get("load_average"), results["hardware"].get("cores") or 1
    if load is None or load <= 1.5 * cores + 0.5:
        return None
    return (
        f"The machine was busy: {load:.1f} programs wanted its {cores} cores. Times are longer than they need be; "
        "compare only within one table, and trust what does not depend on time (tau, acceptance, same, quality)."
    )


def show(results: Mapping[str, Any]) -> None:
    """Print all tables."""
    try:
        from rich.console import Console
    except ImportError:
        print("\n\n".join([headline(results), *map(text, tables(results)), LEGEND, busy(results) or ""]))
        return
    out = Console(highlight=False)
    narrow = out.is_terminal and out.width < 180
    out.print(headline(results), markup=False, soft_wrap=not out.is_terminal)
    for table in tables(results, narrow):
        out.print(_rich(table) if out.is_terminal else text(table), markup=False, soft_wrap=not out.is_terminal)
    out.print(LEGEND, markup=False, style="dim", soft_wrap=not out.is_terminal)
    if warning := busy(results):
        out.print(warning, markup=False, style="bold", soft_wrap=not out.is_terminal)


def _rich(table: Table) -> Any:
    from rich import box
    from rich.markup import escape
    from rich.table import Table as Shown

    shown = Shown(title=table.title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for i, name in enumerate(table.columns):
        shown.add_column(name, justify="left" if i < table.left else "right")
    for row in table.rows:
        shown.add_row(*map(escape, row))
    return shown


def text(table: Table) -> str:
    """Aligned columns, with nothing but spaces."""
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
