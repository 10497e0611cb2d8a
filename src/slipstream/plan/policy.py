"""Policies: how far to draft in the coming cycle, and how wide.

Drafting is a bet. What it may lose is limited in advance: a purse holds a small share of all time spent and what the
same texts won before, and a draft is made only where the purse covers what it would lose if none of it were accepted.
So a hopeless text costs that share and no more, whatever the machine and the batch, and a promising one is followed
while it pays.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

from slipstream.core.interfaces import Drafter, Model, Policy, Verifier, sibling_mode
from slipstream.core.tree import Shape, Tree
from slipstream.core.types import Budget, Draft, Row, Verdict
from slipstream.plan.acceptance import MOST, PRIOR, AcceptanceEstimate, RankTable
from slipstream.plan.choice import MARGIN, CyclePrices, RowBudget, best
from slipstream.plan.costs import CostModel
from slipstream.plan.drafting_cost import DraftingCost, drafting_cost
from slipstream.plan.loss_budget import LossBudget
from slipstream.plan.tree_shapes import DEPTH, WIDTH


class Fixed(Policy):
    """The same depth and shape always; a drafter may still stop early before an unlikely token."""

    def __init__(self, depth: int, stop_below: float = 0.0, shape: Shape | None = None) -> None:
        self._budget = Budget(depth, stop_below, shape)

    @classmethod
    def build(cls) -> Fixed:
        return cls(DEPTH)

    def budget(self, rows: Sequence[Row]) -> list[Budget]:
        return [self._budget] * len(rows)


REST, LONGEST = 3, 32  # plain cycles after one in which nothing was found worth drafting, at least and at most
IDLE = 0.002  # of all time goes into finding nothing, where that is timed
STALE = 64  # plain cycles of a row after which even what cannot pay is priced again, if the purse covers it
FORGOTTEN = 256  # cycles without any draft after which one token is priced again, if the least income covers it
IDLE_LONG = 128  # cycles without any draft after which rests become longer
THOUGHT = 0.02  # of all time goes into decisions where they are timed, as far as
REPEAT = 8  # cycles, at most, are decided like the one before
PAUSE, MISSED = 2, 16  # cycles, and tokens of a row, after which a drafter has more to read than usual
MEMORY = 64.0  # drafted tokens that what is believed of a new row rests on
PLAIN = Budget(0)


class Adaptive(Policy):
    """The drafts that maximise emitted tokens per second: none where drafting does not pay.

    Rows share a pass, so they are decided together: starting from plain decoding for all, the drafted token most likely
    to be emitted is added, again and again, and the best point on the way that the purse covers is taken. Rows left
    plain are tried again now and then, more and more rarely while it fails, with what the purse has left; not where a
    drafted token costs so much that it could not pay if it were accepted. What one row's drafts are worth is what the
    next row is expected to be like.
    """

    @classmethod
    def build(cls) -> Adaptive:
        return cls(clock=time.perf_counter)

    def __init__(self, deepest: int = 8, clock: Callable[[], float] | None = None) -> None:
        """With a `clock` thinking is timed, and takes a small share of all time: a decision is kept for a while."""
        if deepest < 1:
            raise ValueError(f"deepest is {deepest}; it must be 1 or more")
        self._clock = clock
        self.deepest, self.costs, self.purse = deepest, CostModel(), LossBudget()
        self._prior = 0.7  # what is believed of a row nothing is known of: what the others' drafts were worth
        self._heard = PRIOR  # so many observations' worth
        self._bushy = 1.0  # drafted tokens for one step of depth; more than one where a drafter branches unasked
        self._trust: dict[Row, AcceptanceEstimate] = {}
        self._ranks: dict[Row, RankTable] = {}  # of rows that may have trees
        self._tables: dict[tuple[Drafter, str, int], RankTable] = {}
        self._steps = self._drafted = self._accepted = self._beside = self._missed = 0
        self._asked = self._branched = self._late = False
        self._requested = 0  # cycles in which drafts were asked for
        self._since = self._idle = 0  # cycles since the last one in which nothing was drafted, and something was
        self._plain: Counter[int] = Counter()  # cycles left plain to learn what so many rows cost
        self._rest = 0  # plain cycles before the same rows are thought about again
        self._unbooked = 0  # such cycles since the purse was last told of any
        self._kept: tuple[int, list[RowBudget], float] = 0, [], 0.0  # a decision for more cycles, and what each costs

    def open(self, rows: Sequence[Row], model: Model, drafter: Drafter, rule: Verifier) -> None:
        if sibling_mode(rule, drafter) is None:
            return
        width = min(WIDTH, model.vocab)
        ranks = self._tables.setdefault((drafter, rule.name, width), RankTable(width, min(MOST, model.context)))
        self._ranks |= dict.fromkeys(rows, ranks)

    def close(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._ranks.pop(row, None)

    def budget(self, rows: Sequence[Row]) -> list[Budget]:
        # of the coming cycle, also where it has no row to decide for
        self._steps = self._drafted = self._accepted = self._missed = 0
        self._branched = self._late = False
        if self._rests(rows):
            return [PLAIN] * len(rows)
        known = self._trust
        trust = self._trust = {
            row: known.get(row) or AcceptanceEstimate(self._prior, ranks=self._ranks.get(row)) for row in rows
        }
        if trust.keys() != known.keys():
            self._others_come()
        spans = self._depths(list(trust.values())) if trust else []
        self._asked = any(spans)
        self._requested += self._asked
        self._since, self._idle = (self._since + 1, 0) if self._asked else (0, self._idle + 1)
        widest = [one.ranks.width if one.ranks else 1 for one in trust.values()]
        return [span.budget(most) for span, most in zip(spans, widest, strict=True)]

    @property
    def drafting_cost(self) -> DraftingCost:
        """What a drafted token costs and how likely it is accepted, by the latest measurements."""
        rates = [one.rate for one in self._trust.values()] or [self._prior]
        return drafting_cost(self.costs, sum(rates) / len(rates), self._requested)

    def _rests(self, rows: Sequence[Row]) -> bool:
        """Whether these are the rows that were left plain for some cycles, of which this is one."""
        if not self._rest or len(rows) != len(self._trust) or any(row not in self._trust for row in rows):
            return False
        for one in self._trust.values():
            one.pause(self._prior)
        self._rest -= 1
        self._asked, self._since, self._idle = False, 0, self._idle + 1
        return True

    def _others_come(self) -> None:
        self._rest, self._kept = 0, (0, [], 0.0)
        if self._trust:
            self.purse.hand_over(self.costs.plain(len(self._trust)))

    def _depths(self, trust: list[AcceptanceEstimate]) -> list[RowBudget]:
        base = len(trust) + self._beside
        for one in trust:
            one.pause(self._prior)
        if self._must_be_plain(base):
            self._plain[base] += 1
            return [RowBudget() for _ in trust]
        if self.costs.unclear and any(one.quiet == 1 for one in trust):  # what they read is read: now for its price
            return [RowBudget(1, 1) if one.quiet == 1 else RowBudget() for one in trust]
        now = self._prices(base)
        purse = self._rouse(self.purse.holds(now.plain))
        if purse <= 0:
            self._rest = self._until(-purse, now.plain)
            return [RowBudget() for _ in trust]
        more, kept, cost = self._kept
        if more and cost <= purse:
            self._kept = more - 1, kept, cost
            return kept
        if (least := now.cost(1, 1)) > purse and self._idle <= FORGOTTEN:  # whatever it promises, none can be drafted
            self._rest = max(REST, self._until(least - purse, now.plain))
            return [RowBudget() for _ in trust]
        began = self._clock() if self._clock else 0.0
        spans, cost = best(trust, now, self.deepest, purse)
        usual = [bool(span) for span in spans]
        self._probe(trust, spans, now, purse)
        if not any(spans):  # little changes while nothing is drafted, and thinking takes its time too
            spent = self._clock() - began if self._clock else 0.0
            self._rest = max(REST, min(LONGEST, int(spent / (IDLE * now.plain))))
        elif self._clock and usual == [bool(span) for span in spans]:  # attempts are made once
            self._kept = min(REPEAT, int((self._clock() - began) / (THOUGHT * now.plain))), spans, cost
        return spans

    def _until(self, seconds: float, plain: float) -> int:
        """Cycles of rest until so much more is in the purse; none where something was drafted lately, since prices may
        change meanwhile."""
        return min(LONGEST, int(seconds / (self.purse.income * plain))) if self._idle > IDLE_LONG else 0

    def _rouse(self, purse: float) -> float:
        """Rows whose drafter has missed so much of them that the purse does not cover reading it are left asleep; what
        is left of the purse when the drafter has read the others."""
        wakes = [self.costs.reading(row.length - one.read - MISSED) for row, one in self._trust.items()]
        for wake, one in sorted(zip(wakes, self._trust.values(), strict=True), key=lambda both: both[0]):
            one.wake, one.asleep = wake, wake > max(purse, 0.0)
            purse -= 0.0 if one.asleep else wake
        return purse

    def _prices(self, base: int) -> CyclePrices:
        costs, more = self.costs, self.costs.more(base)
        return CyclePrices(base, costs.plain(base), more, costs.chain, costs.tree, self._bushy, costs.most(base))

    def _must_be_plain(self, base: int) -> bool:
        """What drafting is held against is measured first, and then twice more between drafts: held against nothing,
        or against a hiccup, drafting might look free for ever. Rows of others may always ride along, so that a pass of
        this size never comes alone: then it is not waited for."""
        if not self.costs.seen(base):
            return self._plain[base] < 3
        return self._since > 1 and not self.costs.sure(base) and self._plain[base] < 6

    def _probe(self, trust: list[AcceptanceEstimate], spans: list[RowBudget], now: CyclePrices, purse: float) -> None:
        """Try rows that were left plain for long, the longest first, two tokens each or one, beside what the others
        draft, while the purse covers all of it."""
        due = [r for r, one in enumerate(trust) if not spans[r] and one.quiet > one.wait]
        if due and self._idle > FORGOTTEN:  # what nobody has paid for so long may have been a hiccup
            first = min(due, key=lambda r: trust[r].wake)
            if now.cost(1, 1) + trust[first].wake <= self.purse.least * self._idle * now.plain:
                spans[first] = RowBudget(1, 1)
                return
        due = [r for r in due if not trust[r].asleep]
        if due and not now.may_pay(self.deepest):
            due = [r for r in due if trust[r].quiet > STALE]
        total, deepest = sum(span.nodes for span in spans), max(span.depth for span in spans)
        wide = any(span.width > 1 for span in spans)
        for r in sorted(due, key=lambda r: -trust[r].quiet):
            for depth in (2, 1):
                level = max(deepest, depth)
                if depth <= self.deepest and now.covered(total + depth, now.cost(total + depth, level, wide), purse):
                    total, deepest, spans[r] = total + depth, level, RowBudget(depth, depth)
                    break

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
            kept, one = [i for i in path if i >= 0], self._trust[row]
            judged = chain(levels[r], len(kept)) if nodes[r] == levels[r] else judge(draft.tree, r, kept)
            accepted, first = len(kept), [rank == 0 for rank, _ in judged]
            self._drafted += nodes[r]
            self._accepted += accepted
            missed = row.length - one.read
            self._late |= one.quiet > PAUSE or missed > MISSED
            self._missed += missed if missed > MISSED else 0
            one.read = row.length
            one.learn(levels[r], accepted, first)
            if one.ranks:
                one.ranks.learn(judged)
            else:
                self._bushy += 0.1 * (nodes[r] / levels[r] - self._bushy)
            for hit in first:
                self._heard = min(self._heard + 1, MEMORY)
                self._prior += (hit - self._prior) / self._heard

    def price(self, drafting: float, scoring: float, tokens: int) -> None:
        self.costs.learn(scoring, tokens, self._drafted)
        if self._steps:
            self.costs.draft(drafting, self._steps, self._branched, self._late, self._missed)
        if not self._trust:
            self._beside = 0
            return
        if self._rest and not self._asked:
            self._unbooked += 1
            return
        base = tokens - self._drafted
        self._beside = max(0, base - len(self._trust))
        plain, more = self.costs.plain(base), self.costs.more(base)
        lost = drafting if self._asked else 0.0
        if self._drafted:  # as it was measured, a hiccup aside
            lost += min(scoring - plain, 3 * more(self._drafted) + plain / 10)
        least = more(self._bushy) + self.costs.chain(1)
        won, self._unbooked, cycles = self._accepted * plain / base - lost, 0, self._unbooked + 1
        if self._drafted:
            self.purse.bet(self._accepted > 0)
        self.purse.book(won, plain, MARGIN * least, cycles)


def chain(drafted: int, accepted: int) -> list[tuple[int, int]]:
    """`judge` of a chain."""
    return [(0, 1)] * accepted + [(-1, 1)] * (accepted < drafted)


def judge(tree: Tree, row: int, path: Sequence[int]) -> list[tuple[int, int]]:
    """Of each place along an accepted path that had candidates: which of them was accepted, -1 for none; how many."""
    found, slot = [], row
    for node in [*path, -1]:
        line = tree.children[slot]
        if line:
            found.append((line.index(node) if node >= 0 else -1, len(line)))
        slot = tree.rows + node
    return found
