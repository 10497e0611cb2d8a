"""A drafter as a package of its own: it proposes that the last few tokens repeat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.core.interfaces import TargetModel
from slipstream.core.types import Row
from slipstream.drafters.per_row import PerRow, RowDrafter


@dataclass(frozen=True)
class RepeatOptions:
    period: int = 2  # how many of the last tokens repeat

    def __post_init__(self) -> None:
        if self.period < 1:
            raise ValueError(f"period is {self.period}; it must be 1 or more")


class RepeatRow(RowDrafter):
    """Guesses for one row."""

    def __init__(self, period: int) -> None:
        self.period = period

    def guess(self, tokens: Sequence[int], depth: int) -> list[int]:
        last = tokens[-self.period :]
        return [last[i % len(last)] for i in range(depth)]


class Repeat(PerRow):
    """Proposes the last `period` tokens again and again."""

    options_type = RepeatOptions

    def __init__(self, vocab: int, options: RepeatOptions) -> None:
        super().__init__(vocab)
        self.period = options.period

    @classmethod
    def build(cls, target: TargetModel, options: RepeatOptions) -> Repeat:
        return cls(target.vocab, options)

    def new(self, row: Row) -> RowDrafter:
        return RepeatRow(self.period)
