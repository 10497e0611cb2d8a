"""The open rows of a model: where each lies in the KV cache and which of its tokens are cached."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slipstream.core.types import Row
from slipstream.models.cache.packing import Entry, entries_of
from slipstream.models.cache.row_state import RowState
from slipstream.models.cache.tensors import KVCache, row_places


class RowTable:
    """A `RowState` for each open row. Iterating yields the rows."""

    def __init__(self, cache: KVCache, context: int) -> None:
        self.cache, self._context = cache, context
        self.states: dict[Row, RowState] = {}

    def __len__(self) -> int:
        return len(self.states)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.states)

    def open(self, row: Row, features: tuple[int, ...]) -> None:
        """Give a new row places in the cache. `features` are the layers whose output is kept for it."""
        assert row not in self.states, "the row is open already"
        places = row_places(row, self._context)
        if self.cache.would_exceed_limit(places):
            self._compact()
        self.states[row] = RowState(self.cache.take(places), features=features)

    def reserve(self, row: Row, places: int) -> None:
        """Make room for so many entries of a row. It may move, and so may others."""
        state = self.states[row]
        if places <= self.cache.capacity(state.index):
            return
        places = max(places, row_places(row, self._context))
        if not self.cache.extend(state.index, places) and self.cache.would_exceed_limit(places):
            self._compact(state.index, places)
        state.index = self.cache.reserve(state.index, places)

    def _compact(self, grown: int | None = None, places: int = 0) -> None:
        moves = self.cache.compact(grown, places)
        for state in self.states.values():
            state.index = moves.get(state.index, state.index)

    def pending(self, row: Row) -> list[int]:
        """Committed tokens that are not cached yet. The last token is always among them: its logits are needed."""
        state, tokens = self.states[row], row.tokens
        if len(state.tokens) >= len(tokens):
            state.cut(len(tokens) - 1)
        return tokens[len(state.tokens) :]

    def extend(self, row: Row, tokens: Sequence[int]) -> None:
        """Record that the row's pending tokens and these after them are in the cache, in all layers."""
        state = self.states[row]
        state.tokens += [*self.pending(row), *tokens]
        state.drop_uncommitted()

    def accept(
        self, row: Row, nodes: Sequence[Entry], path: Sequence[int], layer_count: int
    ) -> list[tuple[int, int, int]]:
        """Make the pending tokens and the accepted nodes of one row its cached text.

        Nodes that did not run through all layers are left out, and are read again as committed text. Returns the
        cache entries to move: (cache row, old place, new place).
        """
        state, pending = self.states[row], self.pending(row)
        start, count = len(state.tokens), len(pending)
        entries = entries_of(pending, nodes)
        complete = state.complete(entries, layer_count)
        kept = [i for i in (*range(count), *(count + n for n in path)) if i < complete]
        state.tokens += [entries[i][0] for i in kept]
        state.drop_uncommitted()
        return [(state.index, start + i, start + n) for n, i in enumerate(kept) if i != n]

    def check_integrity(self) -> None:
        """Raise AssertionError unless each row's cached tokens are the beginning of its text."""
        for row, state in self.states.items():
            size = min(len(state.tokens), row.length)  # an end token may cut what was accepted
            assert state.tokens[:size] == row.tokens[:size], f"the cache holds {state.tokens}, the row {row.tokens}"

    @property
    def segments(self) -> list[tuple[int, int]]:
        """The first place of each row, and its cached tokens."""
        return [(state.index, len(state.tokens)) for state in self.states.values()]
