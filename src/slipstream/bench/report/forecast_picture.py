"""The trade-off curves of a forecast as one SVG file: mean speed-up, and the spread of a cycle's tokens, by depth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slipstream.bench.report.svg import Plot, ticks

STYLE = ":root{--grid:#e9ecef;--panel:#fff} text{font:11px sans-serif;fill:#16202c} .title{font-weight:bold}"
COLOURS = ("#0b6e99", "#c4521b", "#3c7a1e", "#7a3c9e", "#9a7a00", "#444444")
GAP = 20


def forecast_picture(points: Sequence[Mapping[str, Any]]) -> str:
    """One line for each batch. The points are those of `plan forecast`."""
    plots = [
        _plot("speed-up over plain decoding, 95 % interval", points, "speedup"),
        _plot("standard deviation of the tokens of a cycle", points, "deviation"),
    ]
    width, height = sum(plot.width for plot in plots) + GAP, plots[0].height
    parts, x = [], 0
    for plot in plots:
        parts.append(plot.svg().replace("<svg ", f'<svg x="{x}" width="{plot.width}" height="{plot.height}" ', 1))
        x += plot.width + GAP
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
    return f'{head}<style>{STYLE}</style><rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>\n'


def _plot(title: str, points: Sequence[Mapping[str, Any]], figure: str) -> Plot:
    drawn = [point for point in points if point.get(figure) is not None]
    depths = sorted({point["depth"] for point in drawn})
    highest = max((point.get(f"{figure}_interval") or (0, point[figure]))[1] for point in drawn)
    top = 1.1 * min(highest, 3 * max(point[figure] for point in drawn)) or 1.0
    plot = Plot(title, (min(depths) - 0.4, max(depths) + 0.4), (0.0, top))
    plot.grid([(float(depth), str(depth)) for depth in depths], ticks(0, top), "depth (drafted tokens)")
    for number, batch in enumerate(dict.fromkeys(point["batch"] for point in drawn)):
        own, colour = [point for point in drawn if point["batch"] == batch], COLOURS[number % len(COLOURS)]
        plot.line([(float(point["depth"]), point[figure]) for point in own], colour, number)
        for point in own:
            if interval := point.get(f"{figure}_interval"):
                plot.whisker(float(point["depth"]), interval[0], interval[1], colour)
            plot.mark((float(point["depth"]), point[figure]), colour, number, f"batch {batch}: {point[figure]:.3g}")
    return plot
