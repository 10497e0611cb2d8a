"""Bars of speeds and intervals of ratios, one panel per load. Positions are percentages of the panel's width."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from slipstream.bench.report.labels import Palette, Record, Results, drafting, grouped, is_plain
from slipstream.bench.report.svg import shown, ticks
from slipstream.bench.statistics import NOT_DRAFTED, ONE_REPEAT
from slipstream.bench.table import load_title

RATIOS = (0.1, 0.2, 0.5, 0.67, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)  # where a ratio's axis has ticks
WIDEST = 1.6  # an interval is drawn up to this factor beyond the value
APART = 14.0  # minimum distance of two ticks, in percent of the width
Place = Callable[[float], float]  # from a value to a percentage of the width


def speeds(results: Results, palette: Palette) -> str:
    """Tokens per second with intervals; every repeat is a dot."""
    panels = [_speed_panel(records, palette) for records in grouped(results["records"], load_title).values()]
    return f'<div class="panels">{"".join(panels)}</div>'


def _speed_panel(records: Sequence[Record], palette: Palette) -> str:
    top = 1.05 * max(map(reach, records)) or 1.0
    rows = [_speed_row(record, palette, lambda value: 100 * value / top) for record in records]
    marks = [(100 * value / top, shown(value)) for value in ticks(0, top)]
    return _panel(load_title(records[0]), rows, marks)


def reach(record: Record) -> float:
    """The end of a record's interval on the axis of speeds, limited to `WIDEST` times its value."""
    largest = float(max(record["tokens_per_second_repeats"]))
    interval = record["tokens_per_second_interval"]
    return largest if interval is None else max(largest, min(interval[1], WIDEST * record["tokens_per_second"]))


def _speed_row(record: Record, palette: Palette, place: Place) -> str:
    colour, repeats = palette.colour(record["engine"]), record["tokens_per_second_repeats"]
    fill = "1" if is_plain(record) else ".38"
    bar = (
        f'<rect width="{place(record["tokens_per_second"]):.2f}%" y="3" height="14" rx="2" '
        f'fill="{colour}" fill-opacity="{fill}" stroke="{colour}"/>'
    )
    dots = "".join(f'<circle cx="{place(speed):.2f}%" cy="10" r="2" fill="var(--ink)"/>' for speed in repeats)
    interval = record["tokens_per_second_interval"]
    lines = _whisker(interval, place, "var(--ink)") if interval else ""
    span = f"<br><small>{_span(interval, 1)}</small>" if interval else ""
    value = f"<b>{record['tokens_per_second']:,.1f}</b>{span}"
    return _row(record, palette, bar + lines + dots, value)


def ratios(results: Results, palette: Palette) -> str:
    """Speed relative to plain decoding of the same engine, with a line at 1. Empty if no drafter was measured."""
    records = [record for record in results["records"] if record.get("ratio_to_plain") is not None]
    if not records:
        return ""
    place, marks = _ratio_axis([record for record in records if _drawn(record)])
    panels = [
        _panel(name, [_ratio_row(record, palette, place) for record in group], marks)
        for name, group in grouped(records, load_title).items()
    ]
    return f'<div class="panels">{"".join(panels)}</div>'


def _drawn(record: Record) -> bool:
    return record["verdict"] not in (ONE_REPEAT, NOT_DRAFTED)


def _ratio_axis(records: Sequence[Record]) -> tuple[Place, list[tuple[float, str]]]:
    """A logarithmic axis around 1 that shows every ratio and, up to `WIDEST`, its interval."""
    values = [record["ratio_to_plain"] for record in records] + [1 / 1.25, 1.25]
    lows = [record["ratio_to_plain_interval"][0] for record in records]
    highs = [record["ratio_to_plain_interval"][1] for record in records]
    low = max(min(values) / WIDEST, min([*values, *lows]) / 1.05)
    high = min(max(values) * WIDEST, max([*values, *highs]) * 1.05)

    def place(value: float) -> float:
        return 100 * math.log(value / low) / math.log(high / low)

    apart = [1.0]
    for value in sorted(RATIOS, key=lambda value: abs(math.log(value))):  # outwards from 1
        if low <= value <= high and all(abs(place(value) - place(other)) >= APART for other in apart):
            apart.append(value)
    return place, [(place(value), f"{value:g}") for value in sorted(apart)]


def _ratio_row(record: Record, palette: Palette, place: Place) -> str:
    if not _drawn(record):
        return f'<div class="row">{_name(record, palette)}<div class="note">{chip(record["verdict"])}</div></div>'
    at_one, dashes = f"{place(1):.2f}%", 'stroke="var(--soft)" stroke-dasharray="3 2"'
    line = f'<line x1="{at_one}" x2="{at_one}" y1="-1" y2="21" {dashes}/>'
    colour, interval = palette.colour(record["engine"]), record["ratio_to_plain_interval"]
    dot = f'<circle cx="{place(record["ratio_to_plain"]):.2f}%" cy="10" r="4.5" fill="{colour}"/>'
    value = f"<b>{record['ratio_to_plain']:.2f}</b> <small>{_span(interval, 2)}</small><br>{chip(record['verdict'])}"
    return _row(record, palette, line + _whisker(interval, place, colour) + dot, value)


def chip(verdict: str) -> str:
    kind = verdict.partition(" ")[0].rstrip(",")
    return f'<span class="verdict {escape(kind)}">{escape(verdict)}</span>'


def _whisker(interval: Sequence[float], place: Place, colour: str) -> str:
    """An interval with caps. An end beyond the axis has no cap."""
    low, high = (min(max(place(bound), 0.0), 100.0) for bound in interval)
    paint = f'stroke="{colour}" stroke-width="1.6"'
    caps = [end for end, bound in ((low, interval[0]), (high, interval[1])) if 0 < place(bound) < 100]
    line = f'<line x1="{low:.2f}%" x2="{high:.2f}%" y1="10" y2="10" {paint}/>'
    return line + "".join(f'<line x1="{end:.2f}%" x2="{end:.2f}%" y1="5" y2="15" {paint}/>' for end in caps)


def _span(interval: Sequence[float], digits: int) -> str:
    low, high = interval
    return f"{low:,.{digits}f} to {high:,.{digits}f}"


def _row(record: Record, palette: Palette, drawing: str, value: str) -> str:
    return (
        f'<div class="row">{_name(record, palette)}'
        f'<div class="track"><svg class="bar" aria-hidden="true">{drawing}</svg></div>'
        f'<div class="value">{value}</div></div>'
    )


def _name(record: Record, palette: Palette) -> str:
    """Engine and drafter, and below them depth and rule."""
    drafter, _, details = drafting(record).partition(", ")
    small = f"<small>{escape(details)}</small>" if details else ""
    return f'<div class="name">{palette.key(record["engine"])} {escape(drafter)}{small}</div>'


def _panel(title: str, rows: Sequence[str], marks: Sequence[tuple[float, str]]) -> str:
    axis = "".join(f'<span style="left: {at:.2f}%"{_edge(at)}>{name}</span>' for at, name in marks)
    ruler = f'<div class="row axis"><div></div><div class="ticks">{axis}</div><div></div></div>'
    return f'<section class="panel"><h3>{escape(title)}</h3>{"".join(rows)}{ruler}</section>'


def _edge(at: float) -> str:
    """The CSS class that keeps labels at the ends of an axis inside the panel."""
    return ' class="first"' if at < 3 else ' class="last"' if at > 97 else ""
