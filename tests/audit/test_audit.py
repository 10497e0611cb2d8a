"""The audit passes on honest code, fails on planted bugs, and its own arithmetic is right."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from math import comb

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.audit.planted.chain import PLANTED
from slipstream.audit.rational.chain import check_block_accepts_more, check_coupled, check_joint, coupled_joint
from slipstream.audit.statistical import binomial_tail, check_sampled, fit
from slipstream.audit.subject import Pair, Subject
from slipstream.audit.tables.enumeration import Universe
from slipstream.audit.tables.exact import HistoryPolicy, check_cycles, check_endings
from slipstream.core.rules import rules
from slipstream.core.sampling import Sampling
from slipstream.plan.policy.policies import Fixed

PAIRS = [Pair.random(seed, vocab=3) for seed in range(4)]


@pytest.mark.parametrize("bug", PLANTED)
def test_every_planted_bug_is_seen_by_enumeration(bug):
    check = check_cycles(bug, PLANTED[bug], PAIRS[2])
    assert not check.passed, check.detail


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize(
    "policy", [lambda: Fixed(2), HistoryPolicy, lambda: Fixed(2, stop_below=0.5)], ids=["fixed", "nosy", "stop"]
)
def test_the_joint_law_of_two_cycles_is_the_targets(pair, rule, policy):
    check = check_cycles("x", Subject(rules.get(rule), policy), pair)
    assert check.passed, check.detail


@pytest.mark.parametrize("rule", ["token", "block"])
def test_three_cycles_of_depth_one(rule):
    check = check_cycles("x", Subject(rules.get(rule), lambda: Fixed(1)), PAIRS[0], depth=1, cycles=3)
    assert check.passed, check.detail


@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize("sampling", [Sampling(0.5), Sampling(top_k=2), Sampling(top_p=0.5), Sampling(2.0, min_p=0.3)])
def test_transforms_apply_to_target_and_draft_alike(rule, sampling):
    check = check_cycles("x", Subject(rules.get(rule), sampling=sampling), PAIRS[1])
    assert check.passed, check.detail


@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize("end", [0, 1, 2])
def test_endings_wherever_they_fall(rule, end):
    check = check_endings("x", Subject(rules.get(rule)), PAIRS[2], end=end)
    assert check.passed, check.detail


@pytest.mark.parametrize("pair", PAIRS)
def test_the_rational_laws(pair):
    for check in (check_joint("x", "token", pair), check_joint("x", "block", pair), check_coupled("x", pair)):
        assert check.passed, check.detail


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 10_000), st.integers(1, 3))
def test_block_never_accepts_less_than_token(seed, depth):
    check = check_block_accepts_more("x", Pair.random(seed, vocab=3), depth)
    assert check.passed, check.detail


weights = st.lists(st.integers(0, 5), min_size=3, max_size=3).filter(any)


@given(weights, weights)
def test_the_coupled_joint_has_both_laws_as_marginals(p_weights, q_weights):
    p = [Fraction(w, sum(p_weights)) for w in p_weights]
    q = [Fraction(w, sum(q_weights)) for w in q_weights]
    joint = coupled_joint(p, q)
    assert sum(joint.values()) == 1
    for x in range(3):
        assert sum(joint[a, x] for a in range(3)) == p[x]
        assert sum(joint[x, b] for b in range(3)) == q[x]


def test_coupled_samples_follow_the_closed_form():
    """The sampled pair (draft's winner, target's winner) against the exact joint law."""
    import torch

    from slipstream.core.law import Dense
    from slipstream.core.noise import fold, race

    p, q = [0.5, 0.2, 0.3], [0.1, 0.6, 0.3]
    key = fold(torch.zeros(40_000, dtype=torch.long), torch.arange(40_000))
    draws = [race(Dense(torch.tensor([law]).expand(40_000, -1)), key).tolist() for law in (q, p)]
    exact = coupled_joint([Fraction(str(x)) for x in p], [Fraction(str(x)) for x in q])
    found = fit(Counter(zip(*draws, strict=True)), {pair: float(value) for pair, value in exact.items()})
    assert found.passed, str(found)


@given(st.integers(1, 60), st.integers(0, 60), st.fractions(Fraction(1, 100), Fraction(99, 100), max_denominator=100))
def test_binomial_tails_are_exact(trials, count, prob):
    count = min(count, trials)
    pmf = [comb(trials, k) * prob**k * (1 - prob) ** (trials - k) for k in range(trials + 1)]
    expected = sum(pmf[count:]) if count > trials * prob else sum(pmf[: count + 1])
    assert binomial_tail(count, trials, float(prob)) == pytest.approx(float(expected), rel=1e-9)


def test_rows_that_are_no_laws_are_not_mended_in_silence():
    import torch

    from slipstream.audit.statistical import check_rows, random_rows
    from slipstream.core.law import Dense

    p, q = random_rows(3, 50, seed=1)
    assert check_rows("x", p, Dense(q)).passed
    assert not check_rows("x", p, Dense(q.bfloat16().double())).passed
    assert not check_rows("x", torch.cat([p[:2], 0.9 * p[2:]]), Dense(q)).passed


def test_an_impossible_outcome_is_always_an_alarm():
    assert not fit(Counter({"a": 999, "b": 1}), {"a": 1.0}).passed


def test_the_sampled_layer_sees_a_small_bias():
    honest = Subject(rules.get("token"))
    pair = PAIRS[0]
    assert check_sampled("x", honest, pair, 1000).passed
    warm = Subject(rules.get("token"), sampling=Sampling(2.0))
    rows = [warm.row(pair, 3, seed=i) for i in range(1000)]
    warm.run(pair, rows)
    assert not fit(Counter(tuple(r.output) for r in rows), {**honest.joint(pair, 3)}).passed


def test_a_universe_that_reuses_a_number_says_so():
    universe = Universe([])
    universe.decide([0.5, 0.5], (0, 0, 1, 0))
    universe.decide([0.5, 0.5], (0, 0, 1, 0))
    assert universe.faults == {"a random number is used for two draws"}
    universe.decide([0.5, 0.4], (0, 1, 1, 0))
    assert len(universe.faults) == 2
