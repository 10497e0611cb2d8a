"""`steady` promises in how many cycles the decision stays, so that they can run in one call."""

from __future__ import annotations

import itertools
import random

import pytest

from slipstream.core.types import Request, Row
from slipstream.plan.policy.config import RestConfig
from slipstream.plan.policy.policies import Adaptive


@pytest.mark.parametrize("drafting", [0.0, 0.0004, 0.003])  # seconds of a chain; a draft that copies text costs nothing
@pytest.mark.parametrize("token", [0.0, 0.0005, 0.003])
@pytest.mark.parametrize("likely", [0.0, 0.4, 0.9])
def test_what_was_promised_is_kept(drafting, token, likely):
    ticks = itertools.count()
    policy, rng = Adaptive(clock=lambda: next(ticks) * 1e-4), random.Random(1)
    promised: tuple[int, object] = 0, None
    kept = set()
    for _ in range(12):
        rows = [Row(Request([1, 2, 3]))]
        policy.acceptance.open(rows[0], None)
        promised = 0, None
        for _ in range(60):
            (budget,) = policy.budget(rows)
            left, before = promised
            if left:
                assert budget == before, f"promised for {left} cycles more"
                kept.add(budget.depth > 0)
            promised = (left - 1, before) if left else (policy.steady(rows), budget)
            depth, accepted = budget.depth, 0
            while accepted < depth and rng.random() < likely:
                accepted += 1
            if depth:
                policy.observe_chain(rows[0], depth, accepted)
            noise = 1 + 0.2 * rng.random()
            policy.price(drafting * bool(depth) * noise, (0.003 + token * depth) * noise, 1 + depth)
    assert kept, "nothing was promised"
    if likely == 0.9 and drafting + token < 0.001:
        assert True in kept, "drafts were not promised"


def longest_promise(count: int, chains_only: bool = True) -> int:
    """Cycles with drafts that were promised at a time to so many rows, whose drafts are good."""
    policy = Adaptive(clock=lambda: 0.0)  # thinking takes no time
    rows = [Row(Request([1, 2, 3])) for _ in range(count)]
    for row in rows:
        policy.acceptance.open(row, None)
    if chains_only:
        policy.free.chains_only.update(rows)
    promised = 0
    for _ in range(60):
        depths = [budget.depth for budget in policy.budget(rows)]
        promised = max(promised, policy.steady(rows) * any(depths))
        for row, depth in zip(rows, depths, strict=True):
            policy.observe_chain(row, depth, depth) if depth else None
        policy.price(2e-4 * any(depths), 3e-3 + 2e-4 * sum(depths), count + sum(depths))
    return promised


def test_a_row_alone_keeps_its_draft_for_a_few_cycles_which_can_share_a_call():
    assert longest_promise(1) == RestConfig().alone_repeat
    assert longest_promise(2) == 0, "rows together decode cycle by cycle"
    assert longest_promise(1, chains_only=False) == 0, "nothing is won by keeping it"
