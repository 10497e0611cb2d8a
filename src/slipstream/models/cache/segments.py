"""Which places of the KV cache belong to which row: contiguous segments of one long axis.

A row gets a segment of the size that its text may reach, and is known by its first place. So rows of 100 and of 8,000
tokens lie side by side and take as many places as they need. The smallest gap that is large enough is taken.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable

UNIT = 16  # places: sizes are multiples of it


class Segments:
    """`size` places, some of which are taken."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._ends: dict[int, int] = {}  # of the taken segments, by their first place
        self._gaps = [(0, size)] if size else []  # in order, never adjacent

    def __len__(self) -> int:
        """The number of taken segments."""
        return len(self._ends)

    @property
    def used(self) -> int:
        """Places of the taken segments."""
        return sum(end - start for start, end in self._ends.items())

    @property
    def starts(self) -> list[int]:
        """The first places of the taken segments."""
        return list(self._ends)

    @property
    def last_gap(self) -> int:
        """Free places at the end."""
        start, end = self._gaps[-1] if self._gaps else (0, 0)
        return end - start if end == self.size else 0

    def capacity(self, start: int) -> int:
        """Places of the segment that begins at `start`."""
        return self._ends[start] - start

    def take(self, places: int) -> int | None:
        """The first place of a new segment; None where no gap is large enough."""
        places = round_up(places)
        fitting = [(end - start, start) for start, end in self._gaps if end - start >= places]
        if not fitting:
            return None
        _, start = min(fitting)
        self._cut(start, start + places)
        self._ends[start] = start + places
        return start

    def extend(self, start: int, places: int) -> bool:
        """Make a segment at least so long where it is; False where other segments are in the way."""
        end, wanted = self._ends[start], start + round_up(places)
        if wanted <= end:
            return True
        if not any(gap == end and wanted <= stop for gap, stop in self._gaps):
            return False
        self._cut(end, wanted)
        self._ends[start] = wanted
        return True

    def give(self, start: int) -> None:
        """Free a segment."""
        assert start in self._ends, f"no row begins at place {start}"
        self._free(start, self._ends.pop(start))

    def grow(self, size: int) -> None:
        assert size >= self.size, "segments never shrink"
        if size > self.size:
            self._free(self.size, size)
            self.size = size

    def compact(self, grown: int | None = None, places: int = 0) -> dict[int, int]:
        """Close all gaps; the segment `grown` gets so many places. There must be room for it.

        Returns the new first place of each segment that moves, in an order in which they can be copied one after the
        other: none is written over by one that moved before it."""
        down, up, end = dict[int, int](), dict[int, int](), 0
        ends = dict[int, int]()
        for start, stop in sorted(self._ends.items()):
            size = round_up(places) if start == grown else stop - start
            if start != end:
                (down if end < start else up)[start] = end
            ends[end] = end = end + size
        assert end <= self.size, f"{end} places do not fit {self.size}"
        self._ends, self._gaps = ends, [(end, self.size)] if end < self.size else []
        return down | dict(reversed(up.items()))

    def check_integrity(self, taken: Iterable[int]) -> None:
        """Raise AssertionError unless gaps and segments cover all places once, and these rows have the segments."""
        rows = sorted(taken)
        assert rows == sorted(self._ends), f"rows begin at {rows}, segments at {sorted(self._ends)}"
        end = 0
        for start, stop in sorted([*self._ends.items(), *self._gaps]):
            assert start == end < stop, f"places {end} to {start} are lost or taken twice"
            end = stop
        assert end == self.size, f"{end} of {self.size} places are accounted for"
        neighbours = zip(self._gaps, self._gaps[1:], strict=False)
        assert all(end < start for (_, end), (start, _) in neighbours), "adjacent gaps"

    def _cut(self, start: int, end: int) -> None:
        """Take places from the beginning of the gap that begins at `start`."""
        n = next(n for n, (gap, _) in enumerate(self._gaps) if gap == start)
        _, stop = self._gaps[n]
        self._gaps[n : n + 1] = [(end, stop)] if end < stop else []

    def _free(self, start: int, end: int) -> None:
        """Add a gap, joined with those beside it."""
        insort(self._gaps, (start, end))
        joined = list[tuple[int, int]]()
        for begin, stop in self._gaps:
            if joined and joined[-1][1] == begin:
                joined[-1] = joined[-1][0], stop
            else:
                joined.append((begin, stop))
        self._gaps = joined


def round_up(places: int) -> int:
    """The size of a segment for so many places."""
    return max(1, -(-places // UNIT)) * UNIT
