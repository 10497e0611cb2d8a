"""Device drafters whose drafts start from one state per row: the state that the last cycle left, or one that is read.

A cycle with drafts ends by reading the committed tokens, so the next cycle of the same rows needs nothing from the
host. A cycle without drafts reads nothing. The next cycle with drafts first reads what was missed.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from slipstream.core.array_types import Float, Tensor
from slipstream.core.types import Budget, Row
from slipstream.drafters.device.interface import DeviceDrafter

if TYPE_CHECKING:
    from slipstream.drafters.device.prompt_read import PromptReads, StateReader
    from slipstream.models.cache.packing import RowSlice


class StateDrafter(DeviceDrafter):
    """Keeps track of the rows whose states the last cycle holds."""

    # the last cycle with drafts: its rows, their lines and lengths, and the cycle itself
    _last_cycle: tuple[Sequence[Row], Sequence[int], Sequence[int], Any] | None = None

    @abstractmethod
    def read_states(self, rows: Sequence[Row]) -> tuple[Float[Tensor, "rows hidden"], int]:
        """Read all unread tokens of the rows. Returns the rows' states, and how many tokens were read."""

    @abstractmethod
    def unread(self, row: Row) -> int:
        """Committed tokens of a row that are not in the drafter's cache, the last one not counted."""

    @abstractmethod
    def record_cached(self, rows: Sequence[Row], lengths: Sequence[int]) -> None:
        """Record that a captured cycle wrote the committed tokens of each row but the last one to the drafter's cache.
        `lengths`: of the rows, with their new tokens."""

    def behind(self, rows: Sequence[Row]) -> int:
        return sum(map(self.unread, rows))

    def begin(self, rows: Sequence[Row], budget: Sequence[Budget], cycle: Any) -> tuple[Tensor | None, int]:
        """The state of each row, from the last cycle if it holds all of them."""
        (held, lines, lengths, last), self._last_cycle = self._last_cycle or ((), (), (), None), None
        if not cycle.key.depth:
            return None, 0
        places = {row: (line, length) for row, line, length in zip(held, lines, lengths, strict=True)}
        if last is None or any(row not in places or places[row][1] != row.length for row in rows):
            return self.read_states(rows)
        index = [places[row][0] for row in rows]
        if last is cycle and index == list(range(len(rows))):
            return None, 0
        return last.state[torch.tensor(index, device=last.state.device)], 0

    def forget(self) -> None:
        self._last_cycle = None

    def commit(
        self,
        rows: Sequence[Row],
        depths: Sequence[int],
        accepted: Sequence[Sequence[int]],
        cycle: Any,
        lines: Sequence[int],
    ) -> None:
        if cycle.key.depth:
            lengths = [len(row.tokens) + len(tokens) + 1 for row, tokens in zip(rows, accepted, strict=True)]
            self.record_lengths(rows, lengths, cycle, lines)

    def record_lengths(self, rows: Sequence[Row], lengths: Sequence[int], cycle: Any, lines: Sequence[int]) -> None:
        if cycle.key.depth:
            self.record_cached(rows, lengths)
            self._last_cycle = rows, lines, lengths, cycle


class PromptReadingDrafter(StateDrafter):
    """A state drafter that reads what it missed in passes of its own (`prompt_read`)."""

    _reads: PromptReads
    _target: Any  # the `TorchModel` that it drafts for

    @abstractmethod
    def reader(self) -> StateReader:
        """The part of the drafter that reads the target's states in passes of its own."""

    @abstractmethod
    def take_unread(self, row: Row) -> RowSlice:
        """The unread slots of a row, at least the last one. They count as cached from now on."""

    def read_states(self, rows: Sequence[Row]) -> tuple[Tensor, int]:
        pieces, index = list(map(self.take_unread, rows)), list(map(self._target.index, rows))
        reader = self.reader()
        version = self._target.cache.version, self.version
        return self._reads.read(reader, version, pieces, index), sum(map(len, pieces))
