"""What a policy starts with instead of learning it: the costs of cycles under one drafter, and its acceptance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slipstream.plan.policy.costs import CostModel


@dataclass(frozen=True)
class PolicySeed:
    """`costs`: a `CostModel` as JSON. `rate`: of first candidates. `ranks`: (accepted, tried) by depth and rank."""

    costs: Mapping[str, Any]
    rate: float | None = None  # None: nothing was drafted
    weight: float = 0.0  # observations that the rate counts as
    ranks: Sequence[Sequence[tuple[float, float]]] = field(default_factory=tuple)

    def __post_init__(self) -> None:
        if self.rate is not None and not 0 <= self.rate <= 1:
            raise ValueError(f"an acceptance rate is {self.rate}; it must be between 0 and 1")

    def to_json(self) -> dict[str, Any]:
        ranks = [[list(pair) for pair in level] for level in self.ranks]
        return {"costs": dict(self.costs), "rate": self.rate, "weight": self.weight, "ranks": ranks}

    @staticmethod
    def from_json(saved: Mapping[str, Any]) -> PolicySeed:
        CostModel.from_json(saved["costs"])  # a seed that no policy can read is an error of the file
        ranks = [[(float(hits), float(tries)) for hits, tries in level] for level in saved["ranks"]]
        return PolicySeed(saved["costs"], saved["rate"], float(saved["weight"]), ranks)
