"""Which places of the KV cache belong to which row: contiguous segments of one long axis.

A row gets a segment of the size that its text may reach, and is known by its first place. So rows of 100 and of 8,000
tokens lie side by side and take as many places as they need. The smallest gap that is large enough is taken. Gaps are
found by both ends and by size, so that no request takes longer where there are many.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

UNIT = 16  # places: sizes are multiples of it


class Segments:
    """`size` places, some of which are taken."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._ends: dict[int, int] = {}  # of the taken segments, by their first place
        self._gaps: dict[int, int] = {}  # their ends by their first places; never adjacent
        self._gap_starts: dict[int, int] = {}  # the reverse
        self._by_size: list[tuple[int, int]] = []  # places and first place of each gap, in order
        if size:
            self._add_gap(0, size)

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
        return self.size - self._gap_starts.get(self.size, self.size)

    def capacity(self, start: int) -> int:
        """Places of the segment that begins at `start`."""
        return self._ends[start] - start

    def fits(self, places: int) -> bool:
        """Whether some gap is large enough."""
        return bool(self._by_size) and round_up(places) <= self._by_size[-1][0]

    def take(self, places: int) -> int | None:
        """The first place of a new segment; None where no gap is large enough."""
        if not self.fits(places):
            return None
        places = round_up(places)
        _, start = self._by_size[bisect_left(self._by_size, (places, 0))]
        self._cut(start, start + places)
        self._ends[start] = start + places
        return start

    def extend(self, start: int, places: int) -> bool:
        """Make a segment at least so long where it is; False where other segments are in the way."""
        end, wanted = self._ends[start], start + round_up(places)
        if wanted <= end:
            return True
        if wanted > self._gaps.get(end, end):
            return False
        self._cut(end, wanted)
        self._ends[start] = wanted
        return True

    def give(self, start: int) -> None:
        """Free a segment."""
        assert start in self._ends, f"no row begins at place {start}"
        self._free(start, self._ends.pop(start))

    def trim(self, start: int, skip: int, places: int) -> int:
        """Free all of a segment but so many places after the first `skip`, a multiple of `UNIT`. Returns its new first
        place."""
        first, end = start + skip, self._ends.pop(start)
        last = first + round_up(places)
        assert skip % UNIT == 0, f"{skip} places cannot be freed"
        assert first < last <= end, f"{places} places after {skip} are more than {end - start}"
        if start < first:
            self._free(start, first)
        if last < end:
            self._free(last, end)
        self._ends[first] = last
        return first

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
        self._ends, self._gaps, self._gap_starts, self._by_size = ends, {}, {}, []
        if end < self.size:
            self._add_gap(end, self.size)
        return down | dict(reversed(up.items()))

    def check_integrity(self, taken: Iterable[int]) -> None:
        """Raise AssertionError unless gaps and segments cover all places once, and these rows have the segments."""
        rows = sorted(taken)
        assert rows == sorted(self._ends), f"rows begin at {rows}, segments at {sorted(self._ends)}"
        end = 0
        for start, stop in sorted([*self._ends.items(), *self._gaps.items()]):
            assert start == end < stop, f"places {end} to {start} are lost or taken twice"
            end = stop
        assert end == self.size, f"{end} of {self.size} places are accounted for"
        assert not self._gaps.keys() & self._gap_starts.keys(), "adjacent gaps"
        assert self._gap_starts == {stop: start for start, stop in self._gaps.items()}, "gaps are not found by end"
        sizes = sorted((stop - start, start) for start, stop in self._gaps.items())
        assert self._by_size == sizes, "gaps are not found by size"

    def _cut(self, start: int, end: int) -> None:
        """Take places from the beginning of the gap that begins at `start`."""
        stop = self._remove_gap(start)
        if end < stop:
            self._add_gap(end, stop)

    def _free(self, start: int, end: int) -> None:
        """Add a gap, joined with those beside it."""
        if (before := self._gap_starts.get(start)) is not None:
            self._remove_gap(before)
            start = before
        if end in self._gaps:
            end = self._remove_gap(end)
        self._add_gap(start, end)

    def _add_gap(self, start: int, end: int) -> None:
        self._gaps[start], self._gap_starts[end] = end, start
        insort(self._by_size, (end - start, start))

    def _remove_gap(self, start: int) -> int:
        """Returns its end."""
        end = self._gaps.pop(start)
        del self._gap_starts[end], self._by_size[bisect_left(self._by_size, (end - start, start))]
        return end


def round_up(places: int) -> int:
    """The size of a segment for so many places."""
    return max(1, -(-places // UNIT)) * UNIT
