"""How likely drafted tokens are accepted: one estimate per row, and what rows under one drafter and rule share.

How often a first candidate is accepted depends on the text, so every row has its own rate, which starts from what
other rows' drafts were worth. What later candidates catch depends on drafter and rule, so rows share a `RankTable`.
Together they give the chance of every token a row could draft. Sorted by chance, these are the best tree of every size.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from slipstream.core.types import Row
from slipstream.plan.policy.config import AcceptanceConfig
from slipstream.plan.policy.rank_table import Judged, RankTable
from slipstream.plan.policy.tree_shapes import Node, best_first

Counts = NDArray[np.int64]


@dataclass
class SharedAcceptance:
    """What rows under one drafter and rule have in common. `ranks` None: their drafts do not branch."""

    rate: float  # what a new row is expected to be like: what the others' drafts were worth
    weight: float  # observations it rests on
    ranks: RankTable | None = None

    def __post_init__(self) -> None:
        self._lately, self._latest = self.rate, self.weight  # the same of fewer observations
        self._text_rate, self._text_weight = 0.0, 0.0  # mean acceptance of whole texts; observations it rests on

    @property
    def text_rate(self) -> float:
        """Mean acceptance over the whole texts of rows that have ended; `rate` before any has."""
        return self._text_rate if self._text_weight else self.rate

    def learn_text(self, accepted: float, judged: float, config: AcceptanceConfig, rows: float = 1) -> None:
        """A row has ended: `accepted` of its `judged` slots were accepted. So many rows decoded together: of these, the
        last ones to end are those that least was accepted of, so that all of them are remembered."""
        if judged:
            weight = min(judged, config.max_text_weight)
            self._text_weight = min(self._text_weight + weight, max(config.text_memory, rows * weight))
            self._text_rate += (accepted / judged - self._text_rate) * weight / self._text_weight

    def learn(self, accepted: float, config: AcceptanceConfig, observed: int = 1, slots: float = 1.0) -> None:
        """The mean of `slots` observations, in a cycle that `observed` rows are learnt from. Many rows give many
        observations in little time, so more are remembered: else the last cycles of a batch would decide for the next
        one. Where the latest ones differ by more than chance, the text is another one, and all others are forgotten."""
        self.weight = min(self.weight + slots, config.shared_memory * observed)
        self.rate += (accepted - self.rate) * slots / self.weight
        self._latest = min(self._latest + slots, config.shared_memory)
        self._lately += (accepted - self._lately) * slots / self._latest
        deviation = math.sqrt(self.rate * (1 - self.rate) / (2 * self._latest))  # of a mean that fades exponentially
        if abs(self._lately - self.rate) > config.shared_surprise * deviation:
            self.rate, self.weight = self._lately, self._latest


@dataclass
class AcceptanceEstimate:
    """One row's probability that a drafted token, the first candidate for its slot, is accepted, given that the one
    before was. Until enough was observed it leans on `usual`."""

    usual: float  # what other rows' drafts were worth
    config: AcceptanceConfig = field(default_factory=AcceptanceConfig, repr=False)
    ranks: RankTable | None = field(default=None, repr=False)  # None: chains only
    longest_chain: int | None = None  # tokens; None: the limit that `nodes` is called with
    quiet: int = 0  # cycles since the last draft
    read: int = 0  # tokens of the row when it was last drafted for: the drafter has read these
    setup: float = 0.0  # seconds the drafter needs before its first draft (`Drafter.setup_seconds`)
    wake: float = 0.0  # seconds the drafter needs to read what it missed, and to set up the row
    asleep: bool = False  # whether that is too much
    hits: float = 0.0  # of the slots that were judged so far; of a long text, older ones count less
    judged: float = 0.0
    _observed: float = 0.0
    _lean: float = 1.0  # weight of `usual`

    def __post_init__(self) -> None:
        self.weight = self.config.row_prior  # observations
        self.reach = self.config.reach  # the deepest draft it is trusted with
        self.wait = self.config.min_wait  # plain cycles before the next attempt; doubles while attempts fail

    @property
    def rate(self) -> float:
        return self._observed + self._lean * self.usual

    def learn(self, drafted: int, accepted: int, first: Sequence[bool] | None = None) -> None:
        """So many levels were drafted and accepted. `first` tells of every slot that was judged whether its first
        candidate was accepted; by default the slots of a chain up to the first rejection."""
        config = self.config
        slots = [True] * accepted + [False] * (accepted < drafted) if first is None else first
        fade = 0.5 if self.judged > config.text_half_life else 1.0
        self.hits, self.judged = fade * self.hits + sum(slots), fade * self.judged + len(slots)
        for hit in slots:
            self.weight = min(self.weight + 1, config.row_memory)
            self._observed += (hit - self._observed) / self.weight
            self._lean -= self._lean / self.weight
        cautious = max(config.reach, accepted + 2, (self.reach + accepted) // 2 + 1)
        self.reach = 2 * self.reach if accepted == drafted else cautious
        attempt = self.quiet > self.wait  # one of several drafts in a row that fails is no reason to wait longer
        if accepted:
            self.wait = max(config.min_wait, self.wait // 2)
        elif attempt:
            self.wait = min(config.max_wait, self.wait * 2)
        self.quiet = 0

    def add(self, hits: float, judged: float) -> None:
        """So many of the slots were accepted that were judged in some cycles with chains."""
        if judged:
            config, fade = self.config, 0.5 if self.judged > self.config.text_half_life else 1.0
            self.hits, self.judged, self.quiet = fade * self.hits + hits, fade * self.judged + judged, 0
            self.weight = min(self.weight + judged, config.row_memory)
            share = min(1.0, judged / self.weight)
            self._observed += (hits / judged - self._observed) * share
            self._lean -= self._lean * share

    def remaining_rate(self, shared: SharedAcceptance) -> float:
        """Expected acceptance over the rest of the text: the mean so far, shrunk towards that of whole texts, or
        towards the present rate of all rows if this differs so much that the workload must have changed."""
        changed = abs(shared.rate - shared.text_rate) > self.config.text_change
        usual, prior = shared.rate if self.judged and changed else shared.text_rate, self.config.text_prior
        return (self.hits + prior * usual) / (self.judged + prior)

    def pause(self, usual: float) -> None:
        """Another cycle begins. While nothing is drafted, what was observed tells less and less."""
        self.usual = usual
        self.quiet += 1
        if self.quiet > 1:
            self._observed -= self.config.row_fade * self._observed
            self._lean += self.config.row_fade * (1 - self._lean)

    @property
    def second(self) -> float:
        """The best chance that a second candidate has: right after the committed text; 0 for chains."""
        if self.ranks is None or self.ranks.width < 2:
            return 0.0
        (first, hazard, *_), rate = self.ranks.rates[0], self.rate
        return (1 - rate) * hazard * min(1.0, rate / first)

    def nodes(self, max_depth: int, branching: bool = True) -> list[Node]:
        """What the row could draft, the likeliest first: each prefix is the best draft of its size."""
        if self.asleep:
            return []
        if self.ranks is None or self.ranks.width < 2 or not branching:
            rate, depth = self.rate, min(self.reach, self.longest_chain or max_depth)
            chances = [rate**d for d in range(1, depth + 1)]
            return [Node(p, d, 0) for d, p in enumerate(chances, 1) if p > self.config.min_chain_chance]
        accept = self.ranks.accept(self.rate, min(self.reach, max_depth))
        return best_first(min(self.ranks.max_nodes, 4 * self.reach), accept, self.config.min_tree_chance)


class AcceptanceEstimator:
    """The estimates of all rows. Every cycle teaches it, whoever chose what was drafted, captured or not."""

    def __init__(self, config: AcceptanceConfig) -> None:
        self._config = config
        self._shared: dict[Hashable, SharedAcceptance] = {}
        # group, whether drafts may branch, longest chain, seconds before the first draft
        self._opened: dict[Row, tuple[Hashable, bool, int | None, float]] = {}
        self._estimates: dict[Row, AcceptanceEstimate] = {}
        self._observed = 1  # rows that are learnt from in a cycle
        self._crowd = 1.0  # rows that decoded together lately, at most
        self._typical = True  # whether most of these still do
        self._rows: Sequence[Row] = ()  # whose chains of the latest cycles are not in the estimates yet
        self._hits, self._slots = np.zeros(0), np.zeros(0)  # of these chains: accepted and judged, by row

    def open(
        self,
        row: Row,
        group: Hashable,
        ranks: RankTable | None = None,
        longest_chain: int | None = None,
        setup: float = 0.0,
    ) -> None:
        """A row under a drafter and rule, which `group` stands for. With `ranks` its drafts may branch; the group's
        rows share the first such table. `longest_chain`: the longest one that the policy may ask for; None: the
        limit of `nodes`. `setup`: seconds that the drafter needs before its first draft."""
        self._opened[row] = group, ranks is not None, longest_chain, setup
        shared = self.shared(group)
        shared.ranks = shared.ranks or ranks

    def close(self, row: Row) -> None:
        self.settle()
        if (estimate := self._estimates.pop(row, None)) is not None:
            self.shared_by(row).learn_text(estimate.hits, estimate.judged, self._config, self._crowd)
        self._opened.pop(row, None)

    def shared(self, group: Hashable = None) -> SharedAcceptance:
        if group not in self._shared:
            self._shared[group] = SharedAcceptance(self._config.first_rate, self._config.shared_prior)
        return self._shared[group]

    def groups(self) -> list[tuple[Hashable, SharedAcceptance]]:
        return list(self._shared.items())

    def forget(self) -> None:
        """Forget what groups have in common. Rows that are open keep their own estimates."""
        self._shared.clear()

    def expect(self, group: Hashable, rate: float, weight: float) -> None:
        """What a new group's rows are expected to be like, by earlier measurements. It changes no known group."""
        if group not in self._shared:
            self._shared[group] = SharedAcceptance(rate, max(self._config.shared_prior, weight))

    @property
    def expected(self) -> float:
        """What a row is expected to be like that nothing is known of, not even its drafter."""
        rates = [shared.rate for shared in self._shared.values()] or [self._config.first_rate]
        return sum(rates) / len(rates)

    def shared_by(self, row: Row) -> SharedAcceptance:
        group, *_ = self._opened.get(row, (None,))
        return self.shared(group)

    def of(self, row: Row) -> AcceptanceEstimate:
        """A row's estimate, made when it is first asked for."""
        if row not in self._estimates:
            group, branches, longest, setup = self._opened.get(row, (None, False, None, 0.0))
            shared = self.shared(group)
            ranks = shared.ranks if branches else None
            self._estimates[row] = AcceptanceEstimate(shared.rate, self._config, ranks, longest, setup=setup)
        return self._estimates[row]

    def together(self, rows: int, observed: int = 1) -> None:
        """So many rows decode together in this cycle, and so many of them are learnt from. When most of them have left,
        the others are those whose drafts were worth least: what new rows are expected to be like is not learnt from
        these."""
        self._observed = observed
        self._crowd = max(rows, self._config.crowd_fade * self._crowd)
        self._typical = 2 * rows >= self._crowd

    def learn(self, row: Row, levels: int, judged: Judged) -> None:
        """Of a row's draft of so many levels, verification judged these slots."""
        estimate, shared = self.of(row), self.shared_by(row)
        first = [rank == 0 for rank, _ in judged]
        estimate.learn(levels, sum(rank >= 0 for rank, _ in judged), first)
        if estimate.ranks is not None:
            estimate.ranks.learn(judged)
        for hit in first if self._typical else ():
            shared.learn(hit, self._config, self._observed)

    def learn_chains(self, rows: Sequence[Row], accepted: Counts, drafted: Counts) -> None:
        """What was drafted for these rows in a cycle, in chains, and accepted of it. All rows share one group."""
        judged = np.minimum(accepted + 1, drafted)
        if rows != self._rows:
            self.settle()
            self._rows, self._hits, self._slots = rows, np.zeros(len(rows)), np.zeros(len(rows))
        self._hits += accepted
        self._slots += judged
        slots = float(judged.sum())
        if self._typical and slots:
            weight = slots * min(1.0, self._observed / len(rows))
            self.shared_by(rows[0]).learn(float(accepted.sum()) / slots, self._config, self._observed, weight)

    def settle(self) -> None:
        """Add the latest chains to the rows' estimates: once for many cycles, since that takes time for every row."""
        rows, self._rows = self._rows, ()
        for row, hits, judged in zip(rows, self._hits.tolist(), self._slots.tolist(), strict=False):
            self.of(row).add(hits, judged)
        self._hits, self._slots = np.zeros(0), np.zeros(0)
