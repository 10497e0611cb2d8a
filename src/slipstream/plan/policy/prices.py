"""Measured seconds: medians of the latest times, and curves through them. Both can be written as JSON."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from slipstream.plan.policy.config import CostConfig


class RecentMedian:
    """The median of the latest numbers. One slow time does not move it; a lasting change does."""

    def __init__(self, window: int = CostConfig().window, numbers: Iterable[float] = ()) -> None:
        self._latest: deque[float] = deque(maxlen=window)
        self.value = 0.0
        for number in numbers:
            self.add(number)

    def add(self, number: float) -> None:
        self._latest.append(number)
        self.value = sorted(self._latest)[(len(self._latest) - 1) // 2]

    def __bool__(self) -> bool:
        return bool(self._latest)

    def to_json(self) -> list[float]:
        return list(self._latest)


class CostCurve:
    """Seconds by a number of items; none cost nothing. Between two measured numbers it is a line. Beyond the largest,
    each item costs `further` of the mean, since the first one often costs more than the next."""

    def __init__(self, *known: tuple[int, float], config: CostConfig | None = None) -> None:
        self._config = config or CostConfig()
        self._measured: dict[int, RecentMedian] = {}
        self._points = [(0, 0.0)]
        self._values: dict[float, float] = {}  # looked up since the last change
        for count, seconds in known:
            self.add(count, seconds)

    def __bool__(self) -> bool:
        return bool(self._measured)

    def __contains__(self, count: int) -> bool:
        return count in self._measured

    @property
    def most(self) -> int:
        """The largest number that was measured."""
        return self._points[-1][0]

    def add(self, count: int, seconds: float) -> None:
        price = self._measured.setdefault(count, RecentMedian(self._config.window))
        before, new = price.value, not price
        price.add(max(0.0, seconds))
        if new or price.value != before:
            self._points = [(0, 0.0), *sorted((n, price.value) for n, price in self._measured.items())]
            self._values = {}

    def __call__(self, count: float) -> float:
        if count not in self._values:
            most, seconds = self._points[-1]
            beyond = seconds + self._config.further * seconds / most * (count - most) if count > most > 0 else 0.0
            self._values[count] = beyond or on_line(self._points, count)
        return self._values[count]

    def to_json(self) -> dict[str, list[float]]:
        return {str(count): price.to_json() for count, price in self._measured.items()}

    @classmethod
    def from_json(cls, saved: Mapping[str, Any], config: CostConfig | None = None) -> CostCurve:
        return cls(*((int(count), seconds) for count, times in saved.items() for seconds in times), config=config)


def on_line(points: Sequence[tuple[int, float]], at: float) -> float:
    """The line between a place's neighbours. Before the first point its value; beyond the last one the line from the
    first to the last, not falling."""
    if at <= points[0][0] or len(points) == 1:
        return points[0][1]
    high = bisect_left(points, (at,))
    if high == len(points):
        (x, low), (z, top) = points[0], points[-1]
        return top + max(0.0, (top - low) / (z - x)) * (at - z)
    (x, low), (z, top) = points[high - 1], points[high]
    return low + (top - low) / (z - x) * (at - x)
