"""Tables of the report. Every cell has the name of its column, so that narrow screens can show a row as a list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from slipstream.bench.columns import COLUMNS, Column, has_values, legend
from slipstream.bench.report.bars import chip
from slipstream.bench.report.labels import Palette, Record, Results, drafting, grouped, load_of
from slipstream.bench.statistics import NOT_DRAFTED, ONE_REPEAT
from slipstream.bench.table import ResultTable, changes, load_title

NAMES = ("engine", "drafter", "rule", "depth")  # columns that the report joins into one
FIRST_TABLE = ("tokens/s", "against plain", "whole calls/s", "whole calls", "to reference", "first s", "tau")


def all_tables(results: Results, palette: Palette) -> str:
    """Two tables per load, so that both fit a screen, and the comparison with another run if there is one."""
    columns = [column for column in COLUMNS if column.title not in NAMES and has_values(column, results["records"])]
    speed = [column for column in columns if column.title in FIRST_TABLE]
    other = [column for column in columns if column.title not in FIRST_TABLE]
    loads = list(grouped(results["records"], load_of).values())
    state = " open" if len(loads) <= 2 else ""
    parts = [
        f"<details{state}><summary>{escape(load_title(records[0]))}</summary><div>"
        + "".join(_records_table(records, shown, palette) for shown in (speed, other) if shown)
        + "</div></details>"
        for records in loads
    ]
    if "against" in results:
        table = changes(results["against"])
        parts.append(
            f"<details open><summary>{escape(table.title)}</summary><div>{_plain_table(table)}</div></details>"
        )
    return f"<h2>All figures</h2>{''.join(parts)}{facts(legend(results['records']))}"


def _records_table(records: Sequence[Record], columns: Sequence[Column], palette: Palette) -> str:
    head = '<th class="left">setup</th>' + "".join(f"<th>{escape(column.title)}</th>" for column in columns)
    rows = "".join(
        f'<tr><td class="left">{palette.key(record["engine"])} {escape(drafting(record))}</td>'
        + "".join(_cell(column, record) for column in columns)
        + "</tr>"
        for record in records
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _cell(column: Column, record: Record) -> str:
    text = column.show(record)
    shown = escape(text)
    if column.title == "against plain" and text != "-":
        verdict = str(record["verdict"])
        figures = "" if verdict in (ONE_REPEAT, NOT_DRAFTED) else f"{escape(text.removesuffix(verdict))}<br>"
        shown = f"<span>{figures}{chip(verdict)}</span>"
    kind = "empty" if text == "-" else "wide" if "[" in text else ""
    return f'<td class="{kind}" data-name="{escape(column.title)}">{shown}</td>'


def _plain_table(table: ResultTable) -> str:
    head = "".join(f'<th class="{_side(i, table)}">{escape(name)}</th>' for i, name in enumerate(table.columns))
    rows = "".join(
        "<tr>"
        + "".join(
            f'<td class="{_side(i, table)}" data-name="{escape(name)}">{escape(cell)}</td>'
            for i, (name, cell) in enumerate(zip(table.columns, row, strict=True))
        )
        + "</tr>"
        for row in table.rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _side(i: int, table: ResultTable) -> str:
    return "left" if i < table.left else "right"


def facts(values: Mapping[str, object]) -> str:
    """Names and values as a list."""
    listed = "".join(f"<dt>{escape(str(name))}</dt><dd>{escape(str(value))}</dd>" for name, value in values.items())
    return f"<dl>{listed}</dl>"
