"""The option `draft_temperature` of drafters that sample.

The draft law is then that of another temperature than the request's. The output stays exact, because tokens are drawn
from this law and it is the one that is told to the rule. Greedy requests are not affected: their candidates are chosen.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class DraftTemperature:
    """Base of the options of drafters that sample."""

    # of sampled drafts; default: the temperature of each request
    draft_temperature: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.draft_temperature is not None and not 0 < self.draft_temperature <= 100:
            raise ValueError(f"draft_temperature is {self.draft_temperature}; it must be above 0 and at most 100")
