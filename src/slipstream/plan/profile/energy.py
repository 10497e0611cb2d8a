"""Energy of a profile: the power of decoding by drafter and batch, and joules per token by phase."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class DecodingPower:
    """The mean power of decoding. None of it is known where `ProfileEnergy.missing` says why."""

    drafter: str  # none: plain decoding
    batch: int
    watts: float
    source: str
    estimate: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(saved: Mapping[str, Any]) -> DecodingPower:
        return DecodingPower(**{field.name: saved[field.name] for field in fields(DecodingPower)})


@dataclass(frozen=True)
class ProfileEnergy:
    """`phases`: figures of `bench.measure.phase_energy` as they were written."""

    powers: Sequence[DecodingPower] = ()
    phases: Sequence[Mapping[str, Any]] = ()
    missing: str | None = "the profile was made without measuring energy"

    def power(self, drafter: str, batch: int) -> DecodingPower | None:
        """The power of a drafter at the nearest batch."""
        own = [power for power in self.powers if power.drafter == drafter]
        return min(own, key=lambda power: abs(power.batch - batch), default=None)

    def merge(self, other: ProfileEnergy) -> ProfileEnergy:
        """Both as one. Of one drafter and batch, the figures of `other` are kept."""
        if not other.powers:
            return self if self.powers else other
        measured = {(power.drafter, power.batch) for power in other.powers}
        drafters = {phases["drafter"] for phases in other.phases}
        return ProfileEnergy(
            (*(power for power in self.powers if (power.drafter, power.batch) not in measured), *other.powers),
            (*(phases for phases in self.phases if phases["drafter"] not in drafters), *other.phases),
            None,
        )

    def without(self, drafters: Collection[str]) -> ProfileEnergy:
        powers = [power for power in self.powers if power.drafter not in drafters]
        phases = [phases for phases in self.phases if phases["drafter"] not in drafters]
        return ProfileEnergy(powers, phases, self.missing)

    def to_json(self) -> dict[str, Any]:
        powers = [power.to_json() for power in self.powers]
        return {"powers": powers, "phases": [dict(phases) for phases in self.phases], "missing": self.missing}

    @staticmethod
    def from_json(saved: Mapping[str, Any] | None) -> ProfileEnergy:
        """None: a profile from before energy was part of it."""
        if saved is None:
            return ProfileEnergy()
        powers = tuple(DecodingPower.from_json(power) for power in saved["powers"])
        return ProfileEnergy(powers, tuple(saved["phases"]), saved["missing"])
