"""Policies are judged by what they decide: nothing where drafting does not pay, much where it does."""

from __future__ import annotations

import random

import pytest
import torch

from slipstream.core.law import OneHot
from slipstream.core.tree import Tree
from slipstream.core.types import Draft, Request, Row, Verdict
from slipstream.plan.policy.config import AdaptiveConfig
from slipstream.plan.policy.costs import CostModel
from slipstream.plan.policy.loss_budget import LossBudget
from slipstream.plan.policy.policies import Adaptive, Fixed
from slipstream.plan.policy.prices import RecentMedian


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


def priced(policy: Adaptive, seconds, upto: int = 16, step: float = 0.0) -> Adaptive:
    for base in range(1, upto + 1):
        policy.costs.learn(seconds(base), base)
        for drafted in (1, 2, 4, 8, 16, 32):
            policy.costs.learn(seconds(base + drafted), base + drafted, drafted)
    for steps in (1, 1, 2, 4, 8):
        policy.costs.draft(step * steps, steps)
    return policy


def flat(tokens: int) -> float:
    return 0.02


def steep(tokens: int) -> float:
    return 0.02 * tokens


def live(policy: Adaptive, some: list[Row], cycles: int, acceptance, seconds=None) -> list[list[int]]:
    """Run cycles in which row r's drafts are accepted up to `acceptance[r]` tokens; the depths that were chosen. With
    `seconds` of a pass the policy is told what it took, a millisecond a step of drafting included."""
    history = []
    for _ in range(cycles):
        depths = [budget.depth for budget in policy.budget(some)]
        report(policy, some, depths, [min(d, a) for d, a in zip(depths, acceptance, strict=True)])
        if seconds:
            policy.price(0.001 * max(depths), seconds(len(some) + sum(depths)), len(some) + sum(depths))
        history.append(depths)
    return history


def test_fixed_is_fixed():
    assert [budget.depth for budget in Fixed(3).budget(rows(2))] == [3, 3]


def test_deep_where_acceptance_is_high_and_scoring_flat():
    assert live(priced(Adaptive(), flat), rows(1), 30, [99])[-1] == [8]


def test_nothing_where_scoring_costs_as_much_as_it_brings():
    """Not even a probe: a token that is accepted for certain would gain nothing."""
    for count in (1, 8):
        history = live(priced(Adaptive(), steep), rows(count), 60, [0] * count)
        assert history == [[0] * count] * 60, "prices are asked again after a long time only"


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
    live(policy, some, 300, [0], flat)
    assert live(policy, some, 600, [99], flat)[-1] == [8]


def test_a_slow_drafter_is_left_alone():
    policy = priced(Adaptive(), flat, step=0.2)
    assert live(policy, rows(1), 3, [99])[0] == [0]


MEMORY, ARITHMETIC = "memory-bound", "compute-bound"
CURVES = {
    MEMORY: (lambda rows: 0.04, lambda rows, n: 0.0001 * n),
    "between": (lambda rows: 0.037 + 0.0056 * rows, lambda rows, n: 0.003 + 0.0047 * n if n else 0.0),
    ARITHMETIC: (lambda rows: 0.01 + 0.01 * rows, lambda rows, n: (0.01 / rows + 0.01) * n),
    "steps of eight": (lambda rows: 0.04, lambda rows, n: 0.03 * ((rows + n - 1) // 8 - (rows - 1) // 8)),
}


def traffic(
    policy: Adaptive, curve, count: int, chance: float, cycles: int, noise: float, step: float, seed: int
) -> float:
    """One batch of requests on a machine of known prices; its speed against plain decoding."""
    (plain, more), rng, some = curve, random.Random(seed), rows(count)
    spent, emitted = 0.0, 0
    for _ in range(cycles):
        depths = [budget.depth for budget in policy.budget(some)]
        kept = [next((i for i in range(d) if rng.random() >= chance), d) for d in depths]
        report(policy, some, depths, kept)
        drafting, scoring = step * max(depths), plain(count) + more(count, sum(depths))
        policy.price(drafting, scoring * (1 + noise * abs(rng.gauss(0, 1))), count + sum(depths))
        spent += drafting + scoring
        emitted += count + sum(kept)
    return emitted / spent * plain(count) / count


@pytest.mark.parametrize("noise", [0.0, 0.08])
@pytest.mark.parametrize("count", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("curve", CURVES)
def test_hopeless_drafts_cost_at_most_three_in_a_hundred(curve, count, noise):
    """Batches of 40 tokens a row none of whose drafts is ever accepted: every single one of them, the very first too,
    on machines of every kind, with clocks that are off by some, and a drafter that takes its own time."""
    for step in (0.0, 0.002):
        policy = Adaptive()
        for n in range(6):
            speed = traffic(policy, CURVES[curve], count, 0.0, 40, noise, step, n)
            assert speed >= 0.97, f"batch {n}, {step} s a step"


@pytest.mark.parametrize("count", [1, 4, 8, 16])
def test_a_good_text_does_not_pay_for_a_hopeless_one(count):
    """All is accepted for a while, then nothing: believing in it for a moment too long stays within the bar as well."""
    for curve in CURVES.values():
        policy = Adaptive()
        for n in range(3):
            traffic(policy, curve, count, 0.95, 40, 0.0, 0.0, n)
        assert traffic(policy, curve, count, 0.0, 96, 0.0, 0.0, 9) >= 0.97


@pytest.mark.parametrize("count", [1, 4, 8, 16])
def test_good_drafts_are_used_where_they_pay(count):
    policy = Adaptive()
    assert [traffic(policy, CURVES[MEMORY], count, 0.9, 40, 0.05, 0.0, n) for n in range(3)][-1] > 2.5
    policy = Adaptive()
    assert [traffic(policy, CURVES["between"], count, 0.95, 40, 0.0, 0.0, n) for n in range(3)][-1] > 1.15


def test_rows_learn_from_each_other():
    """Of rows that come after sixteen hopeless ones none is drafted for: what one row's drafts were worth is the next
    one's prior."""
    policy = priced(Adaptive(), lambda n: 0.02 + 0.0002 * n)
    some = rows(16)
    for _ in range(12):
        depths = [budget.depth for budget in policy.budget(some)]
        report(policy, some, depths, [0] * 16)
        policy.price(0.0, 0.02 + 0.0002 * (16 + sum(depths)), 16 + sum(depths))
    assert [budget.depth for budget in policy.budget(rows(16))] == [0] * 16
    assert policy.acceptance.shared().rate < 0.5


def test_the_purse_is_small_and_what_a_text_won_is_mostly_its_own():
    purse = LossBudget()
    assert purse.holds(1.0) < 1.0
    for _ in range(1000):
        purse.book(0.0, 1.0)
    assert purse.balance == purse.config.size
    for _ in range(1000):
        purse.book(5.0, 1.0)
    assert purse.balance == purse.config.max_won
    purse.hand_over(1.0)
    assert purse.balance == purse.config.handed_over < purse.config.max_won
    purse.book(-2.0, 1.0)
    assert purse.holds(1.0) < 0
    for token, held in ((0.2, purse.config.size), (0.8, 0.8), (3.0, purse.config.max_size)):
        dear = LossBudget()
        for _ in range(1000):
            dear.book(0.0, 1.0, token)
        assert dear.balance == held, "what the least draft costs, up to a pass"


def test_what_was_won_pays_for_a_start_after_rows_that_lost_and_for_no_more():
    losses = LossBudget()
    handed, surplus = losses.config.handed_over, losses.config.max_surplus
    losses.book(100.0, 1.0)
    losses.hand_over(1.0)
    assert (losses.balance, losses.surplus) == (handed, surplus)
    starts = []
    for _ in range(10):
        losses.book(-handed, 1.0)
        losses.hand_over(1.0)
        starts.append(losses.balance)
    covered = int(surplus / handed)
    assert starts[:covered] == [handed] * covered
    assert losses.surplus == 0
    assert sum(starts) <= surplus + 10 * losses.config.share, "the rest is lost"


def test_a_tree_is_priced_by_its_nodes_and_trusted_by_its_depth():
    policy, some = Adaptive(), rows(1)
    for _ in range(3):
        policy.budget(some)
        tree = Tree.of(1, [0] * 6, [-1, -1, 0, 0, 1, 1])
        token = torch.zeros(6, dtype=torch.long)
        verdict = Verdict(torch.tensor([[0, 2]]), torch.zeros(1).long(), torch.zeros(1).bool())
        policy.observe(some, Draft(tree, token, OneHot(token, 2)), verdict)
    assert policy.free._record.drafted == 6
    assert policy.free._record.steps == 2
    assert policy.free._nodes_per_level > 1.4
    assert policy.acceptance.of(some[0]).rate > 0.9


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
    last = live(priced(Adaptive(), lambda n: 0.02 + 0.002 * n), rows(2), 60, [99, 0])
    good, bad = (sum(depth) for depth in zip(*last, strict=True))
    assert good > 5 * bad


def test_a_full_batch_drafts_less():
    """A pass that is free up to eight tokens and dear beyond leaves room for drafts only where rows are few."""

    def stairs(tokens: int) -> float:
        return 0.02 if tokens <= 8 else 0.02 * tokens / 8

    alone = priced(Adaptive(), stairs).budget(rows(1))
    crowd = priced(Adaptive(), stairs).budget(rows(8))
    assert alone[0].depth == 3, "as deep as an untried row is trusted with"
    assert sum(budget.depth for budget in crowd) == 0


def test_plain_decoding_is_measured_before_drafting_is_held_against_it():
    policy, some = Adaptive(), rows(2)
    assert [b.depth for b in policy.budget(some)] == [0, 0]
    policy.price(0.0, 0.02, 2)
    assert sorted(b.depth for b in policy.budget(some)) == [0, 1], "and a drafted token with as little as possible"
    report(policy, some, [1, 0], [1, 0])
    policy.price(0.0, 0.021, 3)
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
        assert all(0 <= depth <= policy.config.max_depth for depth in depths)
        report(policy, part, depths, [int(uniform(0, depth + 0.999)) for depth in depths])
        policy.price(uniform(0, 0.01), uniform(1e-4, 0.1), len(part) + sum(depths))


def test_costs_between_and_beyond_what_was_seen():
    costs = CostModel()
    assert costs.plain(7) == 1.0
    costs.learn(0.01, 2)
    assert costs.plain(1) == costs.plain(9) == 0.01
    assert costs.more(2)(0) == 0
    assert 0 < costs.more(2)(1) < 0.005, "a guess, before any was paid for"
    costs.learn(0.03, 6, 4)
    assert costs.more(2)(4) == pytest.approx(0.02)
    assert costs.more(2)(2) == pytest.approx(0.01)
    assert 0.02 < costs.more(2)(8) < 0.04, "with some hope"
    assert costs.more(5)(4) == pytest.approx(0.02), "the nearest size that was tried"
    costs.learn(0.05, 6)
    assert costs.plain(4) == pytest.approx(0.03)


def test_a_hiccup_moves_no_price_and_a_longer_text_does():
    costs = CostModel()
    for seconds in (0.01, 0.01, 0.11, 0.01):
        costs.learn(seconds, 4)
    assert costs.plain(4) == 0.01
    for _ in range(7):
        costs.learn(0.02, 4)
    assert costs.plain(4) == 0.02
    costs.learn(0.015, 6, 2)
    assert costs.more(4)(2) == 0, "a pass with drafts that is faster than plain ones: these have become faster"


def test_the_median_of_the_last_few():
    recent = RecentMedian(3)
    assert not recent
    for number in (5.0, 1.0, 9.0, 2.0):
        recent.add(number)
    assert recent.value == 2.0


def test_the_largest_depth_is_checked():
    with pytest.raises(ValueError, match="max_depth is 0; it must be 1 or more"):
        AdaptiveConfig(max_depth=0)


def test_a_cycle_with_no_row_to_decide_for_follows_one_that_drafted():
    """Where users chose all depths themselves, what was drafted before must not be taken off the tokens of the pass."""
    policy, some = priced(Adaptive(AdaptiveConfig(max_depth=1)), flat), rows(1)
    assert policy.budget(some)[0].depth == 1
    report(policy, some, [1], [1])
    policy.price(0.0, 0.02, 2)
    held, plain = policy.free.losses.balance, policy.costs.plain(1)
    for _ in range(3):
        assert policy.budget([]) == []
        policy.price(0.0, 0.02, 1)
    assert policy.free.losses.balance == held, "nobody made a bet"
    assert policy.costs.plain(1) == plain


@pytest.mark.parametrize(("rate", "least"), [(0.0, 0.985), (0.5, 0.985), (0.8, 1.0), (0.92, 1.04)])
def test_where_one_token_costs_half_a_pass_one_is_tried_now_and_then(rate, least):
    """More than the purse would usually hold: it saves until it covers one, and a win pays for the next."""
    policy, rng, emitted, spent = Adaptive(), random.Random(1), 0, 0.0
    for _ in range(20):
        some, length = rows(1), 0
        while length < 96:
            (budget,) = policy.budget(some)
            accepted = next((n for n in range(budget.depth) if rng.random() >= rate), budget.depth)
            report(policy, some, [budget.depth], [accepted])
            drafting, scoring = 0.0017 * (budget.depth > 0), 0.0071 + 0.00345 * budget.depth
            policy.price(drafting, scoring, 1 + budget.depth)
            length, spent = length + 1 + accepted, spent + drafting + scoring
        emitted += length
    assert emitted / spent * 0.0071 > least


def test_the_cost_of_a_drafted_token_can_be_shown():
    """As shares of a plain pass, with the acceptance of the latest rows; a guess before any was scored."""
    policy = Adaptive()
    assert not policy.drafting_cost.measured
    for _ in range(3):
        policy.costs.learn(2.0, 1)
        policy.costs.learn(2.8, 2, drafted=1)
        policy.costs.draft(0.2, 1)
    cost = policy.drafting_cost
    assert cost.measured
    assert (cost.scoring, cost.drafting, cost.total) == pytest.approx((0.4, 0.1, 0.5))
    assert cost.requested == 0
    assert 0 < cost.acceptance < 1
