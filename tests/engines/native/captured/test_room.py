"""What caches begin with on a GPU."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="needs Triton (pip install triton); its interpreter will do")

import torch

from slipstream.engines.native.captured.room import USUAL, first_room
from slipstream.models.cache.tensors import KVCache

ROWS, PLACES = USUAL


def test_a_cache_begins_with_usual_batches_and_texts_and_then_with_more_rows():
    assert first_room(256, 8192, 1, 0, 1 << 40) == (256, PLACES)
    assert first_room(256, 8192, 1, 0, ROWS * PLACES) == (ROWS, PLACES)
    assert first_room(4, 8192, 1, 0, 1 << 40) == (4, PLACES), "no more rows than there may be"
    assert first_room(256, 448, 1, 0, 1 << 40) == (256, 512), "nor places than a text may have"
    assert first_room(256, 8192, 1, 0, ROWS * 100) == (ROWS, 64), "rows come first"
    assert first_room(256, 8192, 1, 1000, 10_000)[0] == 8, "some have a cost of their own"
    assert first_room(256, 448, 1, 1000, 1 << 40) == (ROWS, 512)
    assert first_room(256, 8192, 1000, 0, 1) == (1, 1)


@pytest.mark.parametrize("token", [7, 1000, 40_000])
@pytest.mark.parametrize("row", [0, 300_000])
def test_it_never_takes_more_than_its_share(token, row):
    for room in (10**6, 10**8, 10**10):
        rows, places = first_room(256, 1 << 17, token, row, room)
        assert rows * (row + places * token) <= max(room, row + token)


def test_a_cache_in_use_grows_and_keeps_what_it_holds():
    cache, entry = KVCache(64, 2), torch.ones(1, 1, 1, 4)
    keys, _ = cache.layer(0, entry, entry)
    keys[1, :, :3] = 7.0
    assert [cache.take(), cache.take()] == [0, 1]
    cache.limit = 1000
    cache.grow(8, 256)
    assert (cache.rows, cache.places, cache.version) == (2, 64, 0), "beyond the limit"
    cache.grow(4, 128)
    assert (cache.rows, cache.places, cache.version) == (4, 128, 1)
    cache.grow(1, 16)
    assert cache.version == 1, "there is room already"
    grown, _ = cache.layer(0, entry, entry)
    assert grown.shape == (4, 1, 128, 4)
    assert bool((grown[1, :, :3] == 7.0).all())
    assert [cache.take(), cache.take()] == [2, 3]
    cache.check_integrity(range(4), [3])
