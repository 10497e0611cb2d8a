"""Policies: how far to draft in the coming cycle, and how wide.

Drafting is a bet. What it may lose is limited in advance: a purse holds a small share of all time spent, and a draft is
made only where the purse covers what it would lose if things went as badly as the little that is known allows. So a
hopeless text costs that share and no more, whatever the machine and the batch, and a promising one is followed while it
pays.

Chain, tree and plain decoding are one question: which drafted tokens are worth their price? The likeliest ones of all
rows stand in one line, and the best place to cut it is sought. A row that is left without tokens decodes plainly, one
left with first candidates only drafts a chain, any other a tree of so many nodes, grown where the drafter thinks best.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slipstream.core.interfaces import Drafter, Model, Policy, Verifier, way
from slipstream.core.tree import Shape, Tree
from slipstream.core.types import Budget, Draft, Row, Verdict
from slipstream.plan.costs import Costs
from slipstream.plan.purse import Purse
from slipstream.plan.shapes import WIDTH
from slipstream.plan.trust import MOST, Ranks, Trust


class Fixed(Policy):
    """The same depth and shape always; a drafter may still stop early before an unlikely token."""

    def __init__(self, depth: int, stop_below: float = 0.0, shape: Shape | None = None) -> None:
        self._budget = Budget(depth, stop_below, shape)

    def budget(self, rows: Sequence[Row]) -> list[Budget]:
        return [self._budget] * len(rows)


MARGIN = 1.05  # drafting must promise so much more than plain decoding: estimates err, and their errors are chosen for
SURE = 0.97  # acceptance that is hoped for when nothing is known
REST, LONGEST = 3, 16  # plain cycles after one in which nothing was found worth drafting, at least and at most
IDLE = 0.004  # of all time goes into finding nothing, where that is timed
STALE = 64  # plain cycles of a row after which even what cannot pay is priced again, if the purse covers it
LOST = 0.75  # of the best speed on the way: where drafting more has fallen below this, no more is looked at
FORGOTTEN = 256  # cycles without any draft after which one token is priced again, whatever it seemed to cost
THOUGHT = 0.02  # of all time goes into decisions where they are timed, as far as
REPEAT = 8  # cycles, at most, are decided like the one before
LEAP = 3  # a pass has at most so many times the drafted tokens that one was ever paid for with


@dataclass
class Span:
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


@dataclass(frozen=True)
class Prices:
    """What the coming pass costs: plain, over `base` tokens, and what so many drafted ones add to it. Prices are found
    out with as little as possible: one token at first, and never many more than were paid for before."""

    base: int
    plain: float
    more: Callable[[float], float]
    most: int = 1 << 30

    @property
    def share(self) -> float:
        """Seconds that an emitted token is worth: what plain decoding takes for one."""
        return self.plain / self.base


Offer = tuple[float, int, int, int, float]
"""A token that could be drafted, in the order of worth: minus its chance, its depth, row and rank; its least chance."""
Column = NDArray[np.float64]
Table = NDArray[np.float64]  # of offers, a line each


class Adaptive(Policy):
    """The drafts that maximise emitted tokens per second: none where drafting does not pay.

    Rows share a pass, so they are decided together: starting from plain decoding for all, the drafted token most likely
    to be emitted is added, again and again, and the best point on the way that the purse covers is taken. Rows left
    plain are tried again now and then, more and more rarely while it fails, with what the purse has left; not where a
    drafted token costs so much that it could not pay if it were accepted. What one row's drafts are worth is what the
    next row is expected to be like.
    """

    def __init__(self, deepest: int = 8, clock: Callable[[], float] | None = None) -> None:
        """With a `clock` thinking is timed, and takes a small share of all time: a decision is kept for a while."""
        if deepest < 1:
            raise ValueError(f"deepest is {deepest}; it must be 1 or more")
        self._clock = clock
        self.deepest, self.costs, self.purse = deepest, Costs(), Purse()
        self._prior = 0.7  # what is believed of a row nothing is known of: what the others' drafts were worth
        self._bushy = 1.0  # drafted tokens for one step of depth; more than one where a drafter branches unasked
        self._trust: dict[Row, Trust] = {}
        self._ranks: dict[Row, Ranks] = {}  # of rows that may have trees
        self._tables: dict[tuple[Drafter, str, int], Ranks] = {}
        self._steps = self._drafted = self._accepted = self._beside = 0
        self._asked = self._branched = False
        self._since = self._idle = 0  # cycles since the last one in which nothing was drafted, and something was
        self._plain: Counter[int] = Counter()  # cycles left plain to learn what so many rows cost
        self._rest = 0  # plain cycles before the same rows are thought about again
        self._kept: tuple[int, list[Span], float] = 0, [], 0.0  # a decision for more cycles, and what each may lose

    def open(self, rows: Sequence[Row], model: Model, drafter: Drafter, rule: Verifier) -> None:
        if way(rule, drafter) is None:
            return
        width = min(WIDTH, model.vocab)
        ranks = self._tables.setdefault((drafter, rule.name, width), Ranks(width, min(MOST, model.context)))
        self._ranks |= dict.fromkeys(rows, ranks)

    def close(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._ranks.pop(row, None)

    def budget(self, rows: Sequence[Row]) -> list[Budget]:
        # of the coming cycle, also where it has no row to decide for
        self._steps = self._drafted = self._accepted = 0
        self._branched = False
        known = self._trust
        trust = self._trust = {row: known.get(row) or Trust(self._prior, ranks=self._ranks.get(row)) for row in rows}
        if trust.keys() != known.keys():
            self._rest, self._kept = 0, (0, [], 0.0)
        spans = self._depths(list(trust.values())) if trust else []
        self._asked = any(spans)
        self._since, self._idle = (self._since + 1, 0) if self._asked else (0, self._idle + 1)
        widest = [one.ranks.width if one.ranks else 1 for one in trust.values()]
        return [span.budget(most) for span, most in zip(spans, widest, strict=True)]

    def _depths(self, trust: list[Trust]) -> list[Span]:
        base = len(trust) + self._beside
        for one in trust:
            one.quiet += 1
        if self._rest:
            self._rest -= 1
            return [Span() for _ in trust]
        if self._must_be_plain(base):
            self._plain[base] += 1
            return [Span() for _ in trust]
        now = Prices(base, self.costs.plain(base), self.costs.more(base), max(1, LEAP * self.costs.most(base)))
        stake = self.purse.stake(now.plain)
        if stake <= 0:
            return [Span() for _ in trust]
        more, kept, risk = self._kept
        if more and risk <= stake:
            self._kept = more - 1, kept, risk
            return kept
        began = self._clock() if self._clock else 0.0
        spans, risk = self._best(trust, now, stake)
        usual = [bool(span) for span in spans]
        self._probe(trust, spans, now, stake, max(0.0, risk))
        if not any(spans):  # little changes while nothing is drafted, and thinking takes its time too
            spent = self._clock() - began if self._clock else 0.0
            self._rest = max(REST, min(LONGEST, int(spent / (IDLE * now.plain))))
        elif self._clock and usual == [bool(span) for span in spans]:  # attempts are made once
            self._kept = min(REPEAT, int((self._clock() - began) / (THOUGHT * now.plain))), spans, risk
        return spans

    def _must_be_plain(self, base: int) -> bool:
        """What drafting is held against is measured first, and then twice more between drafts: held against nothing,
        or against a hiccup, drafting might look free for ever. Rows of others may always ride along, so that a pass of
        this size never comes alone: then it is not waited for."""
        if not self.costs.seen(base):
            return self._plain[base] < 3
        return self._since > 1 and not self.costs.sure(base) and self._plain[base] < 6

    def _best(self, trust: list[Trust], now: Prices, stake: float) -> tuple[list[Span], float]:
        """The best draft of each row, and what it may lose. Sorted by their chance drafted tokens stand in the order
        in which they are worth adding, each after those it follows. Only a level costs more than a token of it, so
        where rows may branch the line is also tried without what lies too deep. Where the best of all is worth the
        margin, a smaller step towards it that the purse covers will do."""
        offers: list[Offer] = sorted(
            (-node.chance, node.depth, r, node.rank, node.least)
            for r, one in enumerate(trust)
            for node in one.nodes(self.deepest)
        )
        table = np.array(offers).reshape(-1, 5)
        prices = np.array([now.more(n * self._bushy) for n in range(1, len(offers) + 1)])
        deepest, wide = int(table[:, 1].max(initial=0)), bool((table[:, 3] > 0).any())
        promise = best = now.base / now.plain
        taken, lose = list[Offer](), 0.0
        for limit in range(1, deepest + 1) if wide else [deepest]:
            (line,) = np.nonzero(table[:, 1] <= limit)
            top, speed, risk, count = self._cut(table[line], now, prices, stake, best)
            promise = max(promise, top)
            if speed > best:
                taken, best, lose = [offers[i] for i in line[:count]], speed, risk
        if promise * now.share < MARGIN:
            taken, lose = [], 0.0
        spans = [Span() for _ in trust]
        for _, depth, r, rank, _ in taken:
            span = spans[r]
            span.nodes, span.depth, span.width = span.nodes + 1, max(span.depth, depth), max(span.width, rank + 1)
        return spans, lose

    def _cut(
        self, line: Table, now: Prices, prices: Column, stake: float, best: float
    ) -> tuple[float, float, float, int]:
        """The speed of the best cut whatever it risks; the speed, risk and length of the best one that beats `best` and
        the purse covers: half of it what is likely to be lost, all of it what is lost if no token is accepted."""
        if not len(line):
            return best, best, 0.0, 0
        chance, depth, _, rank, low = line.T
        step = np.where(np.maximum.accumulate(rank) > 0, self.costs.branching, self.costs.step)
        cost = prices[: len(line)] + step * np.maximum.accumulate(depth)
        speed = (now.base - chance.cumsum()) / (now.plain + cost)
        lost = speed < LOST * np.maximum.accumulate(speed)  # chances fall and prices rise: it will not come back
        end = int(lost.argmax()) if lost.any() else len(line)
        risk, count = cost - low.cumsum() * now.share, np.arange(1, len(line) + 1)
        fits = (count <= min(end, now.most)) & (risk <= stake) & (cost <= 2 * stake)
        at = int(np.where(fits, speed, 0.0).argmax())
        top = max(best, float(speed[: end + 1].max()))
        found = (float(speed[at]), float(risk[at]), at + 1) if fits[at] and speed[at] > best else (best, 0.0, 0)
        return top, *found

    def _probe(self, trust: list[Trust], spans: list[Span], now: Prices, stake: float, risk: float) -> None:
        """Try rows that were left plain for long, the longest first, two tokens each or one, while what the others do
        not risk of the stake covers it."""
        left = stake - risk
        due = [r for r, one in enumerate(trust) if not spans[r] and one.quiet > one.wait]
        if due and self._idle > FORGOTTEN:  # what nobody has paid for so long may have been a hiccup
            spans[due[0]] = Span(1, 1)
            return
        if due and not self._may_pay(now):
            due = [r for r in due if trust[r].quiet > STALE]
        if not self.costs.priced:
            due = [] if any(spans) else due[:1]
        total, deepest = sum(span.nodes for span in spans), max(span.depth for span in spans)
        for r in sorted(due, key=lambda r: -trust[r].quiet):
            for depth in (2, 1) if self.costs.priced else (1,):
                new = now.more((total + depth) * self._bushy) - now.more(total * self._bushy)
                new += self.costs.step * max(0, depth - deepest)
                alone = total == 0 and depth == 1  # the least there is may take all of the purse
                if depth <= self.deepest and new <= (max(left, 2 * stake) if alone else left):
                    left, total, deepest = left - new, total + depth, max(deepest, depth)
                    spans[r] = Span(depth, depth)
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
        if not len(draft.tree):
            return
        nodes, levels = [0] * len(rows), [0] * len(rows)
        depth: list[int] = []
        for r, p in draft.tree.lists:
            depth.append(1 if p < 0 else depth[p] + 1)
            nodes[r] += 1
            levels[r] = max(levels[r], depth[-1])
        self._steps = max(self._steps, *levels)
        self._branched |= nodes != levels
        for r, (row, path) in enumerate(zip(rows, verdict.path.tolist(), strict=True)):
            if row not in self._trust or not nodes[r]:  # its depth was the user's choice, or there is nothing to learn
                continue
            one, judged = self._trust[row], judge(draft.tree, r, [i for i in path if i >= 0])
            accepted, first = sum(rank >= 0 for rank, _ in judged), [rank == 0 for rank, _ in judged]
            self._drafted += nodes[r]
            self._accepted += accepted
            one.learn(levels[r], accepted, first)
            if one.ranks:
                one.ranks.learn(judged)
            else:
                self._bushy += 0.1 * (nodes[r] / levels[r] - self._bushy)
            for hit in first:
                self._prior += 0.05 * (hit - self._prior)

    def price(self, drafting: float, scoring: float, tokens: int) -> None:
        self.costs.learn(drafting, scoring, tokens, self._drafted, self._steps, self._branched)
        base = tokens - self._drafted
        self._beside = max(0, base - len(self._trust))
        if self._trust:
            plain = self.costs.plain(base)
            lost = drafting if self._asked else 0.0
            if self._drafted:  # as it was measured, a hiccup aside
                usual = self.costs.more(base)(self._drafted)
                lost += min(scoring - plain, 3 * usual + plain / 10)
            least = self.costs.more(base)(self._bushy) + self.costs.step
            self.purse.book(self._accepted * plain / base - lost, plain, MARGIN * least)


def judge(tree: Tree, row: int, path: Sequence[int]) -> list[tuple[int, int]]:
    """Of each place along an accepted path that had candidates: which of them was accepted, -1 for none; how many."""
    found, slot = [], row
    for node in [*path, -1]:
        line = tree.children[slot]
        if line:
            found.append((line.index(node) if node >= 0 else -1, len(line)))
        slot = tree.rows + node
    return found
