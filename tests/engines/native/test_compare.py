"""Where two outputs part: a flipped tie is told apart from a wrong token."""

from __future__ import annotations

import copy

import pytest
import torch

import letters
from slipstream.core.sampling import Sampling
from slipstream.core.types import Request
from slipstream.engines.base import Speculation
from slipstream.engines.native.compare import agreement, judge
from slipstream.engines.native.engine import NativeEngine
from slipstream.models.run.torch_model import TorchModel

TWINS = letters.TOKENS.index("c"), letters.TOKENS.index("k")
PROMPT = [5, 9, 4, 4, 7]


def twins(apart: float) -> NativeEngine:
    """An engine whose model likes one token best, and another one exactly as well but for a bias of `apart`."""
    made = copy.deepcopy(letters.plain())
    head = torch.nn.Linear(32, len(letters.TOKENS))
    with torch.no_grad():
        head.weight.copy_(made.lm_head.weight)
        head.weight[TWINS[1]] = head.weight[TWINS[0]]
        head.bias.zero_()
        head.bias[list(TWINS)] = torch.tensor([50.0, 50.0 - apart])
    made.lm_head = head
    made.config.tie_word_embeddings = False
    target = letters.target()
    return NativeEngine(type(target)(target.files, TorchModel(made), target.text), "ngram", "coupled")


def outputs(engine: NativeEngine, how: Sampling, tokens: int = 12) -> list[int]:
    off = Speculation(off=True)
    return engine.generate(PROMPT, how, max_tokens=tokens, ignore_eos=True, speculation=off)[0].token_ids


def test_equal_outputs_agree():
    with twins(0.0) as engine:
        compared = agreement(engine.target.model, Request(PROMPT), [1, 2, 3], [1, 2, 3])
    assert compared.identical
    assert (compared.ties, compared.real) == (0, None)


@pytest.mark.parametrize("flips", [(0,), (3,), (2, 5, 11)])
def test_every_flipped_tie_is_counted(flips):
    """Plain decoding always takes the first of two equal tokens; an output that took the second is as right."""
    greedy = Sampling(temperature=0)
    with twins(0.0) as engine:
        plain = outputs(engine, greedy)
        assert plain == [TWINS[0]] * 12
        other = [TWINS[1] if i in flips else token for i, token in enumerate(plain)]
        compared = agreement(engine.target.model, Request(PROMPT, greedy, 12), other, plain)
    assert not compared.identical
    assert [divergence.position for divergence in compared.divergences] == list(flips)
    assert compared.ties == len(flips)
    assert compared.real is None
    assert all(divergence.gap <= divergence.numerics for divergence in compared.divergences)


@pytest.mark.parametrize("apart", [0.01, 3.0])
def test_a_token_that_is_worse_than_rounding_explains_is_real(apart):
    greedy = Sampling(temperature=0)
    with twins(apart) as engine:
        plain = outputs(engine, greedy)
        compared = agreement(
            engine.target.model, Request(PROMPT, greedy, 12), [*plain[:4], TWINS[1], *plain[5:]], plain
        )
    assert compared.real is not None
    assert compared.real.position == 4
    assert compared.real.gap == pytest.approx(apart, abs=1e-4)
    assert compared.real.numerics < apart


def test_two_choices_that_are_equally_wrong_are_no_tie():
    """Close to each other is not enough: both must be close to the best."""
    greedy = Sampling(temperature=0, logit_bias={3: 200.0})
    with twins(0.0) as engine:
        compared = agreement(engine.target.model, Request(PROMPT, greedy, 4), [TWINS[0]] * 4, [TWINS[1]] * 4)
    assert compared.real is not None
    assert compared.real.gap == 0
    assert compared.real.behind > 100


@pytest.mark.parametrize(
    "how", [Sampling(0.8, seed=3), Sampling(1.3, 9, 0.9, seed=4, repetition_penalty=1.2, presence_penalty=0.3)]
)
def test_the_race_is_run_again_as_the_engine_ran_it(how):
    """Along a coupled output, every token the engine chose is the best there, so judged against itself nothing is
    missing; any other token is a real difference."""
    with NativeEngine(letters.target(), "ngram", "coupled") as engine:
        tokens = outputs(engine, how)
        for at, token in enumerate(tokens):
            assert judge(engine.target.model, Request(PROMPT, how, 12), tokens[:at], (token, token)).behind == 0
        wrong = (tokens[6] + 1) % len(letters.TOKENS)
        compared = agreement(engine.target.model, Request(PROMPT, how, 12), [*tokens[:6], wrong, *tokens[7:]], tokens)
    assert compared.real is not None
    assert compared.real.position == 6
