"""The rules' laws: exact on tables in tests/audit, and safe at every edge of their domain here."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.core.law import Dense, OneHot, Sparse
from slipstream.core.noise import CounterNoise, Purpose, Site
from slipstream.core.rules import rules
from slipstream.core.sampling import Sampling
from slipstream.core.tree import Tree
from slipstream.core.types import Draft, Request, Row
from slipstream.core.verify.block import longest_prefix, prefix_acceptance, ratios, weights
from slipstream.core.verify.match import keep_matches, match_tree
from slipstream.core.verify.token import acceptance, residual, settle

SAMPLED = [name for name in rules.lossless() if name != "greedy"]
DRAWN = [name for name in SAMPLED if name != "chosen"]  # takes drafts that were drawn


def noise(rows: int, shared: bool = False, seed: int = 0) -> CounterNoise:
    return CounterNoise([Row(Request([0], Sampling(seed=seed + i))) for i in range(rows)], [shared] * rows)


def verify(name: str, draft: Draft, target, seed: int = 0):
    rule = rules.get(name)()
    return rule.verify(draft, target, noise(draft.tree.rows, rule.shared, seed))


def law_of(rows: int, vocab: int, seed: int) -> Dense:
    return Dense((torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 3).softmax(-1))


@pytest.mark.parametrize("name", DRAWN)
def test_a_draft_equal_to_the_target_is_accepted_whole(name):
    target = law_of(4, 50, 1)
    for seed in range(30):
        draft_law = target.select(torch.tensor([0, 1, 2]))
        rule = rules.get(name)()
        draws = noise(1, rule.shared, seed)
        tree = Tree.chains([3])
        token = draws.draw(draft_law, Site(tree.row, tree.node, tree.depth), Purpose.DRAFT)
        verdict = rule.verify(Draft(tree, token, draft_law), target, draws)
        assert verdict.accepted.tolist() == [3]
        assert bool(verdict.bonus)


@pytest.mark.parametrize("name", SAMPLED)
def test_impossible_tokens_are_never_accepted_nor_emitted(name):
    p = torch.tensor([[0.0, 0.7, 0.3, 0.0]] * 2)
    for seed in range(50):
        draft = Draft(Tree.chains([1]), torch.tensor([0]), OneHot(torch.tensor([0]), 4))
        verdict = verify(name, draft, Dense(p), seed)
        assert verdict.accepted.tolist() == [0]
        assert int(verdict.token) in (1, 2)


@pytest.mark.parametrize("name", DRAWN)
def test_a_token_its_own_law_excludes_is_rejected_without_nan(name):
    q = Sparse(torch.tensor([[0, 1]]), torch.tensor([[1.0, 0.0]]), 3)
    draft = Draft(Tree.chains([1]), torch.tensor([1]), q)
    verdict = verify(name, draft, Dense(torch.tensor([[0.2, 0.2, 0.6]] * 2)))
    assert 0 <= int(verdict.token) < 3


@pytest.mark.parametrize("name", rules.lossless())
def test_a_vocabulary_of_150000_in_a_ragged_batch(name):
    vocab, tree = 150_000, Tree.chains([2, 0, 1])
    target = law_of(6, vocab, 2)
    if name == "greedy":
        target = OneHot(target.probs.argmax(-1), vocab)
    draft = Draft(tree, torch.tensor([5, 6, 7]), OneHot(torch.tensor([5, 6, 7]), vocab))
    verdict = verify(name, draft, target)
    assert verdict.token.shape == (3,)
    assert bool(((verdict.token >= 0) & (verdict.token < vocab)).all())
    assert verdict.accepted[1] == 0
    assert bool(verdict.bonus[1])


@pytest.mark.parametrize("name", rules.lossless())
def test_rows_that_draft_nothing_are_plain(name):
    target = OneHot(torch.tensor([3, 1]), 5)
    draft = Draft(Tree.chains([0, 0]), torch.zeros(0, dtype=torch.long), OneHot(torch.zeros(0, dtype=torch.long), 5))
    verdict = verify(name, draft, target)
    assert verdict.token.tolist() == [3, 1]
    assert verdict.accepted.tolist() == [0, 0]


@pytest.mark.parametrize("name", rules.lossless())
def test_batch_mates_do_not_change_a_row(name):
    """The same row alone and among others: same verdict."""
    vocab, depths = 12, [3, 1, 2]
    tree = Tree.chains(depths)
    target, q = law_of(3 + 6, vocab, 4), law_of(6, vocab, 5)
    if name == "greedy":
        target = OneHot(target.probs.argmax(-1), vocab)
    token = torch.arange(6)
    q = OneHot(token, vocab) if name == "chosen" else q
    together = verify(name, Draft(tree, token, q), target)
    for r, depth in enumerate(depths):
        nodes = (tree.row == r).nonzero()[:, 0]
        slots = torch.cat([torch.tensor([r]), nodes + 3])
        rule = rules.get(name)()
        alone = rule.verify(
            Draft(Tree.chains([depth]), token[nodes], q.select(nodes)), target.select(slots), noise(1, rule.shared, r)
        )
        assert int(alone.token) == int(together.token[r])
        assert int(alone.accepted) == int(together.accepted[r])


def test_greedy_refuses_to_guess_what_a_temperature_means():
    draft = Draft(Tree.chains([0]), torch.zeros(0, dtype=torch.long), OneHot(torch.zeros(0, dtype=torch.long), 3))
    with pytest.raises(ValueError, match="temperature 0"):
        verify("greedy", draft, law_of(1, 3, 0))


def test_greedy_follows_a_tree():
    tree = Tree.of(1, [0, 0, 0], [-1, -1, 1])
    token = torch.tensor([4, 2, 3])
    target = OneHot(torch.tensor([2, 0, 3, 1]), 5)  # after the text: 2; after node 1 (slot 2): 3; after node 2: 1
    verdict = verify("greedy", Draft(tree, token, OneHot(token, 5)), target)
    assert verdict.path.tolist() == [[1, 2]]
    assert verdict.token.tolist() == [1]


distributions = st.lists(st.integers(0, 6), min_size=4, max_size=4).filter(any)


def normal(weights):
    return torch.tensor([weights], dtype=torch.float64) / sum(weights)


@settings(deadline=None)
@given(distributions, distributions)
def test_accepted_and_residual_mass_is_the_target(p_weights, q_weights):
    p, q = normal(p_weights), normal(q_weights)
    kept = q * acceptance(p, q)
    rest = residual(p, Dense(q))
    assert torch.allclose(kept + (1 - kept.sum()) * rest, p, atol=1e-14)
    assert torch.allclose(rest.sum(), torch.ones((), dtype=torch.float64))


def test_the_residual_of_equal_laws_is_the_law_itself():
    p = torch.tensor([[0.25, 0.75]], dtype=torch.float64)
    assert torch.equal(residual(p, Dense(p)), p)


@pytest.mark.parametrize("name", ["token", "block"])
def test_rows_that_drafted_nothing_draw_what_they_would_beside_others(name):
    target, none = law_of(3, 200, 4), torch.zeros(0, dtype=torch.long)
    draft = Draft(Tree.chains([0, 0, 0]), none, OneHot(none, 200))
    for seed in range(20):
        short = verify(name, draft, target, seed)
        whole = settle(draft, target, [0] * 3, torch.ones(0), noise(3, seed=seed))
        assert torch.equal(short.token, whole.token)
        assert short.path.shape == whole.path.shape == (3, 0)
        assert short.bonus.tolist() == whole.bonus.tolist() == [True] * 3


def ragged(seed: int, depths: list[int], vocab: int = 30) -> tuple[Draft, Dense]:
    tree, generator = Tree.chains(depths), torch.Generator().manual_seed(seed)
    logits = torch.randn(len(depths) + sum(depths), vocab, generator=generator) * 2
    near = (logits[tree.origin] + torch.randn(len(tree), vocab, generator=generator)).softmax(-1)
    token = near.multinomial(1, generator=generator)[:, 0]
    return Draft(tree, token, Dense(near)), Dense(logits.softmax(-1))


def test_block_keeps_the_longest_prefix_that_every_probability_says_it_would():
    """Sought from the end, with as few surpluses as possible, it is what all of them together give."""
    for seed in range(60):
        draft, target = ragged(seed, [4, 0, 2, 5])
        tree, draws = draft.tree, noise(4, seed=seed)
        weight = weights(ratios(target.prob_at(tree.origin, draft.token), draft.law.prob(draft.token)), tree.parent)
        after = {p: i for i, (_, p) in enumerate(tree.lists)}
        chances = prefix_acceptance(draft, target, weight.tolist(), [(i, after.get(i, -1)) for i in range(len(tree))])
        kept = draws.flip(torch.tensor(chances, dtype=torch.float64), Site(tree.row, tree.node, tree.depth)).tolist()
        expected = [max((n for n, i in enumerate(line, 1) if kept[i]), default=0) for line in tree.lines]
        assert longest_prefix(draft, target, weight.tolist(), draws) == expected
        assert all(chance <= bound * (1 + 1e-6) for chance, bound in zip(chances, weight.tolist(), strict=True))


def test_coupled_draws_along_its_path_what_it_would_draw_everywhere():
    for seed in range(40):
        draft, target = ragged(seed, [3, 0, 5])
        tree, draws = draft.tree, noise(3, shared=True, seed=seed)
        site = Site(tree.slot_row, torch.zeros_like(tree.slot_row), tree.slot_depth)
        expected = keep_matches(draft, draws.draw(target, site, Purpose.FIELD))
        found = match_tree(draft, target, draws)
        assert torch.equal(found.path, expected.path)
        assert torch.equal(found.token, expected.token)
        assert torch.equal(found.bonus, expected.bonus)
