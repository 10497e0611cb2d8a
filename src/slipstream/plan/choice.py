"""Which drafted tokens are worth their price.

Chain, tree and plain decoding are one question. The likeliest tokens of all rows stand in one line, each after those it
follows, and the best place to cut it is sought: the one that emits most tokens per second. A row that is left without
tokens decodes plainly, one left with first candidates only drafts a chain, any other a tree of so many nodes, grown
where the drafter thinks best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.core.tree import Shape
from slipstream.core.types import Budget
from slipstream.plan.acceptance import AcceptanceEstimate
from slipstream.plan.costs import CostCurve

MARGIN = 1.03  # drafting must promise so much more than plain decoding: estimates err, and their errors are chosen for
STAKE = 1 / 3  # of the purse, at most, for one cycle: bad luck does not end what pays. The least draft may take all
DOUBT = 0.3  # of a row's share of a pass, by which a token beyond the most ever paid for may cost more than it seems
LEAP = 3  # a pass has at most so many times the drafted tokens that one was ever paid for with
LOST = 0.75  # of the best speed on the way: where drafting more has fallen below this, no more is looked at
SURE = 0.97  # acceptance that is hoped for when nothing is known
Offer = tuple[float, int, int, int]
"""A token that could be drafted, in the order of worth: minus its chance; its depth, row and rank."""


@dataclass(slots=True)
class RowBudget:
    """What one row is to draft: so many nodes, so deep, up to so many after one slot. None at all is false."""

    nodes: int = 0
    depth: int = 0
    width: int = 1

    def __bool__(self) -> bool:
        return self.nodes > 0

    def budget(self, widest: int) -> Budget:
        """A chain, or a tree the drafter grows. It knows better than any table where to branch, so it may branch once
        more than the table would."""
        if self.width == 1:
            return Budget(self.depth)
        return Budget(self.depth, shape=Shape(nodes=self.nodes, width=min(widest, self.width + 1)))


@dataclass(slots=True)
class CyclePrices:
    """What the coming pass costs: plain, over `base` tokens; what so many drafted ones add to it; the drafter's time by
    the steps of a chain, and of a tree. Prices are found out with as little as possible: one token at first, and never
    many more than were paid for before."""

    base: int
    plain: float
    more: CostCurve
    chain: CostCurve
    tree: CostCurve
    bushy: float = 1.0  # nodes for one that is asked for
    paid: int = 0  # the most drafted tokens that a pass was ever paid for with

    @property
    def share(self) -> float:
        """Seconds that an emitted token is worth: what plain decoding takes for one."""
        return self.plain / self.base

    def cost(self, nodes: int, depth: int, wide: bool = False) -> float:
        return self.more(nodes * self.bushy) + (self.tree if wide else self.chain)(depth)

    def covered(self, nodes: int, cost: float, purse: float) -> bool:
        """Whether the purse covers so many nodes at this cost, should none be accepted."""
        if nodes == 1:
            return cost <= purse
        doubt = DOUBT * self.share * max(0, nodes - self.paid)
        return nodes <= LEAP * self.paid and cost + doubt <= STAKE * purse

    def branching(self, one: AcceptanceEstimate, deepest: int) -> bool:
        """Whether a second candidate could be worth its price beside a chain of any depth: a look that is shorter than
        to try."""
        worth = one.second * self.share
        return worth > 0 and any(
            worth > self.more((n + 1) * self.bushy) - self.more(n * self.bushy)
            for n in range(1, min(one.reach, deepest) + 1)
        )

    def may_pay(self, deepest: int) -> bool:
        """Whether drafts of one row would pay at some depth if nearly all of them were accepted."""
        gain = 0.0
        for depth in range(1, deepest + 1):
            gain += SURE**depth
            if gain * self.share > self.cost(depth, depth):
                return True
        return False


def best(
    trust: Sequence[AcceptanceEstimate], now: CyclePrices, deepest: int, purse: float
) -> tuple[list[RowBudget], float]:
    """The best draft of each row, and what all of them cost, which the purse covers. Only a level costs more than a
    token of it, so where rows may branch the line is also tried without what lies too deep. Where the best of all is
    worth the margin, a smaller step towards it that the purse covers will do."""
    offers: list[Offer] = []
    for r, one in enumerate(trust):
        nodes = one.nodes(deepest, now.branching(one, deepest))
        offers += [(-chance, depth, r, rank) for chance, depth, rank in nodes]
    offers.sort()
    far, wide = max((offer[1] for offer in offers), default=0), any(offer[3] for offer in offers)
    promise = speed = now.base / now.plain
    taken, paid = list[Offer](), 0.0
    for limit in range(1, far + 1) if wide else [far]:
        line = [offer for offer in offers if offer[1] <= limit] if wide else offers
        top, found, count, cost = cut(line, now, purse, speed)
        promise = max(promise, top)
        if count:
            taken, speed, paid = line[:count], found, cost
    spans = [RowBudget() for _ in trust]
    if promise * now.share < MARGIN:
        return spans, 0.0
    for _, depth, r, rank in taken:
        span = spans[r]
        span.nodes, span.depth, span.width = span.nodes + 1, max(span.depth, depth), max(span.width, rank + 1)
    return spans, paid


def cut(line: Sequence[Offer], now: CyclePrices, purse: float, least: float) -> tuple[float, float, int, float]:
    """The speed of the best cut, whatever it costs; speed, length and cost of the best one that is faster than `least`
    and the purse covers, should no token of it be accepted."""
    tokens, depth, wide = float(now.base), 0, False
    top, found = 0.0, (least, 0, 0.0)
    for count, (chance, level, _, rank) in enumerate(line, 1):
        tokens, depth, wide = tokens - chance, max(depth, level), wide or rank > 0
        cost = now.cost(count, depth, wide)
        speed = tokens / (now.plain + cost)
        top = max(top, speed)
        if speed > found[0] and now.covered(count, cost, purse):
            found = speed, count, cost
        if speed < LOST * top:  # chances fall and prices rise: it will not come back
            break
    return top, *found
