"""Which captured cycle to run: the size that emits most tokens per second from these rows.

A captured cycle costs what its size costs, however much of it a row makes use of, so all rows draft as far as it goes.
What a size costs was timed when it was captured, so no time has to be risked to learn costs. All there is to learn is
how many drafted tokens are accepted. Where no size pays, the cheapest is tried now and then: for a share of all time,
which shrinks while trials fail.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from slipstream.core.device import DraftSize, SizeMenu, SizeOption, next_power_of_two
from slipstream.core.types import Row
from slipstream.plan.policy.acceptance import AcceptanceEstimator
from slipstream.plan.policy.config import AdaptiveConfig
from slipstream.plan.policy.pace import Column, Pace
from slipstream.plan.policy.rank_table import RankTable
from slipstream.plan.policy.tree_shapes import best_first

PLAIN = DraftSize(0)
GOLDEN = (math.sqrt(5) - 1) / 2  # multiples of it fill an interval evenly, however many there are
CERTAIN = 1 - 1e-6  # acceptance beyond which sums of its powers are left to no division


class SizeChoice:
    """Decisions for rows under one drafter and rule."""

    def __init__(self, acceptance: AcceptanceEstimator, config: AdaptiveConfig) -> None:
        self._acceptance, self._margin, self._config = acceptance, config.choice.margin, config.size
        self._width = config.tree.width
        self.pace, self._step = Pace(config.pace), config.pace.step
        self._sensitivities: dict[DraftSize, float] = {}  # of the last decision's options
        self._rates: Column = np.linspace(0.0, 1.0, self._config.grid)
        self._worths: dict[DraftSize, Column] = {}  # of trees, at these rates
        self._rows: set[Row] = set()  # that the last decision was for
        self._listed: Sequence[Row] = ()  # these or some of them, as they were last asked for
        self._last = DraftSize(0)
        self.missed: tuple[DraftSize, float] | None = None  # a barred size, and the seconds that it would save
        self._hold = self._held = 0  # cycles that it holds for, and still holds for
        self._plain = 0  # cycles since anything was drafted
        self._idle = 0  # decisions in a row not to draft; half of them count for new rows
        self._turn = self._decisions = 0
        self._failed: dict[int, float] = {}  # trials of the cheapest size that failed, less decisions to draft, by rows
        self._menu: tuple[int, SizeMenu] | None = None  # for drafts of the host: cycles it still holds for

    def held(self, rows: Sequence[Row]) -> DraftSize | None:
        """What was chosen for these rows, or for these and others that have left, while it holds."""
        if not self._held or (rows is not self._listed and not self._rows.issuperset(rows)):
            return None
        self._listed = rows
        self._held -= 1
        return self._last

    def choose_ready(self, rows: Sequence[Row], menu: Callable[[], SizeMenu], ready: Sequence[int]) -> DraftSize:
        """The size for drafts that the host has made already, `ready` tokens of each row.

        That holds for this cycle only, and the device waits meanwhile: the same menu serves several cycles."""
        if not any(ready):
            return DraftSize(0)
        if self._menu is None or not self._menu[0] or self._rows != {*rows}:
            self._menu = self._config.hold, menu()
        left, (options, delay, missed) = self._menu
        self._menu = left - 1, self._menu[1]
        size = self.choose(rows, options, ready, delay)
        if not next(option.captured for option in options if option.size == size and not option.barred):
            self._menu = None
        if self.missed is not None:
            missed(*self.missed)
        return size

    def choose(
        self, rows: Sequence[Row], options: Sequence[SizeOption], ready: Sequence[int] | None = None, delay: float = 0.0
    ) -> DraftSize:
        """One of the options; the first of them drafts nothing. `ready` tells how many tokens each row has to draft,
        where that is known beforehand. `delay` are seconds before drafting can begin, which it must win back."""
        config = self._config
        same = self._rows.issuperset(rows)
        self._idle = 0 if self._last != PLAIN else self._idle + 1 if same else self._idle // 2
        self._rows, self._listed = set(rows), rows
        least = max(config.hold, len(rows) // config.rows_per_cycle)
        self._hold = max(least, min(least << min(self._idle, 16), config.longest_hold))
        self._held = self._hold - 1
        self._decisions += 1
        if self._decisions % config.refresh == 0:
            self._worths.clear()
        if ready is None:
            expected = self._paced(rows, options, delay)
        else:
            expected = self._charged(options, self._per_token(rows, options, ready), delay)
        allowed = [n for n, option in enumerate(options) if not option.barred]
        self._last = self._fastest([options[n] for n in allowed], [expected[n] for n in allowed], delay, ready)
        self.missed = self._missed(options, expected) or self._saved_up(options)
        return self._last

    def _charged(self, options: Sequence[SizeOption], times: Sequence[float], delay: float) -> list[float]:
        """These seconds, with what it takes before drafting can begin and a doubt about those that are guessed."""
        config = self._config
        return [
            (time + config.caution * delay * bool(option.size.depth))
            * (1.0 if option.captured or option.known else config.uncaptured)
            for option, time in zip(options, times, strict=True)
        ]

    def _paced(self, rows: Sequence[Row], options: Sequence[SizeOption], delay: float) -> list[float]:
        """Seconds until the rows are done, the mean of the average row and the last one, by options. Infinite where the
        last one would be done later than by plain decoding: no size may lower the throughput of the whole batch."""
        average, last = (self._charged(options, times.tolist(), delay) for times in self._done(rows, options))
        latest = [last[0] / (1.0 if option.size in (self._last, PLAIN) else self._config.stay) for option in options]
        return [
            own + self._config.last_row_weight * (whole - own) if whole <= bound else math.inf
            for own, whole, bound in zip(average, last, latest, strict=True)
        ]

    def _done(self, rows: Sequence[Row], options: Sequence[SizeOption]) -> tuple[Column, Column]:
        """Seconds until the average row and the last one are done, by options; of many rows, some are looked at."""
        self._acceptance.settle()
        judged = [rows[r] for r in _in_turn(len(rows), self._config.judged_rows, self._decisions)]
        rate = np.array([self._rate(row) for row in judged])
        left = np.array([max(1, row.left) for row in judged])
        mean = float(rate.sum()) / len(rate)
        around = max(0.0, mean - self._step), mean, min(1.0, mean + self._step)
        seconds = np.array([option.seconds for option in options])
        tail = np.array([option.seconds if option.tail is None else option.tail for option in options])
        accepted = self._accepted(np.append(rate, around), options)
        more, sensitivity = accepted[:, :-3], self._sensitivity(accepted[:, -3:], around[2] - around[0], options)
        return self.pace.seconds(seconds, np.minimum(tail, seconds), more, left, sensitivity, len(rows) / len(judged))

    def _sensitivity(self, accepted: Column, apart: float, options: Sequence[SizeOption]) -> Column:
        """The relative change of a row's speed per change of its acceptance, by options. `accepted`: tokens at three
        rates, of which the first and the last are so far apart."""
        sensitivity: Column = (accepted[:, 2] - accepted[:, 0]) / apart / (1 + accepted[:, 1])
        self._sensitivities = {option.size: float(own) for option, own in zip(options, sensitivity, strict=True)}
        return sensitivity

    @property
    def sensitivity(self) -> float:
        """Of the size in use."""
        return self._sensitivities.get(self._last, 1.0)

    def _per_token(self, rows: Sequence[Row], options: Sequence[SizeOption], ready: Sequence[int]) -> list[float]:
        """Seconds of a token, by options. What is ready is known of this cycle only, so that is all that counts."""
        known = [(self._rate(row), tokens) for row, tokens in zip(rows, ready, strict=True)]
        return [
            option.seconds / sum(1 + _chain(rate, min(tokens, option.size.depth)) for rate, tokens in known)
            for option in options
        ]

    def _missed(self, options: Sequence[SizeOption], expected: Sequence[float]) -> tuple[DraftSize, float] | None:
        """The best of all sizes, if it is barred, and what it would save while this decision holds."""
        best = min(range(len(options)), key=expected.__getitem__)
        chosen = next(n for n, option in enumerate(options) if option.size == self._last and not option.barred)
        if not options[best].barred or self._margin * expected[best] >= expected[chosen]:
            return None
        saved = (1 - expected[best] / expected[chosen]) * options[chosen].seconds * self._hold
        return options[best].size, saved

    def close(self, row: Row) -> None:
        self.pace.close(row)
        self._rows.discard(row)

    def _rate(self, row: Row) -> float:
        """A row's expected acceptance over the rest of its text. Acceptance changes with the position in a text, and
        rows of a batch are at the same position, so their present rate would mislead."""
        return self._acceptance.of(row).remaining_rate(self._acceptance.shared_by(row))

    def _fastest(
        self, options: Sequence[SizeOption], expected: Sequence[float], delay: float, ready: Sequence[int] | None
    ) -> DraftSize:
        config, (plain, *others) = self._config, options
        best = min(range(len(options)), key=expected.__getitem__)
        count = next_power_of_two(len(self._rows))  # the last few rows of a batch say nothing about the next batch
        if self._margin * expected[best] < expected[0]:
            self._plain, self._failed[count] = 0, max(0.0, self._failed.get(count, 0) - config.failures_forgiven)
            return options[self._used(options, expected, best) if ready is None else best].size
        self._plain += self._hold if ready is None else 1
        known = [option for option in others if option.captured or option.known]
        if known and (ready is None or any(ready)):
            cheapest = min(known, key=lambda option: (not option.captured, option.seconds))
            # where the drafter has much to read first, a few cycles more cost little and tell much
            cycles = config.hold if delay > plain.seconds else 1
            change = config.change * plain.seconds + config.change_row * len(self._rows)
            cost = delay + cycles * (cheapest.seconds - plain.seconds) + change
            if self._trial_share * self._plain * plain.seconds > cost and not self._late(cost, plain.seconds):
                self._held, self._plain, self._failed[count] = cycles - 1, 0, self._failed.get(count, 0) + 1
                return cheapest.size
        return plain.size

    def _late(self, cost: float, plain: float) -> bool:
        """Whether a trial had better wait for new rows: these are past their middle, and soon done."""
        left = max(row.left for row in self._listed)
        soon = left * plain < self._config.late_trial * cost
        return soon and 2 * left < max(row.request.max_tokens for row in self._listed)

    @property
    def _trial_share(self) -> float:
        """The share of all time that trials may take, with so many rows."""
        failed = self._failed.get(next_power_of_two(len(self._rows)), 0)
        share: float = self._config.first_trial / 2**failed
        return max(self._config.least_trial, share)

    def _saved_up(self, options: Sequence[SizeOption]) -> tuple[DraftSize, float] | None:
        """Where nothing that drafts is captured, nothing can be tried: the time that trials may take is saved up until
        the cheapest size can be captured for it."""
        plain, *others = options
        if self._last != PLAIN or not others or not all(option.barred for option in others):
            return None
        cheapest = min(others, key=lambda option: option.seconds)
        return cheapest.size, self._trial_share * self._hold * plain.seconds

    def _used(self, options: Sequence[SizeOption], expected: Sequence[float], best: int) -> int:
        """The size in use, if it drafts and is about as good as the best. The next cycle of the same size is launched
        before the last one has ended, that of another size is not."""
        used = next((n for n, option in enumerate(options) if n and option.size == self._last), best)
        return used if expected[used] < self._config.stay * expected[best] else best

    def _accepted(self, rate: Column, options: Sequence[SizeOption]) -> Column:
        """Tokens that each row may expect to have accepted, [options, rows]."""
        depth = np.array([[option.size.depth] for option in options])
        certain = rate > CERTAIN
        accepted: Column = np.where(certain, depth, rate * (1 - rate**depth) / np.where(certain, 1.0, 1 - rate))
        for n, option in enumerate(options):
            if option.size.nodes:
                accepted[n] = np.interp(rate, self._rates, self._worth(option.size))
        return accepted

    def _worth(self, size: DraftSize) -> Column:
        """Expected accepted tokens of a tree, by the rate at which first candidates are accepted."""
        if size not in self._worths:
            ranks = self._acceptance.shared_by(next(iter(self._rows))).ranks or RankTable(self._width)
            self._worths[size] = np.array([_worth(ranks, size, float(rate)) for rate in self._rates])
        return self._worths[size]

    def observed(self, rows: int) -> Sequence[int]:
        """The rows that are worth learning from after this cycle; of many, some in turn are enough."""
        self._turn += 1
        return _in_turn(rows, self._config.observed_rows, self._turn)


def _in_turn(rows: int, most: int, turn: int) -> Sequence[int]:
    """Up to so many of the rows, others in each turn, all as often. Neighbours in this order are far apart and at no
    regular distance: requests may repeat, and every eighth row may have the same prompt."""
    if rows <= most:
        return range(rows)
    step = round(rows * GOLDEN)
    while math.gcd(step, rows) > 1:
        step += 1
    return [place * step % rows for place in range(turn * most, (turn + 1) * most)]


def _chain(rate: float, depth: int) -> float:
    """Expected accepted tokens of a chain."""
    return depth if rate > CERTAIN else rate * (1 - rate**depth) / (1 - rate)


def _worth(ranks: RankTable, size: DraftSize, rate: float) -> float:
    levels = [level[: min(size.width, ranks.width)] for level in ranks.accept(rate, size.depth)]
    return sum(node.chance for node in best_first(size.nodes, levels))
