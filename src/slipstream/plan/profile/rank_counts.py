"""Acceptance of a profile: by drafter, workload, temperature, depth and rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class RankCount:
    """Candidates of one rank at one depth: those whose earlier siblings were rejected, and how many were accepted."""

    drafter: str
    workload: str
    temperature: float
    depth: int  # from 1
    rank: int  # from 0; chains have rank 0 only
    tried: int
    accepted: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(saved: Mapping[str, Any]) -> RankCount:
        return RankCount(**{field.name: saved[field.name] for field in fields(RankCount)})


def merged_counts(counts: Iterable[RankCount]) -> list[RankCount]:
    """Counts of the same kind added up."""
    totals: dict[tuple[Any, ...], list[int]] = {}
    for count in counts:
        key = (count.drafter, count.workload, count.temperature, count.depth, count.rank)
        total = totals.setdefault(key, [0, 0])
        total[0] += count.tried
        total[1] += count.accepted
    return [RankCount(*key, *total) for key, total in sorted(totals.items())]
