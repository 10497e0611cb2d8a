"""What cycles cost on this machine, learnt as they happen.

Machines are noisy, and passes grow dearer as texts grow longer. So every price is the median of the last few times it
was paid: a hiccup does not move it, a longer text does.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable

GUESS = 0.3  # of a row's share of a plain pass: what a drafted token is taken to cost before any was paid for

HOPE = 0.6  # beyond the most tokens ever tried, another one is taken to cost so much of what those cost each


class Recent:
    """The median of the last few numbers."""

    def __init__(self, size: int = 5) -> None:
        self._last: deque[float] = deque(maxlen=size)
        self.value = 0.0

    @staticmethod
    def of(number: float) -> Recent:
        made = Recent()
        made.add(number)
        return made

    def add(self, number: float) -> None:
        self._last.append(number)
        self.value = sorted(self._last)[(len(self._last) - 1) // 2]

    def __bool__(self) -> bool:
        return bool(self._last)


class Costs:
    """Seconds of a plain pass by its tokens, what drafted tokens add to it, and the drafter's own time.

    What n drafted tokens add is kept as a difference to the plain pass they joined, for every size of that pass: near
    zero where reading weights is the bound, a row's share each where arithmetic is. A number of tokens never tried is
    read off the line between its neighbours, beyond the most that was tried with some hope, since the first drafted
    token of a pass often costs more than the next; a size never tried is taken for the nearest one that was.
    """

    def __init__(self) -> None:
        self._plain: dict[int, Recent] = {}
        self._times: Counter[int] = Counter()  # that a plain pass was paid for
        self._more: dict[int, dict[int, Recent]] = {}
        self._step, self._branching = Recent(), Recent()
        self._warm = False  # the first draft of all is no measure: everything it touches is touched for the first time

    @property
    def step(self) -> float:
        """Seconds to draft one step, all rows together."""
        return self._step.value

    @property
    def branching(self) -> float:
        """The same where drafts are trees: a step then goes on from several tokens. A step of a chain, before any."""
        return self._branching.value if self._branching else self._step.value

    def learn(
        self, drafting: float, scoring: float, tokens: int, drafted: int = 0, steps: int = 0, branched: bool = False
    ) -> None:
        """A pass over `tokens`, so many of them drafted, took so long."""
        base = tokens - drafted
        if steps and self._warm:
            (self._branching if branched else self._step).add(drafting / steps)
        self._warm |= steps > 0
        if not drafted:
            self._plain.setdefault(base, Recent(7)).add(scoring)
            self._times[base] += 1
        elif self.seen(base):
            if scoring < self.plain(base):  # then a plain pass takes no longer
                self._plain[base].add(scoring)
            self._more.setdefault(base, {}).setdefault(drafted, Recent()).add(max(0.0, scoring - self.plain(base)))

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
        return max(self._more[_nearest(self._more, tokens)]) if self._more else 0

    def more(self, tokens: int) -> Callable[[float], float]:
        """Seconds that so many drafted tokens add to a plain pass over `tokens`."""
        if not self._more:
            each = GUESS * self.plain(tokens) / tokens
            return lambda drafted: each * drafted
        near = self._more[_nearest(self._more, tokens)]
        known = [(0, 0.0), *sorted((n, price.value) for n, price in near.items())]
        most, paid = known[-1]
        return lambda drafted: paid + HOPE * paid / most * (drafted - most) if drafted > most else _line(known, drafted)


def _line(known: list[tuple[int, float]], at: float) -> float:
    """The line between the neighbours of a point; before the first its value, beyond the last the line from the first
    to the last, level at least."""
    if at <= known[0][0] or len(known) == 1:
        return known[0][1]
    high = next((i for i, (size, _) in enumerate(known) if size >= at), None)
    (x, low), (z, top) = (known[0], known[-1]) if high is None else (known[high - 1], known[high])
    slope = (top - low) / (z - x)
    return top + max(0.0, slope) * (at - z) if high is None else low + slope * (at - x)


def _nearest(sizes: Iterable[int], wanted: int) -> int:
    return min(sizes, key=lambda size: (abs(size - wanted), size))
