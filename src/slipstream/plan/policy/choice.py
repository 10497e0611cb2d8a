"""Which drafted tokens are worth their cost.

Chain, tree and plain decoding are one question. The tokens that all rows could draft are sorted by their chance to be
emitted, each after those it follows. The line is cut where it emits most tokens per second. A row without tokens before
the cut decodes plainly. A row with first candidates only drafts a chain. Any other drafts a tree of so many nodes,
grown where the drafter thinks best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from slipstream.core.tree import Shape
from slipstream.core.types import Budget
from slipstream.plan.policy.acceptance import AcceptanceEstimate
from slipstream.plan.policy.config import ChoiceConfig
from slipstream.plan.policy.prices import CostCurve

Offer = tuple[float, int, int, int]
"""A token that could be drafted: minus its chance, so that the best sort first; its depth, row and rank."""


@dataclass(slots=True)
class RowBudget:
    """What one row is to draft: so many nodes, so deep, up to so many after one slot. It is false without nodes."""

    nodes: int = 0
    depth: int = 0
    width: int = 1

    def __bool__(self) -> bool:
        return self.nodes > 0

    def budget(self, widest: int, least_chance: float = 0.0) -> Budget:
        """A chain, or a tree the drafter grows. It knows better than any table where to branch, so it may branch once
        more than the table would. `least_chance`: of a chain that is worth its cost."""
        if self.width == 1:
            return Budget(self.depth, least_chance=least_chance if self.depth else 0.0)
        return Budget(self.depth, shape=Shape(nodes=self.nodes, width=min(widest, self.width + 1)))


@dataclass(slots=True)
class CyclePrices:
    """What the coming pass costs, in seconds: plain, over `base` tokens; what so many drafted ones add to it; the
    drafter's time by the steps of a chain, and of a tree. A pass never has many more drafted tokens than passes before
    it, so that an unknown cost is found out with little."""

    base: int
    plain: float
    more: CostCurve
    chain: CostCurve
    tree: CostCurve
    nodes_per_level: float = 1.0  # more than one where a drafter branches unasked
    most: int = 0  # the most drafted tokens that a pass ever had
    config: ChoiceConfig = field(default_factory=ChoiceConfig)

    @property
    def share(self) -> float:
        """Seconds that an emitted token is worth: what plain decoding takes for one."""
        return self.plain / self.base

    def cost(self, nodes: int, depth: int, wide: bool = False) -> float:
        return self.more(nodes * self.nodes_per_level) + (self.tree if wide else self.chain)(depth)

    def covered(self, nodes: int, cost: float, allowed: float) -> bool:
        """Whether the loss that is allowed covers so many nodes at this cost, should none be accepted."""
        if nodes == 1:
            return cost <= allowed
        doubt = self.config.doubt * self.share * max(0, nodes - self.most)
        return nodes <= self.config.leap * self.most and cost + doubt <= self.config.stake * allowed

    def branching(self, estimate: AcceptanceEstimate, max_depth: int) -> bool:
        """Whether a second candidate could be worth its cost beside a chain of any depth: a quick check before trees
        are compared."""
        worth = estimate.second * self.share
        return worth > 0 and any(
            worth > self.more((n + 1) * self.nodes_per_level) - self.more(n * self.nodes_per_level)
            for n in range(1, min(estimate.reach, max_depth) + 1)
        )

    def break_even(self, max_depth: int) -> float:
        """The acceptance of a token below which no chain of one row is worth its cost, to a thirtieth."""
        worth = self.share / self.config.margin
        costs = [(depth, self.cost(depth, depth) / worth) for depth in (1, 2, 4, 8) if depth <= max_depth]
        low, high = 0.0, 1.0
        for _ in range(5):
            rate = (low + high) / 2
            pays = any(rate * (1 - rate**depth) >= cost * (1 - rate) for depth, cost in costs)
            low, high = (low, rate) if pays else (rate, high)
        return high

    def promise(self, rate: float, max_depth: int) -> float:
        """The best speed of one row whose drafted tokens are accepted at this rate, over that of plain decoding."""
        best, tokens = 1.0, 1.0
        for depth in range(1, max_depth + 1):
            tokens += rate**depth
            best = max(best, tokens * self.share / (self.share + self.cost(depth, depth)))
        return best

    def may_pay(self, max_depth: int) -> bool:
        """Whether drafts of one row would pay at some depth if nearly all of them were accepted."""
        gain = 0.0
        for depth in range(1, max_depth + 1):
            gain += self.config.hoped_rate**depth
            if gain * self.share > self.cost(depth, depth):
                return True
        return False


def best(
    estimates: Sequence[AcceptanceEstimate], prices: CyclePrices, max_depth: int, allowed: float
) -> tuple[list[RowBudget], float]:
    """The best draft of each row, and what all of them cost, which the allowed loss covers. A level may cost more than
    a token of it, so where rows may branch the line is also cut without what lies too deep. Where the best of all is
    worth the margin, a smaller step towards it that the allowed loss covers will do."""
    offers: list[Offer] = []
    for r, estimate in enumerate(estimates):
        nodes = estimate.nodes(max_depth, prices.branching(estimate, max_depth))
        offers += [(-chance, depth, r, rank) for chance, depth, rank in nodes]
    offers.sort()
    deepest, branched = max((offer[1] for offer in offers), default=0), any(offer[3] for offer in offers)
    promise = speed = prices.base / prices.plain
    taken, taken_cost = list[Offer](), 0.0
    for limit in range(1, deepest + 1) if branched else [deepest]:
        line = [offer for offer in offers if offer[1] <= limit] if branched else offers
        top, reached, count, cost = cut(line, prices, allowed, speed)
        promise = max(promise, top)
        if count:
            taken, speed, taken_cost = line[:count], reached, cost
    budgets = [RowBudget() for _ in estimates]
    if promise * prices.share < prices.config.margin:
        return budgets, 0.0
    for _, depth, r, rank in taken:
        row = budgets[r]
        row.nodes, row.depth, row.width = row.nodes + 1, max(row.depth, depth), max(row.width, rank + 1)
    return budgets, taken_cost


def cut(line: Sequence[Offer], prices: CyclePrices, allowed: float, least: float) -> tuple[float, float, int, float]:
    """The speed of the best cut, whatever it costs; then speed, length and cost of the best one that is faster than
    `least` and that the allowed loss covers, should no token of it be accepted."""
    tokens, depth, branched = float(prices.base), 0, False
    top, affordable = 0.0, (least, 0, 0.0)
    for count, (chance, level, _, rank) in enumerate(line, 1):
        tokens, depth, branched = tokens - chance, max(depth, level), branched or rank > 0
        cost = prices.cost(count, depth, branched)
        speed = tokens / (prices.plain + cost)
        top = max(top, speed)
        if speed > affordable[0] and prices.covered(count, cost, allowed):
            affordable = speed, count, cost
        if speed < prices.config.hopeless * top:  # chances fall and costs rise: it will not come back
            break
    return top, *affordable
