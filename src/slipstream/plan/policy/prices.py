"""Measured seconds: medians of the latest times, and curves through them. Both can be written as JSON."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from slipstream.core.device import next_power_of_two
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


class Slowdown:
    """How many times as long passes take at present as the cost model says: the median of the latest ratios.

    Other programs and the processor's clock make all passes longer or shorter together, for seconds or minutes. Times
    are divided by this factor before they are learnt, so that all costs are those of one speed. Otherwise a pass of a
    slow period, compared with a plain one of a fast period, would make its drafted tokens look expensive for good.
    """

    def __init__(self, config: CostConfig | None = None) -> None:
        self._config = config or CostConfig()
        self._ratios = RecentMedian(self._config.slowdown_window, [1.0])

    def update(self, seconds: float, expected: float | None) -> float:
        """A pass took so long, and `expected` seconds by the cost model, if that knows it. The factor to divide by: 1
        if it is near 1, else a little nearer to it, so that costs follow a lasting change and do not drift."""
        if expected:
            self._ratios.add(seconds / expected)
        factor, least = self._ratios.value, self._config.least_slowdown
        return 1.0 if 1 / least < factor < least else factor**self._config.slowdown_share


class CostCurve:
    """Seconds by a number of items; none cost nothing. Between two measured numbers it is a line. Beyond the largest,
    each item costs `further` of the mean, since the first one often costs more than the next. A number costs no more
    than a larger one did: what other programs add to times makes them longer, never shorter."""

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
            self._points, least = [], float("inf")
            for n in sorted(self._measured, reverse=True):
                least = min(least, self._measured[n].value)
                self._points.insert(0, (n, least))
            self._points.insert(0, (0, 0.0))
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


class ContextCost:
    """Seconds that each cached token adds to a cycle: the slope of a regression over cycles of every kind.

    Attention reads the cached text of every row, so the same cycle takes longer at the end of a batch than at its
    beginning. Two sizes that ran at different times can be compared only at one length of the texts."""

    def __init__(self, config: CostConfig | None = None) -> None:
        self._config = config or CostConfig()
        self._means: dict[Hashable, tuple[float, float]] = {}  # by kind of cycle: cached tokens and seconds lately
        self._covariance, self._variance = 0.0, self._config.context_prior

    @property
    def per_token(self) -> float:
        return max(0.0, self._covariance / self._variance)

    def add(self, kind: Hashable, tokens: int, seconds: float) -> None:
        """A cycle of this kind took so long with so many cached tokens of all rows together. Of a time that is far off,
        as after a pause of the host, a part counts."""
        config = self._config
        usual_tokens, usual = self._means.get(kind, (float(tokens), seconds))
        more, far = tokens - usual_tokens, config.context_outlier * usual
        longer = max(-far, min(far, seconds - usual))
        self._means[kind] = usual_tokens + more / config.context_memory, usual + longer / config.context_memory
        self._covariance += more * longer - self._covariance / config.context_cycles
        self._variance += more * more - (self._variance - config.context_prior) / config.context_cycles


class TimesByContext:
    """The latest times of one kind of cycle, each with the cached tokens of all rows.

    Most are about equal. Some are longer because the host had something else to do, sometimes for ten cycles in a row.
    So the price is a lower quantile of many."""

    def __init__(self, window: int, quantile: float = 0.5, times: Iterable[tuple[float, int]] = ()) -> None:
        self._latest: deque[tuple[float, int]] = deque(((seconds, tokens) for seconds, tokens in times), maxlen=window)
        self._quantile = quantile
        self._usual: tuple[float, int] | None = None  # worked out when it is asked for

    def __len__(self) -> int:
        return len(self._latest)

    def add(self, seconds: float, tokens: int) -> None:
        self._latest.append((seconds, tokens))
        self._usual = None

    def at(self, tokens: int, per_token: float) -> float:
        """Seconds with so many cached tokens, each of which adds `per_token`."""
        if self._usual is None:
            ordered = sorted(self._latest, key=lambda time: time[0] - per_token * time[1])
            self._usual = ordered[round((len(ordered) - 1) * self._quantile)]
        seconds, then = self._usual
        return seconds + per_token * (tokens - then)

    def to_json(self) -> list[tuple[float, int]]:
        return list(self._latest)


class ReadingCost:
    """What it costs a drafter to read tokens that it missed: seconds by their number, rounded up to a power of two.

    The first readings of a number compile kernels and capture their passes, and later ones may still meet a size that
    is new. So the first ones do not count, and of the latest a lower quantile does. A cost that is too high would end
    drafting for long, since it is learnt while drafting only. For the same reason more tokens than ever are not taken
    to cost in proportion: a pass has costs of its own.
    """

    def __init__(self, config: CostConfig | None = None) -> None:
        self._config = config or CostConfig()
        self._met: Counter[int] = Counter()
        self._latest: dict[int, deque[float]] = {}

    def add(self, tokens: int, seconds: float) -> None:
        count = next_power_of_two(tokens)
        self._met[count] += 1
        if self._met[count] > self._config.first_readings:
            self._latest.setdefault(count, deque(maxlen=self._config.window)).append(max(0.0, seconds))

    def __call__(self, tokens: int) -> float:
        """0 until something is known."""
        if not tokens or not self._latest:
            return 0.0
        points = [(count, self._usual(times)) for count, times in sorted(self._latest.items())]
        if len(points) == 1 or tokens < points[0][0]:
            points = [(0, 0.0), *points]
        return on_line(points, tokens)

    def _usual(self, times: Sequence[float]) -> float:
        return sorted(times)[int((len(times) - 1) * self._config.reading_quantile)]

    def to_json(self) -> dict[str, list[float]]:
        return {str(count): list(times) for count, times in self._latest.items()}

    @classmethod
    def from_json(cls, saved: Mapping[str, Sequence[Any]], config: CostConfig | None = None) -> ReadingCost:
        cost = cls(config)
        for count, times in saved.items():
            cost._met[int(count)] = cost._config.first_readings
            for seconds in times:
                cost.add(int(count), float(seconds))
        return cost
