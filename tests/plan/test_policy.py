"""Policies are judged by what they decide: nothing where drafting does not pay, much where it does."""

from __future__ import annotations

import pytest
import torch

from slipstream.core.law import OneHot
from slipstream.core.tree import Tree
from slipstream.core.types import Draft, Request, Row, Verdict
from slipstream.plan.policy import Adaptive, Costs, Fixed


def rows(n: int) -> list[Row]:
    return [Row(Request([1])) for _ in range(n)]


def report(policy: Adaptive, some: list[Row], depths: list[int], accepted: list[int]) -> None:
    """Tell the policy that row r drafted so many tokens and kept the first few of them."""
    tree = Tree.chains(depths)
    token = torch.zeros(len(tree), dtype=torch.long)
    chain = tree.chain
    path = torch.where(torch.arange(chain.shape[1]) < torch.tensor(accepted)[:, None], chain, -1)
    last = torch.zeros(len(some), dtype=torch.long)
    policy.observe(some, Draft(tree, token, OneHot(token, 2)), Verdict(path, last, last.bool()))


def priced(policy: Adaptive, seconds, upto: int = 40, step: float = 0.0) -> Adaptive:
    for tokens in range(1, upto):
        policy.costs.learn(step, seconds(tokens), tokens, 1)
    return policy


def flat(tokens: int) -> float:
    return 0.02


def steep(tokens: int) -> float:
    return 0.02 * tokens


def live(policy: Adaptive, some: list[Row], cycles: int, acceptance) -> list[list[int]]:
    """Run cycles in which row r's drafts are accepted up to `acceptance[r]` tokens; the depths that were chosen."""
    history = []
    for _ in range(cycles):
        depths = [budget.depth for budget in policy.budget(some)]
        report(policy, some, depths, [min(d, a) for d, a in zip(depths, acceptance, strict=True)])
        history.append(depths)
    return history


def test_fixed_is_fixed():
    assert [budget.depth for budget in Fixed(3).budget(rows(2))] == [3, 3]


def test_deep_where_acceptance_is_high_and_scoring_flat():
    assert live(priced(Adaptive(), flat), rows(1), 30, [99])[-1] == [8]


def test_nothing_where_scoring_costs_as_much_as_it_brings():
    history = live(priced(Adaptive(), steep), rows(1), 40, [99])
    assert sum(d == [0] for d in history) >= 0.75 * len(history)  # the others are probes


def test_hopeless_drafts_are_given_up_and_probes_back_off():
    policy = priced(Adaptive(), lambda n: 0.02 + 0.001 * n, step=0.002)
    (history,) = zip(*live(policy, rows(1), 600, [0]), strict=True)
    assert sum(map(bool, history[:100])) > 0
    drafted = [sum(map(bool, history[i : i + 150])) for i in range(0, 600, 150)]
    assert drafted == sorted(drafted, reverse=True)
    assert drafted[-1] <= 2
    assert max(history[200:]) <= 2, "a probe is short"


def test_it_comes_back_when_drafts_are_good_again():
    policy, some = priced(Adaptive(), flat, step=0.001), rows(1)
    live(policy, some, 300, [0])
    assert live(policy, some, 600, [99])[-1] == [8]


def test_a_slow_drafter_is_left_alone():
    policy = priced(Adaptive(), flat, step=0.2)
    assert live(policy, rows(1), 3, [99])[0] == [0]


@pytest.mark.parametrize("slope", [0.0005, 0.005, 0.02])
@pytest.mark.parametrize("step", [0.0, 0.01])
def test_hopeless_drafts_cost_at_most_three_in_a_hundred(slope, step):
    """Requests of 100 tokens none of whose drafts is ever accepted, at honest prices: the sum stays near plain."""
    policy, spent = Adaptive(), 0.0
    for _ in range(10):
        some = rows(1)
        for _ in range(100):
            (budget,) = policy.budget(some)
            drafting, scoring = step * budget.depth, 0.02 + slope * budget.depth
            report(policy, some, [budget.depth], [0])
            policy.price(drafting, scoring, 1 + budget.depth)
            spent += drafting + scoring
    assert spent <= 1.03 * 1000 * 0.02


def test_good_drafts_are_found_again_in_every_request():
    policy, emitted, spent = Adaptive(), 0, 0.0
    for _ in range(10):
        some = rows(1)
        for _ in range(25):
            (budget,) = policy.budget(some)
            report(policy, some, [budget.depth], [budget.depth])
            policy.price(0.0, 0.02 + 0.002 * budget.depth, 1 + budget.depth)
            emitted, spent = emitted + 1 + budget.depth, spent + 0.02 + 0.002 * budget.depth
    assert emitted / spent > 3 / 0.02, "three times plain decoding"


def test_each_row_by_its_own_acceptance():
    last = live(priced(Adaptive(), lambda n: 0.02 + 0.002 * n, 60), rows(2), 60, [99, 0])
    good, bad = (sum(depth) for depth in zip(*last, strict=True))
    assert good > 5 * bad


def test_a_full_batch_drafts_less():
    """A pass that is free up to eight tokens and dear beyond leaves room for drafts only where rows are few."""

    def stairs(tokens: int) -> float:
        return 0.02 if tokens <= 8 else 0.02 * tokens / 8

    alone = priced(Adaptive(), stairs, 200).budget(rows(1))
    crowd = priced(Adaptive(), stairs, 200).budget(rows(8))
    assert alone[0].depth == 3, "as deep as an untried row is trusted with"
    assert sum(budget.depth for budget in crowd) == 0


def test_plain_decoding_is_measured_before_drafting_is_held_against_it():
    policy, some = Adaptive(), rows(2)
    assert [b.depth for b in policy.budget(some)] == [0, 0]
    policy.price(0.0, 0.02, 2)
    assert all(budget.depth for budget in policy.budget(some))


def test_a_plain_pass_that_never_comes_alone_does_not_stop_drafting():
    policy, some = Adaptive(), rows(1)
    for _ in range(4):
        policy.budget(some)
        policy.price(0.0, 0.02, 6)
    assert policy.budget(some)[0].depth > 0


def test_budgets_are_sane_whatever_happens():
    generator = torch.Generator().manual_seed(0)
    policy, some = Adaptive(), rows(5)

    def uniform(low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=generator))

    for _ in range(200):
        part = [row for row in some if uniform(0, 1) < 0.7] or some
        depths = [budget.depth for budget in policy.budget(part)]
        assert all(0 <= depth <= policy.deepest for depth in depths)
        report(policy, part, depths, [int(uniform(0, depth + 0.999)) for depth in depths])
        policy.price(uniform(0, 0.01), uniform(1e-4, 0.1), len(part) + sum(depths))


def test_costs_between_and_beyond_what_was_seen():
    costs = Costs()
    assert costs.score(7) == 1.0
    costs.learn(0.0, 0.01, 2, 0)
    assert costs.score(1) == costs.score(9) == 0.01
    costs.learn(0.0, 0.03, 6, 0)
    assert costs.score(4) == pytest.approx(0.02)
    assert costs.score(8) == pytest.approx(0.04)
    assert costs.score(1) == 0.01


def test_a_hiccup_moves_a_cost_a_little_and_only_until_the_next_pass():
    costs = Costs()
    costs.learn(0.0, 0.01, 4, 0)
    costs.learn(0.0, 0.11, 4, 0)
    assert costs.score(4) == pytest.approx(0.02)
    costs.learn(0.0, 0.01, 4, 0)
    assert costs.score(4) == 0.01


def test_deepest_is_checked():
    with pytest.raises(ValueError, match="deepest is 0"):
        Adaptive(0)
