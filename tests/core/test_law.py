from __future__ import annotations

import pytest
import torch

from slipstream.core.law import Dense, OneHot, Sparse, concat

P = torch.tensor([[0.5, 0.0, 0.3, 0.2], [0.1, 0.2, 0.3, 0.4]], dtype=torch.float64)
LAWS = [
    OneHot(torch.tensor([2, 0]), 4),
    Sparse(torch.tensor([[2, 0], [3, 1]]), torch.tensor([[0.25, 0.75], [1.0, 0.0]]), 4),
    Dense(torch.tensor([[0.5, 0.25, 0.25, 0.0], [0.0, 0.0, 0.5, 0.5]])),
]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: type(law).__name__)
def test_every_kind_agrees_with_its_dense_form(law):
    dense = law.dense()
    law.check()
    for token in range(4):
        assert torch.equal(law.prob(torch.tensor([token, token])), dense[:, token])
        assert torch.equal(law.prob_at(torch.tensor([1, 0, 1]), torch.tensor([token] * 3)), dense[[1, 0, 1], token])
    assert torch.allclose(law.excess(P), (P - dense).clamp(min=0))
    assert torch.equal(law.select(torch.tensor([1, 0, 1])).dense(), dense[[1, 0, 1]])
    ids, probs = law.support()
    assert torch.equal(torch.zeros(2, 4).scatter_add(1, ids, probs), dense)


@pytest.mark.parametrize("first", LAWS, ids=lambda law: type(law).__name__)
@pytest.mark.parametrize("second", LAWS, ids=lambda law: type(law).__name__)
def test_concat_keeps_every_probability(first, second):
    joined = concat([first, second])
    assert torch.equal(joined.dense(), torch.cat([first.dense(), second.dense()]))


def test_a_law_in_low_precision_is_refused():
    with pytest.raises(AssertionError, match="not exact"):
        Dense(torch.tensor([[0.5, 0.5]], dtype=torch.bfloat16))


def test_what_does_not_sum_to_one_is_no_law():
    with pytest.raises(ValueError, match="sum to 1"):
        Dense(torch.tensor([[0.5, 0.4]])).check()


def test_excess_leaves_its_argument_alone():
    before = P.clone()
    for law in LAWS:
        law.excess(P)
    assert torch.equal(P, before)
