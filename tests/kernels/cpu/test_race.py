"""The race in one pass picks what the race of `core.noise` picks."""

from __future__ import annotations

import pytest
import torch

from slipstream.core import sampling
from slipstream.core.law import Dense, OneHot, Sparse
from slipstream.core.noise import CounterNoise, Purpose, Site, race
from slipstream.core.sampling import Sampling
from slipstream.core.types import Request, Row
from slipstream.core.verify.token import ResidualLaw
from slipstream.kernels.cpu.race import TINY, KernelNoise, kernel

pytestmark = pytest.mark.skipif(kernel() is None, reason="needs a C++ compiler")


def keys(count: int) -> torch.Tensor:
    return torch.randint(-(2**63), 2**63 - 1, (count,), generator=torch.Generator().manual_seed(3))


def probs(rows: int, vocab: int, sharpness: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    logits = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(vocab)) * sharpness
    return logits.to(dtype).softmax(-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sharpness", [0.0, 1.0, 5.0, 40.0])  # the last leaves most tokens nothing at all
@pytest.mark.parametrize("vocab", [2, 3, 1000, 49152])
def test_dense(vocab, sharpness, dtype):
    rows = 200 if vocab <= 1000 else 30
    law = Dense(probs(rows, vocab, sharpness, dtype))
    assert torch.equal(kernel().race(law, keys(rows)), race(law, keys(rows)))


def test_sparse_and_expanded():
    ids = torch.randperm(5000, generator=torch.Generator().manual_seed(1))[:900].sort().values
    law = Sparse(ids.expand(50, -1), probs(50, 900, 3.0), 5000)
    assert torch.equal(kernel().race(law, keys(50)), race(law, keys(50)))
    same = Sparse(law.ids, probs(1, 900, 3.0).expand(50, -1), 5000)
    assert torch.equal(kernel().race(same, keys(50)), race(same, keys(50)))
    across = Dense(probs(900, 50, 3.0).T)  # rows that do not lie in a line
    assert torch.equal(kernel().race(across, keys(50)), race(across, keys(50)))


@pytest.mark.parametrize("vocab", [10, 20000])  # one part, and several
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nobody_wins_where_nothing_is_possible_or_a_probability_is_nan(vocab, dtype):
    some = probs(4, vocab, 1.0, dtype)
    some[0] = 0
    some[1, vocab - 3] = torch.nan
    some[2] = torch.nan
    ids = torch.arange(vocab).expand(4, -1)
    for law in (Dense(some), Sparse(ids, some, vocab)):
        assert kernel().race(law, keys(4)).tolist() == race(law, keys(4)).tolist()
        assert [token < 0 for token in race(law, keys(4)).tolist()] == [True, True, True, False]


@pytest.mark.parametrize("kind", [KernelNoise, CounterNoise])
def test_nothing_is_drawn_from_a_law_with_nan(kind):
    some, site = probs(2, 50, 1.0), Site(*(torch.arange(2) for _ in range(3)))
    some[1, 7] = torch.nan
    noise = kind([Row(Request([1, 2, 3])) for _ in range(2)], [False] * 2)
    with pytest.raises(FloatingPointError, match="a law holds NaN or no possible token"):
        noise.draw(Dense(some), site, Purpose.EMIT)


def test_noise_draws_alike():
    rows = [Row(Request([1, 2, 3])) for _ in range(30)]
    law, site = Dense(probs(30, 500, 2.0)), Site(torch.arange(30), torch.arange(30), torch.zeros(30).long())
    for shared in (False, True):
        fast, slow = (kind(rows, [shared] * 30).draw(law, site, Purpose.EMIT) for kind in (KernelNoise, CounterNoise))
        assert torch.equal(fast, slow)


def test_a_law_that_lies_elsewhere_is_raced_there():
    """Keys are made on the host whatever the device; the kernel must not be handed another device's memory."""
    law = Dense(probs(3, 50, 1.0).to("meta"))
    assert KernelNoise([], []).race(law, keys(3)).device.type == "meta"


@pytest.mark.parametrize("vocab", [3, 1000, 49152])
def test_what_is_left_of_a_law_is_raced_over_without_being_made(vocab):
    """Sparse, one-hot and dense shares; scales that leave much, little, or nothing at all."""
    generator = torch.Generator().manual_seed(vocab)
    whole, ids = probs(60, vocab, 3.0), torch.arange(0, vocab, 2)
    scale = torch.rand(60, generator=generator, dtype=torch.float64)
    for taken in (
        Sparse(ids.expand(60, -1), probs(60, len(ids), 3.0), vocab),
        OneHot(torch.randint(vocab, (60,), generator=generator), vocab),
        Dense(probs(60, vocab, 2.0)),
        Dense(whole),  # with a scale below 1 nothing is left anywhere
    ):
        law = ResidualLaw(whole, scale, taken)
        assert torch.equal(kernel().race(law, keys(60)), race(law, keys(60)))


def test_a_rest_of_someone_elses_making_is_taken_as_it_is():
    law = ResidualLaw(
        probs(20, 50, 1.0), torch.ones(20).double(), Dense(probs(20, 50, 2.0)), lambda weight, _: weight.flip(1)
    )
    assert torch.equal(kernel().race(law, keys(20)), race(law, keys(20)))


@pytest.mark.parametrize("vocab", [1, 5, 16, 4097, 5003, 49152])
def test_exponentials_of_numbers_that_are_at_most_0(vocab):
    scaled = torch.randn(5, vocab, generator=torch.Generator().manual_seed(vocab)).mul(8)
    scaled -= scaled.max(-1, keepdim=True).values
    scaled[1, 1:] = -torch.inf
    scaled[2, 1:] = -100.0  # of which torch gives a denormal number
    exps = scaled.clone()
    total = kernel().exponentials(exps)
    assert torch.allclose(exps, scaled.double().exp().float(), 1e-6, TINY)
    assert torch.allclose(total.double(), exps.double().sum(-1, keepdim=True), 1e-7)
    assert bool((exps[torch.isneginf(scaled)] == 0).all())


def test_exponentials_of_a_row_are_the_same_whatever_rows_lie_beside_it():
    scaled = probs(7, 5003, 3.0).log()
    wide = torch.zeros(7, 5011)[:, :5003].copy_(scaled)  # rows do not lie end to end
    whole, apart = kernel().exponentials(wide), [row[None].clone() for row in scaled]
    alone = torch.cat([kernel().exponentials(row) for row in apart])
    assert torch.equal(whole, alone)
    assert torch.equal(wide, torch.cat(apart))


@pytest.mark.parametrize("vocab", [1, 5, 700, 5003, 49152])
@pytest.mark.parametrize("sharpness", [0.0, 0.01, 1.0, 4.0, 40.0])
def test_top_p_and_min_p(vocab, sharpness):
    """Also where all tokens are equal, thousands are kept, or most have nothing at all."""
    masses, shares = (0.0, 0.3, 0.9, 0.999, 0.9999999, 1.0), (0.0, 1e-4, 0.3, 1.0)
    params = [Sampling(top_p=mass, min_p=share) for mass in masses for share in shares]
    given = probs(len(params), vocab, sharpness)
    found, expected = kernel().truncated(given.clone(), params), sampling.truncated(given.clone(), params)
    assert torch.equal(found > 0, expected > 0)
    assert torch.allclose(found, expected, 3e-7, 0)
    whole = [i for i, wish in enumerate(params) if not wish.truncates]
    assert torch.equal(found[whole], given[whole])


def test_equal_probabilities_are_kept_together():
    law = torch.tensor([[0.25, 0.125, 0.25, 0.125, 0.25]]).repeat(4, 1)
    params = [Sampling(top_p=0.2), Sampling(top_p=0.75), Sampling(top_p=0.76), Sampling(min_p=0.5)]
    kept = (kernel().truncated(law.clone(), params) > 0).tolist()
    assert kept == [[True, False, True, False, True]] * 2 + [[True] * 5] * 2


def test_rows_that_do_not_lie_end_to_end_are_truncated_alike():
    given, params = probs(7, 5003, 3.0), [Sampling(top_p=0.1 * i + 0.2, min_p=0.01) for i in range(7)]
    wide = torch.zeros(7, 5011)[:, :5003].copy_(given)
    alone = torch.cat([kernel().truncated(given[i : i + 1].clone(), params[i : i + 1]) for i in range(7)])
    assert torch.equal(kernel().truncated(wide, params), alone)
