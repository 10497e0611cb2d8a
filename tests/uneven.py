"""A policy whose depths change from cycle to cycle, zero included."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.core.tree import Shape
from slipstream.core.types import Budget, Row
from slipstream.plan.policy.policies import Fixed


class Uneven(Fixed):
    """`depths` repeat, beginning with the second one."""

    def __init__(self, depths: Sequence[int], shape: Shape | None = None) -> None:
        super().__init__(0)
        self.turn, self.depths, self.shape = 0, depths, shape

    def budget(self, rows: Sequence[Row]) -> list[Budget]:
        self.turn += 1
        return [Budget(self.depths[self.turn % len(self.depths)], shape=self.shape)] * len(rows)
