"""The lossy rules by hand. Their laws are enumerated in tests/audit/test_lossy.py."""

from __future__ import annotations

import math

import pytest
import torch

from slipstream.core.law import Dense
from slipstream.core.loop import within_limits
from slipstream.core.lossy.cascade import ChowCascade, DifferenceCascade, TokenCascade, TotalVariationCascade
from slipstream.core.noise import ArgmaxNoise, CounterNoise, Purpose, Site
from slipstream.core.rules import rules
from slipstream.core.sampling import Sampling
from slipstream.core.tree import Tree
from slipstream.core.types import Budget, Draft, Request, Row

LOSSY = [name for name in rules.names() if not rules.get(name).lossless]
P = torch.tensor([[0.6, 0.3, 0.1]], dtype=torch.float64)
Q = torch.tensor([[0.2, 0.5, 0.3]], dtype=torch.float64)


def noise(rows: int = 1) -> CounterNoise:
    return CounterNoise([Row(Request([0], Sampling(seed=i))) for i in range(rows)], [False] * rows)


def test_mixtures_by_hand():
    assert torch.equal(ChowCascade(alpha=0.5).mixture(P, Q), Q)  # max q is 0.5, which is not below 0.5
    assert torch.equal(ChowCascade(alpha=0.4).mixture(P, Q), P)
    assert torch.equal(DifferenceCascade(alpha=0.2).mixture(P, Q), Q)
    assert torch.equal(DifferenceCascade(alpha=0.05).mixture(P, Q), P)
    assert torch.equal(TotalVariationCascade(alpha=0.5).mixture(P, Q), Q)  # TV is 0.4
    assert torch.equal(TotalVariationCascade(alpha=0.2).mixture(P, Q), P)
    assert torch.allclose(TokenCascade(alpha=0.1).mixture(P, Q), P * 0.8 + Q * torch.tensor([[1.0, 0, 0]]))
    assert torch.allclose(TokenCascade(alpha=0.5).mixture(P, Q), P * 0.3 + Q * torch.tensor([[1.0, 1, 0]]))


def test_a_cascade_emits_at_most_what_it_drafted():
    tree = Tree.chains([2, 1])
    token, law = torch.tensor([1, 1, 1]), Dense(Q.expand(3, -1))
    verdict = ChowCascade(alpha=1.0).verify(Draft(tree, token, law), Dense(P.expand(5, -1)), noise(2))
    assert verdict.path.tolist() == [[0], [-1]]
    assert verdict.token.tolist() == [1, 1]
    assert verdict.bonus.tolist() == [True, True]
    with pytest.raises(ValueError, match="the rule cascade_chow needs a draft in every cycle"):
        ChowCascade().verify(Draft(Tree.chains([0]), token[:0], Dense(Q[:0])), Dense(P), noise())


def test_a_cascade_may_fill_all_room_and_drafts_always():
    row = Row(Request([0], max_tokens=3))
    assert within_limits([Budget(5)], [row], 100)[0].depth == 2
    assert within_limits([Budget(5)], [row], 100, None, ChowCascade())[0].depth == 3
    assert within_limits([Budget(0)], [row], 100, None, ChowCascade())[0].depth == 1
    assert within_limits([Budget(2)], [row], 100, None, rules.make("bild(fallback=0.3)"))[0].stop_below == 0.3


@pytest.mark.parametrize(
    ("spec", "accepted"),
    [
        ("typical(epsilon=0.2, delta=1)", 1),
        ("typical(epsilon=0.35, delta=1)", 0),
        (f"typical(epsilon=1, delta={0.29 * math.exp(0.898)})", 1),  # H(p) is 0.898
        (f"typical(epsilon=1, delta={0.31 * math.exp(0.898)})", 0),
        ("lenient(factor=2, argmax=true)", 1),
        ("lenient(factor=1.9, argmax=true)", 0),
        ("bild(rollback=1.21)", 1),
        ("bild(rollback=1.2)", 0),
    ],
)
def test_acceptance_by_hand(spec, accepted):
    draft = Draft(Tree.chains([1]), torch.tensor([1]), Dense(Q))
    rule = rules.make(spec)
    verdict = rule.verify(draft, Dense(P.expand(2, -1)), ArgmaxNoise() if rule.argmax else noise())
    assert verdict.accepted.tolist() == [accepted]


def test_draws_without_noise_are_the_largest():
    law = Dense(torch.tensor([[0.2, 0.4, 0.4], [0.5, 0.2, 0.3]]))
    site = Site(*torch.zeros(3, 2, dtype=torch.long))
    assert ArgmaxNoise().draw(law, site, Purpose.DRAFT).tolist() == [1, 0]
    assert ArgmaxNoise().flip(torch.tensor([0.4, 0.5]), site).tolist() == [False, True]


@pytest.mark.parametrize("name", LOSSY)
def test_impossible_tokens_are_never_emitted(name):
    p, q = torch.tensor([[0.0, 0.7, 0.3, 0.0]]), torch.tensor([[0.0, 0.2, 0.8, 0.0]])
    for seed in range(20):
        draws = CounterNoise([Row(Request([0], Sampling(seed=seed)))], [False])
        token = draws.draw(Dense(q), Site(*torch.zeros(3, 1, dtype=torch.long)), Purpose.DRAFT)
        verdict = rules.make(name).verify(Draft(Tree.chains([1]), token, Dense(q)), Dense(p.expand(2, -1)), draws)
        assert int(verdict.token) in (1, 2)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("cascade_tv(alpha=2)", r"alpha of the rule cascade_tv is 2\.0; it must be between 0 and 1"),
        ("lenient(factor=0.5)", r"factor of the rule lenient is 0\.5; it must be 1 \(exact\) or more"),
        ("typical(delta=-1)", r"delta of the rule typical is -1\.0; it must be between 0 and 1"),
        ("bild(fallback=1.5)", r"fallback of the rule bild is 1\.5; it must be between 0 and 1"),
        ("bild(rollback=-1)", r"rollback of the rule bild is -1\.0; it must be 0 or more"),
        ("bild(x=1)", "the rule bild has no option 'x'; it takes argmax, fallback, rollback"),
        ("block(x=1)", "the rule block has no option 'x'; it takes none"),
        ("lenient(1)", "is not of the form name or"),
        ("nothing(x=1)", "there is no rule called 'nothing'"),
    ],
)
def test_rules_and_options_that_are_wrong(spec, message):
    with pytest.raises(ValueError, match=message):
        rules.make(spec)
