"""Prefix reuse for the rows of a model: rows with a common beginning compute it once.

A row copies it from an open row that has read it, or from a closed one that is retained. Nothing is copied before a row
needs it: open rows are entered in an index when they have read their prompts, closed ones when they close.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from slipstream.core.types import Row
from slipstream.models.cache.prefix import TOKEN, PrefixIndex, leaders, text_of, tokens_in
from slipstream.models.cache.retained import RetainedRows, default_max_bytes
from slipstream.models.cache.row_state import RowState
from slipstream.models.cache.run_copier import Run
from slipstream.models.run.features import FeatureStore
from slipstream.models.run.row_table import RowTable

WORTH = 16  # tokens; fewer are computed again rather than copied
PASS = 64  # tokens saved in other rows that justify a pass for reading ahead


@dataclass
class PrefixCounts:
    """What prefix reuse did so far, and what is kept of closed rows."""

    prefix_hits: int = 0
    prefix_tokens_reused: int = 0
    retained_tokens: int = 0
    retained_places: int = 0  # places of the cache that they take
    retained_bytes: int = 0  # of these places, in all layers
    retained_max_bytes: int = 0


class PrefixReuse:
    """Knows which cached texts rows may copy from, and copies."""

    def __init__(
        self, rows: RowTable, features: FeatureStore, device: torch.device, tokens: int, max_bytes: int | None
    ) -> None:
        self._rows, self._features, self._device = rows, features, device
        self._hits = self._reused = 0
        self._open_rows: PrefixIndex[RowState] = PrefixIndex()
        self.retained = RetainedRows(rows.cache, tokens, self._limit(max_bytes))

    def _limit(self, max_bytes: int | None) -> int:
        return default_max_bytes(self._device) if max_bytes is None else max_bytes

    def retain(self, tokens: int, max_bytes: int | None = None) -> None:
        """Drop what is kept, and keep up to `tokens` tokens in at most `max_bytes` from now on."""
        retained = RetainedRows(self._rows.cache, tokens, self._limit(max_bytes))
        self.restart()
        self.retained = retained
        self._hits = self._reused = 0

    def restart(self) -> None:
        """Drop what is kept; the limits stay. Open rows are no longer copied from."""
        self.retained.clear()
        self._open_rows = PrefixIndex()
        for state in self._rows.states.values():
            state.published, state.key = 0, b""

    @property
    def enabled(self) -> bool:
        return self.retained.max_tokens > 0 and self.retained.max_bytes > 0

    @property
    def counts(self) -> PrefixCounts:
        kept = self.retained
        return PrefixCounts(self._hits, self._reused, kept.tokens, kept.places, kept.nbytes, kept.max_bytes)

    def recall(self, rows: Sequence[Row]) -> list[int]:
        """Copy what is cached of the rows' texts, except their last tokens, into the rows, all at once.

        Returns how many tokens each gained."""
        runs = list[Run]()
        gains = [self._find(row, runs) for row in rows]
        if runs:
            self._rows.cache.copy(runs)
        for row, gained in zip(rows, gains, strict=True):
            if gained:
                state = self._rows.states[row]
                state.tokens += self._rows.pending(row)[:gained]
                state.drop_uncommitted()
                self._hits += 1
        self._reused += sum(gains)
        return gains

    def _find(self, row: Row, runs: list[Run]) -> int:
        """How many tokens a row gains from the text with the longest common prefix. Adds what to copy to `runs`."""
        state, pending = self._rows.states[row], len(self._rows.pending(row))
        if pending <= WORTH or state.hidden or not self.enabled:  # a pass that will be resumed has read them already
            return 0
        held, text = len(state.tokens), _text(state, row.tokens, row.length - 1)
        (kept, size), (other, other_size) = self.retained.longest(text), self._longest_open(text)
        if max(size, other_size) - held < WORTH:
            return 0
        assert max(size, other_size) <= self._rows.cache.capacity(state.index), "the row has no room for its own text"
        if kept is not None and size >= other_size:
            runs += self.retained.runs(kept, held, size, state.index)
            return size - held
        assert other is not None, "a text of that length was found"
        runs.append((other.index + held, state.index + held, other_size - held))
        return other_size - held

    def publish(self, row: Row) -> None:
        """Let other rows copy the part of a row's prompt that is cached.

        The rest can be copied when the row has closed: the output, and the last token of the prompt, which an equal
        prompt computes anyway."""
        state = self._rows.states[row]
        end = min(len(row.request.prompt) - 1, len(state.tokens))
        if state.published >= end or state.features != self._features.layers:
            return
        state.published = end
        if end >= WORTH and self.enabled:
            text = _text(state, state.tokens, end)
            self._withdraw(state)
            other, size = self._longest_open(text)
            if size < end:  # otherwise the other row has it
                if other is not None and other.key == text:  # it has dropped some of it
                    self._withdraw(other)
                self._open_rows.add(text, state)
                state.key = text

    def _longest_open(self, text: bytes) -> tuple[RowState | None, int]:
        """The open row with the longest common prefix, and how many tokens of that it has cached."""
        state, size = self._open_rows.longest(text)
        return state, 0 if state is None else min(size, state.published)

    def close(self, state: RowState) -> None:
        """Retain a row that closes, unless a declared layer is missing from it, or give its places back."""
        self._withdraw(state)
        if self.enabled and state.features == self._features.layers:
            self.retained.keep(state.index, _text(state, state.tokens, len(state.tokens)))
        else:
            self._rows.cache.give(state.index)

    def _withdraw(self, state: RowState) -> None:
        if state.key:
            self._open_rows.remove(state.key)
            state.key = b""

    def leaders(self, rows: Sequence[Row]) -> dict[Row, int]:
        """The rows that should read a common prefix before the others, and how many tokens of it.

        The other rows then copy it. Empty if no common prefix is long enough.
        """
        states = self._rows.states
        fresh = [row for row in rows if len(self._rows.pending(row)) > WORTH and not states[row].hidden]
        if len(fresh) < 2 or not self.enabled:
            return {}
        held = [len(states[row].tokens) for row in fresh]
        texts = [_text(states[row], row.tokens, row.length - 1) for row in fresh]
        return {fresh[n]: size for n, size in leaders(texts, held, WORTH, PASS).items()}

    def check_integrity(self) -> None:
        """Raise AssertionError unless the indices agree with the rows."""
        self.retained.check_integrity()
        self._open_rows.check_integrity()
        copied = [state for state in self._rows.states.values() if state.key]
        assert len(copied) == len(self._open_rows), f"{len(self._open_rows)} texts of {len(copied)} open rows"
        for state in copied:
            assert self._open_rows.longest(state.key) == (state, tokens_in(state.key)), "a row is not found by its text"
            cached = text_of(state.tokens[: min(state.published, tokens_in(state.key))])
            assert state.key.startswith(cached), "a row's text is not what it has cached"


def _text(state: RowState, tokens: Sequence[int], count: int) -> bytes:
    """The text of a row's first `count` tokens. Each token is converted once."""
    if (held := tokens_in(state.text)) < count:
        state.text += text_of(tokens[held:count])
    return state.text[: count * TOKEN]
