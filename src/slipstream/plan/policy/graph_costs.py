"""What captured cycles cost: by size, rows and context, with and without the host's part."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slipstream.core.device import DraftSize, GraphKey, next_power_of_two
from slipstream.plan.policy.config import CostConfig
from slipstream.plan.policy.prices import ContextCost, ReadingCost, RecentMedian, TimesByContext

PLAIN = DraftSize(0)
LEAST = 0.1  # share of a measured time that a price for much shorter texts is at least


@dataclass
class Stretch:
    """Some cycles of one kind in a row. The host does more in some of them than in others, for decisions and to commit
    tokens; what a cycle costs is the mean."""

    kind: tuple[GraphKey, int] | None = None
    cycles: int = 0
    seconds: float = 0.0
    cached: int = 0

    def add(self, seconds: float, cached: int) -> None:
        self.cycles, self.seconds, self.cached = self.cycles + 1, self.seconds + seconds, self.cached + cached

    @property
    def means(self) -> tuple[float, int]:
        return self.seconds / self.cycles, self.cached // self.cycles


class GraphCosts:
    """Seconds of captured cycles under one drafter, or with none.

    A cycle is timed on the device alone when it is captured. What it takes with the host's part is measured as it runs,
    by its key and the rows there are, rounded up to a power of two. A cycle that did not run yet is expected to take
    its time on the device and the least that the host adds to others of so many rows: the host does more in a cycle
    that emits more, and a size that is priced too low is found out when it runs, one that is priced too high never.
    A time that was measured long ago may be too high, too: then its time on the device and what the host usually adds
    count, if they are less, and later the least that the host adds: all kinds may have run last while it was slow.

    A cycle that overlaps with the one before takes what the device takes for it. One that waits for the host in between
    may take twice as long. Such times count only until the first cycle has overlapped.

    `cached` tokens are those of all rows together. A price is that of the texts' present length, whenever the cycle ran
    last."""

    def __init__(self, config: CostConfig | None = None) -> None:
        self._config = config or CostConfig()
        self._device: dict[GraphKey, float] = {}
        self._whole: defaultdict[int, dict[GraphKey, TimesByContext]] = defaultdict(dict)  # by rows
        self._learnt: dict[tuple[GraphKey, int], int] = {}  # cycles of all kinds until one of a kind ran last
        self._cycles = 0
        self._host = RecentMedian(self._config.graph_window)
        # by rows, with no text: the least and the median that the host adds; worked out when it is asked for
        self._host_parts: dict[int, tuple[float, float]] = {}
        self._context = ContextCost(self._config)
        self._stretch = Stretch()  # the latest cycles, if they are of one kind
        self._overlapped = False  # whether a cycle ever overlapped with the one before
        self._drafting: dict[GraphKey, float | None] = {}  # what `drafting` found out
        self.reading = ReadingCost(self._config)  # by tokens that the drafter had to read first

    def captured(self, key: GraphKey, seconds: float) -> None:
        """A cycle was captured and takes so long on the device."""
        self._device[key] = seconds
        self._drafting.clear()

    def device(self, key: GraphKey) -> float:
        return self._device.get(key, 0.0)

    def learn(self, key: GraphKey, rows: int, seconds: float, cached: int = 0, overlapped: bool = True) -> None:
        """A cycle with so many rows took so long with the host's part. Nothing was captured or read in it."""
        if overlapped and not self._overlapped:
            self._overlapped, self._host = True, RecentMedian(self._config.graph_window)
            self._whole.clear()
            self._host_parts.clear()
        elif self._overlapped and not overlapped:
            return
        kind = key, next_power_of_two(rows)
        if key not in (alike := self._whole[kind[1]]):
            alike[key] = TimesByContext(self._config.graph_window, self._config.graph_quantile)
        self._cycles += 1
        self._learnt[kind] = self._cycles
        if len(alike[key]) < self._config.graph_reliable:
            self._add(kind, seconds, cached)
            return
        if self._stretch.kind != kind:
            self._stretch = Stretch(kind)
        self._stretch.add(seconds, cached)
        if self._stretch.cycles == self._config.graph_stretch:
            self._add(kind, *self._stretch.means)
            self._stretch = Stretch()

    def _add(self, kind: tuple[GraphKey, int], seconds: float, cached: int) -> None:
        key, count = kind
        self._context.add(kind, cached, seconds)
        self._whole[count][key].add(seconds, cached)
        self._host.add(max(0.0, seconds - self.device(key)))
        self._host_parts.pop(count, None)

    def seconds(self, key: GraphKey, rows: int, cached: int = 0) -> float:
        count = next_power_of_two(rows)
        measured = self._whole[count].get(key)
        if not measured:
            return self.device(key) + self._host_part(count, cached)
        seconds = max(LEAST * measured.at(cached, 0.0), measured.at(cached, self._context.per_token))
        age, memory = self._cycles - self._learnt.get((key, count), 0), self._config.graph_memory
        if age < memory or key not in self._device:
            return seconds
        return min(seconds, self.device(key) + self._host_part(count, cached, usual=age < 4 * memory))

    def _host_part(self, count: int, cached: int, usual: bool = False) -> float:
        """The least that the host and the text add to a cycle of so many rows, or what they usually add; what was
        added lately where none ran."""
        per_token = self._context.per_token
        if count not in self._host_parts:
            kinds = self._whole[count].items()
            often = [kind for kind in kinds if len(kind[1]) >= self._config.graph_reliable]
            parts = sorted(times.at(0, per_token) - self.device(key) for key, times in often or kinds)
            if not parts:
                return self._host.value
            self._host_parts[count] = parts[0], parts[len(parts) // 2]
        least, median = self._host_parts[count]
        return max(0.0, (median if usual else least) + per_token * cached)

    def drafting(self, key: GraphKey) -> float | None:
        """The time on the device that drafts add to a plain cycle, as it was for another rule or for texts of another
        length. None if that is not known."""
        if key not in self._drafting:
            added = {
                other: seconds - self._device[plain]
                for other, seconds in self._device.items()
                if (other.rows, other.size) == (key.rows, key.size)
                if (plain := other._replace(size=PLAIN)) in self._device
            }
            near = min(added, key=lambda other: (abs(other.parts - key.parts), other.rule != key.rule), default=None)
            self._drafting[key] = None if near is None else max(0.0, added[near])
        return self._drafting[key]

    def learn_reading(self, key: GraphKey, rows: int, tokens: int, seconds: float, cached: int = 0) -> None:
        """The drafter first had to read so many tokens, and a cycle took so long with that."""
        self.reading.add(tokens, seconds - self.seconds(key, rows, cached))

    def guess(self, size: DraftSize, plain: float, measured: Mapping[DraftSize, float]) -> float:
        """What a size would take that is not captured: by its levels or by its tokens, whichever says more, as those
        cost that are captured, chains or trees like it if there are any. One that is smaller than all of these may
        take much less, since passes of few tokens have kernels of their own: it is worth finding out."""
        alike = [other for other in measured if bool(other.nodes) == bool(size.nodes)] or list(measured)
        hoped = plain * (1 + self._config.first_level * size.depth)
        if not alike:
            return hoped
        more = {other: max(0.0, measured[other] - plain) for other in alike}
        level = sum(more[other] / other.depth for other in alike) / len(alike)
        token = sum(more[other] / other.slots for other in alike) / len(alike)
        guessed = plain + max(level * size.depth, token * size.slots)
        return min(guessed, hoped) if all(size.slots < other.slots for other in alike) else guessed

    def to_json(self) -> dict[str, Any]:
        return {
            "device": [[key.to_json(), seconds] for key, seconds in self._device.items()],
            "whole": [
                [key.to_json(), rows, times.to_json()]
                for rows, own in self._whole.items()
                for key, times in own.items()
            ],
            "host": self._host.to_json(),
            "reading": self.reading.to_json(),
            "overlapped": self._overlapped,
        }

    @classmethod
    def from_json(cls, saved: Mapping[str, Any], config: CostConfig | None = None) -> GraphCosts:
        costs = cls(config)
        window, quantile = costs._config.graph_window, costs._config.graph_quantile
        costs._device = {GraphKey.from_json(key): seconds for key, seconds in saved["device"]}
        for key, rows, times in saved["whole"]:
            costs._whole[rows][GraphKey.from_json(key)] = TimesByContext(window, quantile, times)
        costs._host = RecentMedian(window, saved["host"])
        costs.reading = ReadingCost.from_json(saved["reading"], costs._config)
        costs._overlapped = saved.get("overlapped", True)
        return costs
