"""The figures that passes decide by: tokens per second of drafters and depths on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MARGIN = 1.02  # a drafter must be faster than plain decoding by this factor to be chosen


@dataclass(frozen=True)
class MeasuredDepth:
    """One drafter at one depth."""

    depth: int
    tokens_per_second: float
    tau: float


@dataclass(frozen=True)
class Figures:
    """Plain decoding, and drafters by depth, measured in turns on the same prompts. `options` are the drafters' own."""

    model: str
    plain: float  # tokens per second
    drafters: Mapping[str, tuple[MeasuredDepth, ...]]
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def best_depth(self, kind: str) -> MeasuredDepth:
        """The fastest depth of a drafter."""
        return max(self.drafters[kind], key=lambda point: point.tokens_per_second)

    def best_drafter(self) -> str | None:
        """The drafter with the fastest depth; None if none is clearly faster than plain decoding."""
        best = max(self.drafters, key=lambda kind: self.best_depth(kind).tokens_per_second, default=None)
        if best is None or self.best_depth(best).tokens_per_second < MARGIN * self.plain:
            return None
        return best

    def shown(self, kind: str) -> str:
        """What was measured of a drafter, for people."""
        points = ", ".join(
            f"depth {point.depth}: {point.tokens_per_second:.1f} (tau {point.tau:.2f})" for point in self.drafters[kind]
        )
        return f"{kind} {points} tokens/s; plain {self.plain:.1f}"
