"""Chain, tree or plain: what the policy decides on machines of known prices, for drafters of known ranks."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.core.law import OneHot
from slipstream.core.rules import rules
from slipstream.core.tree import Tree
from slipstream.core.types import Budget, Draft, Request, Row, Verdict
from slipstream.drafters.table import TableDrafter
from slipstream.models.run.table_model import Table, TableModel
from slipstream.plan.policy.acceptance import AcceptanceEstimate
from slipstream.plan.policy.choice import RowBudget, best
from slipstream.plan.policy.config import AcceptanceConfig, ChoiceConfig, TreeConfig
from slipstream.plan.policy.cycle_record import judge_tree as judge
from slipstream.plan.policy.policies import Adaptive
from slipstream.plan.policy.rank_table import RankTable
from slipstream.plan.policy.tree_shapes import best_first, best_shape, choose, expected

FIRST, *AFTER = RankTable().rates[0]
MOST = TreeConfig().max_nodes
DRAFTER = TableDrafter(Table.random(8, 1, 1))
Accept = tuple[tuple[float, ...], ...]


def head(rate: float, after: Sequence[float] = AFTER, levels: int = 8) -> Accept:
    """Acceptance by depth and rank of a head whose first candidate is right at a rate, and where it fails, others."""
    chances, missed = [rate], 1 - rate
    for hazard in after:
        chances.append(missed * hazard)
        missed *= 1 - hazard
    return (tuple(chances),) * levels


HOPELESS, USELESS_SIBLINGS = head(0.0, [0.0] * 5), [0.0] * 5


@cache
def parents(budget: Budget, accept: Accept) -> tuple[int, ...]:
    """The tree a good drafter would grow."""
    if budget.shape is None:
        return tuple(range(-1, budget.depth - 1))
    return best_shape(budget.shape.nodes, [line[: budget.shape.width] for line in accept[: budget.depth]])


class Machine:
    """A pass over n rows takes plain(n), m drafted tokens add more(n, m), a level of drafting takes step."""

    def __init__(self, plain, more, step: float = 0.0, noise: float = 0.0, seed: int = 0) -> None:
        self.plain, self.more, self.step, self.noise = plain, more, step, noise
        self.rng, self.policy = random.Random(seed), Adaptive()

    def rows(self, count: int, rule: str = "greedy", vocab: int = 8) -> list[Row]:
        rows = [Row(Request([1])) for _ in range(count)]
        self.policy.open(rows, TableModel(Table.random(vocab, 1, 0)), DRAFTER, rules.get(rule)())
        return rows

    def walk(self, tree: Sequence[int], accept: Accept) -> list[int]:
        path: list[int] = []
        while True:
            luck, line = self.rng.random(), [i for i, p in enumerate(tree) if p == (path[-1] if path else -1)]
            chances = accept[len(path)][: len(line)] if line else ()
            hit = next((k for k in range(len(chances)) if luck < sum(chances[: k + 1])), None)
            if hit is None:
                return path
            path.append(line[hit])

    def cycle(self, rows: list[Row], accept: Sequence[Accept]) -> tuple[float, int, list[Budget]]:
        budgets = self.policy.budget(rows)
        trees = [parents(budget, table) for budget, table in zip(budgets, accept, strict=True)]
        paths = [self.walk(tree, table) for tree, table in zip(trees, accept, strict=True)]
        tell(self.policy, rows, trees, paths)
        count, drafted = len(rows), sum(map(len, trees))
        drafting, scoring = self.step * max(b.depth for b in budgets), self.plain(count) + self.more(count, drafted)
        self.policy.price(drafting, scoring * (1 + self.noise * abs(self.rng.gauss(0, 1))), count + drafted)
        return drafting + scoring, count + sum(map(len, paths)), budgets

    def run(self, cycles: int, rows: list[Row], accept: Sequence[Accept]) -> tuple[float, list[list[Budget]]]:
        """Speed against plain decoding, and what was decided."""
        spent, emitted, history = 0.0, 0, []
        for _ in range(cycles):
            seconds, tokens, budgets = self.cycle(rows, accept)
            spent, emitted = spent + seconds, emitted + tokens
            history.append(budgets)
        return emitted / spent * self.plain(len(rows)) / len(rows), history


def tell(policy: Adaptive, rows: list[Row], trees: Sequence[Sequence[int]], paths: Sequence[Sequence[int]]) -> None:
    start = [sum(map(len, trees[:r])) for r in range(len(trees))]
    row = [r for r, tree in enumerate(trees) for _ in tree]
    parent = [p + start[r] if p >= 0 else -1 for r, tree in enumerate(trees) for p in tree]
    width = max(map(len, paths))
    table = [[start[r] + i for i in path] + [-1] * (width - len(path)) for r, path in enumerate(paths)]
    token, last = torch.zeros(len(row), dtype=torch.long), torch.zeros(len(rows), dtype=torch.long)
    path = torch.tensor(table, dtype=torch.long).reshape(len(rows), width)
    draft = Draft(Tree.of(len(rows), row, parent), token, OneHot(token, 8))
    policy.observe(rows, draft, Verdict(path, last, last.bool()))


def flat(step: float = 0.0, **how) -> Machine:
    return Machine(lambda rows: 0.04, lambda rows, n: 0.0, step, **how)


def nodes(budget: Budget) -> int:
    return budget.shape.nodes if budget.shape else budget.depth


def settled(machine: Machine, accept: Accept, count: int = 1, rule: str = "greedy") -> tuple[float, list[Budget]]:
    """After a few requests: the speed of the next one, and its decisions, all rows'."""
    for _ in range(3):
        machine.run(40, machine.rows(count, rule), [accept] * count)
    speed, history = machine.run(80, machine.rows(count, rule), [accept] * count)
    return speed, [budget for budgets in history for budget in budgets]


def test_trees_win_where_tokens_cost_nothing():
    speed, budgets = settled(flat(), head(0.65))
    trees = [budget for budget in budgets if budget.shape]
    assert len(trees) > 0.9 * len(budgets)
    assert max(map(nodes, trees)) > 16
    chain, never = settled(flat(), head(0.65), rule="block")
    assert not any(budget.shape for budget in never), "the rule takes chains only"
    assert speed > 1.2 * chain


def test_chains_win_where_every_token_costs():
    """A fifth of a plain pass a token: a second candidate, accepted once in ten times, is not worth it."""
    speed, budgets = settled(Machine(lambda rows: 0.02, lambda rows, n: 0.004 * n), head(0.9, [0.05] * 5))
    assert speed > 1.5
    drafting = [budget for budget in budgets if budget.depth]
    assert sum(budget.shape is None for budget in drafting) > 0.9 * len(drafting)


@pytest.mark.parametrize("count", [1, 8])
def test_plain_decoding_where_a_token_costs_as_much_as_a_pass(count):
    speed, budgets = settled(Machine(lambda rows: 0.02 * rows, lambda rows, n: 0.02 * n), head(0.9), count)
    assert sum(map(nodes, budgets)) < 0.2 * len(budgets), "a short attempt now and then"
    assert speed >= 0.97


def test_dear_levels_make_broad_trees_and_dear_tokens_narrow_ones():
    """With free tokens and levels at a quarter of a pass each, what pays is breadth."""
    _, broad = settled(flat(step=0.01), head(0.6))
    _, deep = settled(flat(step=0.0001), head(0.6))

    def shape(budgets: list[Budget]) -> float:
        trees = [budget for budget in budgets if budget.shape]
        return sum(nodes(budget) / budget.depth for budget in trees) / len(trees)

    def depth(budgets: list[Budget]) -> float:
        return sum(budget.depth for budget in budgets) / len(budgets)

    assert shape(broad) > shape(deep)
    assert depth(broad) < depth(deep)


def test_only_rows_whose_rule_takes_trees_get_them():
    """Rows of greedy, of block and of nobody knows what, side by side and of different worth."""
    machine = flat()
    rows = [*machine.rows(2, "greedy"), *machine.rows(2, "block"), *(Row(Request([1])) for _ in range(2))]
    accept = [head(0.7), HOPELESS, head(0.7), HOPELESS, head(0.7), HOPELESS]
    _, history = machine.run(60, rows, accept)
    assert not any(budget.shape for budgets in history for budget in budgets[2:])
    good, bad = (sum(nodes(budgets[r]) for budgets in history[20:]) for r in (0, 1))
    assert any(budgets[0].shape for budgets in history[20:])
    assert good > 3 * bad
    assert sum(nodes(b[2]) for b in history[20:]) > 3 * sum(nodes(b[3]) for b in history[20:])
    machine.policy.close(rows)
    assert not machine.policy.acceptance._opened


@pytest.mark.parametrize("rule", ["chosen", "replace", "no_replace", "spectr", "coupled"])
def test_rules_for_trees_at_any_temperature(rule):
    _, budgets = settled(flat(), head(0.5), rule=rule)
    assert any(budget.shape for budget in budgets)


def test_useless_siblings_are_found_out_and_tried_again_much_later():
    """A drafter whose second candidates are never right, on a machine where each costs a fortieth of a pass."""
    machine = Machine(lambda rows: 0.04, lambda rows, n: 0.001 * n)
    _, history = machine.run(200, machine.rows(1), [head(0.7, USELESS_SIBLINGS)])
    branching = [budget.shape is not None for (budget,) in history]
    assert sum(branching[:40]) > 4
    assert sum(branching[-40:]) <= 4
    ranks = machine.policy.acceptance.shared((DRAFTER, "greedy")).ranks
    known = ranks.rates[0][1]
    assert known < AFTER[0] / 2
    for _ in range(1500):
        ranks.learn([(0, 1), (-1, 1)])
    assert ranks.rates[0][1] > 0.9 * AFTER[0], "what was seen long ago fades"


@pytest.mark.parametrize("rule", ["greedy", "block"])
def test_no_draft_is_a_leap_into_the_dark(rule):
    """However free tokens seem, a pass has only so many more than were ever paid for: the price may be a hiccup."""
    machine = flat()
    rows, most = machine.rows(4, rule), 0
    for _ in range(12):
        drafted = sum(map(nodes, machine.cycle(rows, [head(0.95)] * 4)[2]))
        assert drafted <= max(1, ChoiceConfig().leap * most)
        most = max(most, drafted)
    assert most > 16


CURVES = {
    "memory-bound": (lambda rows: 0.04, lambda rows, n: 0.0001 * n),
    "between": (lambda rows: 0.037 + 0.0056 * rows, lambda rows, n: 0.003 + 0.0047 * n if n else 0.0),
    "compute-bound": (lambda rows: 0.01 + 0.01 * rows, lambda rows, n: (0.01 / rows + 0.01) * n),
    "steps of eight": (lambda rows: 0.04, lambda rows, n: 0.03 * ((rows + n - 1) // 8 - (rows - 1) // 8)),
}


@pytest.mark.parametrize("count", [1, 4, 16])
@pytest.mark.parametrize("curve", CURVES)
def test_hopeless_trees_cost_at_most_three_in_a_hundred(curve, count):
    """From the very first batch of 40 tokens a row on, and after texts that were good for trees."""
    for step in (0.0, 0.002):
        machine = Machine(*CURVES[curve], step, noise=0.04)
        for n in range(3):
            speed, _ = machine.run(40, machine.rows(count), [HOPELESS] * count)
            assert speed >= 0.97, f"batch {n}, {step} s a step"
    machine = Machine(*CURVES[curve])
    for _ in range(2):
        machine.run(40, machine.rows(count), [head(0.8)] * count)
    assert machine.run(96, machine.rows(count), [HOPELESS] * count)[0] >= 0.97


falling = st.lists(st.floats(0.02, 0.9), min_size=2, max_size=4).map(lambda some: sorted(some, reverse=True))
tables = st.lists(falling.map(lambda some: [p / max(1.0, sum(some)) for p in some]), min_size=2, max_size=4)


@settings(deadline=None, max_examples=40)
@given(tables)
def test_the_likeliest_places_are_the_best_tree_of_every_size(accept):
    line = best_first(9, accept)
    for size in range(1, len(line) + 1):
        worth = sum(node.chance for node in line[:size])
        assert worth == pytest.approx(expected(best_shape(size, accept), accept), abs=1e-12)
    assert [node.chance for node in line] == sorted((node.chance for node in line), reverse=True)


def test_places_too_unlikely_or_too_many_are_left_out():
    assert best_first(5, []) == []
    line = best_first(50, head(0.5), floor=0.1)
    assert 0 < len(line) < 50
    assert min(node.chance for node in line) > 0.1
    assert len(best_first(3, head(0.5))) == 3


@pytest.mark.parametrize("each", [0.0, 0.02, 0.1, 0.3])
@pytest.mark.parametrize("step", [0.0, 0.05, 0.3])
def test_with_one_row_the_decision_is_that_of_the_table_of_all_shapes(each, step):
    """`shapes.choose` tries the best tree of every size; the policy must find nothing slower."""
    policy, ranks = Adaptive(), RankTable()
    policy.costs.learn(1.0, 1)
    for n in range(1, MOST + 1):
        policy.costs.learn(1.0 + each * n, 1 + n, n)
    for steps in (1, 1, 2, 4, 8):
        policy.costs.draft(step * steps, steps)
    one = AcceptanceEstimate(0.7, AcceptanceConfig(row_prior=7, reach=8), ranks)
    (span,), _ = best([one], policy.free._prices(1), 8, 100.0)
    believed = ranks.accept(0.7, 8)
    parents, speed = choose(MOST, believed, lambda tokens: 1 + each * (tokens - 1), step)
    ours = 1 + sum(node.chance for node in best_first(span.nodes, believed[: span.depth]))
    assert ours / (1 + each * span.nodes + step * span.depth) >= speed - 1e-9
    if not parents:
        assert not span


def test_acceptance_by_rank_and_depth_is_learnt_and_shared_among_depths():
    ranks = RankTable()
    config = AcceptanceConfig()
    assert ranks.rates[0][:3] == [config.first_rate, config.sibling_rate, pytest.approx(0.24)]
    for _ in range(60):
        ranks.learn([(1, 3), (-1, 3)])  # at the first place always the second, at the next none of three
    first, second = ranks.rates[0], ranks.rates[1]
    assert first[0] < 0.1 < 0.8 < first[1]
    assert first[2] == pytest.approx(ranks.rates[7][2], abs=0.2), "nobody came to judge it there"
    assert second[1] < 0.2
    assert 0.3 < ranks.rates[5][1] < 0.7, "a depth nobody has seen is taken for the others"
    assert second[3] == ranks.rates[5][3] == AFTER[2], "a rank nobody has seen for what is usual"
    for line in ranks.accept(0.5, 3):
        assert line == sorted(line, reverse=True)
        assert sum(line) <= 1


def test_where_first_candidates_fail_the_others_are_not_trusted_either():
    believed = RankTable().accept(0.02, 1)
    assert sum(believed[0]) < 0.1


def test_which_candidate_was_accepted_of_how_many():
    tree = Tree.of(2, [0, 0, 1, 0, 0, 0], [-1, -1, -1, 1, 1, 4])
    assert judge(tree, 0, [1, 4]) == [(1, 2), (1, 2), (-1, 1)]
    assert judge(tree, 0, [0]) == [(0, 2)], "nothing follows what was accepted"
    assert judge(tree, 0, [1, 4, 5]) == [(1, 2), (1, 2), (0, 1)]
    assert judge(tree, 1, []) == [(-1, 1)]


def test_a_row_is_judged_by_first_candidates_whatever_else_was_accepted():
    policy = Adaptive()
    machine = flat()
    machine.policy = policy
    rows = machine.rows(1)
    for _ in range(8):
        policy.budget(rows)
        tell(policy, rows, [(-1, -1, 1, 1)], [[1, 3]])
    assert policy.acceptance.of(rows[0]).rate < 0.2
    assert policy.free._record.accepted == 2
    assert policy.free._nodes_per_level == 1.0, "a row that may branch says nothing of drafters that do so unasked"


def test_a_first_price_that_was_a_hiccup_does_not_end_drafting():
    """Requests of 30 tokens; the very first drafted token takes as long as a whole plain pass."""
    for rule in ("greedy", "block"):
        machine = flat(step=0.001)
        machine.more = lambda rows, n: 0.04 if n else 0.0
        rows = machine.rows(1, rule)
        while not machine.cycle(rows, [head(0.0, USELESS_SIBLINGS)])[2][0].depth:
            pass
        machine.more = lambda rows, n: 0.001 * n
        for _ in range(14):
            speed, _ = machine.run(30, machine.rows(1, rule), [head(0.8)])
        assert speed > 2


def test_levels_of_trees_are_priced_apart():
    policy = Adaptive()
    policy.costs.draft(0.5, 1)
    assert policy.costs.chain(1) == 0, "the first draft of all is no measure"
    policy.costs.draft(0.01, 1)
    assert policy.costs.tree(1) == policy.costs.chain(1) == 0.01
    policy.costs.draft(0.06, 2, branched=True)
    assert policy.costs.tree(1) == 0.03
    assert policy.costs.chain(1) == 0.01


def test_no_wider_than_the_vocabulary_and_no_larger_than_the_context():
    policy = Adaptive()
    row = Row(Request([1]))
    policy.open([row], TableModel(Table.random(2, 1, 0), context=5), DRAFTER, rules.get("greedy")())
    assert policy.acceptance.of(row).ranks.width == 2
    assert policy.acceptance.of(row).ranks.max_nodes == 5
    assert RowBudget(5, 3, 2).budget(2).shape.width == 2
    assert RowBudget(5, 3, 2).budget(6).shape.width == 3
    assert RowBudget(3, 3).budget(6) == Budget(3)
    assert not RowBudget()
