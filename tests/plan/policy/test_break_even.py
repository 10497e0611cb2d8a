"""The acceptance below which no chain is worth its cost."""

from __future__ import annotations

import pytest

from slipstream.core.types import Request, Row
from slipstream.plan.policy.choice import CyclePrices, RowBudget
from slipstream.plan.policy.config import ChoiceConfig
from slipstream.plan.policy.policies import Adaptive


def prices(token: float, step: float = 0.0) -> CyclePrices:
    def more(nodes: float) -> float:
        return token * nodes

    def chain(steps: float) -> float:
        return step * steps

    return CyclePrices(1, 1.0, more, chain, chain, config=ChoiceConfig(margin=1.0))


@pytest.mark.parametrize("token", [0.1, 0.25, 0.4, 0.8])
def test_one_token_breaks_even_at_its_cost(token):
    assert prices(token).break_even(1) == pytest.approx(token, abs=1 / 30)
    assert prices(token).break_even(8) <= prices(token).break_even(1) + 1e-9


def test_a_token_that_costs_more_than_a_pass_never_pays():
    assert prices(1.5).break_even(8) == 1.0


def test_a_first_token_that_costs_most_needs_longer_chains():
    """A draft of any length costs half a pass: one token must be right half the time, eight of them a third."""
    costs = prices(0.0)
    costs.chain = lambda steps: 0.5
    assert costs.break_even(1) == pytest.approx(0.5, abs=1 / 30)
    assert costs.break_even(8) == pytest.approx(1 / 3, abs=1 / 30)


def test_only_chains_ask_for_a_chance():
    assert RowBudget(3, 3).budget(1, 0.4).least_chance == 0.4
    assert RowBudget(8, 3, 2).budget(6, 0.4).least_chance == 0.0
    assert RowBudget().budget(1, 0.4).least_chance == 0.0


def test_the_policy_says_which_chance_is_worth_a_draft():
    """Before any drafted token was scored it is taken to cost three tenths of a pass."""
    policy, rows = Adaptive(), [Row(Request([1, 2, 3]))]
    budgets = []
    for _ in range(12):
        budgets += policy.budget(rows)
        policy.price(0.0, 1.0, 1)
    asked = [budget.least_chance for budget in budgets if budget.depth]
    assert asked
    assert all(chance == pytest.approx(0.31, abs=1 / 30) for chance in asked)
