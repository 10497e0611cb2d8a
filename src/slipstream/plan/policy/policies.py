"""Policies: how far to draft in the coming cycle, and how wide."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

from slipstream.core.device import ChainResults, RowResult, SizeMenu
from slipstream.core.interfaces import Drafter, Model, Policy, Verifier, sibling_mode
from slipstream.core.tree import Shape
from slipstream.core.types import Budget, Draft, Row, Verdict
from slipstream.plan.policy.acceptance import AcceptanceEstimator
from slipstream.plan.policy.config import AdaptiveConfig, TreeConfig
from slipstream.plan.policy.costs import CostModel
from slipstream.plan.policy.cycle_record import chain_draft, row_drafts
from slipstream.plan.policy.drafting_cost import DraftingCost
from slipstream.plan.policy.free_choice import FreeChoice
from slipstream.plan.policy.policy_seed import PolicySeed
from slipstream.plan.policy.rank_table import RankTable
from slipstream.plan.policy.size_choice import SizeChoice

Group = tuple[Drafter, str]
"""Rows under one drafter and one rule."""


class Fixed(Policy):
    """The same depth and shape always; a drafter may still stop early before an unlikely token."""

    def __init__(self, depth: int, stop_below: float = 0.0, shape: Shape | None = None) -> None:
        self._budget = Budget(depth, stop_below, shape)

    @classmethod
    def build(cls, max_depth: int | None = None) -> Fixed:
        return cls(max_depth or TreeConfig().depth)

    def budget(self, rows: Sequence[Row]) -> list[Budget]:
        return [self._budget] * len(rows)

    def choose(
        self, rows: Sequence[Row], menu: Callable[[], SizeMenu], ready: Sequence[int] | None = None
    ) -> Budget | None:
        return self._budget


class Adaptive(Policy):
    """Maximises emitted tokens per second; drafts nothing where drafting does not pay.

    One estimate of acceptance and one cost model serve two questions. `FreeChoice` answers how much to draft where a
    cycle may have any size; `SizeChoice` answers which of the captured sizes to run."""

    reads_rows: ClassVar[bool] = False

    def __init__(self, config: AdaptiveConfig | None = None, clock: Callable[[], float] | None = None) -> None:
        """With a `clock` thinking is timed, and takes a small share of all time: a decision is kept for a while."""
        self.config = config or AdaptiveConfig()
        self.acceptance = AcceptanceEstimator(self.config.acceptance)
        self._costs = CostModel(self.config.cost)
        self.free = FreeChoice(self.acceptance, self._costs, self.config, clock)
        self._sizes: dict[Group | None, SizeChoice] = {}
        self._groups: dict[Row, Group] = {}
        self._seeds: dict[Drafter, PolicySeed] = {}

    @classmethod
    def build(cls, max_depth: int | None = None) -> Adaptive:
        """The policy for an engine. `max_depth`: of every draft; None: the policy's own limits."""
        return cls(AdaptiveConfig.up_to(max_depth) if max_depth else None, clock=time.perf_counter)

    @property
    def costs(self) -> CostModel:
        return self._costs

    @property
    def drafting_cost(self) -> DraftingCost:
        return self.free.drafting_cost

    def seed(self, drafter: Drafter, seed: PolicySeed) -> None:
        self._costs.load(seed.costs)
        if seed.rate is not None:
            self.free.losses.trust()
        self._seeds[drafter] = seed

    def learned(self, drafter: Drafter) -> PolicySeed:
        own = [shared for group, shared in self.acceptance.groups() if isinstance(group, tuple) and group[0] is drafter]
        best = max(own, key=lambda shared: shared.weight, default=None)
        if best is None:
            return PolicySeed(self._costs.to_json())
        return PolicySeed(self._costs.to_json(), best.text_rate, best.weight, best.ranks.counts if best.ranks else ())

    def forget(self) -> None:
        self.acceptance.forget()
        self._sizes.clear()

    def open(
        self, rows: Sequence[Row], model: Model, drafter: Drafter, rule: Verifier, chains_only: bool = False
    ) -> None:
        group, tree, ranks = (drafter, rule.name), self.config.tree, None
        seed = self._seeds.get(drafter)
        if seed is not None and seed.rate is not None:
            self.acceptance.expect(group, seed.rate, seed.weight)
        if not chains_only and sibling_mode(rule, drafter) is not None:
            width, most = min(tree.width, model.vocab), min(tree.max_nodes, model.context)
            ranks = self.acceptance.shared(group).ranks or self._rank_table(width, most, seed)
        if chains_only:
            self.free.chains_only.update(rows)
        for row in rows:
            self._groups[row] = group
            self.acceptance.open(row, group, ranks, drafter.longest_chain, drafter.setup_seconds(row))

    def _rank_table(self, width: int, most: int, seed: PolicySeed | None) -> RankTable:
        table = RankTable(width, most, self.config.acceptance)
        if seed is not None:
            table.load(seed.ranks)
        return table

    def close(self, rows: Sequence[Row]) -> None:
        for row in rows:
            if (group := self._groups.pop(row, None)) in self._sizes:
                self._sizes[group].close(row)
            self.free.closed(row)
            self.acceptance.close(row)

    def budget(self, rows: Sequence[Row]) -> list[Budget]:
        return self.free.budget(rows)

    def steady(self, rows: Sequence[Row]) -> int:
        return self.free.steady(rows)

    def observe(self, rows: Sequence[Row], draft: Draft, verdict: Verdict) -> None:
        if not len(draft.tree):
            return
        self.free.observe(rows, row_drafts(draft, verdict))

    def observe_chain(self, row: Row, drafted: int, accepted: int) -> None:
        self.free.observe([row], [chain_draft(drafted, accepted)])

    def price(self, drafting: float, scoring: float, tokens: int) -> None:
        self.free.price(drafting, scoring, tokens)

    def choose(
        self, rows: Sequence[Row], menu: Callable[[], SizeMenu], ready: Sequence[int] | None = None
    ) -> Budget | None:
        sizes = self._size_choice(rows[0])
        if ready is not None:
            return sizes.choose_ready(rows, partial(self._limited, menu), ready).budget
        size = sizes.held(rows)
        if size is None:
            options, delay, missed = self._limited(menu)
            size = sizes.choose(rows, options, None, delay)
            if sizes.missed is not None:
                missed(*sizes.missed)
        return size.budget

    def _limited(self, menu: Callable[[], SizeMenu]) -> SizeMenu:
        """The sizes of a menu that are not deeper than the policy may draft."""
        sizes, limit = menu(), self.config.captured_depth
        if limit is None:
            return sizes
        return sizes._replace(options=[option for option in sizes.options if option.size.depth <= limit])

    def observe_captured(self, rows: Sequence[Row], results: Sequence[RowResult]) -> None:
        sizes = self._size_choice(rows[0])
        observed = sizes.observed(len(rows))
        self.acceptance.together(len(rows), len(observed))
        if isinstance(results, ChainResults):
            self.acceptance.learn_chains(rows, results.accepted, results.drafted)
            if results.drafted.any():
                sizes.pace.moved(rows, results.accepted + 1, sizes.sensitivity)
            return
        for r in observed:
            if judged := results[r].judged:
                self.acceptance.learn(rows[r], len(judged), judged)
        if any(result.tokens for result in results):
            sizes.pace.moved(rows, [len(result.emitted) for result in results], sizes.sensitivity)

    def _size_choice(self, row: Row) -> SizeChoice:
        group = self._groups.get(row)  # None: its drafter failed before the row was opened here
        if group not in self._sizes:
            self._sizes[group] = SizeChoice(self.acceptance, self.config)
        return self._sizes[group]
