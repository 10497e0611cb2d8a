"""Places of the cache belong to one row each, whatever is taken, given back, extended and moved."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.models.cache.segments import UNIT, Segments, round_up
from slipstream.models.cache.tensors import KVCache

NAMES = "take", "give", "extend", "trim", "compact", "grow"
ACTIONS = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 300)))


@settings(max_examples=200, deadline=None)
@given(ACTIONS)
def test_every_place_is_free_or_of_one_row(actions):
    segments, rows = Segments(512), list[int]()
    for action, number in actions:
        chosen = rows[number % len(rows)] if rows else None
        if action == "take":
            start = segments.take(number)
            gap = max((end - start for start, end in segments._gaps.items()), default=0)
            assert start is not None or gap < round_up(number), "a gap was large enough"
            rows += [] if start is None else [start]
        elif action == "grow":
            segments.grow(segments.size + number * UNIT // 16)
        elif action == "compact":
            before = None if chosen is None else segments.capacity(chosen)
            grows = before is not None and segments.used + UNIT <= segments.size and number % 2
            moves = segments.compact(chosen, before + UNIT) if grows else segments.compact()
            rows = [moves.get(row, row) for row in rows]
            assert not grows or segments.capacity(moves.get(chosen, chosen)) == before + UNIT
            assert segments.used == segments.size or len(segments._gaps) == 1
        elif chosen is not None and action == "give":
            segments.give(chosen)
            rows.remove(chosen)
        elif chosen is not None and action == "trim":
            before = segments.capacity(chosen)
            skip = number // UNIT % (before // UNIT) * UNIT
            kept = number % (before - skip) + 1
            rows[rows.index(chosen)] = segments.trim(chosen, skip, kept)
            assert segments.capacity(chosen + skip) == round_up(kept)
        elif chosen is not None:
            before = segments.capacity(chosen)
            wanted = max(before, number) if segments.extend(chosen, number) else before
            assert wanted <= segments.capacity(chosen) < wanted + UNIT
        segments.check_integrity(rows)
        assert segments.used == sum(map(segments.capacity, rows))


def test_the_smallest_gap_that_is_large_enough_is_taken():
    segments = Segments(10 * UNIT)
    rows = [segments.take(size * UNIT) for size in (3, 1, 2, 1)]
    segments.give(rows[0])
    segments.give(rows[2])
    assert segments.take(2 * UNIT) == rows[2]
    assert segments.take(4 * UNIT) is None
    assert segments.take(3 * UNIT) == rows[0]
    assert segments.take(1) == 7 * UNIT, "what is left"


def filled(cache: KVCache, row: int, count: int, seed: int) -> torch.Tensor:
    """Random entries of a row, also as they should be read again."""
    entries = torch.randn(2, count, 3, generator=torch.Generator().manual_seed(seed))
    (held,) = cache.hold("x", torch.empty(1, 2, 1, 3))
    held[0, :, row : row + count] = entries
    return entries


def test_entries_stay_with_their_rows_when_these_are_moved():
    cache, lengths = KVCache(), (40, 100, 7, 64, 300)
    rows = [cache.take(length) for length in lengths]
    entries = [filled(cache, row, length, row) for row, length in zip(rows, lengths, strict=True)]
    cache.give(rows.pop(2)), entries.pop(2)
    rows[0] = cache.reserve(rows[0], 500)
    cache.give(rows.pop(1)), entries.pop(1)
    moves = cache.compact()
    assert moves, "there were gaps"
    rows = [moves.get(row, row) for row in rows]
    for row, own in zip(rows, entries, strict=True):
        assert torch.equal(cache.row("x", row, 0, own.shape[1]), own)
    cache.check_integrity(rows, [own.shape[1] for own in entries])


@pytest.mark.parametrize("grown", [0, 1, 2, 3])
def test_a_row_that_grows_keeps_its_entries_and_those_of_the_rows_around_it(grown):
    """Some rows move down and some up, over each other's old places."""
    cache, lengths = KVCache(512), (48, 96, 16, 64, 32, 80)
    rows = [cache.take(length) for length in lengths]
    entries = [filled(cache, row, length, row) for row, length in zip(rows, lengths, strict=True)]
    for gone in (4, 1):
        cache.give(rows.pop(gone)), entries.pop(gone)
    moves = cache.compact(rows[grown], 200)
    rows = [moves.get(row, row) for row in rows]
    for row, own in zip(rows, entries, strict=True):
        assert torch.equal(cache.row("x", row, 0, own.shape[1]), own)
    assert cache.capacity(rows[grown]) == 208
    cache.check_integrity(rows, [own.shape[1] for own in entries])


def test_a_cache_in_use_grows_up_to_its_limit_and_keeps_what_it_holds():
    cache = KVCache(64)
    row = cache.take(40)
    entries = filled(cache, row, 40, 1)
    cache.limit = 1000
    cache.grow(2048)
    assert (cache.places, cache.version) == (64, 0), "beyond the limit"
    cache.grow(256)
    assert (cache.places, cache.version) == (256, 1)
    cache.grow(16)
    assert cache.version == 1, "there is room already"
    assert not cache.would_exceed_limit(800)
    other = cache.take(800)
    assert cache.places <= 1000, "the last doubling would exceed the limit"
    assert cache.would_exceed_limit(800)
    assert torch.equal(cache.row("x", row, 0, 40), entries)
    cache.check_integrity([row, other], [40, 800])


def test_the_last_row_grows_where_it_is():
    cache = KVCache(64)
    rows = [cache.take(16), cache.take(48)]
    entries = filled(cache, rows[1], 48, 2)
    assert cache.reserve(rows[1], 400) == rows[1]
    assert cache.capacity(rows[1]) == 400
    assert torch.equal(cache.row("x", rows[1], 0, 48), entries)
    assert cache.reserve(rows[0], 32) != rows[0], "another row is behind it"
    cache.check_integrity([rows[1], 416], [400, 32])


def test_a_pass_beyond_a_row_is_noticed():
    from slipstream.models.cache.packing import RowEntries, RowSlice

    cache = KVCache()
    row = cache.take(16)
    cache.check_room([RowSlice(RowEntries.of(row, 10, range(6)))])
    with pytest.raises(AssertionError, match="16 places and needs 17"):
        cache.check_room([RowSlice(RowEntries.of(row, 10, range(7)))])
