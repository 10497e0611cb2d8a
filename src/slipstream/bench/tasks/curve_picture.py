"""The curve as an SVG file: one panel for time, and one for energy where it was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from slipstream.bench.report.svg import shown, ticks

COLOURS = (
    *("#1b6ca8", "#c0392b", "#2e8b57", "#8e44ad", "#d68910", "#16a085", "#7f8c8d", "#34495e"),
    *("#e377c2", "#8c564b", "#bcbd22", "#17becf"),
)
WIDTH, HEIGHT, LEFT, TOP, PANEL = 640, 420, 60, 30, 460
COSTS = {"seconds_per_request": ("dominated", "seconds per request"),
         "joules_per_request": ("dominated_in_energy", "joules per request")}  # fmt: skip


def picture(points: Sequence[Mapping[str, Any]], metric: str) -> str:
    """Accuracy over cost. Hollow points are dominated."""
    panels = [cost for cost in COSTS if any(point[cost] is not None for point in points)]
    kinds = list(dict.fromkeys(point["kind"] for point in points))
    body = "".join(_panel(points, cost, metric, kinds, number * WIDTH) for number, cost in enumerate(panels))
    size = f'width="{WIDTH * len(panels)}" height="{HEIGHT}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">'
        f'<rect width="100%" height="100%" fill="white"/>{body}</svg>\n'
    )


def _panel(points: Sequence[Mapping[str, Any]], cost: str, metric: str, kinds: Sequence[str], left: int) -> str:
    dominated, title = COSTS[cost]
    known = [point for point in points if point[cost] is not None]
    widest = float(max(point[cost] for point in known)) * 1.05 or 1.0
    low = max(0.0, float(min(point["accuracy"] for point in known)) - 0.05)
    high = min(1.0, float(max(point["accuracy"] for point in known)) + 0.05)
    bottom = HEIGHT - 50

    def x(value: float) -> float:
        return left + LEFT + value / widest * (PANEL - LEFT)

    def y(value: float) -> float:
        return bottom - (value - low) / ((high - low) or 1.0) * (bottom - TOP)

    parts = [f'<path d="M{x(0)} {TOP}V{bottom}H{x(widest)}" fill="none" stroke="black"/>']
    for value in ticks(0, widest):
        parts.append(f'<text x="{x(value):.1f}" y="{bottom + 16}" text-anchor="middle">{shown(value)}</text>')
    for value in ticks(low, high):
        parts.append(f'<text x="{x(0) - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{shown(value)}</text>')
    parts.append(f'<text x="{x(widest / 2):.1f}" y="{HEIGHT - 12}" text-anchor="middle">{title}</text>')
    parts.append(f'<text x="{left + 12}" y="{TOP - 12}">{escape(metric)}; hollow: dominated</text>')
    for point in known:
        colour = COLOURS[kinds.index(point["kind"]) % len(COLOURS)]
        fill = "white" if point[dominated] else colour
        parts.append(
            f'<circle cx="{x(point[cost]):.1f}" cy="{y(point["accuracy"]):.1f}" r="5" fill="{fill}" stroke="{colour}" '
            f'stroke-width="2"><title>{escape(point["name"])}</title></circle>'
        )
    for number, kind in enumerate(kinds):
        at = TOP + 18 * number
        parts.append(f'<circle cx="{left + PANEL + 20}" cy="{at}" r="5" fill="{COLOURS[number % len(COLOURS)]}"/>')
        parts.append(f'<text x="{left + PANEL + 30}" y="{at + 4}">{escape(kind)}</text>')
    return "".join(parts)
