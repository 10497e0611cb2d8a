"""How much each row drafts where every cycle may have any size.

Drafting is a bet. What it may lose is limited in advance (`LossBudget`): a draft is made only where the budget covers
what it would lose if none of it were accepted. So a hopeless text costs a small share of all time and no more, whatever
the machine and the batch, and a promising one is followed while it pays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from slipstream.core.types import Budget, Row
from slipstream.plan.policy.acceptance import AcceptanceEstimate, AcceptanceEstimator
from slipstream.plan.policy.choice import CyclePrices, RowBudget, best
from slipstream.plan.policy.config import AdaptiveConfig
from slipstream.plan.policy.costs import CostModel
from slipstream.plan.policy.cycle_record import CycleRecord, RowDraft
from slipstream.plan.policy.drafting_cost import DraftingCost, drafting_cost
from slipstream.plan.policy.loss_budget import LossBudget
from slipstream.plan.policy.prices import RecentMedian, Slowdown

PLAIN = Budget(0)


class FreeChoice:
    """The drafts that maximise emitted tokens per second: none where drafting does not pay.

    Rows share a pass, so they are decided together: starting from plain decoding for all, the drafted token most likely
    to be emitted is added, again and again, and the best point on the way that the budget covers is taken. Rows left
    plain are tried again now and then, more and more rarely while it fails, with what the budget has left; not where a
    drafted token costs so much that it could not pay if it were accepted.
    """

    def __init__(
        self,
        acceptance: AcceptanceEstimator,
        costs: CostModel,
        config: AdaptiveConfig,
        clock: Callable[[], float] | None,
    ) -> None:
        self._acceptance, self.costs, self._config, self._rest_config = acceptance, costs, config, config.rest
        self._long_choice = replace(config.choice, stake=config.choice.long_stake)
        self._clock = clock  # of decisions; None: these are not timed
        self.losses = LossBudget(config.loss)
        self._slowdown = Slowdown(config.cost)
        self._lengths = RecentMedian(config.cost.window)  # tokens of rows that have ended
        self._nodes_per_level = 1.0  # more than one where a drafter branches unasked
        self._estimates: dict[Row, AcceptanceEstimate] = {}  # of the rows that are decided for
        self.chains_only: set[Row] = set()  # rows for which chains were asked for
        self._record = CycleRecord()
        self._others = 0  # rows in the last pass that were not decided for
        self._asked = False  # whether drafts were asked for in this cycle
        self._requested = 0  # cycles in which they were
        self._since = self._idle = 0  # cycles since nothing was drafted, and since something was
        self._plain: Counter[int] = Counter()  # cycles left plain to learn what so many rows cost
        self._rest = 0  # plain cycles before the same rows are thought about again
        self._unbooked = 0  # such cycles since the loss budget was last told of any
        self._least_chance = 0.0  # of a chain that is worth its cost
        self._kept: tuple[int, list[RowBudget], float] = 0, [], 0.0  # a decision for more cycles, and what each costs

    def budget(self, rows: Sequence[Row]) -> list[Budget]:
        self._record = CycleRecord()
        if self._rests(rows):
            return [PLAIN] * len(rows)
        before = self._estimates.keys()
        self._estimates = {row: self._acceptance.of(row) for row in rows}
        if self._estimates.keys() != before:
            self._rows_changed()
        budgets = self._decide(list(self._estimates.values())) if rows else []
        self._asked = any(budgets)
        self._requested += self._asked
        self._since, self._idle = (self._since + 1, 0) if self._asked else (0, self._idle + 1)
        widths = [estimate.ranks.width if estimate.ranks else 1 for estimate in self._estimates.values()]
        return [budget.budget(width, self._least_chance) for budget, width in zip(budgets, widths, strict=True)]

    @property
    def drafting_cost(self) -> DraftingCost:
        """What a drafted token costs and how likely it is accepted, by the latest measurements."""
        rates = [estimate.rate for estimate in self._estimates.values()] or [self._acceptance.expected]
        return drafting_cost(self.costs, sum(rates) / len(rates), self._requested)

    def _pause(self) -> None:
        for row, estimate in self._estimates.items():
            estimate.pause(self._acceptance.shared_by(row).rate)

    def steady(self, rows: Sequence[Row]) -> int:
        """In how many cycles after this one these rows get what they got for this one."""
        if not self._decided_for(rows):
            return 0
        (more, _, cost), base = self._kept, len(rows) + self._others
        if self._rest or not more or not self.costs.sure(base):
            return self._rest
        plain = self.costs.plain(base)
        most = max(cost, self._rest_config.steady_cost * plain)  # what is known of costs may change meanwhile
        return max(0, min(more, int(self.losses.holds(plain) / most) - 1))

    def _decided_for(self, rows: Sequence[Row]) -> bool:
        """Whether the last decision was for these rows."""
        known = self._estimates
        return len(rows) == len(known) and all(row in known for row in rows)

    def _rests(self, rows: Sequence[Row]) -> bool:
        """Whether these are the rows that were left plain for some cycles, of which this is one."""
        if not self._rest or not self._decided_for(rows):
            return False
        self._pause()
        self._rest -= 1
        self._asked, self._since, self._idle = False, 0, self._idle + 1
        return True

    def _rows_changed(self) -> None:
        self._rest, self._kept = 0, (0, [], 0.0)
        if self._estimates:
            self.losses.hand_over(self.costs.plain(len(self._estimates)))

    def _decide(self, estimates: list[AcceptanceEstimate]) -> list[RowBudget]:
        config, base = self._rest_config, len(estimates) + self._others
        self._pause()
        if self._must_be_plain(base):
            self._plain[base] += 1
            return [RowBudget() for _ in estimates]
        if self.costs.unclear and any(row.quiet == 1 for row in estimates):  # what they read is read: now for its cost
            return [RowBudget(1, 1) if row.quiet == 1 else RowBudget() for row in estimates]
        prices = self._prices(base)
        allowed = self._wake(self.losses.holds(prices.plain), prices)
        if allowed <= 0:
            self._rest = self._cycles_until(-allowed, prices.plain)
            return [RowBudget() for _ in estimates]
        more, kept, cost = self._kept
        if more and cost <= allowed:
            self._kept = more - 1, kept, cost
            return kept
        if (least := prices.cost(1, 1)) > allowed and self._idle <= config.forgotten:  # nothing can be drafted
            self._rest = max(config.min_rest, self._cycles_until(least - allowed, prices.plain))
            return [RowBudget() for _ in estimates]
        return self._think(estimates, prices, allowed)

    def _think(self, estimates: list[AcceptanceEstimate], prices: CyclePrices, allowed: float) -> list[RowBudget]:
        config = self._rest_config
        began = self._clock() if self._clock else 0.0
        budgets, cost = best(estimates, prices, self._config.max_depth, allowed)
        usual = [bool(budget) for budget in budgets]
        self._least_chance = prices.break_even(self._config.max_depth)
        self._probe(estimates, budgets, prices, allowed)
        spent = self._clock() - began if self._clock else 0.0
        if not any(budgets):  # little changes while nothing is drafted, and thinking takes its time too
            rest = int(spent / (config.idle_share * prices.plain))
            self._rest = max(config.min_rest, min(config.max_rest, rest))
        elif self._clock and usual == [bool(budget) for budget in budgets]:  # attempts are made once
            repeat = int(spent / (config.thought_share * prices.plain))
            least = config.alone_repeat if prices.base == 1 and self.chains_only >= self._estimates.keys() else 0
            self._kept = max(least, min(config.max_repeat, repeat)), budgets, cost
        return budgets

    def _cycles_until(self, seconds: float, plain: float) -> int:
        """Cycles of rest until the loss budget holds so much more; few where something was drafted lately,
        since costs may change meanwhile."""
        config = self._rest_config
        if self._idle <= config.short_rest:
            return min(config.min_rest, int(seconds / (self.losses.income * plain)))
        most = config.max_rest if self._idle > config.long_idle else config.short_rest
        return min(most, int(seconds / (self.losses.income * plain)))

    def _wake(self, allowed: float, prices: CyclePrices) -> float:
        """Rows whose drafter missed more than the allowed loss pays for are left asleep. What is left of the allowed
        loss when the drafter has read the others."""
        missed = self._rest_config.missed
        wakes = [
            self.costs.reading(row.length - known.read - missed) + self._setup_cost(row, known, prices)
            for row, known in self._estimates.items()
        ]
        for wake, estimate in sorted(zip(wakes, self._estimates.values(), strict=True), key=lambda pair: pair[0]):
            estimate.wake, estimate.asleep = wake, wake > max(allowed, 0.0)
            allowed -= 0.0 if estimate.asleep else wake
        return allowed

    def _setup_cost(self, row: Row, known: AcceptanceEstimate, prices: CyclePrices) -> float:
        """Seconds that the drafter takes to set up a row; 0 if drafts are expected to save more than that until the row
        has as many tokens as others had."""
        if known.read or not known.setup:
            return 0.0
        left = (self._lengths.value if self._lengths else row.request.max_tokens) - row.emitted
        gain = 1 - 1 / prices.promise(known.rate, self._config.max_depth)
        won = self._config.choice.setup * known.setup < gain * prices.share * left
        return 0.0 if won else known.setup

    def closed(self, row: Row) -> None:
        """A row has ended, or was cancelled."""
        self.chains_only.discard(row)
        self._lengths.add(row.emitted)

    def _prices(self, base: int) -> CyclePrices:
        costs = self.costs
        curves = costs.more(base), costs.chain, costs.tree
        long = all(estimate.longest_chain for estimate in self._estimates.values())
        choice = self._long_choice if long else self._config.choice
        return CyclePrices(base, costs.plain(base), *curves, self._nodes_per_level, costs.most(base), choice)

    def _must_be_plain(self, base: int) -> bool:
        """A plain pass is measured first, and then twice more between drafts: compared with nothing, or with one slow
        pass, drafting might look free for ever. Rows of others may always be in the pass, so that one of this size
        never comes alone: then it is not waited for."""
        if not self.costs.seen(base):
            return self._plain[base] < 3
        return self._since > 1 and not self.costs.sure(base) and self._plain[base] < 6

    def _probe(
        self, estimates: list[AcceptanceEstimate], budgets: list[RowBudget], prices: CyclePrices, allowed: float
    ) -> None:
        """Try rows that were left plain for long, the longest first, two tokens each or one, beside what the others
        draft, while the allowed loss covers all of it."""
        config, max_depth = self._rest_config, self._config.max_depth
        due = [r for r, row in enumerate(estimates) if not budgets[r] and row.quiet > row.wait]
        if due and self._idle > config.forgotten:  # a cost that was too high for so long may have been one slow pass
            first = min(due, key=lambda r: estimates[r].wake)
            saved = self.losses.least * self._idle * prices.plain
            if prices.cost(1, 1) + estimates[first].wake <= saved:
                budgets[first] = RowBudget(1, 1)
                return
        due = [r for r in due if not estimates[r].asleep]
        if due and not prices.may_pay(max_depth):
            due = [r for r in due if estimates[r].quiet > config.stale]
        total, deepest = sum(budget.nodes for budget in budgets), max(budget.depth for budget in budgets)
        branched = any(budget.width > 1 for budget in budgets)
        for r in sorted(due, key=lambda r: -estimates[r].quiet):
            for depth in (2, 1):
                level, nodes = max(deepest, depth), total + depth
                if depth <= max_depth and prices.covered(nodes, prices.cost(nodes, level, branched), allowed):
                    total, deepest, budgets[r] = nodes, level, RowBudget(depth, depth)
                    break

    def observe(self, rows: Sequence[Row], drafts: Sequence[RowDraft]) -> None:
        record, config = self._record, self._rest_config
        for row, drafted in zip(rows, drafts, strict=True):
            record.steps = max(record.steps, drafted.levels)
            record.branched |= drafted.nodes != drafted.levels
            if not drafted.nodes:
                continue
            chosen = row in self._estimates  # otherwise its depth was the user's choice
            estimate = self._acceptance.of(row)
            if chosen:
                missed = row.length - estimate.read
                record.setup |= not estimate.read and estimate.setup > 0
                record.drafted += drafted.nodes
                record.accepted += sum(rank >= 0 for rank, _ in drafted.judged)
                record.late |= estimate.quiet > config.pause or missed > config.missed
                record.missed += missed if missed > config.missed else 0
            estimate.read = row.length
            self._acceptance.learn(row, drafted.levels, drafted.judged)
            if chosen and not estimate.ranks:
                self._nodes_per_level += 0.1 * (drafted.nodes / drafted.levels - self._nodes_per_level)

    def _draft_seconds(self, measured: float) -> float:
        """What the draft of this cycle counts as: by the cost model, if its time is known there.

        Other programs on the machine make single times longer and never shorter. Booked one by one, they would use up
        the loss budget, although plain passes take longer just as often."""
        record = self._record
        curve = self.costs.tree if record.branched else self.costs.chain
        known = record.steps in curve and not record.late
        if record.setup:  # that was expected to be won back
            return curve(record.steps) if known else 0.0
        return min(measured, curve(record.steps)) if known else measured

    def price(self, drafting: float, scoring: float, tokens: int) -> None:
        record, costs = self._record, self.costs
        slowdown = self._slowdown.update(scoring, costs.known(tokens, record.drafted))
        drafting, scoring = drafting / slowdown, scoring / slowdown
        costs.learn(scoring, tokens, record.drafted)
        if record.steps and not record.setup:
            costs.draft(drafting, record.steps, record.branched, record.late, record.missed)
        if not self._estimates:
            self._others = 0
            return
        if self._rest and not self._asked:
            self._unbooked += 1
            return
        base = tokens - record.drafted
        self._others = max(0, base - len(self._estimates))
        plain, more = costs.plain(base), costs.more(base)
        lost = self._draft_seconds(drafting) if self._asked else 0.0
        if record.drafted:
            lost += more(record.drafted)
        least = more(self._nodes_per_level) + costs.chain(1)
        won, self._unbooked, cycles = record.accepted * plain / base - lost, 0, self._unbooked + 1
        if record.drafted:
            self.losses.settle(record.accepted > 0)
        self.losses.book(won, plain, self._config.choice.margin * least, cycles)
