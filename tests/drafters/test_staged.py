"""Staged drafts have the law of the stage that verified them, and leave the loop exact with every rule."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from automaton import STATES, automaton
from heads import eagle
from slipstream.audit.subject import Pair, Subject
from slipstream.audit.tables.enumeration import outcomes
from slipstream.audit.tables.exact import HistoryPolicy, check_cycles, check_endings
from slipstream.audit.tables.fixed_noise import check_fields
from slipstream.audit.tables.replay import check_replay
from slipstream.audit.tables.stages import second_token, swapped, two_stages, two_tokens
from slipstream.core.loop import decode
from slipstream.core.noise import CounterNoise
from slipstream.core.rules import rules
from slipstream.core.sampling import Sampling
from slipstream.core.tree import Shape, Siblings
from slipstream.core.types import Budget, Request, Row
from slipstream.drafters.draft_model import DraftModel
from slipstream.drafters.ngram import NGram, NGramIndex, NGramOptions
from slipstream.drafters.staged.branches import branches
from slipstream.drafters.staged.drafter import Staged
from slipstream.drafters.staged.options import read_staged_options
from slipstream.drafters.table import TableDrafter
from slipstream.models.run.table_model import Table, TableModel
from slipstream.models.run.torch_model import TorchModel
from slipstream.plan.policy.policies import Fixed
from tiny import build
from uneven import Uneven

PAIRS = [Pair.random(seed, vocab=3) for seed in range(3)]
TINY = Pair.random(5, vocab=2)


def whole_tables(table: Table) -> Staged:
    """Both stages give every token a chance."""
    return Staged(TableDrafter(Table.random(table.vocab, 2, 77, zeros=0)), TableDrafter(table), table.vocab, depth=1)


def three_stages(table: Table) -> Staged:
    first = Staged(TableDrafter(second_token(table)), TableDrafter(swapped(table)), table.vocab, depth=1)
    return Staged(first, TableDrafter(table), table.vocab, depth=2, number=2)


@pytest.mark.parametrize(
    ("pair", "rule", "policy", "drafter"),
    [
        (PAIRS[2], "token", lambda: Fixed(2), two_stages),
        (PAIRS[1], "block", HistoryPolicy, two_stages),
        (PAIRS[2], "block", lambda: Fixed(2, stop_below=0.6), two_stages),
        (TINY, "block", lambda: Fixed(2), whole_tables),
    ],
    ids=["token", "history", "stop", "whole"],
)
def test_two_cycles_through_both_stages_have_the_targets_law(pair, rule, policy, drafter):
    check = check_cycles("x", Subject(rules.get(rule), policy, drafter=drafter), pair)
    assert check.passed, check.detail


def test_three_stages_have_the_targets_law():
    subject = Subject(rules.get("token"), lambda: Fixed(3), depth=3, drafter=three_stages)
    check = check_cycles("x", subject, TINY, cycles=1)
    assert check.passed, check.detail


def test_sampling_parameters_reach_every_stage():
    subject = Subject(rules.get("token"), sampling=Sampling(0.6, top_p=0.8), drafter=two_stages)
    check = check_cycles("x", subject, PAIRS[2])
    assert check.passed, check.detail


def test_a_grammar_reaches_every_stage():
    full = Pair(*(Table.random(4, 1, seed, zeros=0) for seed in (1, 2)))
    check = check_cycles(
        "x", Subject(rules.get("token"), drafter=whole_tables, grammar=automaton(STATES)), full, cycles=1
    )
    assert check.passed, check.detail


def test_end_tokens_and_limits_inside_a_draft():
    check = check_endings("x", Subject(rules.get("block"), drafter=two_stages), PAIRS[1], max_tokens=3, end=1)
    assert check.passed, check.detail


@pytest.mark.parametrize(
    ("rule", "shape"),
    [("spectr", Shape((-1, -1))), ("replace", Shape((-1, -1, 0))), ("replace", Shape(nodes=3, width=2))],
)
def test_trees_of_independent_continuations_have_the_targets_law(rule, shape):
    depth = shape.depth or 2
    subject = Subject(rules.get(rule), lambda: Fixed(depth, shape=shape), depth=depth, drafter=two_stages)
    check = check_cycles("x", subject, PAIRS[2], cycles=3 - depth)
    assert check.passed, check.detail


def test_a_first_stage_that_drafts_trees():
    def drafter(table: Table) -> Staged:
        return Staged(TableDrafter(swapped(table)), TableDrafter(two_tokens(table)), 3, 1, Shape((-1, -1)))

    check = check_cycles("x", Subject(rules.get("token"), drafter=drafter), PAIRS[0])
    assert check.passed, check.detail


@pytest.mark.parametrize("drafter", [whole_tables, three_stages])
def test_the_draft_itself_has_the_law_it_reports(drafter):
    """Every outcome of the draws of one draft: its probability is the product of the reported laws."""
    pair, observed, told = TINY, {}, {}

    def run(rows, noise):
        stages = drafter(pair.draft)
        stages.open(rows)
        draft = stages.propose(rows, [Budget(3)] * len(rows), noise(rows, [False] * len(rows)))
        for r, row in enumerate(rows):
            nodes = draft.tree.row == r
            row.text = tuple(draft.token[nodes].tolist())
            told[row.text] = float(draft.law.prob(draft.token)[nodes].prod())

    for outcome in outcomes(lambda: Row(Request(pair.prompt, Sampling(seed=1))), run):
        assert not outcome.faults
        observed[outcome.row.text] = observed.get(outcome.row.text, 0.0) + outcome.prob
    assert observed == pytest.approx(told, abs=1e-12)
    for text, prob in told.items():
        exact = 1.0
        for n, token in enumerate(text):
            exact *= float(pair.draft.law([*pair.prompt, *text[:n]])[token])
        assert prob == pytest.approx(exact, abs=1e-12)


@pytest.mark.slow
def test_under_the_coupled_rule_the_text_is_the_targets_choice():
    check = check_fields("x", Subject(rules.get("coupled"), drafter=two_stages), PAIRS[0], {"chains": None})
    assert check.passed, check.detail


@pytest.mark.parametrize(
    ("drafter", "shape"),
    [(two_stages, Shape(nodes=6, width=3)), pytest.param(three_stages, None, marks=pytest.mark.slow)],
)
def test_under_the_coupled_rule_all_stages_share_one_field(drafter, shape):
    """The text depends on the seed alone, and the draft is the draft model's own choice on the same field."""
    subject = Subject(rules.get("coupled"), drafter=drafter)
    check = check_replay("x", subject, PAIRS[0], [3], length=8, shape=shape)
    assert check.passed, check.detail

    def draft(drafter):
        rows = [Row(Request(PAIRS[0].prompt, Sampling(seed=seed))) for seed in range(20)]
        drafter.open(rows)
        return drafter.propose(rows, [Budget(4)] * 20, CounterNoise(rows, [True] * 20)).token.tolist()

    staged = drafter(PAIRS[0].draft)
    assert draft(staged) == draft(TableDrafter(staged.stage.middle.table))


def test_the_plan_of_branches():
    chain, fork, grown = Budget(3), Shape((-1, -1, 0, 0, 2)), Shape(nodes=5, width=2)
    assert [branch.places for branch in branches(chain, 3)] == [(0, 1, 2)]
    planned = branches(Budget(3, shape=fork, siblings=Siblings.IID), 3)
    assert [(branch.after, branch.places) for branch in planned] == [(-1, (0, 2, 4)), (-1, (1,)), (0, (3,))]
    cut = branches(Budget(1, shape=fork, siblings=Siblings.IID), 1)
    assert [(branch.after, branch.places) for branch in cut] == [(-1, (0,)), (-1, (1,))]
    assert [len(branch.places) for branch in branches(Budget(9, shape=grown, siblings=Siblings.IID), 9)] == [3, 2]
    assert not branches(chain, 0)


# on real networks


def stages(kind: str = "ngram", vocab: int = 97) -> Staged:
    middle = DraftModel(TorchModel(build("llama", num_hidden_layers=2)), vocab)
    first = {
        "ngram": lambda: NGram(vocab),
        "draft_model": lambda: DraftModel(TorchModel(build("llama", num_hidden_layers=1)), vocab),
        "eagle": lambda: eagle(middle.model, range(40), features=(0, 1)),
    }[kind]()
    return Staged(first, middle, vocab, depth=2)


DEPTHS = (4, 0, 0, 1, 3)


class Anew(Staged):
    """Makes its state anew for each draft, so that it has no cache that could be wrong."""

    def propose(self, rows, budget, noise):
        self.close(rows)
        self.open(rows)
        return super().propose(rows, budget, noise)


def texts(drafter: Staged, rule: str, policy: Fixed, tokens: int = 9) -> list[list[int]]:
    """A ragged batch of which one row is cancelled early."""
    rows = [Row(Request([3, 4, 5, 3, 4, 5 + i][: 4 + i], Sampling(seed=i), tokens + i)) for i in range(2)]
    for turn, _ in enumerate(decode(rows, TorchModel(build("llama")), drafter, rules.get(rule)(), policy)):
        drafter.stage.model.check_integrity()
        rows[1].finish_reason = rows[1].finish_reason or ("cancelled" if turn == 2 else None)
    assert not drafter.stage.model.rows
    return [row.output for row in rows]


@pytest.mark.parametrize(
    ("kind", "rule", "shape"),
    [
        pytest.param("ngram", "token", None, marks=pytest.mark.slow),
        pytest.param("draft_model", "block", None, marks=pytest.mark.slow),
        ("eagle", "coupled", None),
        ("ngram", "replace", Shape((-1, -1, 0))),
    ],
)
def test_the_caches_of_all_stages_follow_the_verdicts(kind, rule, shape):
    kept = texts(stages(kind), rule, Uneven(DEPTHS, shape))
    fresh = stages(kind)
    fresh.__class__ = Anew
    assert kept == texts(fresh, rule, Uneven(DEPTHS, shape))


@pytest.mark.parametrize("shape", [None, Shape.levels([2, 2])])
def test_greedy_text_stays_that_of_plain_decoding(shape):
    def text(depth: int) -> list[int]:
        row = Row(Request([3, 4, 5, 3, 4], Sampling(temperature=0), 16))
        for _ in decode([row], TorchModel(build("llama")), stages(), rules.get("greedy")(), Fixed(depth, shape=shape)):
            pass
        return row.output

    assert text(4) == text(0)


def test_the_middle_model_runs_fewer_passes_than_it_drafts_tokens():
    """The first stage is the middle model's twin, so that every token is accepted."""
    middle = DraftModel(TorchModel(build("llama")), 97)
    staged = Staged(DraftModel(TorchModel(build("llama")), 97), middle, 97, depth=3)
    passes, score = [], middle.model.score
    middle.model.score = lambda rows, draft: passes.append(1) or score(rows, draft)  # type: ignore[method-assign]
    row = Row(Request([3, 4, 5], Sampling(temperature=0)))
    staged.open([row])
    assert len(staged.propose([row], [Budget(8)], CounterNoise([row], [False])).token) == 8
    assert len(passes) == 2


def test_a_first_stage_that_remembers_texts_gets_the_committed_ones():
    class Remembering(NGram):
        texts: ClassVar[list[list[int]]] = []

        def close(self, rows):
            super().close(rows)
            self.texts += [row.output for row in rows]

    staged = Staged(Remembering(2), TableDrafter(TINY.draft), 2)
    rows = [Row(Request(TINY.prompt, Sampling(seed=seed), 7)) for seed in range(5)]
    for _ in decode(rows, TableModel(TINY.target), staged, rules.get("token")(), Fixed(3)):
        pass
    assert Remembering.texts == [row.output for row in rows]


def test_the_context_of_the_middle_model_is_respected():
    middle = DraftModel(TorchModel(build("llama", num_hidden_layers=1), context=8), 97)
    staged = Staged(NGram(97), middle, 97)
    row = Row(Request([1, 2, 3, 1, 2], Sampling(seed=1), 20))
    staged.open([row])
    assert len(staged.propose([row], [Budget(6)], CounterNoise([row], [False])).token) == 3
    row.tokens += [5, 6, 7]
    assert len(staged.propose([row], [Budget(6)], CounterNoise([row], [False])).token) == 0


def test_a_small_vocabulary_that_allows_no_token_ends_the_draft():
    """The request allows tokens that the middle model does not know, after the first two."""
    middle = DraftModel(TorchModel(build("llama", num_hidden_layers=1, vocab_size=97)), 120)
    staged = Staged(NGram(120), middle, 120)

    def processor(tokens, logits):
        allowed = [100] if len(tokens) == 5 else [7, 8]
        kept = torch.full_like(logits, -torch.inf)
        kept[allowed] = 0.0
        return kept

    row = Row(Request([1, 2, 3], Sampling(seed=1), 20, processor=processor))
    staged.open([row])
    narrow = DraftModel(middle.model, 120, torch.arange(97))
    staged = Staged(NGram(120), narrow, 120)
    staged.open([row])
    draft = staged.propose([row], [Budget(5)], CounterNoise([row], [False]))
    assert len(draft.token) == 2
    assert set(draft.token.tolist()) <= {7, 8}


@given(st.lists(st.integers(0, 3), max_size=30), st.integers(0, 30), st.lists(st.integers(0, 3), max_size=10))
def test_a_truncated_index_is_that_of_the_shorter_text(text, length, more):
    index, fresh = NGramIndex(NGramOptions()), NGramIndex(NGramOptions())
    index.extend(text)
    index.truncate(length)
    index.extend(more)
    fresh.extend([*text[:length], *more])
    assert index.text == fresh.text
    assert {gram: places for gram, places in index.follows.items() if places} == fresh.follows


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stages": "ngram"}, "stages is 'ngram'; it must be two or three drafters, such as ngram,draft_model"),
        ({"stages": "ngram,,draft_model"}, "it must be two or three drafters"),
        ({"depth": "0"}, "option depth of staged is 0; it must be 1 or more"),
        ({"tree": "3x"}, "option tree of staged is '3x'; it must be widths by level, such as 3x2x1"),
        ({"eagle.model": "x"}, "staged has no option 'eagle.model'; it takes stages, depth, tree"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        read_staged_options(options, "staged")


def test_options_of_a_stage():
    options = read_staged_options({"stages": "ngram, draft_model", "ngram.longest": "2", "depth": "3"}, "staged")
    assert options.names == ["ngram", "draft_model"]
    assert options.of_stage("ngram") == {"longest": "2"}
    assert options.of_stage("draft_model") == {}
    assert options.depth == 3
