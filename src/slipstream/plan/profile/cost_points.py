"""Cost curves of a profile: seconds of target passes, of drafts, and of captured cycles, by what they depend on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from statistics import median
from typing import Any

from slipstream.core.device import next_power_of_two


@dataclass(frozen=True)
class CycleCost:
    """The times of one cycle of the ordinary host loop, in seconds."""

    rows: int
    tokens: int  # in the target's pass
    steps: int  # levels of the deepest draft; 0: nothing was drafted
    context: int  # committed tokens of a row, the mean of the rows
    drafting: float
    scoring: float  # with verification, commit and publication

    def to_json(self) -> list[float]:
        return [self.rows, self.tokens, self.steps, self.context, round(self.drafting, 7), round(self.scoring, 7)]

    @staticmethod
    def from_json(saved: Sequence[Any]) -> CycleCost:
        rows, tokens, steps, context, *times = saved
        return CycleCost(int(rows), int(tokens), int(steps), int(context), *map(float, times))


@dataclass(frozen=True)
class CostPoint:
    """The median time of passes or drafts of one size. Contexts are rounded up to powers of two."""

    rows: int
    tokens: int  # of a pass; the steps of a draft
    context: int
    seconds: float
    count: int  # times that were measured

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(saved: Mapping[str, Any]) -> CostPoint:
        return CostPoint(**{field.name: saved[field.name] for field in fields(CostPoint)})


def target_points(cycles: Iterable[CycleCost]) -> list[CostPoint]:
    """The cost curve of the target: by rows, tokens and context."""
    return _points((cycle.rows, cycle.tokens, cycle.context, cycle.scoring) for cycle in cycles)


def draft_points(cycles: Iterable[CycleCost]) -> list[CostPoint]:
    """The cost curve of a drafter: by rows, steps and context."""
    return _points((cycle.rows, cycle.steps, cycle.context, cycle.drafting) for cycle in cycles if cycle.steps)


def merged_points(*lists: Sequence[CostPoint]) -> list[CostPoint]:
    """Several curves as one. Points of the same size are averaged by the number of their measurements."""
    groups: dict[tuple[int, int, int], list[CostPoint]] = {}
    for point in (point for points in lists for point in points):
        groups.setdefault((point.rows, point.tokens, point.context), []).append(point)
    merged = []
    for size, same in sorted(groups.items()):
        count = sum(point.count for point in same)
        merged.append(CostPoint(*size, sum(point.seconds * point.count for point in same) / count, count))
    return merged


def _points(times: Iterable[tuple[int, int, int, float]]) -> list[CostPoint]:
    groups: dict[tuple[int, int, int], list[float]] = {}
    for rows, tokens, context, seconds in times:
        groups.setdefault((rows, tokens, next_power_of_two(max(1, context))), []).append(seconds)
    return [CostPoint(*size, median(own), len(own)) for size, own in sorted(groups.items())]
