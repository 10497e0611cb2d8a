from __future__ import annotations

import pytest
import torch

from slipstream.core.interfaces import Drafter
from slipstream.core.law import OneHot
from slipstream.core.loop import decode
from slipstream.core.rules import rules
from slipstream.core.sampling import Sampling
from slipstream.core.tree import Tree
from slipstream.core.types import Budget, Draft, Origin, Request, Row
from slipstream.core.verify.match import Greedy
from slipstream.core.verify.token import Token
from slipstream.drafters.ngram import NGram
from slipstream.drafters.none import NoDrafter
from slipstream.drafters.table import TableDrafter
from slipstream.models.run.table_model import Table, TableModel
from slipstream.plan.policy.policies import Fixed

TARGET, DRAFT = Table.random(4, 2, 5), Table.random(4, 2, 6)


def run(rows, drafter=None, rule=Token, depth=3, model=None, policy=None):
    model = model or TableModel(TARGET)
    steps = []
    for cycle in decode(rows, model, drafter or TableDrafter(DRAFT), rule(), policy or Fixed(depth)):
        model.check_integrity()
        steps += cycle
    return steps


def row(seed=0, max_tokens=20, ends=(), temperature=1.0, prompt=(1, 2)):
    return Row(Request(prompt, Sampling(temperature, seed=seed), max_tokens, frozenset(ends)))


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 7])
def test_nothing_is_emitted_past_the_limit(limit):
    one = row(max_tokens=limit)
    steps = run([one], depth=4)
    assert len(one.output) == limit
    assert one.finish_reason == "length"
    assert all(step.drafted < limit for step in steps)
    assert sum(len(step.tokens) for step in steps) == limit == len(one.origins)


@pytest.mark.parametrize("context", [2, 3, 5, 9])
def test_nothing_is_drafted_or_emitted_past_the_context(context):
    class Watched(TableModel):
        def score(self, rows, draft):
            assert all(int(d) + r.length < context for r in rows for d in draft.tree.depth)
            return super().score(rows, draft)

    one = row(max_tokens=100)
    run([one], depth=4, model=Watched(TARGET, context))
    assert one.length == context
    assert one.finish_reason == "length"


def test_a_prompt_longer_than_the_context_is_refused():
    with pytest.raises(ValueError, match="context holds 3"):
        run([row(prompt=(0, 1, 2, 3))], model=TableModel(TARGET, 3))


def test_a_token_outside_the_vocabulary_is_refused():
    with pytest.raises(ValueError, match="outside 0 to 3"):
        run([row(prompt=(0, 4))])


def test_an_empty_prompt_is_refused():
    with pytest.raises(ValueError, match="empty"):
        Request(())


@pytest.mark.parametrize("seed", range(20))
def test_the_first_end_token_is_the_last_token(seed):
    one = row(seed, max_tokens=50, ends=(0, 3))
    steps = run([one], depth=4)
    assert one.finish_reason == "stop" or len(one.output) == 50
    assert not {0, 3} & set(one.output[:-1])
    assert [t for step in steps for t in step.tokens] == one.output
    assert len(one.origins) == len(one.output)


class Blind(Drafter):
    """Drafts the same tokens whatever came before, end tokens and all."""

    def propose(self, rows, budget, noise):
        depths = [spend.depth for spend in budget]
        token = torch.tensor([i % 4 for depth in depths for i in range(depth)], dtype=torch.long)
        return Draft(Tree.chains(depths), token, OneHot(token, 4))


def test_a_drafter_that_runs_past_the_end_changes_nothing():
    plain, blind = row(temperature=0, ends=(3,)), row(temperature=0, ends=(3,))
    run([plain], NoDrafter(4), Greedy, 0)
    run([blind], Blind(), Greedy, 4)
    assert blind.output == plain.output


def test_depth_zero_is_plain_decoding():
    one = row()
    steps = run([one], depth=0)
    assert len(steps) == 20
    assert set(one.origins) == {Origin.PLAIN}


def test_origins_tell_accepted_from_recovered_and_bonus():
    one = row(max_tokens=200)
    for step in run([one], depth=2):
        assert step.origins[:-1] == [Origin.ACCEPTED] * (len(step.tokens) - 1)
        if step.drafted:
            bonus = step.accepted == step.drafted
            assert step.origins[-1] == (Origin.BONUS if bonus else Origin.RECOVERED)


@pytest.mark.parametrize("rule", rules.lossless())
@pytest.mark.parametrize("make", [lambda: TableDrafter(DRAFT), lambda: NGram(4), Blind])
def test_a_ragged_batch_is_its_rows_alone(rule, make):
    """Different seeds, prompts, limits and temperatures together give what each gives alone."""
    temperature = 0.0 if rule == "greedy" else 0.8

    def rows():
        return [
            row(i, 5 + 3 * i, ends=(3,) if i % 2 else (), temperature=temperature, prompt=(1, i % 4)) for i in range(6)
        ]

    together = rows()
    run(together, make(), rules.get(rule))
    for one, other in zip(rows(), together, strict=True):
        run([one], make(), rules.get(rule))
        assert one.output == other.output
        assert one.origins == other.origins


def test_sampled_and_greedy_rows_share_a_batch_under_the_token_rule():
    rows = [row(1, temperature=0), row(2, temperature=1)]
    alone = row(temperature=0)
    run(rows)
    run([alone], NoDrafter(4), Greedy, 0)
    assert rows[0].output == alone.output


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_coupled_output_depends_on_seed_and_target_alone(depth):
    plain = [row(seed) for seed in range(10)]
    run(plain, NoDrafter(4), rules.get("coupled"), 0)
    for make in (lambda: TableDrafter(DRAFT), lambda: NGram(4), Blind):
        again = [row(seed) for seed in range(10)]
        run(again, make(), rules.get("coupled"), depth)
        assert [r.output for r in again] == [r.output for r in plain]


def test_a_request_without_a_seed_gets_a_fresh_one():
    assert Row(Request((1,))).seed != Row(Request((1,))).seed


def test_samples_of_one_seed_differ_and_repeat():
    def sample(index):
        one = Row(Request((1, 2), Sampling(seed=9), 20, sample=index))
        run([one])
        return one.output

    assert sample(0) != sample(1)
    assert sample(1) == sample(1)


def test_rows_are_closed_when_the_loop_is_abandoned():
    model = TableModel(TARGET)
    loop = decode([row()], model, TableDrafter(DRAFT), Token(), Fixed(2))
    next(loop)
    loop.close()
    assert not model._cache


@pytest.mark.parametrize("bad", [{"depth": -1}, {"depth": 1, "stop_below": 2.0}])
def test_an_illegal_budget_names_itself(bad):
    with pytest.raises(ValueError, match=list(bad)[-1]):
        Budget(**bad)
