"""Every rule for several candidates is exact on every shape; the audit's own arithmetic about them is right."""

from __future__ import annotations

from fractions import Fraction

import pytest

from slipstream.audit.planted.tree import HONEST_PAIR, HONEST_SPECTR, HONEST_TREE
from slipstream.audit.rational.transport import chosen, distinct, independent, optimum
from slipstream.audit.rational.tree import JUDGES
from slipstream.audit.statistical import check_sampled
from slipstream.audit.subject import Pair, Subject
from slipstream.audit.tables.exact import check_cycles, check_endings
from slipstream.audit.tables.replay import check_replay
from slipstream.audit.tables.run import everything
from slipstream.audit.tables.trees import Alternating, ChangingShape, check_joint_tree, check_slots, shaping
from slipstream.core.rules import rules
from slipstream.core.sampling import Sampling
from slipstream.core.tree import Shape
from slipstream.core.types import Budget
from slipstream.plan.policy.policies import Fixed

PAIRS = [Pair.random(seed, vocab=3) for seed in (2, 5)]
SMALL = Pair.random(4, vocab=2, order=3)
SHAPES = {
    "pair": Shape((-1, -1)),
    "fork": Shape((-1, -1, 0)),
    "late fork": Shape((-1, 0, 0)),
    "grown": Shape(nodes=3, width=2),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rule", JUDGES)
def test_the_joint_law_of_two_cycles_is_the_targets_on_every_shape(rule, shape):
    depth = SHAPES[shape].depth or 2
    after = Budget(1) if shape == "late fork" else Budget(1, shape=SHAPES["pair"])
    budgets = Budget(depth, shape=SHAPES[shape]), after
    check = check_cycles("x", Subject(rules.get(rule), lambda: Alternating(*budgets)), PAIRS[0], depth)
    assert check.passed, check.detail


@pytest.mark.parametrize("rule", ["chosen", "no_replace"])
def test_two_forks_in_a_row(rule):
    check = check_cycles("x", shaping(Subject(rules.get(rule)), SHAPES["fork"], 2), PAIRS[1])
    assert check.passed, check.detail


@pytest.mark.parametrize("rule", JUDGES)
def test_wide_and_deep_trees_on_a_vocabulary_of_two(rule):
    """As many candidates as tokens, so every draw without replacement runs out of them."""
    shape = Shape.levels([2, 2]) if rule in ("chosen", "no_replace") else Shape((-1, -1, 0, 0))
    turns = Subject(rules.get(rule), lambda: Alternating(Budget(2, shape=shape), Budget(1)))
    check = check_cycles("x", turns, SMALL)
    assert check.passed, check.detail


@pytest.mark.parametrize("rule", JUDGES)
def test_shapes_that_change_by_what_was_seen(rule):
    check = check_cycles("x", Subject(rules.get(rule), ChangingShape), PAIRS[1])
    assert check.passed, check.detail


@pytest.mark.parametrize("rule", JUDGES)
def test_transforms_endings_and_early_stopping_on_trees(rule):
    fork = shaping(Subject(rules.get(rule)), SHAPES["fork"], 2)
    pair = shaping(Subject(rules.get(rule), sampling=everything(None)), SHAPES["pair"], 1)
    stopping = Subject(rules.get(rule), lambda: Fixed(2, 0.6, SHAPES["fork"]))
    warped = Subject(fork.rule, fork.policy, Sampling(0.7, top_k=2, top_p=0.9))
    checks = [
        check_cycles("transforms", warped, PAIRS[1], cycles=1),
        check_cycles("penalties", pair, SMALL, 1),
        check_cycles("stopping", stopping, PAIRS[1], cycles=1),
        check_endings("endings", fork, PAIRS[1], max_tokens=2),
        check_endings("minimum", fork, SMALL, max_tokens=3, end=1, min_tokens=1),
    ]
    assert all(check.passed for check in checks), [check for check in checks if not check.passed]


@pytest.mark.parametrize("rule", JUDGES)
@pytest.mark.parametrize("pair", PAIRS)
def test_the_rational_laws_of_trees(rule, pair):
    for check in (check_slots("x", rule, pair), check_joint_tree("x", rule, pair)):
        assert check.passed, check.detail


@pytest.mark.parametrize("shape", [Shape.levels([3, 2]), Shape(nodes=7, width=3)], ids=["static", "grown"])
def test_greedy_and_coupled_emit_the_same_tokens_at_every_width(shape):
    pair = Pair.random(3)
    greedy = Subject(rules.get("greedy"), sampling=Sampling(temperature=0))
    assert check_replay("x", greedy, pair, [1, 4], 8, shape).passed
    assert check_replay("x", Subject(rules.get("coupled")), pair, [1, 4], 8, shape).passed


@pytest.mark.parametrize("rule", ["no_replace", "spectr"])
def test_sampled_continuations_of_larger_trees(rule):
    check = check_sampled("x", shaping(Subject(rules.get(rule)), Shape(nodes=9, width=3), 3), PAIRS[0], 500)
    assert check.passed, check.detail


@pytest.mark.parametrize("honest", [HONEST_PAIR, HONEST_SPECTR, HONEST_TREE])
def test_what_the_bugs_are_planted_in_is_exact_without_them(honest):
    check = check_cycles("x", honest, PAIRS[0])
    assert check.passed, check.detail


def test_the_optimum_by_hand():
    half, p = [Fraction(1, 2)] * 2, [Fraction(3, 4), Fraction(1, 4)]
    assert optimum(p, independent(half, 1)) == Fraction(3, 4)
    assert optimum(p, independent(half, 2)) == 1
    assert optimum(p, distinct(half, 2)) == 1
    assert optimum(p, chosen(p, 1)) == Fraction(3, 4)
    apart = [Fraction(0), Fraction(1)]
    assert optimum([Fraction(1), Fraction(0)], independent(apart, 3)) == 0
    assert sum(distinct([Fraction(1, 6), Fraction(1, 3), Fraction(1, 2)], 2).values()) == 1
