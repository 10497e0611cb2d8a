from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.core.law import OneHot
from slipstream.core.sampling import MIN_TEMPERATURE, Sampling, law, likeliest

LOGITS = torch.tensor([[2.0, 1.0, 1.0, 0.0, -math.inf]], dtype=torch.float64)


def probs(sampling: Sampling, logits=LOGITS):
    return law(logits, [sampling] * len(logits)).dense()


def test_the_default_is_the_models_own_law():
    assert torch.allclose(probs(Sampling()), LOGITS.softmax(-1))


def test_temperature_zero_is_one_hot_and_takes_the_lowest_of_equals():
    found = law(torch.tensor([[1.0, 3.0, 3.0]]), [Sampling(temperature=0)])
    assert isinstance(found, OneHot)
    assert found.token.tolist() == [1]


def test_top_k_keeps_equals_together():
    kept = probs(Sampling(top_k=2))[0] > 0
    assert kept.tolist() == [True, True, True, False, False]


@pytest.mark.parametrize("k", [5, 6, 10**6])
def test_top_k_at_or_above_the_vocabulary_changes_nothing(k):
    assert torch.allclose(probs(Sampling(top_k=k)), probs(Sampling()))


def test_top_p_one_changes_nothing_and_zero_keeps_the_best():
    assert torch.allclose(probs(Sampling(top_p=1.0)), probs(Sampling()))
    assert probs(Sampling(top_p=0.0))[0].tolist() == [1, 0, 0, 0, 0]


def test_top_p_keeps_the_token_that_reaches_the_mass():
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]], dtype=torch.float64).log()
    assert (probs(Sampling(top_p=0.6), logits) > 0).tolist() == [[True, True, False, False]]
    assert (probs(Sampling(top_p=0.71), logits) > 0).tolist() == [[True, True, True, False]]


def test_top_p_beyond_the_first_sort_is_the_same_nucleus():
    logits = torch.randn(2, 3000, generator=torch.Generator().manual_seed(1), dtype=torch.float64) / 10
    kept = probs(Sampling(top_p=0.9), logits)
    ranked = logits.softmax(-1).sort(descending=True).values
    size = (ranked.cumsum(-1) < 0.9).sum(-1) + 1
    assert (kept > 0).sum(-1).tolist() == size.tolist()
    assert size.min() > 512


def test_min_p_is_relative_to_the_best():
    logits = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64).log()
    assert torch.allclose(probs(Sampling(min_p=0.5), logits), torch.tensor([[0.625, 0.375, 0]], dtype=torch.float64))


@pytest.mark.parametrize("temperature", [1e-46, 1e-40, 5e-324])
def test_a_temperature_that_float32_does_not_hold_is_greedy(temperature):
    assert Sampling(temperature=temperature) == Sampling(temperature=0)
    assert law(torch.tensor([[1.0, 3.0, 2.0]]), [Sampling(temperature=temperature)]).dense().tolist() == [[0, 1, 0]]


def test_the_least_temperature_has_a_law():
    laws = law(torch.tensor([[1.0, 30.0, 2.0], [-1e4, -1e4, -2e4]]), [Sampling(temperature=MIN_TEMPERATURE)] * 2)
    assert laws.dense().tolist() == [[0, 1, 0], [0.5, 0.5, 0]]


def test_a_tiny_temperature_is_finite():
    logits = torch.tensor([[80.0, 79.999, -50.0]])
    found = probs(Sampling(temperature=1e-6), logits)
    assert torch.isfinite(found).all()
    assert torch.allclose(found.sum(-1), torch.ones(1))
    assert found[0, 0] > 0.999


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_or_infinite_logits_are_an_error_not_a_token(bad):
    for sampling in (Sampling(), Sampling(temperature=0)):
        with pytest.raises(FloatingPointError, match="NaN"):
            law(torch.tensor([[0.0, bad, 1.0]]), [sampling])
    with pytest.raises(FloatingPointError, match="no possible token"):
        law(torch.full((1, 3), -math.inf), [Sampling()])


def test_a_large_vocabulary_in_float32_sums_to_one():
    logits = torch.randn(3, 150_000, generator=torch.Generator().manual_seed(0)) * 5
    law(logits, [Sampling(), Sampling(top_p=0.95), Sampling(temperature=0.3, top_k=50)]).check(1e-5)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([0, 1e-6, 0.5, 1.0, 3.0]),
            st.integers(0, 9),
            st.sampled_from([0, 0.3, 0.9, 1]),
            st.sampled_from([0, 0.1, 1]),
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(0, 1000),
)
def test_rows_of_a_batch_do_not_see_each_other(parameters, seed):
    rows = [Sampling(*p) for p in parameters]
    logits = torch.randn(len(rows), 7, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    together = law(logits, rows).dense()
    for i, row in enumerate(rows):
        assert torch.equal(together[i].double(), law(logits[i : i + 1], [row]).dense()[0].double())


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": -1},
        {"temperature": math.nan},
        {"top_k": -1},
        {"top_p": 1.1},
        {"top_p": math.nan},
        {"min_p": -0.1},
        {"seed": -1},
    ],
)
def test_illegal_parameters_name_themselves(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        Sampling(**bad)


def test_of_equally_likely_tokens_the_first_is_taken():
    logits = torch.tensor([[0.0, 2.0, 2.0, 1.0], [3.0, -1.0, 3.0, 3.0], [1.0, 1.0, 1.0, 1.5]])
    assert likeliest(logits).tolist() == [1, 0, 3]
    assert law(logits, [Sampling(0)] * 3).support()[0][:, 0].tolist() == [1, 0, 3]
    with pytest.raises(FloatingPointError, match="no law"):
        law(torch.tensor([[0.0, torch.nan, 1.0]]), [Sampling(0)])
