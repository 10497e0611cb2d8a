"""Prefix reuse for the open rows of a model: rows with a common beginning compute it once."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from slipstream.core.types import Row
from slipstream.models.cache.prefix import leaders
from slipstream.models.cache.prefix_store import PASS, WORTH, PrefixCounts, PrefixStore, default_max_bytes
from slipstream.models.cache.row_state import RowState
from slipstream.models.run.features import FeatureStore
from slipstream.models.run.row_table import RowTable


class PrefixReuse:
    """Copies cached prefixes from rows to the prefix store, and from the store to rows with the same prefix."""

    def __init__(
        self, rows: RowTable, features: FeatureStore, device: torch.device, tokens: int, max_bytes: int | None
    ) -> None:
        self._rows, self._features, self._device = rows, features, device
        self.retain(tokens, max_bytes)

    def retain(self, tokens: int, max_bytes: int | None = None) -> None:
        """Drop what is kept, and keep up to `tokens` tokens in at most `max_bytes` from now on."""
        limit = default_max_bytes(self._device) if max_bytes is None else max_bytes
        self.store = PrefixStore(self._rows.cache, tokens, limit)

    def restart(self) -> None:
        """Drop what is kept; the limits stay."""
        self.retain(self.retained, self.max_bytes)

    @property
    def retained(self) -> int:
        """How many tokens may be kept."""
        return self.store.retained

    @property
    def max_bytes(self) -> int:
        """How many bytes may be kept."""
        return self.store.max_bytes

    @property
    def counts(self) -> PrefixCounts:
        return self.store.counts

    def recall(self, row: Row) -> int:
        """Copy what is kept of a row's text, except its last token, into the row. Returns how many tokens it gained."""
        state, pending = self._rows.states[row], self._rows.pending(row)
        if len(pending) <= WORTH or state.hidden:  # a partial pass that will be resumed has read them already
            return 0
        gained = self.store.recall(state.index, row.tokens[:-1], len(state.tokens)) - len(state.tokens)
        state.tokens += pending[:gained]
        if gained:
            state.drop_uncommitted()
        return gained

    def publish(self, row: Row) -> None:
        """Offer the part of a row's prompt that is cached to other rows. The rest is offered when the row closes: the
        output, and the last token of a prompt that was read up to there, which an equal prompt computes anyway."""
        state = self._rows.states[row]
        end = min(len(row.request.prompt) - 1, len(state.tokens))
        if state.published < end and state.features == self._features.layers:
            self.store.keep(state.index, state.tokens)
            state.published = len(state.tokens)

    def keep_closed(self, state: RowState) -> None:
        """Keep the text of a row that closes, unless a declared layer is missing from it."""
        if state.features == self._features.layers:
            self.store.keep(state.index, state.tokens)

    def leaders(self, rows: Sequence[Row]) -> dict[Row, int]:
        """The rows that should read a common prefix before the others, and how many tokens of it.

        The other rows then copy it. Empty if no common prefix is long enough.
        """
        states = self._rows.states
        fresh = [row for row in rows if len(self._rows.pending(row)) > WORTH and not states[row].hidden]
        if len(fresh) < 2 or not self.store.open:
            return {}
        held = [len(states[row].tokens) for row in fresh]
        ahead = leaders([row.tokens[:-1] for row in fresh], held, WORTH, PASS)
        return {fresh[n]: size for n, size in ahead.items()}

    def check_integrity(self) -> None:
        self.store.check_integrity()
