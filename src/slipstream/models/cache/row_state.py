"""Where one row sits in a model's cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from slipstream.core.array_types import Tensor
from slipstream.models.run.packing import Entry, agree


@dataclass(eq=False)
class RowState:
    """A row's place in the cache, what is committed there, and what was run beyond it without being committed."""

    index: int
    tokens: list[int] = field(default_factory=list)
    run: list[Entry] = field(default_factory=list)
    depth: int = 0  # layers that ran over `run`
    hidden: dict[int, Tensor] = field(default_factory=dict)  # what `peek` kept of it, by layer
    shown: int = 0  # tokens that other rows may take over
    features: tuple[int, ...] = ()  # layers whose output is kept for all of `tokens`

    def known(self, entries: Sequence[Entry], depth: int) -> int:
        """How many leading entries have hidden states after `depth` layers."""
        return agree(self.run, entries) if self.hidden and self.depth == depth else 0

    def forget(self) -> None:
        self.run, self.depth, self.hidden = [], 0, {}
