"""SVG charts: scales, axes, lines and markers. Colours are CSS variables, so that charts follow the page's theme."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Point = tuple[float, float]
Scale = Callable[[float], float]
DASHES = ("", "7 4", "2 4", "9 4 2 4")
CORNERS: tuple[tuple[Point, ...], ...] = (
    ((-1, -1), (1, -1), (1, 1), (-1, 1)),
    ((0, -1.4), (1.4, 0), (0, 1.4), (-1.4, 0)),
    ((0, -1.3), (1.2, 1), (-1.2, 1)),
)
MARKERS = 1 + len(CORNERS)  # a circle and the polygons


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Round numbers within a range, about `count` of them."""
    raw = (high - low) / count or 1.0
    power = 10 ** math.floor(math.log10(raw))
    step = min((size * power for size in (1, 2, 2.5, 5, 10)), key=lambda size: abs(size - raw))
    first = math.ceil(low / step - 1e-9)
    return [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)]


def shown(value: float) -> str:
    """The text of a tick's number, without trailing zeros."""
    return f"{value:,.10g}" if abs(value) >= 1 or value == 0 else f"{value:.3g}"


def marker(x: float, y: float, number: int, colour: str, size: float = 4.0) -> str:
    """A circle, a square, a diamond or a triangle, filled for numbers 0 to 3 and hollow for 4 to 7."""
    fill = colour if number % (2 * MARKERS) < MARKERS else "var(--panel)"
    paint = f'fill="{fill}" stroke="{colour}" stroke-width="1.5"'
    if number % MARKERS == 0:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size:g}" {paint}/>'
    corners = CORNERS[number % MARKERS - 1]
    points = " ".join(f"{x + 0.9 * size * dx:.1f},{y + 0.9 * size * dy:.1f}" for dx, dy in corners)
    return f'<polygon points="{points}" {paint}/>'


def sample(number: int, colour: str) -> str:
    """A short line with its marker, for a legend."""
    stroke = f'stroke="{colour}" stroke-width="2" stroke-dasharray="{DASHES[number % len(DASHES)]}"'
    line = f'<line x1="0" y1="6" x2="34" y2="6" {stroke}/>'
    return f'<svg class="sample" viewBox="0 0 34 12" aria-hidden="true">{line}{marker(17, 6, number, colour)}</svg>'


@dataclass
class Plot:
    """A chart with two axes. `x` and `y` are ranges of values; the size is in units of the viewBox."""

    title: str
    x: tuple[float, float]
    y: tuple[float, float]
    width: int = 360
    height: int = 230
    log: bool = False
    parts: list[str] = field(default_factory=list)
    left, right, top, bottom = 44, 12, 30, 40

    def across(self, value: float) -> float:
        return self._place(value, self.x, self.left, self.width - self.right)

    def up(self, value: float) -> float:
        return self._place(value, self.y, self.height - self.bottom, self.top)

    def _place(self, value: float, bounds: tuple[float, float], start: float, end: float) -> float:
        low, high = (math.log(bound) if self.log else bound for bound in bounds)
        at = math.log(value) if self.log else value
        return start + (end - start) * (at - low) / (high - low or 1.0)

    def grid(self, across: Sequence[tuple[float, str]], up: Sequence[float], below: str) -> None:
        """Draw grid lines and labels. `across`: values and labels on x; `up`: values on y; `below`: x axis title."""
        base = self.height - self.bottom
        for value in up:
            y = self.up(value)
            self.parts.append(f'<path d="M{self.left} {y:.1f}H{self.width - self.right}" stroke="var(--grid)"/>')
            self.text(self.left - 6, y + 4, shown(value), "end")
        for value, name in across:
            self.text(self.across(value), base + 16, name)
        self.text((self.left + self.width - self.right) / 2, self.height - 6, below)

    def line(self, points: Sequence[Point], colour: str, number: int = 0) -> None:
        path = " ".join(f"{self.across(x):.1f},{self.up(y):.1f}" for x, y in points)
        dash = DASHES[number % len(DASHES)]
        paint = f'fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"'
        self.parts.append(f'<polyline points="{path}" {paint}/>')

    def mark(self, point: Point, colour: str, number: int = 0, about: str = "") -> None:
        drawn = marker(self.across(point[0]), self.up(point[1]), number, colour)
        self.parts.append(f"<g>{drawn}<title>{about}</title></g>" if about else drawn)

    def whisker(self, x: float, low: float, high: float, colour: str) -> None:
        """An interval, cut at the borders of the chart. An end that was cut has no cap."""
        at, inside = self.across(x), [min(max(bound, self.y[0]), self.y[1]) for bound in (low, high)]
        ends = " ".join(f"M{at - 4:.1f} {self.up(bound):.1f}h8" for bound in inside if bound in (low, high))
        path = f"M{at:.1f} {self.up(inside[0]):.1f}V{self.up(inside[1]):.1f} {ends}"
        self.parts.append(f'<path d="{path}" stroke="{colour}" stroke-width="1.5" opacity=".7"/>')

    def text(self, x: float, y: float, content: str, anchor: str = "middle", kind: str = "") -> None:
        css = f' class="{kind}"' if kind else ""
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{css}>{content}</text>')

    def svg(self) -> str:
        title = f'<text class="title" x="0" y="14">{self.title}</text>'
        size = f'class="plot" viewBox="0 0 {self.width} {self.height}"'
        return f'<svg {size} role="img" aria-label="{self.title}">{title}{"".join(self.parts)}</svg>'
