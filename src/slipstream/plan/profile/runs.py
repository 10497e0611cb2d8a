"""Runs: the measurements that a profile consists of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

PLAIN = "none"  # the drafter of plain decoding


@dataclass(frozen=True)
class ProfileRun:
    """Prompts of one workload, decoded with one drafter, depth, batch and temperature."""

    drafter: str
    depth: int  # 0: plain decoding
    batch: int
    temperature: float
    workload: str
    seconds: float  # of decoding, from the first tokens of all rows on
    tokens: int  # emitted in this time, by all rows
    cycles: int  # of all rows, the first ones included
    emitted: int  # in these cycles
    context: float  # mean committed tokens of a row
    accepted: tuple[int, ...] = ()  # cycles that accepted token 1, 2, …
    drafted: tuple[int, ...] = ()  # cycles that drafted token 1, 2, …
    joules: float | None = None  # of all tokens, prompts included; None without a counter

    def __post_init__(self) -> None:
        if self.seconds <= 0 or self.tokens < 1 or self.cycles < 1:
            raise ValueError("a run has a time, tokens and cycles; this one is empty")
        if (self.drafter == PLAIN) != (self.depth == 0):
            raise ValueError(f"a run with the drafter {self.drafter} has depth {self.depth}; only none has depth 0")

    @property
    def tau(self) -> float:
        return self.emitted / self.cycles

    @property
    def cycle_seconds(self) -> float:
        """Seconds per cycle of one row, shared with the other rows of its pass."""
        return self.seconds * self.tau / self.tokens

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(saved: Mapping[str, Any]) -> ProfileRun:
        names = {field.name for field in fields(ProfileRun)}
        values = {name: saved[name] for name in saved if name in names}
        values |= {name: tuple(saved.get(name, ())) for name in ("accepted", "drafted")}
        return ProfileRun(**values)


def by_workload(runs: Iterable[ProfileRun]) -> dict[str, list[ProfileRun]]:
    groups: dict[str, list[ProfileRun]] = {}
    for run in runs:
        groups.setdefault(run.workload, []).append(run)
    return groups
