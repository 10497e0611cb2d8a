"""The attention kernel equals its reference, and a token's bits depend on what it sees alone."""

from __future__ import annotations

import pytest
import torch

from slipstream.kernels.cpu import compile as compiler
from slipstream.kernels.cpu.attention import SOURCE, AttentionKernel, kernel, reference

pytestmark = pytest.mark.skipif(kernel() is None, reason="needs a C++ compiler")


def case(tokens=6, heads=6, kv_heads=2, dim=24, dim_v=20, rows=3, places=70, used=61, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape):
        return torch.randn(*shape, generator=generator)

    row = torch.randint(rows, (tokens,), generator=generator)
    seen = torch.rand(tokens, used, generator=generator) < 0.6
    seen[:, 0] = True
    return (
        randn(tokens, heads, dim),
        randn(rows, kv_heads, places, dim),
        randn(rows, kv_heads, places, dim_v),
        seen,
        row,
    )


@pytest.mark.parametrize("heads", [(1, 1), (2, 1), (3, 1), (6, 2), (9, 3), (10, 2)])
@pytest.mark.parametrize("dim", [8, 20, 64])
@pytest.mark.parametrize("cap", [0.0, 5.0])
def test_it_equals_the_reference(heads, dim, cap):
    query, keys, values, seen, row = case(heads=heads[0], kv_heads=heads[1], dim=dim, dim_v=dim + 3)
    found = kernel().attend(query, keys, values, seen, row, 0.2, cap)
    torch.testing.assert_close(found, reference(query, keys, values, seen, row, 0.2, cap), atol=2e-6, rtol=1e-5)


def test_everything_is_seen_where_nothing_is_said():
    query, keys, values, _, row = case()
    everything = torch.ones(6, 50, dtype=torch.bool)
    found = kernel().attend(query, keys, values, None, row, 0.2, used=50)
    assert torch.equal(found, kernel().attend(query, keys, values, everything, row, 0.2))


def test_large_scores_neither_overflow_nor_vanish():
    query, keys, values, seen, row = case()
    found = kernel().attend(query * 100, keys, values, seen, row, 1.0)
    assert torch.isfinite(found).all()
    torch.testing.assert_close(found, reference(query * 100, keys, values, seen, row, 1.0), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_tokens_bits_depend_on_what_it_sees_alone(threads):
    """Alone, in a batch, with more room in the cache, beside other rows, and with siblings between what it sees."""
    before = torch.get_num_threads()
    query, keys, values, seen, row = case(tokens=40, used=64)
    together = kernel().attend(query, keys, values, seen, row, 0.2)
    torch.set_num_threads(threads)
    try:
        for t in (0, 7, 39):
            alone = kernel().attend(query[t : t + 1], keys, values, seen[t : t + 1], row[t : t + 1], 0.2)
            assert torch.equal(alone[0], together[t])
            places = seen[t].nonzero()[:, 0]
            packed = [held[row[t], :, places][None].contiguous() for held in (keys, values)]
            compact = kernel().attend(query[t : t + 1], *packed, None, torch.zeros(1, dtype=torch.long), 0.2)
            assert torch.equal(compact[0], together[t])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dim", [24, 64, 80, 128])
@pytest.mark.parametrize("tokens", [1, 2, 4, 8, 11])
def test_how_heads_are_shared_out_changes_no_bit(dim, tokens):
    """Neighbours of one row are worked on together; what is left over of their heads is cut for all threads."""
    check_shares(kernel(), dim, tokens)


@pytest.mark.skipif(not compiler.X86, reason="GCC leaves products unfused on x86 alone")
def test_nor_does_the_processor_that_the_compiler_tunes_for(monkeypatch):
    """Tuned for Zen 3, GCC leaves products and sums of some loops unfused, unless it is told not to."""
    monkeypatch.setenv("CXX", "g++ -mno-avx512f -mtune=znver3")
    try:
        tuned = AttentionKernel(compiler.build(SOURCE))
    except compiler.Unavailable as error:
        pytest.skip(str(error))
    check_shares(tuned, 64, 1)


def check_shares(attention: AttentionKernel, dim: int, tokens: int) -> None:
    before, found = torch.get_num_threads(), []
    query, keys, values, seen, row = case(
        tokens=11, heads=9, kv_heads=3, dim=dim, dim_v=dim, rows=1, places=230, used=222
    )
    seen[:, :190] = True
    seen[5, 3:90:7] = False
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append(attention.attend(query[:tokens], keys, values, seen[:tokens], row[:tokens], dim**-0.5))
    finally:
        torch.set_num_threads(before)
    each = [slice(t, t + 1) for t in range(tokens)]
    alone = [attention.attend(query[t], keys, values, seen[t], row[t], dim**-0.5) for t in each]
    for other in (*found[1:], torch.cat(alone)):
        assert torch.equal(other, found[0])
    torch.testing.assert_close(
        found[0], reference(query, keys, values, seen, row, dim**-0.5)[:tokens], atol=2e-6, rtol=1e-5
    )
