"""Which cycle to run where cycles come in a few sizes: the one that emits most tokens per second from these rows.

A captured cycle costs what its size costs, however much of it a row makes use of, so all rows draft as far as it goes.
What a size costs is known before it is chosen, since it was timed when it was captured: all there is to learn is what
drafts are worth, and nothing has to be risked to learn prices. Where no size pays, the cheapest is tried now and then,
more and more rarely while it fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from slipstream.core.tree import Shape
from slipstream.core.types import Budget, Row
from slipstream.plan.acceptance import AcceptanceEstimate, RankTable
from slipstream.plan.completion_time import Column, CompletionTime
from slipstream.plan.tree_shapes import WIDTH, best_first

MARGIN = 1.03  # drafting must promise so much more than plain decoding
DOUBT = 1.1  # a size that is not captured must promise so much more than those that are
HELD = 8  # cycles that one decision holds for, while the rows are the same
PATIENCE, LONGEST = 4, 128  # plain cycles before drafting is tried again, at first and in the end
TRIAL = 32  # times what it takes before drafting can begin, where it takes any time: so much goes by before it is tried
LUCK = 0.5  # of what a row's latest drafts seem to be worth beyond the others' is taken for luck
FIRST, RECALL = 10, 100  # tokens that what is believed of all rows counts as, at first and at most
HEARD = 8  # rows that are learnt from after a cycle; of more, some in turn
FRESH = 256  # decisions after which what trees are worth is worked out anew
GRID = np.linspace(0.0, 1.0, 21)  # rates of acceptance at which it is


class SizeOption(NamedTuple):
    """A size of cycle, with `nodes` of a tree or none; the seconds it takes; whether it is captured."""

    depth: int
    width: int
    nodes: int
    seconds: float
    there: bool = True

    @property
    def budget(self) -> Budget:
        return Budget(self.depth, shape=Shape(nodes=self.nodes, width=self.width) if self.nodes else None)


class GraphSizePolicy:
    """What is believed of the rows that have captured cycles under one drafter and rule, and what follows from it."""

    def __init__(self) -> None:
        self._prior = 0.7  # what is believed of a row nothing is known of: what the others' drafts were worth
        self._heard = FIRST
        self._trust: dict[Row, AcceptanceEstimate] = {}
        self.pace = CompletionTime()
        self._ranks = RankTable()
        self._curves: dict[tuple[int, int, int], Column] = {}
        self._rows: list[Row] = []
        self._last: SizeOption | None = None
        self._held = self._plain = self._turn = self._age = 0
        self._wait = PATIENCE

    def open(self, row: Row) -> None:
        self._trust[row] = AcceptanceEstimate(self._prior)

    def close(self, row: Row) -> None:
        self._trust.pop(row, None)
        self.pace.close(row)

    def held(self, rows: Sequence[Row]) -> SizeOption | None:
        """What was chosen for these rows, while it holds."""
        if not self._held or self._rows != rows:
            return None
        self._held -= 1
        return self._last

    def choose(
        self, rows: Sequence[Row], menu: Sequence[SizeOption], ready: Sequence[int] | None = None, once: float = 0.0
    ) -> SizeOption:
        """One of the menu, whose first is to draft nothing; `ready` tells how many tokens each row has to draft where
        that is known beforehand; `once` are seconds that drafting takes before it can begin, which what is left to be
        said must win back."""
        self._rows, self._held = list(rows), HELD - 1
        self._age += 1
        if self._age % FRESH == 0:
            self._curves.clear()
        rate = np.array([(self._trust.get(row) or AcceptanceEstimate(self._prior)).rate for row in rows])
        left = np.array([max(1, row.request.max_tokens - row.emitted) for row in rows])
        rate += LUCK * (rate.mean() - rate) if ready is None else 0.0
        seconds, more = np.array([offer.seconds for offer in menu]), self._more(rate, menu, ready)
        # what is known beforehand is known of this cycle only, of which a token's price is all that counts
        times = self.pace.seconds(seconds, more, left) if ready is None else seconds / (1 + more).sum(1)
        taken = [
            (time + once * bool(offer.depth)) * (1.0 if offer.there else DOUBT)
            for offer, time in zip(menu, times.tolist(), strict=True)
        ]
        self._last = self._fastest(menu, taken, once, ready)
        return self._last

    def _fastest(
        self, menu: Sequence[SizeOption], taken: Sequence[float], once: float, ready: Sequence[int] | None
    ) -> SizeOption:
        plain, *others = menu
        best = min(range(len(menu)), key=taken.__getitem__)
        if MARGIN * taken[best] < taken[0]:
            self._plain, self._wait = 0, PATIENCE
            return menu[best]
        self._plain += HELD if ready is None else 1
        there = [offer for offer in others if offer.there]
        wait = self._wait * (1 + TRIAL * once / plain.seconds / PATIENCE)
        if there and self._plain > wait and (ready is None or any(ready)):
            self._plain, self._held, self._wait = 0, 0, min(LONGEST, 2 * self._wait)
            return min(there, key=lambda offer: offer.seconds)
        return plain

    def _more(self, rate: Column, menu: Sequence[SizeOption], ready: Sequence[int] | None) -> Column:
        """Tokens that each row may expect to have accepted, [offers, rows]."""
        depth = np.array([[offer.depth] for offer in menu])
        depth = depth if ready is None else np.minimum(np.array(ready), depth)
        found: Column = rate * (1 - rate**depth) / np.maximum(1 - rate, 1e-6)
        for n, offer in enumerate(menu):
            if offer.nodes:
                found[n] = np.interp(rate, GRID, self._curve(offer))
        return found

    def _curve(self, offer: SizeOption) -> Column:
        """What a tree of a size is worth by the rate at which first candidates are accepted."""
        if offer[:3] not in self._curves:
            self._curves[offer[:3]] = np.array([_worth(self._ranks, offer, float(rate)) for rate in GRID])
        return self._curves[offer[:3]]

    def observe(self, rows: Sequence[Row], judged: Sequence[Sequence[tuple[int, int]]]) -> None:
        """Of each row, along its accepted path: which candidate was accepted, -1 for none; of how many. Of many rows
        some in turn are enough (`heard`)."""
        for row, line in zip(rows, judged, strict=True):
            one = self._trust.get(row)
            if one is None or not line:
                continue
            accepted, first = sum(rank >= 0 for rank, _ in line), [rank == 0 for rank, _ in line]
            one.learn(len(line), accepted, first)
            if any(count > 1 for _, count in line):
                self._ranks.learn(line)
            for hit in first:
                self._heard = min(self._heard + 1, RECALL)
                self._prior += (hit - self._prior) / self._heard

    def heard(self, rows: int) -> range:
        """The rows that are worth learning from after this cycle."""
        stride = -(-rows // HEARD)
        self._turn = (self._turn + 1) % stride
        return range(self._turn, rows, stride)


def _worth(ranks: RankTable, offer: SizeOption, rate: float) -> float:
    narrow = [line[: min(offer.width, WIDTH)] for line in ranks.accept(rate, offer.depth)]
    return sum(node.chance for node in best_first(offer.nodes, narrow))
