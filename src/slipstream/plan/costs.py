"""What cycles cost on this machine, learnt as they happen.

Machines are noisy, and passes grow dearer as texts grow longer. So every price is the median of the last few times it
was paid: a hiccup does not move it, a longer text does.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable

GUESS = 0.3  # of a row's share of a plain pass: what a drafted token is taken to cost before any was paid for
LATE = 0.6  # of what a draft after a pause takes, where the drafter first reads what it missed, the next one will take
HOPE = 0.6  # beyond the most ever tried, another one is taken to cost so much of what those cost each


class RecentMedian:
    """The median of the last few numbers."""

    def __init__(self, size: int = 5) -> None:
        self._last: deque[float] = deque(maxlen=size)
        self.value = 0.0

    @staticmethod
    def of(number: float) -> RecentMedian:
        made = RecentMedian()
        made.add(number)
        return made

    def add(self, number: float) -> None:
        self._last.append(number)
        self.value = sorted(self._last)[(len(self._last) - 1) // 2]

    def __bool__(self) -> bool:
        return bool(self._last)


class CostCurve:
    """Seconds by a number of things, nothing for none. A number never tried is read off the line between its
    neighbours; beyond the most that was tried with some hope, since the first one often costs more than the next."""

    def __init__(self, *known: tuple[int, float]) -> None:
        self._paid: dict[int, RecentMedian] = {}
        self._known = [(0, 0.0)]
        self._read: dict[float, float] = {}  # off the lines, since the last price changed
        for count, seconds in known:
            self.add(count, seconds)

    def __bool__(self) -> bool:
        return bool(self._paid)

    def __contains__(self, count: int) -> bool:
        return count in self._paid

    @property
    def most(self) -> int:
        """The most that was ever paid for."""
        return self._known[-1][0]

    def add(self, count: int, seconds: float) -> None:
        price = self._paid.setdefault(count, RecentMedian())
        before, new = price.value, not price
        price.add(max(0.0, seconds))
        if new or price.value != before:
            self._known = [(0, 0.0), *sorted((n, price.value) for n, price in self._paid.items())]
            self._read = {}

    def __call__(self, count: float) -> float:
        if count not in self._read:
            most, paid = self._known[-1]
            beyond = paid + HOPE * paid / most * (count - most) if count > most > 0 else 0.0
            self._read[count] = beyond or _line(self._known, count)
        return self._read[count]


class CostModel:
    """Seconds of a plain pass by its tokens, what drafted tokens add to it, and the drafter's own time.

    What n drafted tokens add is kept as a difference to the plain pass they joined, for every size of that pass: near
    zero where reading weights is the bound, a row's share each where arithmetic is. A size never tried is taken for the
    nearest one that was. The drafter's time is kept by the steps of a draft, all rows together: the first of them also
    reads what was accepted, and costs more than the others.
    """

    def __init__(self) -> None:
        self._plain: dict[int, RecentMedian] = {}
        self._times: Counter[int] = Counter()  # that a plain pass was paid for
        self._more: dict[int, CostCurve] = {}
        self.chain, self._tree = CostCurve(), CostCurve()
        self._token = RecentMedian()  # seconds to read a token that a drafter missed
        self._warm = False
        self.unclear = False  # whether all that is known of a draft's price includes reading much text before it

    @property
    def tree(self) -> CostCurve:
        """The drafter's time where drafts branch: a step then goes on from several tokens. That of chains, before."""
        return self._tree or self.chain

    def draft(self, seconds: float, steps: int, branched: bool = False, late: bool = False, missed: int = 0) -> None:
        """A draft of so many steps took so long, after a pause or not; `missed` tokens, if these were many, were read
        before it. The first one of all is no measure: everything it touches is touched for the first time, which is
        taken to cost up to a plain pass."""
        curve = self._tree if branched else self.chain
        self.unclear = missed > 0 and (self.unclear or not self.chain)
        if self._warm and not (late and steps in curve):
            curve.add(steps, seconds * (LATE if late else 1.0))
        if missed:
            usual = curve(steps) if self._warm else self.plain(1)
            self._token.add(max(0.0, seconds - usual) / missed)
        self._warm = True

    def reading(self, missed: int) -> float:
        """Seconds a drafter takes to read so many tokens that it missed."""
        return max(0, missed) * self._token.value

    def learn(self, scoring: float, tokens: int, drafted: int = 0) -> None:
        """A pass over `tokens`, so many of them drafted, took so long."""
        base = tokens - drafted
        if not drafted:
            self._plain.setdefault(base, RecentMedian(7)).add(scoring)
            self._times[base] += 1
        elif self.seen(base):
            if scoring < self.plain(base):  # then a plain pass takes no longer
                self._plain[base].add(scoring)
            self._more.setdefault(base, CostCurve()).add(drafted, scoring - self.plain(base))

    @property
    def priced(self) -> bool:
        """Whether any drafted token was ever paid for."""
        return bool(self._more)

    def seen(self, tokens: int) -> bool:
        """Whether a plain pass of this size was ever paid for."""
        return tokens in self._plain

    def sure(self, tokens: int) -> bool:
        """Whether a plain pass of this size was paid for so often that a hiccup does not count."""
        return self._times[tokens] >= 3

    def plain(self, tokens: int) -> float:
        """Seconds of a pass in which nothing is drafted; 1 where none was ever seen."""
        if tokens in self._plain:
            return self._plain[tokens].value
        known = sorted((size, price.value) for size, price in self._plain.items())
        return _line(known, tokens) if known else 1.0

    def most(self, tokens: int) -> int:
        """The most drafted tokens that were ever paid for in a pass of about this size."""
        return self.more(tokens).most if self._more else 0

    def more(self, tokens: int) -> CostCurve:
        """Seconds that so many drafted tokens add to a plain pass over `tokens`; a guess before any was paid for."""
        if not self._more:
            most = 1 << 30
            return CostCurve((most, most * GUESS * self.plain(tokens) / tokens))
        return self._more[_nearest(self._more, tokens)]


def _line(known: list[tuple[int, float]], at: float) -> float:
    """The line between the neighbours of a point; before the first its value, beyond the last the line from the first
    to the last, level at least."""
    if at <= known[0][0] or len(known) == 1:
        return known[0][1]
    high = bisect_left(known, (at,))
    if high == len(known):
        (x, low), (z, top) = known[0], known[-1]
        return top + max(0.0, (top - low) / (z - x)) * (at - z)
    (x, low), (z, top) = known[high - 1], known[high]
    return low + (top - low) / (z - x) * (at - x)


def _nearest(sizes: Iterable[int], wanted: int) -> int:
    return min(sizes, key=lambda size: (abs(size - wanted), size))
