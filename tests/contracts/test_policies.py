"""The contract of every registered policy, built-in or from an installed plugin. `-k NAME` runs it for one of them."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace

import pytest

from slipstream.audit.subject import Pair, Subject
from slipstream.audit.tables.exact import check_endings
from slipstream.core.device import DraftSize, SizeMenu, SizeOption
from slipstream.core.interfaces import Policy
from slipstream.core.loop import decode
from slipstream.core.rules import rules
from slipstream.core.sampling import Sampling
from slipstream.core.types import Budget, Request, Row
from slipstream.drafters.table import TableDrafter
from slipstream.models.run.table_model import Table, TableModel
from slipstream.plan import policies

PAIR = Pair.random(1)
MODEL, DRAFTER = TableModel(PAIR.target), TableDrafter(PAIR.draft)
OPTIONS = [SizeOption(DraftSize(depth), 1 + depth / 10) for depth in (0, 1, 3)] + [
    SizeOption(DraftSize(3, 6, 8), 1.4, captured=False)
]


@pytest.fixture(params=policies.names())
def policy(request) -> Policy:
    return policies.get(request.param).build()


def rows(count: int, max_tokens: int = 40) -> list[Row]:
    return [Row(Request([1, 2, i % 4], Sampling(0, seed=i), max_tokens)) for i in range(count)]


def opened(policy: Policy, count: int, rule: str = "greedy", **options) -> list[Row]:
    batch = rows(count)
    policy.open(batch, MODEL, DRAFTER, rules.get(rule)(), **options)
    return batch


@pytest.mark.parametrize("rule", ["token", "block"])
def test_the_law_is_the_targets_whatever_it_decides(policy, rule):
    kind = type(policy)
    check = check_endings("x", Subject(rules.get(rule), kind.build), PAIR, max_tokens=3)
    assert check.passed, check


def test_greedy_text_is_that_of_plain_decoding(policy):
    def texts(chosen: Policy) -> list[list[int]]:
        batch = rows(5)
        for _ in decode(batch, MODEL, DRAFTER, rules.get("greedy")(), chosen):
            pass
        return [row.output for row in batch]

    class Never(Policy):
        def budget(self, rows):
            return [Budget(0)] * len(rows)

    assert texts(policy) == texts(Never())


@pytest.mark.parametrize("count", [0, 1, 7])
def test_every_row_gets_a_budget(policy, count):
    batch = opened(policy, count)
    for _ in range(20):
        budget = policy.budget(batch)
        assert len(budget) == count
        assert all(isinstance(own, Budget) and own.depth >= 0 for own in budget)
        policy.price(0.001, 0.01, max(1, count))


@pytest.mark.parametrize("chains_only", [False, True])
def test_rows_that_may_not_branch_get_chains_where_the_policy_chooses_the_shape(policy, chains_only):
    batch = opened(policy, 2, chains_only=chains_only) if chains_only else opened(policy, 2, rule="block")
    for _ in range(20):
        assert all(own.shape is None for own in policy.budget(batch))
        policy.price(0.0, 0.01, 2)


def test_rows_come_and_go_and_are_forgotten(policy):
    batch = opened(policy, 4)
    policy.budget(batch)
    policy.choose(batch, lambda: SizeMenu(OPTIONS))
    left = [weakref.ref(row) for row in batch[:2]]
    policy.close(batch[:2])
    batch = batch[2:]
    policy.budget(batch)
    policy.choose(batch, lambda: SizeMenu(OPTIONS))
    gc.collect()
    assert all(row() is None for row in left)
    policy.close(batch)


@pytest.mark.parametrize("count", [1, 12])
@pytest.mark.parametrize("ready", [False, True])
def test_captured_sizes_are_chosen_from_the_menu_or_left_alone(policy, count, ready):
    batch, sizes = opened(policy, count), {option.size.budget for option in OPTIONS}
    known = [n % 4 for n in range(count)] if ready else None
    for cycle in range(60):
        chosen = policy.choose(batch, lambda: SizeMenu(OPTIONS, delay=0.1), known)
        if chosen is None:
            return
        assert chosen in sizes or chosen == policy.budget(batch)[0]
        accepted = min(chosen.depth, cycle % 3)
        judged = [(0, 1)] * accepted + [(-1, 1)] * (accepted < chosen.depth)
        result = SimpleNamespace(tokens=[1] * chosen.depth, emitted=[1] * (accepted + 1), judged=judged)
        policy.observe_captured(batch, [result] * count)


def test_rows_that_were_never_opened_are_no_trouble(policy):
    """Their drafter failed before the policy heard of them."""
    batch = rows(2)
    result = SimpleNamespace(tokens=[], emitted=[1], judged=[])
    for _ in range(3):
        assert len(policy.budget(batch)) == 2
        policy.choose(batch, lambda: SizeMenu(OPTIONS))
        policy.observe_captured(batch, [result] * 2)
    policy.close(batch)


def test_a_small_vocabulary_and_a_short_context_are_no_trouble(policy):
    batch = rows(2, max_tokens=3)
    model = TableModel(Table.random(2, 1, 0), context=4)
    drafter = TableDrafter(Table.random(2, 1, 1))
    batch = [Row(Request([1], Sampling(0), 9)) for _ in batch]
    for _ in decode(batch, model, drafter, rules.get("greedy")(), policy):
        pass
    assert [row.length for row in batch] == [4, 4]
