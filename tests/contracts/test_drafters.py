"""The contract of every registered drafter, built-in or from an installed plugin. `-k NAME` runs it for one of them."""

from __future__ import annotations

from dataclasses import fields
from functools import partial

import pytest

import blocks
from heads import TableTarget, on_table
from slipstream.audit.subject import Pair, Subject
from slipstream.audit.tables.enumeration import outcomes
from slipstream.audit.tables.exact import check_cycles
from slipstream.audit.tables.stages import second_token, two_stages
from slipstream.core.interfaces import Drafter, sibling_mode
from slipstream.core.noise import CounterNoise
from slipstream.core.rules import rules
from slipstream.core.sampling import Sampling
from slipstream.core.tree import Shape, Siblings
from slipstream.core.types import Budget, Request, Row
from slipstream.drafters import drafters
from slipstream.drafters.build import build_drafter
from slipstream.drafters.retrieval.corpus_index import CorpusIndex
from slipstream.drafters.retrieval.drafter import Retrieval
from slipstream.drafters.table import TableDrafter
from slipstream.models.run.table_model import Table
from slipstream.plan.policy.policies import Fixed
from state_heads import heads_on_table

PAIR = Pair.random(1)


def staged(table: Table) -> Drafter:
    return two_stages(table, second_token(table))


HEADS = {kind: heads_on_table(kind) for kind in ("medusa", "medusa,recurrent", "mlp", "prophet")}
# drafters that need weights to be built by name
CORPUS = CorpusIndex.build([[1, 2, 1, 2, 3, 0, 1, 2, 0], [2, 0, 3, 3, 2, 1, 2, 2]], 4)
WEIGHTS = {
    "table": TableDrafter,
    "retrieval": lambda table: Retrieval(table.vocab, CORPUS),
    "eagle": on_table,
    "dflash": blocks.on_table,
    "staged": staged,
    **HEADS,
}
# their own suites run them: on real architectures, and on tables small enough for the draws of discarded drafts
OWN_SUITE = {"draft_model", "early_exit", "layer_skip", "overlapped"}
NAMES = sorted({*drafters.names(), *WEIGHTS} - OWN_SUITE)  # plugins that are installed are among them


def make(name: str, table: Table) -> Drafter:
    """A drafter for a target that is a table."""
    return WEIGHTS[name](table) if name in WEIGHTS else build_drafter(name, TableTarget(table))


ALIKE = {"prophet", "medusa,recurrent"}  # as medusa and mlp are
PARAMS = [pytest.param(name, marks=pytest.mark.slow if name in ALIKE else ()) for name in NAMES]


@pytest.fixture(params=PARAMS)
def name(request):
    return request.param


@pytest.fixture
def drafter(name):
    return make(name, PAIR.draft)


def test_options_are_a_frozen_dataclass_and_unknown_keys_are_refused():
    for name in drafters.names():
        options_type = drafters.get(name).options_type
        assert options_type.__dataclass_params__.frozen, name
        legal = ", ".join(field.name for field in fields(options_type)) or "none"
        with pytest.raises(ValueError, match=f"{name} has no option 'no_such_option'; it takes {legal}$"):
            build_drafter(name, TableTarget(PAIR.draft), {"no_such_option": "1"})


def rows(n: int, ends=()) -> list[Row]:
    return [Row(Request([1, 2, 1, 2, i % 4], Sampling(seed=i), ends=frozenset(ends))) for i in range(n)]


def propose(drafter, batch, budget):
    drafter.open(batch)
    draft = drafter.propose(batch, budget, CounterNoise(batch, [False] * len(batch)))
    drafter.close(batch)
    return draft


def test_budgets_are_kept_row_by_row(drafter):
    budget = [Budget(d) for d in (0, 1, 2, 5, 0, 3)]
    draft = propose(drafter, rows(6), budget)
    depth = [0] * 6
    for r, _ in draft.tree.lists:
        depth[r] += 1
    assert all(d <= b.depth for d, b in zip(depth, budget, strict=True))


def test_every_drafted_token_is_possible_under_its_law(drafter):
    draft = propose(drafter, rows(30), [Budget(4)] * 30)
    draft.law.check()
    assert bool((draft.law.prob(draft.token) > 0).all())


def test_nothing_is_drafted_past_an_end_token(drafter):
    draft = propose(drafter, rows(40, ends=(1,)), [Budget(5)] * 40)
    inner = draft.tree.parent[draft.tree.parent >= 0]
    assert 1 not in draft.token[inner].tolist()


def test_the_same_rows_draft_the_same_alone_and_together(drafter):
    together = propose(drafter, rows(8), [Budget(3)] * 8)
    for r, row in enumerate(rows(8)):
        alone = propose(drafter, [row], [Budget(3)])
        assert alone.token.tolist() == together.token[together.tree.row == r].tolist()


LOOPS = [(name, rule) for name in NAMES for rule in ("token", "block")]
SLOW_LOOPS = {("staged", "block"), *(loop for loop in LOOPS if loop[0] in HEADS)} - {("mlp", "token")}


@pytest.mark.parametrize(
    ("name", "rule"),
    [pytest.param(*loop, marks=pytest.mark.slow if loop in SLOW_LOOPS else ()) for loop in LOOPS],
)
def test_the_loop_is_exact_with_it(name, rule):
    check = check_cycles("x", Subject(rules.get(rule), drafter=partial(make, name)), PAIR)
    assert check.passed, check.detail


def test_its_draws_are_the_only_randomness(drafter):
    """Two runs of one universe must take the same decisions."""
    subject = Subject(rules.get("token"), drafter=lambda table: drafter)

    def total() -> list[float]:
        universes = outcomes(lambda: subject.row(PAIR, 100), lambda rs, noise: subject.run(PAIR, rs, 1, noise))
        return [outcome.prob for outcome in universes]

    first = total()
    assert first == total()
    assert sum(first) == pytest.approx(1, abs=1e-12)


SHAPES = [Shape((-1, -1, 0)), Shape.levels([3, 2]), Shape(nodes=7, width=3)]


@pytest.mark.parametrize("shape", SHAPES, ids=["fork", "levels", "grown"])
@pytest.mark.parametrize("how", Siblings)
def test_trees_keep_their_budget_and_tell_how_they_were_drawn(drafter, shape, how):
    if how not in drafter.siblings:
        pytest.skip("it cannot draw candidates like this, and says so")
    draft = propose(drafter, rows(12), [Budget(i % 4, shape=shape, siblings=how) for i in range(12)])
    draft.law.check()
    assert bool((draft.law.prob(draft.token) > 0).all())
    for r in range(12):
        mine = [i for i, (row, _) in enumerate(draft.tree.lists) if row == r]
        assert len(mine) <= shape.size
        assert all(int(draft.tree.depth[i]) < r % 4 for i in mine)
    for nodes in draft.tree.children:
        tokens = draft.token[nodes].tolist()
        assert len(tokens) <= (2 * shape.widest if how is Siblings.IID else shape.widest)
        assert how is Siblings.IID or len(set(tokens)) == len(tokens)
    assert len(draft.tree) == 0 or draft.siblings is how


@pytest.mark.parametrize("rule", ["chosen", "replace", "no_replace", "spectr"])
def test_the_loop_is_exact_with_its_trees(name, drafter, rule):
    judge = rules.get(rule)
    if sibling_mode(judge(), drafter) is None:
        pytest.skip("the two can do chains only")
    subject = Subject(judge, lambda: Fixed(1, shape=Shape((-1, -1))), drafter=partial(make, name))
    check = check_cycles("x", subject, PAIR, depth=1, cycles=1)
    assert check.passed, check.detail
