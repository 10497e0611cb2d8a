"""Joules per token by phase, and how much of them was spent on tokens that were rejected.

The phases of a cycle are drafting, the target's pass (score), verification, and the host's work between them. Each has
a power and a time; their product, over the tokens of a cycle, is its joules per token. Their sum is compared with the
energy of a whole run, and the difference is reported (`closure_error`).

A drafted token costs its part of the drafting, and what it adds to a pass over the last committed token alone. That
part of the tokens that were rejected is wasted; all other joules were spent on tokens that were kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

PHASES = ("draft", "score", "verify", "host")


@dataclass(frozen=True)
class PhaseLoad:
    """What is measured. `seconds`: of each loop."""

    drafter: str
    depth: int
    batch: int = 1
    temperature: float = 0.0
    options: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 2.5
    max_tokens: int = 128  # of a row

    @property
    def about(self) -> tuple[str, int, int, float]:
        return self.drafter, self.depth, self.batch, self.temperature


@dataclass(frozen=True)
class PhasePower:
    """One phase of a cycle of all rows."""

    watts: float
    seconds: float  # per cycle

    @property
    def joules(self) -> float:
        return self.watts * self.seconds


@dataclass(frozen=True)
class WholeRun:
    """A run of many cycles. `accepted`: drafted tokens of one row that a cycle kept, the mean."""

    joules: float
    seconds: float
    tokens: int  # of all rows
    cycles: int  # passes of all rows together
    accepted: float = 0.0


@dataclass(frozen=True)
class EnergyByPhase:
    """Joules per token by phase. `idle` is what the idle device uses in the same time; it is part of the phases."""

    drafter: str
    depth: int
    batch: int
    temperature: float
    source: str
    estimate: bool
    tau: float
    tokens_per_second: float
    joules_per_token: float  # of the whole run
    plain_joules_per_token: float  # of plain decoding in the same loop
    phases: Mapping[str, float]
    idle: float | None
    kept: float  # joules per token that were not spent on rejected tokens
    wasted: float
    closure_error: float  # the sum of the phases against the whole run, relative

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def by_phase(
    phases: Mapping[str, PhasePower],
    score_one: float,
    whole: WholeRun,
    plain: WholeRun,
    idle_watts: float | None,
    about: tuple[str, int, int, float],
    source: tuple[str, bool],
) -> EnergyByPhase:
    """Combine what was measured. `score_one`: joules of a pass without drafted tokens. `about`: drafter, depth, batch
    and temperature. `source`: its name, and whether it is an estimate."""
    tokens = whole.tokens / whole.cycles
    drafter, depth, batch, temperature = about
    drafted = phases["draft"].joules + max(0.0, phases["score"].joules - score_one)
    total = sum(phases[name].joules for name in PHASES)
    wasted = drafted * (1 - min(1.0, whole.accepted / depth))
    return EnergyByPhase(
        drafter, depth, batch, temperature, *source,
        tokens / batch, whole.tokens / whole.seconds, whole.joules / whole.tokens, plain.joules / plain.tokens,
        {name: phases[name].joules / tokens for name in PHASES},
        None if idle_watts is None else idle_watts * whole.seconds / whole.tokens,
        (total - wasted) / tokens, wasted / tokens, total / tokens / (whole.joules / whole.tokens) - 1,
    )  # fmt: skip
