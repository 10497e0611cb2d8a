"""Retained rows: closed rows whose entries stay in the KV cache, where later rows with the same prefix copy them.

Nothing is copied when a row closes: its segment of the cache stays taken, cut to its text. Only a row that begins like
it copies entries, which takes about a hundredth of computing them. So a row that shares nothing costs nothing.

A text that begins like a retained one keeps only the segment of its own end. Its beginning stays in the other row, its
`base`. Retained rows are ordered by their last use. Using a row uses its base too, so each base is younger than the
rows that need it, and the first row in that order is nobody's base. That one is dropped where the limit or the cache
asks for places.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from slipstream.kernels.machine import memory
from slipstream.models.cache.prefix import TOKEN, PrefixIndex, tokens_in
from slipstream.models.cache.run_copier import Run
from slipstream.models.cache.segments import UNIT, round_up
from slipstream.models.cache.tensors import KVCache

MAX_BYTES = 512 << 20  # default limit in main memory
SHARE, GPU_SHARE = 0.05, 0.1  # default share of main memory, and of the free memory of a GPU


@dataclass(eq=False)
class RetainedRow:
    """A segment with the entries of a text from token `skip` on. Those before are in `base`."""

    text: bytes
    start: int  # its first place in the cache
    skip: int = 0
    base: RetainedRow | None = None
    used_by: int = 0  # rows whose base this is

    @property
    def tokens(self) -> int:
        """Tokens in this segment."""
        return tokens_in(self.text) - self.skip


class RetainedRows:
    """Keeps segments of up to `max_tokens` places in at most `max_bytes`. 0 in either keeps nothing."""

    def __init__(self, cache: KVCache, max_tokens: int, max_bytes: int) -> None:
        for name, value in (("retained", max_tokens), ("max_bytes", max_bytes)):
            if value < 0:
                raise ValueError(f"{name} is {value}; it must be 0 (no reuse) or more")
        self.max_tokens, self.max_bytes, self._cache = max_tokens, max_bytes, cache
        self._index: PrefixIndex[RetainedRow] = PrefixIndex()
        self._order: OrderedDict[RetainedRow, None] = OrderedDict()  # least recently used first
        self.tokens = self.places = 0  # of all rows
        cache.release = self.release

    @property
    def capacity(self) -> int:
        """Places that may be kept."""
        return self.places_for(max(1, self._cache.token_bytes))

    def places_for(self, token_bytes: int) -> int:
        """Places that may be kept where a token takes so many bytes."""
        return min(self.max_tokens, self.max_bytes // token_bytes) // UNIT * UNIT

    @property
    def nbytes(self) -> int:
        return self.places * self._cache.token_bytes

    def longest(self, text: bytes) -> tuple[RetainedRow | None, int]:
        """The row with the longest common prefix, and how many tokens that has."""
        return self._index.longest(text)

    def runs(self, row: RetainedRow, first: int, end: int, target: int) -> Iterator[Run]:
        """What to copy to a row that begins at place `target`, for tokens `first` up to `end`. Uses the row."""
        self._use(row)
        part: RetainedRow | None = row
        while part is not None and end > first:
            begin = max(first, part.skip)
            if begin < end:
                yield part.start + begin - part.skip, target + begin, end - begin
            end, part = min(end, part.skip), part.base

    def keep(self, start: int, text: bytes) -> None:
        """Keep the entries of a closed row's text, as far as the limit allows. Its other places become free."""
        found, shared = self._index.longest(text)
        size, base, skip = tokens_in(text), found, shared // UNIT * UNIT
        if found is not None and shared == size:
            self._use(found)
            self._cache.give(start)
            return
        if found is not None and shared == tokens_in(found.text) and not found.used_by:  # the new row replaces it
            base, skip = found.base, found.skip
            self._drop(found)
        while base is not None and skip <= base.skip:
            base = base.base
        skip = skip if base is not None else 0
        self._add(start, text[: self._fit(size, base, skip) * TOKEN], base, skip)

    def _fit(self, size: int, base: RetainedRow | None, skip: int) -> int:
        """Drop rows for a new one, except those that it needs. Returns how many of its `size` tokens fit the limit."""
        self._use(base)
        while self.places + round_up(size - skip) > self.capacity:
            oldest = next(iter(self._order), None)
            if oldest is None or _needs(base, oldest):
                return min(size, skip + self.capacity - self.places)
            self._drop(oldest)
        return size

    def _add(self, start: int, text: bytes, base: RetainedRow | None, skip: int) -> None:
        if tokens_in(text) <= skip or self._index.longest(text)[1] == tokens_in(text):
            self._cache.give(start)
            return
        row = RetainedRow(text, self._cache.trim(start, skip, tokens_in(text) - skip), skip, base)
        if base is not None:
            base.used_by += 1
        self._index.add(text, row)
        self._order[row] = None
        self._use(row)
        self.tokens += row.tokens
        self.places += round_up(row.tokens)

    def release(self) -> bool:
        """Drop the row that was used least recently; False where there is none."""
        oldest = next(iter(self._order), None)
        if oldest is not None:
            self._drop(oldest)
        return oldest is not None

    def clear(self) -> None:
        while self.release():
            pass

    def _drop(self, row: RetainedRow) -> None:
        assert not row.used_by, "a base is dropped before the rows that need it"
        if row.base is not None:
            row.base.used_by -= 1
        self._index.remove(row.text)
        del self._order[row]
        self.tokens -= row.tokens
        self.places -= round_up(row.tokens)
        self._cache.give(row.start)

    def _use(self, row: RetainedRow | None) -> None:
        while row is not None:
            self._order.move_to_end(row)
            row = row.base

    @property
    def segments(self) -> list[tuple[int, int]]:
        """The first place of each segment, and its tokens."""
        return [(row.start, row.tokens) for row in self._order]

    def check_integrity(self) -> None:
        """Raise AssertionError unless rows, order, limits and counts agree with each other."""
        self._index.check_integrity()
        rank = {row: n for n, row in enumerate(self._order)}
        assert len(rank) == len(self._index), f"{len(rank)} rows of {len(self._index)} texts"
        users = dict.fromkeys(rank, 0)
        for row in rank:
            assert self._index.longest(row.text) == (row, tokens_in(row.text)), "a row is not found by its text"
            assert row.skip % UNIT == 0, f"a row lacks its first {row.skip} tokens"
            assert (row.base is None) == (row.skip == 0), "a row without a base lacks its beginning, or the reverse"
            if row.base is not None:
                users[row.base] += 1
                assert row.text[: row.skip * TOKEN] == row.base.text[: row.skip * TOKEN], "the base is another text"
                assert rank[row] < rank[row.base], "a base is older than a row that needs it"
        assert all(row.used_by == count for row, count in users.items()), "users of a base are miscounted"
        sizes = [row.tokens for row in rank]
        assert (self.tokens, self.places) == (sum(sizes), sum(map(round_up, sizes))), "tokens are miscounted"
        assert self.places <= self.capacity, f"{self.places} places of {self.capacity}"


def default_max_bytes(device: torch.device) -> int:
    """The default limit in bytes: a small share of main memory, or a share of a GPU's free memory."""
    if device.type == "cuda":
        return int(GPU_SHARE * torch.cuda.mem_get_info(device)[0])
    return min(MAX_BYTES, int(SHARE * memory()))


def _needs(row: RetainedRow | None, other: RetainedRow) -> bool:
    """Whether `other` is a row or one of its bases."""
    while row is not None and row is not other:
        row = row.base
    return row is not None
