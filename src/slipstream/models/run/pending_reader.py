"""Prefill: committed tokens that a row has not cached yet are read in chunks. A common prefix is read once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slipstream.core.types import Row
from slipstream.models.cache.packing import RowEntries, RowSlice
from slipstream.models.run.forward_pass import LayerPass
from slipstream.models.run.prefix_reuse import WORTH, PrefixReuse
from slipstream.models.run.row_table import RowTable


class PendingReader:
    """Reads pending tokens of rows through all layers, after copying the prefixes that other rows have cached."""

    def __init__(self, rows: RowTable, prefixes: PrefixReuse, forward: LayerPass, chunk: int) -> None:
        if chunk < 1:
            raise ValueError(f"prefill_chunk is {chunk}; it must be 1 or more")
        self._rows, self._prefixes, self._forward, self.chunk = rows, prefixes, forward, chunk

    def read(self, rows: Sequence[Row], limit: int) -> list[int]:
        """Read up to `limit` pending tokens of each row, never the last one. Returns how many tokens each gained.

        A row with a cached prefix gets that prefix instead, however long it is.
        """
        if not limit and not self._prefixes.enabled:
            return [0] * len(rows)
        for row in rows:
            self._rows.reserve(row, row.length)
        pending = [len(self._rows.pending(row)) for row in rows]
        self._prefixes.recall(rows)
        if limit and (leaders := self._prefixes.leaders(rows)):
            self._lead(leaders, limit)
            self._prefixes.recall(rows)
        gained = [before - len(self._rows.pending(row)) for row, before in zip(rows, pending, strict=True)]
        counts = [0 if gain else min(limit, before - 1) for gain, before in zip(gained, pending, strict=True)]
        self._feed(rows, counts)
        return [max(both) for both in zip(gained, counts, strict=True)]

    def catch_up(self, rows: Sequence[Row]) -> list[list[int]]:
        """Read until no row has more than one chunk pending. Returns the tokens that are still pending in each."""
        self._share(rows)
        while behind := [row for row in rows if len(self._rows.pending(row)) > self.chunk]:
            self.read(behind, self.chunk)
        return [self._rows.pending(row) for row in rows]

    def is_behind(self, pending: Sequence[Sequence[int]]) -> bool:
        """Whether some row has so many pending tokens that `catch_up` may save or must split work."""
        return max(map(len, pending)) > min(WORTH, self.chunk)

    def _feed(self, rows: Sequence[Row], counts: Sequence[int]) -> None:
        """Run the given number of pending tokens of each row."""
        states = [self._rows.states[row] for row in rows]
        new = [self._rows.pending(row)[:count] for row, count in zip(rows, counts, strict=True)]
        lines = [
            RowEntries.of(state.index, len(state.tokens), tokens) for state, tokens in zip(states, new, strict=True)
        ]
        pieces = [RowSlice(line) for line in lines if len(line)]
        if pieces:
            self._forward.run(pieces, self._forward.all_layers, None, self._forward.features.layers)
        for row, state, tokens in zip(rows, states, new, strict=True):
            state.tokens += tokens
            state.drop_uncommitted()
            self._prefixes.publish(row)

    def _share(self, rows: Sequence[Row]) -> None:
        """If rows have a common prefix, one of them reads it and the others copy it."""
        while True:
            self._prefixes.recall(rows)
            leaders = self._prefixes.leaders(rows)
            if not leaders:
                return
            while self._lead(leaders, self.chunk):
                pass

    def _lead(self, leaders: Mapping[Row, int], limit: int) -> bool:
        """Read up to `limit` tokens of each leader, up to its common prefix. False where all have read it."""
        left = {row: size - len(self._rows.states[row].tokens) for row, size in leaders.items()}
        behind = {row: min(count, limit) for row, count in left.items() if count > 0}
        if behind:
            self._feed(list(behind), list(behind.values()))
        return bool(behind)
