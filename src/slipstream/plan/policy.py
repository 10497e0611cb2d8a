"""Policies: how far to draft in the coming cycle."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.core.interfaces import Policy
from slipstream.core.types import Budget, Draft, Row, Verdict


class Fixed(Policy):
    """The same depth always; a drafter may still stop early before an unlikely token."""

    def __init__(self, depth: int, stop_below: float = 0.0) -> None:
        self._budget = Budget(depth, stop_below=stop_below)

    def budget(self, rows: Sequence[Row]) -> list[Budget]:
        return [self._budget] * len(rows)


MARGIN = 1.1  # drafting must promise so much more than plain decoding: estimates err, and their errors are chosen for


class Costs:
    """What passes cost on this machine, learnt as they happen: seconds by tokens in a pass, seconds per drafted step.

    A size never seen is read off the straight line between its neighbours, beyond the largest off the line through the
    smallest and the largest. Times are never too short by accident, so a shorter one is believed at once, and a longer
    one slowly: a hiccup does not move it.
    """

    def __init__(self) -> None:
        self._score: dict[int, float] = {}
        self._sizes: list[int] = []
        self.step = 0.0  # seconds to draft one step, all rows together

    def learn(self, drafting: float, scoring: float, tokens: int, steps: int) -> None:
        if tokens not in self._score:
            insort(self._sizes, tokens)
        self._score[tokens] = _believe(self._score.get(tokens), scoring)
        if steps:
            self.step = _believe(self.step or None, drafting / steps)

    def seen(self, tokens: int) -> bool:
        return tokens in self._score

    def score(self, tokens: int) -> float:
        """Seconds of a target pass over so many tokens."""
        sizes, known = self._sizes, self._score
        if not sizes or tokens in known:
            return known.get(tokens, 1.0)
        at = bisect_left(sizes, tokens)
        if at == 0 or len(sizes) == 1:
            return known[sizes[0]]
        low, high = (sizes[at - 1], sizes[at]) if at < len(sizes) else (sizes[0], sizes[-1])
        slope = (known[high] - known[low]) / (high - low)
        if at == len(sizes):
            return known[high] + max(0.0, slope) * (tokens - high)
        return known[low] + slope * (tokens - low)


def _believe(old: float | None, new: float) -> float:
    return new if old is None or new < old else old + 0.1 * (new - old)


@dataclass
class Trust:
    """What is believed of one row's drafts: the chance that a drafted token is accepted, given the one before was."""

    rate: float
    reach: int = 3  # the deepest draft it is trusted with; doubles while drafts are accepted whole
    quiet: int = 0  # plain cycles since the last draft
    wait: int = 4  # plain cycles before the next attempt; doubles while attempts fail

    def learn(self, drafted: int, accepted: int) -> None:
        tried = min(drafted, accepted + 1)  # tokens beyond the first rejection say nothing
        for i in range(tried):
            self.rate += 0.15 * ((i < accepted) - self.rate)
        self.reach = 2 * self.reach if accepted == drafted else max(3, accepted + 2)
        self.wait = max(4, self.wait // 2) if accepted else min(128, self.wait * 2)
        self.quiet = 0


@dataclass
class Purse:
    """Seconds won and lost against plain decoding. Losses are limited to a share of all time spent, and a little to
    begin with; what was won long ago does not pay for losses now."""

    share: float = 0.01
    balance: float = 0.0
    total: float = 0.0
    plain: float = 0.0  # seconds of one plain pass

    def book(self, won: float, spent: float, plain: float) -> None:
        self.total, self.plain = self.total + spent, plain
        self.balance = min(self.balance + won, 4 * plain)

    def open(self) -> bool:
        return self.balance >= -(self.share * self.total + self.plain / 4)


class Adaptive(Policy):
    """The depths that maximise emitted tokens per second: zero where drafting does not pay.

    Rows share a pass, so they are decided together: starting from plain decoding for all, the drafted token most likely
    to be emitted is added, again and again, and the best point on the way is taken. Rows left plain are tried again now
    and then, more and more rarely while it fails; and once drafting has lost more than a small share of all time, it is
    off until that share has grown again. So a hopeless text costs next to nothing.
    """

    def __init__(self, deepest: int = 8) -> None:
        if deepest < 1:
            raise ValueError(f"deepest is {deepest}; it must be 1 or more")
        self.deepest, self.costs = deepest, Costs()
        self.purse = Purse()
        self._prior = 0.7  # what is believed of a row nothing is known of: what the others' drafts were worth
        self._trust: dict[Row, Trust] = {}
        self._steps = self._drafted = self._accepted = self._rows = 0
        self._plain: Counter[int] = Counter()  # cycles left plain to learn what so many rows cost

    def budget(self, rows: Sequence[Row]) -> list[Budget]:
        self._steps = self._drafted = self._accepted = 0
        self._rows = len(rows)
        self._trust = {row: self._trust.get(row) or Trust(self._prior) for row in rows}
        if not self.purse.open():
            return [Budget(0)] * len(rows)
        depths = self._best([self._trust[row].rate for row in rows])
        depths = [min(depth, self._trust[row].reach) for depth, row in zip(depths, rows, strict=True)]
        for r, row in enumerate(rows):
            trust = self._trust[row]
            trust.quiet += 1
            if depths[r] == 0 and trust.quiet > trust.wait:
                depths[r], trust.quiet = 2, 0
        return [Budget(depth) for depth in depths]

    def _best(self, rates: Sequence[float]) -> list[int]:
        """The best depth of each row. A row's n-th drafted token is emitted with the n-th power of its rate, so sorted
        by that chance they stand in the order in which they are worth adding, each after the ones before it."""
        if not self.costs.seen(len(rates)) and self._plain[len(rates)] < 3:  # rows of others may always ride along
            self._plain[len(rates)] += 1
            return [0] * len(rates)  # what drafting is held against: without it drafting might look free for ever
        steps = [(-(rate**depth), depth, r) for r, rate in enumerate(rates) for depth in range(1, self.deepest + 1)]
        steps.sort()
        emitted, deepest = float(len(rates)), 0
        taken, speed = 0, MARGIN * emitted / self.costs.score(len(rates))
        for n, (chance, depth, _) in enumerate(steps, 1):
            emitted -= chance
            deepest = max(deepest, depth)
            now = emitted / (self.costs.score(len(rates) + n) + self.costs.step * deepest)
            if now > speed:
                taken, speed = n, now
        depths = [0] * len(rates)
        for _, _, r in steps[:taken]:
            depths[r] += 1
        return depths

    def observe(self, rows: Sequence[Row], draft: Draft, verdict: Verdict) -> None:
        drafted = [0] * len(rows)
        for r, _ in draft.tree.lists:
            drafted[r] += 1
        self._steps = max(self._steps, *drafted)
        for row, tried, accepted in zip(rows, drafted, verdict.accepted.tolist(), strict=True):
            if row not in self._trust:  # its depth was the user's choice
                continue
            self._drafted += tried
            self._accepted += accepted
            if tried:
                self._trust[row].learn(tried, accepted)
                self._prior += 0.05 * ((accepted > 0) - self._prior)

    def price(self, drafting: float, scoring: float, tokens: int) -> None:
        self.costs.learn(drafting, scoring, tokens, self._steps)
        if self._rows:
            plain = self.costs.score(tokens - self._drafted)
            extra = self.costs.score(tokens) - plain + drafting if self._drafted else 0.0
            self.purse.book(self._accepted * plain / self._rows - extra, plain + extra, plain)
