"""The roofline chart: target passes under the limits of the machine's memory and arithmetic."""

from __future__ import annotations

import math
from html import escape

from slipstream.bench.report.labels import Palette, Results, drafter_name, grouped, line_of, marked
from slipstream.bench.report.svg import Plot, marker, shown
from slipstream.bench.table import load_title


def roofline(results: Results, palette: Palette) -> str:
    """One chart of all records on logarithmic axes; empty if no record has operation counts."""
    records = [record for record in results["records"] if record["operations_per_second"]]
    if not records:
        return ""
    bandwidth, arithmetic = results["limits"]["bandwidth"] / 1e9, results["limits"]["arithmetic"] / 1e9
    ridge = arithmetic / bandwidth
    points = [(record["operations_per_byte"], record["operations_per_second"] / 1e9) for record in records]
    x = min(0.5 * ridge, *(x for x, _ in points)) / 2, max(ridge, *(x for x, _ in points)) * 4
    y = min(arithmetic / 4, *(y for _, y in points)) / 2, max(arithmetic, *(y for _, y in points)) * 2
    plot = Plot("billion operations per second", x, y, height=260, log=True)
    plot.grid([(value, shown(value)) for value in _decades(*x)], _decades(*y), "operations per byte read")
    start = max(x[0], y[0] / bandwidth)
    plot.line([(start, bandwidth * start), (ridge, arithmetic), (x[1], arithmetic)], "var(--soft)")
    numbers = marked(results["records"])
    keys = []
    for line, group in grouped(records, line_of).items():
        colour, number = palette.colour(line[0]), numbers[line]
        for record in group:
            point = record["operations_per_byte"], record["operations_per_second"] / 1e9
            plot.mark(point, colour, number, escape(f"{drafter_name(record)}: {load_title(record)}"))
        rule = "" if line[2] in ("plain", "greedy", "own") else f", {line[2]}"
        named = escape(f"{line[0]} {drafter_name(group[0])}{rule}")
        drawn = f'<svg class="sample" viewBox="0 0 34 12" aria-hidden="true">{marker(17, 6, number, colour)}</svg>'
        keys.append(f"<span>{drawn}{named}</span>")
    limits = f"memory {bandwidth:,.1f} GB/s, arithmetic {arithmetic:,.0f} GFLOP/s"
    panel = f'<h3>{limits}</h3><p class="keys">{"".join(keys)}</p>{plot.svg()}'
    return f'<div class="panels single"><section class="panel">{panel}</section></div>'


def _decades(low: float, high: float) -> list[float]:
    """Powers of ten within a range; powers of two if there are fewer than three powers of ten."""
    tens = [10.0**n for n in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]
    if len(tens) > 2:
        return tens
    return [2.0**n for n in range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)]
