"""Charts over depth and position: the best depth, and the positions at which drafts are rejected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

from slipstream.bench.report.bars import reach
from slipstream.bench.report.labels import (
    Palette,
    Record,
    Results,
    drafter_name,
    grouped,
    is_plain,
    line_of,
    marked,
)
from slipstream.bench.report.svg import Plot, sample, ticks
from slipstream.bench.table import load_title


class Measure(NamedTuple):
    """The quantity of a chart over depth."""

    title: str
    value: Callable[[Record], float]
    reach: Callable[[Record], float]  # the largest value on the axis
    interval: Callable[[Record], Sequence[float] | None] = lambda record: None


def _tau(record: Record) -> float:
    return float(record["tau"])


def _milliseconds(record: Record) -> float:
    return 1000 * float(record["seconds_per_pass"])


MEASURES = (
    Measure("tokens per second", lambda r: r["tokens_per_second"], reach, lambda r: r["tokens_per_second_interval"]),
    Measure("tau: tokens per cycle", _tau, _tau),
    Measure("milliseconds per cycle", _milliseconds, _milliseconds),
)
ASIDE = 0.06  # horizontal distance of two lines, as a share of one depth, so that intervals do not overlap


def depths(results: Results, palette: Palette) -> str:
    """One panel per load for drafters that were measured at several depths. Depth 0 is plain decoding."""
    return _panels(results, palette, _depth_panel, "panels whole")


def positions(results: Results, palette: Palette) -> str:
    """The share of cycles that accepted each drafted position, from the deepest setup of every drafter."""
    return _panels(results, palette, _position_panel, "panels")


Panel = Callable[[Sequence[Record], dict[tuple[str, ...], int], Palette], str]


def _panels(results: Results, palette: Palette, draw: Panel, kind: str) -> str:
    records = results["records"]
    numbers = marked(records)
    drawn = [
        f'<section class="panel"><h3>{escape(name)}</h3>{panel}</section>'
        for name, group in grouped(records, load_title).items()
        if (panel := draw(group, numbers, palette))
    ]
    return f'<div class="{kind}">{"".join(drawn)}</div>' if drawn else ""


def _depth_panel(records: Sequence[Record], numbers: dict[tuple[str, ...], int], palette: Palette) -> str:
    lines = grouped([record for record in records if not is_plain(record)], line_of)
    lines = {line: group for line, group in lines.items() if len(group) > 1}
    plain = {record["engine"]: record for record in records if is_plain(record)}
    if not lines:
        return ""
    charts = [_depth_chart(measure, lines, plain, numbers, palette) for measure in MEASURES]
    return _legend(lines, numbers, palette) + f'<div class="charts">{"".join(charts)}</div>'


def _depth_chart(
    measure: Measure,
    lines: dict[tuple[str, ...], list[Record]],
    plain: dict[str, Record],
    numbers: dict[tuple[str, ...], int],
    palette: Palette,
) -> str:
    fixed = sorted({record["depth"] for group in lines.values() for record in group if record["depth"] != "auto"})
    auto = max(fixed, default=0) + 1  # the place of the automatic depth
    points = [record for group in lines.values() for record in (*group, plain[group[0]["engine"]])]
    top = 1.1 * max(map(measure.reach, points))
    has_auto = any(record["depth"] == "auto" for record in points)
    plot = Plot(measure.title, (-0.25, auto + 0.3 if has_auto else auto - 0.7), (0, top))
    names = [(0.0, "plain"), *((float(depth), str(depth)) for depth in fixed), *([(auto, "auto")] if has_auto else [])]
    plot.grid(names, ticks(0, top), "depth")
    for line, group in lines.items():
        colour, number = palette.colour(line[0]), numbers[line]
        placed = [(0.0, plain[line[0]])]
        placed += [(float(r["depth"]), r) for r in sorted(group, key=_depth) if r["depth"] != "auto"]
        plot.line([(x + ASIDE * number, measure.value(record)) for x, record in placed], colour, number)
        placed += [(float(auto), record) for record in group if record["depth"] == "auto"]
        for x, record in ((place + ASIDE * number, record) for place, record in placed):
            if interval := measure.interval(record):
                plot.whisker(x, interval[0], interval[1], colour)
            plot.mark((x, measure.value(record)), colour, number, f"{measure.value(record):.4g}")
    return plot.svg()


def _depth(record: Record) -> int:
    return 0 if record["depth"] == "auto" else int(record["depth"])


def _position_panel(records: Sequence[Record], numbers: dict[tuple[str, ...], int], palette: Palette) -> str:
    lines = grouped([record for record in records if any(record["survival"])], line_of)
    if not lines:
        return ""
    deepest = {line: max(group, key=lambda record: len(record["survival"])) for line, group in lines.items()}
    last = max(len(record["survival"]) for record in deepest.values())
    plot = Plot("share of cycles that keep a position", (-0.25, last + 0.25), (0.0, 1.0))
    step = -(-last // 10)
    plot.grid([(float(n), str(n)) for n in range(0, last + 1, step)], ticks(0, 1), "position in the draft")
    for line, record in deepest.items():
        points = [(float(x), y) for x, y in enumerate([1.0, *record["survival"]])]
        plot.line(points, palette.colour(line[0]), numbers[line])
        for point in points:
            plot.mark(point, palette.colour(line[0]), numbers[line], f"{point[1]:.2f}")
    return _legend({line: [record] for line, record in deepest.items()}, numbers, palette, tau=True) + plot.svg()


def _legend(
    lines: dict[tuple[str, ...], list[Record]], numbers: dict[tuple[str, ...], int], palette: Palette, tau: bool = False
) -> str:
    keys = []
    for line, group in lines.items():
        rule = "" if line[2] in ("greedy", "own") else f", {line[2]}"
        more = f", tau {group[0]['tau']:.2f}" if tau else ""
        name = escape(f"{line[0]} {drafter_name(group[0])}{rule}{more}")
        keys.append(f"<span>{sample(numbers[line], palette.colour(line[0]))}{name}</span>")
    return f'<p class="keys">{"".join(keys)}</p>'
