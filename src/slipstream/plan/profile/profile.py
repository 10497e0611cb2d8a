"""The profile of a model on one machine: one JSON object that forecasts and policies read."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from slipstream.plan.policy.policy_seed import PolicySeed
from slipstream.plan.profile.cost_points import CostPoint, merged_points
from slipstream.plan.profile.energy import ProfileEnergy
from slipstream.plan.profile.key import ProfileKey
from slipstream.plan.profile.rank_counts import RankCount, merged_counts
from slipstream.plan.profile.runs import PLAIN, ProfileRun

FORMAT, LAYOUT = "slipstream profile", 1


@dataclass(frozen=True)
class Profile:
    """Measured costs and acceptance. All times are seconds."""

    key: ProfileKey
    runs: Sequence[ProfileRun] = ()
    target: Sequence[CostPoint] = ()  # passes of the target, by rows, tokens and context
    drafts: Mapping[str, Sequence[CostPoint]] = field(default_factory=dict)  # by drafter: rows, steps and context
    host: float | None = None  # per cycle, beside drafting and scoring; None where cycles are captured
    acceptance: Sequence[RankCount] = ()
    hashes: Mapping[str, str | None] = field(default_factory=dict)  # of the drafters' weights; None: it has none
    seeds: Mapping[str, PolicySeed] = field(default_factory=dict)  # what a policy starts with, by drafter
    date: str = ""
    command: str = ""
    energy: ProfileEnergy = field(default_factory=ProfileEnergy)

    @property
    def drafters(self) -> list[str]:
        return sorted({run.drafter for run in self.runs} - {PLAIN} | self.seeds.keys())

    @property
    def workloads(self) -> list[str]:
        return list(dict.fromkeys(run.workload for run in self.runs))

    def merge(self, other: Profile) -> Profile:
        """Both profiles as one. They must have one key. Where only one value can be kept, that of `other` is kept."""
        if (clause := self.key.why_not(other.key)) is not None:
            raise ValueError(f"profiles of different keys cannot be merged; one is {clause}")
        names = self.drafts.keys() | other.drafts.keys()
        return Profile(
            self.key,
            tuple(dict.fromkeys((*self.runs, *other.runs))),
            merged_points(self.target, other.target),
            {name: merged_points(self.drafts.get(name, ()), other.drafts.get(name, ())) for name in sorted(names)},
            self.host if other.host is None else other.host,
            merged_counts((*self.acceptance, *other.acceptance)),
            {**self.hashes, **other.hashes},
            {**self.seeds, **other.seeds},
            other.date or self.date,
            other.command or self.command,
            self.energy.merge(other.energy),
        )

    def without(self, drafters: Collection[str]) -> Profile:
        """The part that is about other drafters; plain decoding is left out, too."""
        old = {PLAIN, *drafters}
        return Profile(
            self.key,
            tuple(run for run in self.runs if run.drafter not in old),
            drafts={name: points for name, points in self.drafts.items() if name not in old},
            acceptance=[count for count in self.acceptance if count.drafter not in old],
            hashes={name: sha for name, sha in self.hashes.items() if name not in old},
            seeds={name: seed for name, seed in self.seeds.items() if name not in old},
            energy=self.energy.without(old),
        )

    def with_seed(self, drafter: str, seed: PolicySeed) -> Profile:
        return replace(self, seeds={**self.seeds, drafter: seed})

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "layout": LAYOUT,
            "key": self.key.to_json(),
            "date": self.date,
            "command": self.command,
            "drafter_sha256": dict(self.hashes),
            "host_seconds_per_cycle": self.host,
            "target": [point.to_json() for point in self.target],
            "drafters": {name: [point.to_json() for point in points] for name, points in self.drafts.items()},
            "acceptance": [count.to_json() for count in self.acceptance],
            "runs": [run.to_json() for run in self.runs],
            "policy": {name: seed.to_json() for name, seed in self.seeds.items()},
            "energy": self.energy.to_json(),
        }

    @staticmethod
    def from_json(saved: Mapping[str, Any]) -> Profile:
        """Raises KeyError, TypeError or ValueError where something is missing."""
        return Profile(
            ProfileKey.from_json(saved["key"]),
            tuple(ProfileRun.from_json(run) for run in saved["runs"]),
            [CostPoint.from_json(point) for point in saved["target"]],
            {name: [CostPoint.from_json(point) for point in points] for name, points in saved["drafters"].items()},
            saved["host_seconds_per_cycle"],
            [RankCount.from_json(count) for count in saved["acceptance"]],
            saved["drafter_sha256"],
            {name: PolicySeed.from_json(seed) for name, seed in saved["policy"].items()},
            saved["date"],
            saved["command"],
            ProfileEnergy.from_json(saved.get("energy")),
        )
