"""Noise is tested as a generator: uniform, independent between neighbouring keys, the same on every device."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from slipstream.audit.statistical import binomial_tail
from slipstream.core import noise
from slipstream.core.law import Dense, Sparse
from slipstream.core.noise import CounterNoise, InnerCycle, Purpose, Site, fold, race, uniform
from slipstream.core.sampling import Sampling
from slipstream.core.types import Request, Row

ALARM = 1e-9


def keys(n: int) -> torch.Tensor:
    return fold(torch.zeros(n, dtype=torch.long), torch.arange(n))


def test_bins_are_uniform():
    n, bins = 200_000, 50
    counts = Counter((uniform(keys(n)) * bins).long().tolist())
    assert min(binomial_tail(counts[b], n, 1 / bins) for b in range(bins)) > ALARM


@pytest.mark.parametrize("field", range(4), ids=["stream", "start", "node", "purpose"])
def test_neighbouring_keys_are_independent(field):
    n = 100_000
    fields = [torch.arange(n) if i == field else torch.full((n,), 3) for i in range(4)]
    u = uniform(fold(*fields))
    grid = Counter(((u[:-1] * 4).long() * 4 + (u[1:] * 4).long()).tolist())
    assert min(binomial_tail(grid[cell], n - 1, 1 / 16) for cell in range(16)) > ALARM


def test_one_flipped_bit_flips_half_of_all_bits():
    key = fold(torch.arange(2000), torch.zeros(2000, dtype=torch.long))
    for bit in (0, 5, 31, 47):
        other = fold(torch.arange(2000) ^ (1 << bit), torch.zeros(2000, dtype=torch.long))
        flips = sum(bin(x & (2**64 - 1)).count("1") for x in (key ^ other).tolist())
        assert binomial_tail(flips, 2000 * 64, 0.5) > ALARM


def test_uniforms_lie_strictly_between_zero_and_one():
    extreme = uniform(torch.tensor([0, -1, 2**63 - 1, -(2**63)]))
    assert bool(((extreme > 0) & (extreme < 1)).all())


def test_the_integers_are_fixed_for_ever():
    assert fold(torch.tensor([1]), torch.tensor([2]), torch.tensor([3])).tolist() == [GOLDEN]


GOLDEN = 7466247984267647040


def test_a_race_follows_its_law_and_never_picks_what_is_impossible():
    p = torch.tensor([0.5, 0.0, 0.3, 0.19, 0.01])
    n = 100_000
    counts = Counter(race(Dense(p.expand(n, -1)), keys(n)).tolist())
    assert counts[1] == 0
    assert min(binomial_tail(counts[x], n, float(p[x])) for x in range(5)) > ALARM


def test_a_race_is_the_same_over_a_sparse_and_a_dense_law():
    ids = torch.tensor([[7, 2, 4]]).expand(500, -1)
    probs = torch.tensor([[0.2, 0.5, 0.3]]).expand(500, -1)
    sparse = Sparse(ids, probs, 10)
    assert torch.equal(race(sparse, keys(500)), race(Dense(sparse.dense()), keys(500)))


def test_tiny_probabilities_of_a_large_vocabulary_are_kept():
    probs = torch.full((1, 150_000), 0.5 / 149_999, dtype=torch.float64)
    probs[0, 0] = 0.5
    hits = sum(int(race(Dense(probs), keys(60)[i : i + 1])) == 0 for i in range(60))
    assert binomial_tail(hits, 60, 0.5) > ALARM


def row(seed: int, sample: int = 0, length: int = 4) -> Row:
    return Row(Request([1] * length, Sampling(seed=seed), sample=sample))


def site(n: int, node: int = 0, depth: int = 0) -> Site:
    return Site(torch.arange(n), torch.full((n,), node), torch.full((n,), depth))


def test_batch_mates_never_matter():
    law = Dense(torch.full((1, 9), 1 / 9))
    rows = [row(seed) for seed in range(20)]
    noise = CounterNoise(rows, [False] * 20)
    together = noise.draw(Dense(law.dense().expand(20, -1)), site(20), Purpose.DRAFT)
    alone = [int(CounterNoise([r], [False]).draw(law, site(1), Purpose.DRAFT)) for r in rows]
    assert together.tolist() == alone


def test_every_part_of_the_key_changes_the_draw():
    law = Dense(torch.full((1, 10**6), 1e-6))

    def draw(
        r: Row, where: Site, purpose: Purpose = Purpose.DRAFT, shared: bool = False, inner: InnerCycle | None = None
    ) -> int:
        noise = CounterNoise([r], [shared])
        return int((noise.inner(inner) if inner else noise).draw(law, where, purpose))

    draws = [
        draw(row(1), site(1)),
        draw(row(2), site(1)),
        draw(row(1, sample=1), site(1)),
        draw(row(1, length=5), site(1)),
        draw(row(1), site(1, node=1)),
        draw(row(1), site(1), Purpose.EMIT),
        draw(row(1), site(1), inner=InnerCycle([0], [0], stage=1)),
        draw(row(1, length=5), site(1), inner=InnerCycle([0], [0], stage=1)),
        draw(row(1), site(1), inner=InnerCycle([0], [1], stage=1)),
        draw(row(1), site(1), inner=InnerCycle([0], [0], stage=2)),
        draw(row(1), site(1), inner=InnerCycle([0], [0], stage=1, branch=1)),
        draw(row(1), site(1), shared=True),
    ]
    assert len(set(draws)) == len(draws)


def test_a_shared_field_depends_on_the_position_alone():
    law = Dense(torch.full((1, 10**6), 1e-6))
    ahead = CounterNoise([row(1, length=4)], [True]).draw(law, site(1, node=2, depth=2), Purpose.DRAFT)
    arrived = CounterNoise([row(1, length=6)], [True]).draw(law, site(1), Purpose.FIELD)
    assert torch.equal(ahead, arrived)


def test_certain_coins_are_certain():
    rows = [row(seed) for seed in range(1000)]
    noise = CounterNoise(rows, [False] * 1000)
    assert bool(noise.flip(torch.ones(1000), site(1000)).all())
    assert not bool(noise.flip(torch.zeros(1000), site(1000)).any())


def test_the_global_generator_is_left_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    test_batch_mates_never_matter()
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_integers_are_the_same_on_a_gpu():
    fields = [torch.arange(10_000), torch.arange(10_000) * 7919]
    assert torch.equal(fold(*fields), fold(*(f.cuda() for f in fields)).cpu())


def test_exponentials_have_mean_one():
    e = -torch.log(uniform(keys(200_000)))
    assert abs(float(e.mean()) - 1) < 6 / math.sqrt(200_000)


def test_few_numbers_and_many_fold_alike():
    """Few are folded as whole numbers, many as tensors."""
    generator = torch.Generator().manual_seed(4)
    fields = torch.randint(-(2**63), 2**63 - 1, (4, 500), generator=generator)
    fields[1:, :250] %= 1000
    many = noise.keys(*fields.tolist())
    few = torch.cat([noise.keys(*fields[:, i : i + 10].tolist()) for i in range(0, 500, 10)])
    assert torch.equal(many, fold(*fields))
    assert torch.equal(few, many)


def test_odds_are_led_by_the_winner_of_the_race_and_sharpen_it():
    """What wins the draft's race on the noise of a position leads; where nothing is possible, nothing becomes so."""
    rows = [Row(Request([1, 2, 3], Sampling(seed=seed))) for seed in range(40)]
    noise = CounterNoise(rows, [True] * len(rows))
    assert noise.has_fields
    assert not CounterNoise(rows, [True] * 39 + [False]).has_fields
    probs = torch.rand(40, 30, generator=torch.Generator().manual_seed(0)) ** 4
    probs[:, 5] = 0.0
    law = Dense(probs / probs.sum(-1, keepdim=True))
    site = Site(torch.arange(40), torch.zeros(40, dtype=torch.long), torch.arange(40) % 4)
    odds = noise.odds(law, site).dense()
    torch.testing.assert_close(odds.sum(-1), torch.ones(40))
    assert torch.equal(odds.argmax(-1), noise.draw(law, site, Purpose.DRAFT))
    assert not odds[:, 5].any()
    assert float(odds.amax(-1).mean()) > float(law.dense().amax(-1).mean()) + 0.2
    nothing = Sparse(torch.tensor([[4, 7]]), torch.zeros(1, 2), 30)
    assert not noise.odds(nothing, Site(*torch.zeros(3, 1, dtype=torch.long))).support()[1].any()
