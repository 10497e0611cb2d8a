"""Policies: how far to draft in the coming cycle."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.core.interfaces import Policy
from slipstream.core.types import Budget, Row


class Fixed(Policy):
    """The same depth always; a drafter may still stop early before an unlikely token."""

    def __init__(self, depth: int, stop_below: float = 0.0) -> None:
        self._budget = Budget(depth, stop_below=stop_below)

    def budget(self, rows: Sequence[Row]) -> list[Budget]:
        return [self._budget] * len(rows)
