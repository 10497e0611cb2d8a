"""The audit of a loaded pair, where numbers depend on the batch: rounding passes, wrong tokens do not."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

import letters
from slipstream.audit.planted.chain import residual_is_target
from slipstream.audit.real import RealPair, check_continuations, check_recorded, check_same_tokens, pass_seconds
from slipstream.core.interfaces import Verifier
from slipstream.core.sampling import Sampling
from slipstream.core.verify.match import Greedy
from slipstream.core.verify.token import Token
from slipstream.drafters.draft_model import DraftModel
from slipstream.drafters.none import NoDrafter
from slipstream.models.run.torch_model import TorchModel

TWINS = letters.TOKENS.index("c"), letters.TOKENS.index("j")


class Wobbly(TorchModel):
    """Rounds otherwise when it reads several tokens at once."""

    size = 1e-3

    def score(self, rows, draft):
        scores = super().score(rows, draft)
        side = torch.arange(scores.logits.shape[1]) % 2 * -2 + 1
        return replace(scores, logits=scores.logits + self.size * (len(draft.tree) > 0) * side)


class Astray(Greedy):
    """Now and then another token than the likeliest."""

    def verify(self, draft, target, noise):
        verdict = super().verify(draft, target, noise)
        return replace(verdict, token=(verdict.token + (verdict.token % 3 == 0)) % len(letters.TOKENS))


def pair(even: bool = False) -> RealPair:
    """`even`: two tokens are the likeliest, exactly alike."""
    made = copy.deepcopy(letters.plain())
    if even:
        head = torch.nn.Linear(32, len(letters.TOKENS))
        with torch.no_grad():
            head.weight.copy_(made.lm_head.weight)
            head.weight[TWINS[1]] = head.weight[TWINS[0]]
            head.bias.zero_()
            head.bias[list(TWINS)] = 50.0
        made.lm_head, made.config.tie_word_embeddings = head, False
    model = Wobbly(made, retained=0)
    assert not model.invariant
    draft = copy.deepcopy(letters.plain())
    with torch.no_grad():
        for weight in draft.parameters():
            weight += 0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    return RealPair(model, DraftModel(TorchModel(draft), len(letters.TOKENS)), [[5, 9, 4, 4, 7], [3, 8]], [5, 6, 7])


@pytest.mark.parametrize(
    ("rule", "right"),
    [pytest.param(Token(), True, marks=pytest.mark.slow), (Token(residual=residual_is_target), False)],
)
def test_continuations_are_counted_without_a_cut(rule: Verifier, right: bool):
    found = check_continuations("token", pair(), rule, 4000, 0.6)
    assert found.passed is right, found.detail


def test_continuations_without_a_draft_test_nothing():
    idle = replace(pair(), drafter=NoDrafter(len(letters.TOKENS)))
    for check in (
        check_continuations("token", idle, Token(), 200, 1.0),
        check_recorded("token", idle, Token(), Sampling(seed=1)),
    ):
        assert not check.passed
        assert "nothing was drafted" in check.detail


def test_a_pass_takes_some_time():
    assert 0 < pass_seconds(pair()) < 10


def test_flipped_ties_are_told():
    found = check_same_tokens("greedy", pair(even=True), Greedy(), Sampling(temperature=0), 12)
    assert found.passed, found.detail
    assert "all at ties" in found.detail


def test_a_wrong_token_is_no_tie():
    found = check_same_tokens("greedy", pair(), Astray(), Sampling(temperature=0), 12)
    assert not found.passed
    assert "apart where ways to compute them differ" in found.detail
