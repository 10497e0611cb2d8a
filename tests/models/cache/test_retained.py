"""Retained rows against a reference: whatever was kept, replaced, cut and dropped, what is found there is the text."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.models.cache.prefix import common, text_of, tokens_in
from slipstream.models.cache.retained import RetainedRow, RetainedRows
from slipstream.models.cache.segments import UNIT, round_up
from slipstream.models.cache.tensors import KVCache

small = st.lists(st.integers(0, 1), max_size=5 * UNIT)  # two tokens: beginnings are shared all the time
ACTIONS = st.lists(st.tuples(st.sampled_from(["keep", "keep", "ask", "release"]), small), max_size=25)


class Kept:
    """Retained rows in a cache whose entry of a token is a number that stands for the text up to it."""

    def __init__(self, capacity: int, places: int = 1 << 12) -> None:
        self.cache = KVCache(places)
        self._numbers: dict[bytes, float] = {}
        self.cache.hold("x", torch.empty(1, 1, 1, 1))
        self.rows = RetainedRows(self.cache, capacity, 1 << 30)

    def entries(self, text: bytes) -> torch.Tensor:
        """What the cache holds for a text."""
        ends = range(4, len(text) + 1, 4)
        return torch.tensor([self._numbers.setdefault(text[:end], len(self._numbers) + 1.0) for end in ends])

    def keep(self, tokens: list[int]) -> None:
        """A row with this text closes."""
        text, row = text_of(tokens), self.cache.take(len(tokens) + 40)
        self._write(row, self.entries(text))
        self.rows.keep(row, text)

    def _write(self, row: int, entries: torch.Tensor) -> None:
        self.cache.hold("x", torch.empty(1, 1, 1, 1))[0][0, 0, row : row + len(entries), 0] = entries

    def recalled(self, tokens: list[int]) -> int:
        """How many tokens of a text are found. A new row gets them in two pieces, and they must be its own."""
        row = self.cache.take(len(tokens) + 1)  # retained rows may have to give way
        self._write(row, torch.zeros(len(tokens)))
        found, size = self.rows.longest(text := text_of(tokens))
        for first, end in ((0, size // 3), (size // 3, size)) if found is not None else ():
            self.cache.copy(list(self.rows.runs(found, first, end, row)))
        assert torch.equal(self.cache.row("x", row, 0, len(tokens))[0, :size, 0], self.entries(text[: 4 * size]))
        self.cache.give(row)
        return size

    def check_integrity(self) -> None:
        self.rows.check_integrity()
        starts, lengths = zip(*self.rows.segments, strict=True) if self.rows.segments else ((), ())
        self.cache.check_integrity(starts, lengths)


@given(ACTIONS, st.integers(1, 12))
@settings(max_examples=200, deadline=None)
def test_what_is_found_is_the_text(actions: list[tuple[str, list[int]]], units: int) -> None:
    kept, capacity = Kept(units * UNIT), units * UNIT
    for action, tokens in actions:
        before = kept.rows.segments
        if action == "keep" and tokens:
            kept.keep(tokens)
            assert kept.recalled(tokens) >= min(len(tokens), capacity), "the last one is there as far as it fits"
        elif action == "ask":
            kept.recalled(tokens)
        elif action == "release":
            assert kept.rows.release() == (len(kept.rows.segments) < len(before))
        kept.check_integrity()


@given(st.lists(small, max_size=12), small)
@settings(max_examples=150, deadline=None)
def test_without_a_limit_all_is_found(texts: list[list[int]], asked: list[int]) -> None:
    kept = Kept(1 << 11)
    for text in texts:
        kept.keep(text) if text else None
    kept.check_integrity()
    assert kept.recalled(asked) == max((common(text_of(asked), text_of(text)) for text in texts), default=0)


def test_a_common_beginning_is_kept_once() -> None:
    kept, system = Kept(1 << 11), [1] * (10 * UNIT)
    for n in range(2, 8):
        kept.keep([*system, *[n] * UNIT])
        kept.check_integrity()
    assert kept.rows.places == (10 + 6) * UNIT
    assert kept.recalled([*system, *[3] * UNIT]) == 11 * UNIT


def test_a_text_that_goes_on_replaces_its_beginning() -> None:
    kept = Kept(1 << 11)
    for length in (20, 50, 90):
        kept.keep(list(range(length)))
        assert [row.tokens for row in kept.rows._order] == [length]
    kept.keep(list(range(30)))
    assert kept.rows.tokens == 90, "it is there already"
    kept.check_integrity()


def test_the_least_recently_used_gives_way() -> None:
    kept = Kept(4 * UNIT)
    system, first, second, third = [1] * UNIT, [2] * UNIT, [3] * UNIT, [4] * (2 * UNIT)
    kept.keep(system + first)
    kept.keep(system + second)  # needs `system` of the first
    kept.keep([5] * UNIT)
    assert kept.recalled(system + second) == 2 * UNIT
    kept.keep(third)
    assert [kept.recalled(text) // UNIT for text in (third, [5] * UNIT, system + second)] == [2, 0, 1]
    assert kept.recalled(system + first) == 2 * UNIT, "the one that others need stays longest"
    kept.check_integrity()


def test_a_row_longer_than_the_limit_beside_its_base() -> None:
    """The base must stay, so the row gets what is left."""
    kept = Kept(5 * UNIT)
    kept.keep([1] * UNIT + [2] * UNIT)
    kept.keep([1] * UNIT + [3] * (9 * UNIT))
    assert kept.recalled([1] * UNIT + [3] * (9 * UNIT)) == 4 * UNIT
    assert kept.recalled([1] * UNIT + [2] * UNIT) == 2 * UNIT
    kept.check_integrity()


def test_places_are_given_up_before_the_cache_exceeds_its_limit() -> None:
    kept = Kept(1 << 11, places=512)
    kept.cache.limit = 512
    for n in range(4):
        kept.keep([n] * 100)
    assert kept.rows.places == 4 * round_up(100)
    assert not kept.cache.would_exceed_limit(200)
    row = kept.cache.take(200)
    assert kept.cache.places == 512
    assert [kept.rows.longest(text_of([n] * 100))[1] for n in (0, 3)] == [0, 100]
    assert 0 < len(kept.rows.segments) < 4
    kept.cache.give(row)
    kept.cache.compact()
    assert (kept.rows.segments, kept.rows.places) == ([], 0), "they are not worth moving"


@pytest.mark.parametrize("cheap", [True, False])
def test_on_a_gpu_places_are_given_up_before_the_cache_grows(cheap: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KVCache, "grows_cheaply", cheap)
    kept = Kept(1 << 11, places=256)
    kept.keep([1] * 200)
    kept.cache.take(100)
    assert kept.cache.places == (512 if cheap else 256), "on a CPU growing costs little"
    assert kept.rows.longest(text_of([1] * 200))[1] == (200 if cheap else 0)


def test_the_driver_is_asked_for_free_memory_only_when_the_cache_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[object]()
    monkeypatch.setattr("slipstream.models.cache.tensors.free_bytes", asked.append)
    cache = KVCache(1 << 10)
    cache.limit = 1 << 11
    for _ in range(8):
        assert not cache.would_exceed_limit(100)
        cache.reserve(cache.take(100), 110)
    assert not asked
    cache.take(512)
    assert len(asked) == 1


def test_rows_of_the_same_text_are_one() -> None:
    kept = Kept(1 << 11)
    for _ in range(3):
        kept.keep([7] * 33)
    (row,) = kept.rows._order
    assert isinstance(row, RetainedRow)
    assert (tokens_in(row.text), kept.rows.places) == (33, 48)
    kept.rows.clear()
    assert kept.cache.take(1 << 12) == 0, "all places are free again"
