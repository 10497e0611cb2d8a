"""Policies: how far to draft in the coming cycle.

Drafting is a bet. What it may lose is limited in advance: a purse holds a small share of all time spent, and a draft is
made only where the purse covers what it would lose if things went as badly as the little that is known allows. So a
hopeless text costs that share and no more, whatever the machine and the batch, and a promising one is followed while it
pays.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slipstream.core.interfaces import Policy
from slipstream.core.tree import Shape
from slipstream.core.types import Budget, Draft, Row, Verdict
from slipstream.plan.costs import Costs


class Fixed(Policy):
    """The same depth and shape always; a drafter may still stop early before an unlikely token."""

    def __init__(self, depth: int, stop_below: float = 0.0, shape: Shape | None = None) -> None:
        self._budget = Budget(depth, stop_below, shape)

    def budget(self, rows: Sequence[Row]) -> list[Budget]:
        return [self._budget] * len(rows)


MARGIN = 1.05  # drafting must promise so much more than plain decoding: estimates err, and their errors are chosen for
FAINT = 0.1  # a token less likely to be emitted than this is not worth a look
SURE = 0.97  # acceptance that is hoped for when nothing is known
STALE = 64  # plain cycles after which even what cannot pay is priced again


@dataclass
class Trust:
    """What is believed of one row's drafts: the chance that a drafted token is accepted, given the one before was."""

    rate: float
    weight: float = 1.0  # so many observations' worth; what others' drafts taught counts as one
    reach: int = 3  # the deepest draft it is trusted with; doubles while drafts are accepted whole
    quiet: int = 0  # cycles since the last draft
    wait: int = 4  # plain cycles before the next attempt; doubles while attempts fail

    @property
    def least(self) -> float:
        """As low as the rate may well be."""
        return max(0.0, self.rate - 2 * math.sqrt(self.rate * (1 - self.rate) / self.weight))

    def learn(self, drafted: int, accepted: int) -> None:
        tried = min(drafted, accepted + 1)  # tokens beyond the first rejection say nothing
        for i in range(tried):
            self.weight = min(self.weight + 1, 7)
            self.rate += ((i < accepted) - self.rate) / self.weight
        self.reach = 2 * self.reach if accepted == drafted else max(3, accepted + 2)
        self.wait = max(4, self.wait // 2) if accepted else min(128, self.wait * 2)
        self.quiet = 0


@dataclass
class Purse:
    """Seconds that may be lost against plain decoding: a share of all time, saved up to most of a plain pass, and what
    drafting won, up to a few passes, so that one bad draft after good ones does not end it and an old win does not pay
    for long. Half may be risked at a time, so that no single draft empties it."""

    share: float = 0.01
    size: float = 0.7  # of a plain pass
    most: float = 1.5  # plain passes, with what was won
    balance: float | None = None  # None: nothing was booked yet, and it is full

    def stake(self, plain: float) -> float:
        return (self.size * plain if self.balance is None else self.balance) / 2

    def book(self, won: float, plain: float) -> None:
        held = self.size * plain if self.balance is None else self.balance
        held = min(held + won, self.most * plain)
        saved = min(held + self.share * plain, self.size * plain)
        self.balance = max(held, saved)


@dataclass(frozen=True)
class Prices:
    """What the coming pass costs: plain, over `base` tokens, and what so many drafted ones add to it."""

    base: int
    plain: float
    more: Callable[[float], float]

    @property
    def share(self) -> float:
        """Seconds that an emitted token is worth: what plain decoding takes for one."""
        return self.plain / self.base


class Adaptive(Policy):
    """The depths that maximise emitted tokens per second: zero where drafting does not pay.

    Rows share a pass, so they are decided together: starting from plain decoding for all, the drafted token most likely
    to be emitted is added, again and again, and the best point on the way that the purse covers is taken. Rows left
    plain are tried again now and then, more and more rarely while it fails, with what the purse has left; not where a
    drafted token costs so much that it could not pay if it were accepted. What one row's drafts are worth is what the
    next row is expected to be like.
    """

    def __init__(self, deepest: int = 8) -> None:
        if deepest < 1:
            raise ValueError(f"deepest is {deepest}; it must be 1 or more")
        self.deepest, self.costs, self.purse = deepest, Costs(), Purse()
        self._prior = 0.7  # what is believed of a row nothing is known of: what the others' drafts were worth
        self._bushy = 1.0  # drafted tokens for one step of depth; more than one in trees
        self._trust: dict[Row, Trust] = {}
        self._steps = self._drafted = self._accepted = self._beside = 0
        self._asked = False
        self._plain: Counter[int] = Counter()  # cycles left plain to learn what so many rows cost

    def budget(self, rows: Sequence[Row]) -> list[Budget]:
        self._steps = self._drafted = self._accepted = 0  # of the coming cycle, also where it has no row to decide for
        trust = self._trust = {row: self._trust.get(row) or Trust(self._prior) for row in rows}
        depths = self._depths(list(trust.values())) if trust else []
        self._asked = any(depths)
        return [Budget(depth) for depth in depths]

    def _depths(self, trust: list[Trust]) -> list[int]:
        base = len(trust) + self._beside
        for one in trust:
            one.quiet += 1
        if not self.costs.seen(base) and self._plain[base] < 3:  # rows of others may always ride along
            self._plain[base] += 1
            return [0] * len(trust)  # what drafting is held against: without it drafting might look free for ever
        now = Prices(base, self.costs.plain(base), self.costs.more(base))
        stake = self.purse.stake(now.plain)
        if stake <= 0:
            return [0] * len(trust)
        depths, risk = self._best(trust, now, stake)
        self._probe(trust, depths, now, stake - max(0.0, risk))
        return depths

    def _best(self, trust: list[Trust], now: Prices, stake: float) -> tuple[list[int], float]:
        """The best depth of each row, and what it may lose. A row's n-th drafted token is emitted with the n-th power
        of its rate, so sorted by that chance they stand in the order in which they are worth adding, each after the
        ones before it. Where the best of all is worth the margin, a smaller step towards it that the purse covers will
        do."""
        steps = [
            (-(one.rate**depth), depth, r)
            for r, one in enumerate(trust)
            for depth in range(1, min(one.reach, self.deepest) + 1)
            if one.rate**depth > FAINT
        ]
        steps.sort()
        most = len(steps) if self.costs.priced else 1  # a price is found out with as little as possible
        emitted, least, deepest = float(now.base), 0.0, 0
        promise = best = emitted / now.plain
        taken, lose = 0, 0.0
        for n, (chance, depth, r) in enumerate(steps, 1):
            emitted -= chance
            least += trust[r].least ** depth
            deepest = max(deepest, depth)
            cost = now.more(n * self._bushy) + self.costs.step * deepest
            risk, speed = cost - least * now.share, emitted / (now.plain + cost)
            promise = max(promise, speed)
            if speed > best and risk <= stake and n <= most:
                taken, best, lose = n, speed, risk
        if promise * now.share < MARGIN:
            return [0] * len(trust), 0.0
        depths = [0] * len(trust)
        for _, _, r in steps[:taken]:
            depths[r] += 1
        return depths, lose

    def _probe(self, trust: list[Trust], depths: list[int], now: Prices, left: float) -> None:
        """Try rows that were left plain for long, the longest first, two tokens each or one, while the purse covers
        it."""
        due = [r for r, one in enumerate(trust) if not depths[r] and one.quiet > one.wait]
        if due and not self._may_pay(now):
            due = [r for r in due if trust[r].quiet > STALE]
        if not self.costs.priced:
            due = [] if any(depths) else due[:1]
        total, deepest = sum(depths), max(depths)
        for r in sorted(due, key=lambda r: -trust[r].quiet):
            for depth in (2, 1) if self.costs.priced else (1,):
                new = now.more((total + depth) * self._bushy) - now.more(total * self._bushy)
                new += self.costs.step * max(0, depth - deepest)
                if depth <= self.deepest and new <= left:
                    depths[r], left, total, deepest = depth, left - new, total + depth, max(deepest, depth)
                    break

    def _may_pay(self, now: Prices) -> bool:
        """Whether drafts of one row would pay at some depth if nearly all of them were accepted."""
        gain = 0.0
        for depth in range(1, self.deepest + 1):
            gain += SURE**depth
            if gain * now.share > now.more(depth * self._bushy) + self.costs.step * depth:
                return True
        return False

    def observe(self, rows: Sequence[Row], draft: Draft, verdict: Verdict) -> None:
        nodes, steps = [0] * len(rows), [0] * len(rows)
        depth: list[int] = []
        for r, p in draft.tree.lists:
            depth.append(1 if p < 0 else depth[p] + 1)
            nodes[r] += 1
            steps[r] = max(steps[r], depth[-1])
        self._steps = max(self._steps, *steps)
        for row, count, tried, accepted in zip(rows, nodes, steps, verdict.accepted.tolist(), strict=True):
            if row not in self._trust or not count:  # its depth was the user's choice, or there is nothing to learn
                continue
            self._drafted += count
            self._accepted += accepted
            self._bushy += 0.1 * (count / tried - self._bushy)
            self._trust[row].learn(tried, accepted)
            for i in range(min(tried, accepted + 1)):
                self._prior += 0.05 * ((i < accepted) - self._prior)

    def price(self, drafting: float, scoring: float, tokens: int) -> None:
        self.costs.learn(drafting, scoring, tokens, self._drafted, self._steps)
        base = tokens - self._drafted
        self._beside = max(0, base - len(self._trust))
        if self._trust:
            plain = self.costs.plain(base)
            lost = drafting if self._asked else 0.0
            if self._drafted:  # as it was measured, a hiccup aside
                usual = self.costs.more(base)(self._drafted)
                lost += min(scoring - plain, 3 * usual + plain / 10)
            self.purse.book(self._accepted * plain / base - lost, plain)
