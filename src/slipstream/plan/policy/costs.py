"""What cycles cost on this machine, measured as they run: the one cost model of all policies.

Target passes cost by their tokens, drafts by their steps, captured cycles by their size, rows and context. All amounts
are seconds. The model can be written as JSON and read again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from slipstream.plan.policy.config import CostConfig
from slipstream.plan.policy.graph_costs import GraphCosts
from slipstream.plan.policy.prices import CostCurve, RecentMedian, on_line


class CostModel:
    """Seconds of a plain pass by its tokens, what drafted tokens add to it, and the drafter's own time.

    What n drafted tokens add is kept as a difference to the plain pass they joined, for every size of that pass: near
    zero where reading weights is the limit, a row's share each where arithmetic is. A size that was never measured
    takes the values of the nearest one. The drafter's time is kept by the steps of a draft, all rows together: the
    first step also reads what was accepted, and costs more than the others. `graphs` holds captured cycles.
    """

    def __init__(self, config: CostConfig | None = None) -> None:
        self.config = config or CostConfig()
        self._plain: dict[int, RecentMedian] = {}
        self._times: Counter[int] = Counter()  # plain passes measured, by tokens
        self._more: dict[int, CostCurve] = {}
        self.chain, self._tree = CostCurve(config=self.config), CostCurve(config=self.config)
        self._token = RecentMedian(self.config.window)  # seconds to read a token that a drafter missed
        self._warm = False
        self._first: tuple[int, float] = 0, 0.0  # steps and seconds of the first draft of all
        self.unclear = False  # whether all that is known of a draft's time includes reading much text before it
        self.graphs: dict[str, GraphCosts] = {}  # by drafter

    def graph_costs(self, drafter: str) -> GraphCosts:
        """Captured cycles under one drafter."""
        return self.graphs.setdefault(drafter, GraphCosts(self.config))

    @property
    def tree(self) -> CostCurve:
        """The drafter's time where drafts branch; a step then goes on from several tokens. At first that of chains."""
        return self._tree or self.chain

    def draft(self, seconds: float, steps: int, branched: bool = False, late: bool = False, missed: int = 0) -> None:
        """A draft of so many steps took so long. `late`: after a pause. `missed`: tokens, if these were many, that the
        drafter read before it. The first draft of all is no measure, since everything it touches is touched for the
        first time; that is taken to cost up to a plain pass. But no usual draft takes longer than that one, or than
        one after a pause."""
        curve = self._tree if branched else self.chain
        if not self._warm:
            self._first = steps, seconds
        elif not curve and not branched and steps <= self._first[0]:
            seconds = min(seconds, self._first[1])
        self.unclear = missed > 0 and (self.unclear or not self.chain)
        if self._warm and not (late and steps in curve and seconds >= curve(steps)):
            curve.add(steps, seconds * (self.config.late_draft if late and steps not in curve else 1.0))
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
            self._plain.setdefault(base, RecentMedian(self.config.plain_window)).add(scoring)
            self._times[base] += 1
        elif self.seen(base):
            if scoring < self.plain(base) and not self.sure(base):  # then a plain pass takes no longer
                self._plain[base].add(scoring)
            self._more.setdefault(base, CostCurve(config=self.config)).add(drafted, scoring - self.plain(base))

    def known(self, tokens: int, drafted: int = 0) -> float | None:
        """Seconds of a pass over `tokens`, so many of them drafted; None where no such pass was measured."""
        base = tokens - drafted
        if not self.seen(base) or (drafted and drafted not in self._more.get(base, ())):
            return None
        return self.plain(base) + (self._more[base](drafted) if drafted else 0.0)

    @property
    def priced(self) -> bool:
        """Whether any drafted token was scored."""
        return bool(self._more)

    def seen(self, tokens: int) -> bool:
        """Whether a plain pass of this size was measured."""
        return tokens in self._plain

    def sure(self, tokens: int) -> bool:
        """Whether a plain pass of this size was measured so often that one slow time does not count."""
        return self._times[tokens] >= self.config.reliable

    def plain(self, tokens: int) -> float:
        """Seconds of a pass in which nothing is drafted; 1 where none was ever measured."""
        if tokens in self._plain:
            return self._plain[tokens].value
        points = sorted((size, price.value) for size, price in self._plain.items())
        return on_line(points, tokens) if points else 1.0

    def most(self, tokens: int) -> int:
        """The most drafted tokens that were scored in a pass of about this size."""
        return self.more(tokens).most if self._more else 0

    def more(self, tokens: int) -> CostCurve:
        """Seconds that so many drafted tokens add to a plain pass over `tokens`; a guess before any was scored."""
        if not self._more:
            many = 1 << 30
            each = self.config.first_token * self.plain(tokens) / tokens
            return CostCurve((many, many * each), config=self.config)
        return self._more[_nearest(self._more, tokens)]

    def to_json(self) -> dict[str, Any]:
        return {
            "plain": {str(tokens): price.to_json() for tokens, price in self._plain.items()},
            "plain_passes": {str(tokens): count for tokens, count in self._times.items()},
            "drafted": {str(tokens): curve.to_json() for tokens, curve in self._more.items()},
            "chain": self.chain.to_json(),
            "tree": self._tree.to_json(),
            "reading": self._token.to_json(),
            "graphs": {drafter: costs.to_json() for drafter, costs in self.graphs.items()},
        }

    @classmethod
    def from_json(cls, saved: Mapping[str, Any], config: CostConfig | None = None) -> CostModel:
        model = cls(config)
        model.load(saved)
        return model

    def load(self, saved: Mapping[str, Any]) -> None:
        """Replace what was measured by what `to_json` gave."""
        config = self.config
        self._plain = {int(n): RecentMedian(config.plain_window, times) for n, times in saved["plain"].items()}
        self._times = Counter({int(n): count for n, count in saved["plain_passes"].items()})
        self._more = {int(n): CostCurve.from_json(curve, config) for n, curve in saved["drafted"].items()}
        self.chain, self._tree = (CostCurve.from_json(saved[name], config) for name in ("chain", "tree"))
        self._token = RecentMedian(config.window, saved["reading"])
        self._warm = bool(self.chain or self._tree)
        self.graphs = {drafter: GraphCosts.from_json(costs, config) for drafter, costs in saved["graphs"].items()}


def _nearest(sizes: Iterable[int], wanted: int) -> int:
    return min(sizes, key=lambda size: (abs(size - wanted), size))
