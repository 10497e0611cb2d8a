"""Rules for several candidates: their laws in numbers, their edges, and what they refuse."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.audit.rational.transport import DRAWN, bound, optimum
from slipstream.audit.rational.tree import accepted, emitted
from slipstream.audit.subject import Pair, Subject
from slipstream.audit.tables.fixed_noise import FixedNoise, check_fields, orders
from slipstream.core.law import Dense, OneHot, Sparse, concat
from slipstream.core.noise import CounterNoise, Purpose, Site
from slipstream.core.rules import rules
from slipstream.core.sampling import Sampling
from slipstream.core.tree import Shape, Siblings, Tree
from slipstream.core.types import Draft, Request, Row
from slipstream.core.verify.match import Coupled, keep_matches
from slipstream.core.verify.spectr import factor, gain, k_sequential
from slipstream.core.verify.token import acceptance
from slipstream.core.verify.tree import offer, offer_one_hot, outcomes
from slipstream.models.run.table_model import Table
from slipstream.plan.policy.policies import Fixed

weights = st.lists(st.integers(0, 6), min_size=4, max_size=4).filter(any)
TREES = ["chosen", "replace", "no_replace", "spectr"]


def normal(values) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float64) / sum(values)


def fractions(values) -> list[Fraction]:
    return [Fraction(v, sum(values)) for v in values]


def noise(rows: int, seed: int = 0, shared: bool = False) -> CounterNoise:
    return CounterNoise([Row(Request([0], Sampling(seed=seed + i))) for i in range(rows)], [shared] * rows)


def pair_draft(q: torch.Tensor, tokens: list[int], siblings: Siblings | None) -> Draft:
    """Candidates after one slot, all under the law q."""
    token = torch.tensor(tokens)
    return Draft(Tree.of(1, [0] * len(tokens), [-1] * len(tokens)), token, Dense(q.expand(len(tokens), -1)), siblings)


@settings(deadline=None, max_examples=40)
@given(weights, weights, st.integers(1, 3), st.sampled_from(TREES))
def test_at_a_slot_the_token_has_the_targets_law_and_no_more_is_accepted_than_can_be(p, q, count, rule):
    p, q = fractions(p), fractions(q)
    assert emitted(rule, p, q, count) == p
    assert accepted(rule, p, q, count) <= optimum(p, DRAWN[rule](q, count))


@settings(deadline=None, max_examples=40)
@given(weights, weights, st.sampled_from(["chosen", "replace", "no_replace"]))
def test_one_more_candidate_never_accepts_less(p, q, rule):
    p, q = fractions(p), fractions(q)
    shares = [accepted(rule, p, q, count) for count in (1, 2, 3)]
    assert shares == sorted(shares)


@settings(deadline=None, max_examples=25)
@given(weights, weights, st.integers(2, 3))
def test_spectr_reaches_its_published_share_of_the_optimum(p, q, count):
    """Its factor is rounded up by at most (count - 1) / 4096 in the rational version."""
    p, q = fractions(p), fractions(q)
    share = accepted("spectr", p, q, count)
    assert share >= bound(count) * optimum(p, DRAWN["spectr"](q, count)) - Fraction(1, 1000)
    assert share >= accepted("spectr", p, q, count - 1) - Fraction(1, 1000)


@settings(deadline=None, max_examples=50)
@given(weights, weights, st.integers(1, 8))
def test_the_factor_is_valid_and_hardly_larger_than_needed(p, q, count):
    p, q, k = normal(p), normal(q), torch.tensor([count])
    rho = factor(p, q, k)
    assert 1 <= float(rho) <= count
    both = torch.minimum(p / rho[:, None], q).sum(-1)
    assert float(gain(both, k)) <= float(rho) + 1e-12
    less = (rho - 1e-6).clamp(min=1)
    if float(less) < float(rho):
        assert float(gain(torch.minimum(p / less[:, None], q).sum(-1), k)) > float(less) - 1e-6


@settings(deadline=None, max_examples=50)
@given(weights, weights, st.integers(0, 3))
def test_spectr_of_one_candidate_is_the_token_rule(p, q, token):
    p, q = normal(p), normal(q)
    accept, _ = k_sequential(p, pair_draft(q, [token], None), torch.tensor([[0]]))
    assert float(accept[0, 0]) == pytest.approx(float(acceptance(p[:, token], q[:, token])[0]), abs=1e-12)


@settings(deadline=None, max_examples=50)
@given(weights, st.permutations(range(4)), st.integers(1, 4))
def test_the_closed_form_for_chosen_candidates_is_the_general_rule(p, order, count):
    token = torch.tensor(order[:count])
    draft = Draft(Tree.of(1, [0] * count, [-1] * count), token, OneHot(token, 4), Siblings.CHOSEN)
    nodes = torch.arange(count)[None]
    (one, rest), (other, left) = offer_one_hot(normal(p), draft, nodes), offer(normal(p), draft, nodes)
    first, second = outcomes(one), outcomes(other)
    torch.testing.assert_close(first, second, atol=1e-12, rtol=0)
    if float(first[0, 0]) > 1e-12:
        torch.testing.assert_close(rest, left, atol=1e-12, rtol=0)


def test_a_candidate_given_twice_is_not_counted_twice():
    token = torch.tensor([1, 1])
    draft = Draft(Tree.of(1, [0, 0], [-1, -1]), token, OneHot(token, 3), Siblings.CHOSEN)
    accept, rest = offer_one_hot(normal([1, 2, 1]), draft, torch.tensor([[0, 1]]))
    assert accept.tolist() == [[0.5, 0.0]]
    assert rest.tolist() == [[0.5, 0.0, 0.5]]


@pytest.mark.parametrize("rule", TREES)
def test_a_tree_is_judged_the_same_alone_and_in_a_batch(rule):
    """Rows of different widths: neither the padding nor the others change what a row keeps."""
    generator = torch.Generator().manual_seed(1)
    shapes = [[-1, -1, 0], [-1], [], [-1, -1, -1, 0, 0]]
    row = [r for r, parents in enumerate(shapes) for _ in parents]
    start = [sum(map(len, shapes[:r])) for r in range(len(shapes))]
    parent = [p + start[r] if p >= 0 else -1 for r, parents in enumerate(shapes) for p in parents]
    tree = Tree.of(len(shapes), row, parent)
    token = torch.tensor([5, 3, 1, 2, 7, 6, 4, 1, 2])
    law = Dense(torch.randn(len(tree) + 4, 9, generator=generator).softmax(-1))
    law = OneHot(token, 9) if rule == "chosen" else law.select(tree.origin)
    target = Dense(torch.randn(len(tree) + 4, 9, generator=generator).mul(2).softmax(-1))
    for seed in range(8):
        together = rules.get(rule)().verify(Draft(tree, token, law, Siblings.IID), target, noise(4, seed))
        for r, parents in enumerate(shapes):
            mine = [i for i in range(len(tree)) if row[i] == r]
            alone = Draft(
                Tree.of(1, [0] * len(parents), parents),
                token[mine],
                law.select(torch.tensor(mine, dtype=torch.long)),
                Siblings.IID,
            )
            index = torch.tensor([r, *(4 + i for i in mine)])
            verdict = rules.get(rule)().verify(alone, target.select(index), noise(1, seed + r))
            path = [i for i in together.path[r].tolist() if i >= 0]
            assert [mine[i] for i in verdict.path[0].tolist() if i >= 0] == path
            assert int(verdict.token) == int(together.token[r])
            assert bool(verdict.bonus) == bool(together.bonus[r])


def test_a_token_drawn_twice_leads_to_the_node_that_goes_on():
    """Of two equal candidates the first has the children; whichever of them is accepted, the path goes through it."""
    token = torch.tensor([2, 2, 1])
    tree = Tree.of(1, [0, 0, 0], [-1, -1, 0])
    draft = Draft(tree, token, Dense(torch.tensor([[0.1, 0.1, 0.8]] * 2 + [[0.2, 0.7, 0.1]])), Siblings.IID)
    target = Dense(torch.tensor([[0.3, 0.3, 0.4], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]))
    paths = {tuple(rules.get("spectr")().verify(draft, target, noise(1, seed)).path[0].tolist()) for seed in range(60)}
    assert paths == {(), (0, 2)}


@pytest.mark.parametrize("rule", TREES)
def test_a_vocabulary_of_150000(rule):
    vocab, tree = 150_000, Tree.of(2, [0, 0, 0, 1], [-1, -1, 0, -1])
    token = torch.tensor([5, 6, 7, 8])
    law = OneHot(token, vocab) if rule == "chosen" else Sparse(token[:, None], torch.ones(4, 1), vocab)
    target = Dense(torch.randn(6, vocab, generator=torch.Generator().manual_seed(1)).mul(3).softmax(-1))
    verdict = rules.get(rule)().verify(Draft(tree, token, law, Siblings.IID), target, noise(2))
    assert bool(((verdict.token >= 0) & (verdict.token < vocab)).all())


def test_a_rule_that_does_not_fit_the_draft_is_refused():
    q = torch.tensor([[0.5, 0.5]])
    target = Dense(torch.tensor([[0.5, 0.5]] * 3))
    with pytest.raises(ValueError, match="the chosen rule needs chosen candidates"):
        rules.get("chosen")().verify(pair_draft(q, [0, 1], Siblings.IID), target, noise(1))
    with pytest.raises(ValueError, match="the spectr rule needs candidates drawn independently"):
        rules.get("spectr")().verify(pair_draft(q, [0, 1], Siblings.DISTINCT), target, noise(1))
    with pytest.raises(ValueError, match="this rule verifies chains"):
        rules.get("token")().verify(pair_draft(q, [0, 1], Siblings.IID), target, noise(1))


TREES_OF = {"chains": None, "pairs": Shape((-1, -1)), "forks": Shape.levels([2, 2]), "grown": Shape(nodes=5, width=3)}


@pytest.mark.parametrize("pair", [Pair.random(2, vocab=3), Pair.random(7, vocab=4, order=1)], ids=["three", "four"])
def test_coupled_trees_emit_what_the_targets_own_races_give(pair):
    check = check_fields("x", Subject(rules.get("coupled")), pair, TREES_OF)
    assert check.passed, check.detail


class Late(Coupled):
    """Runs the target's race on the field of the position before."""

    def verify(self, draft, target, noise):
        tree = draft.tree
        site = Site(tree.slot_row, torch.zeros_like(tree.slot_row), (tree.slot_depth - 1).clamp(min=0))
        return keep_matches(draft, noise.draw(target, site, Purpose.FIELD))


class Leaning(Coupled):
    """Takes any candidate the draft offers: what is emitted depends on how wide it was."""

    def verify(self, draft, target, noise):
        verdict = super().verify(draft, target, noise)
        first = [nodes[0] if nodes else -1 for nodes in draft.tree.children[: draft.tree.rows]]
        return verdict if -1 in first else replace(verdict, path=torch.tensor(first)[:, None])


@pytest.mark.parametrize("rule", [Late, Leaning])
def test_a_coupled_rule_that_reads_the_wrong_field_or_leans_on_the_draft_is_caught(rule):
    check = check_fields("x", Subject(rule), Pair.random(2, vocab=3), {"pairs": TREES_OF["pairs"]})
    assert not check.passed
    assert "differ with pairs" in check.detail


def test_a_wider_coupled_draft_keeps_at_least_as_much_on_every_field():
    """The candidates are the first finishers of one race, so a wider draft offers the same ones and more."""
    laws = torch.tensor([[0.1, 0.3, 0.6], [0.6, 0.3, 0.1]], dtype=torch.float64)
    pair, kept = Pair(Table(laws[:1], 0), Table(laws[1:], 0), (0,)), []
    fields = list(orders(3))
    for width in (1, 2, 3):
        rows = {Subject(Coupled).row(pair, 2): (field, field) for field in fields}
        subject = Subject(Coupled, lambda width=width: Fixed(1, shape=Shape((-1,) * width)))
        steps = subject.run(pair, list(rows), 1, lambda some, _, rows=rows: FixedNoise([rows[row] for row in some]))
        kept.append([step.accepted for step in steps[0]])
    for narrow, wide in pairwise(kept):
        assert all(a <= b for a, b in zip(narrow, wide, strict=True))
    assert sum(kept[0]) < sum(kept[1]) < sum(kept[2]) == len(fields)


def test_a_law_without_a_token():
    token = torch.tensor([1, 0])
    dense = Dense(torch.tensor([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]]))
    sparse = Sparse(torch.tensor([[1, 2], [0, 1]]), torch.tensor([[0.25, 0.75], [1.0, 0.0]]), 3)
    torch.testing.assert_close(dense.without(token).dense(), torch.tensor([[2 / 7, 0, 5 / 7], [0, 0, 0]]))
    torch.testing.assert_close(sparse.without(token).dense(), torch.tensor([[0, 0, 1.0], [0, 0, 0]]))
    assert float(OneHot(token, 3).without(token).dense().sum()) == 0
    assert len(concat([dense.without(token), sparse])) == 4
