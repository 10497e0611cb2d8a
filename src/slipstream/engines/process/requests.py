"""A request as it is sent to the process of an engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from slipstream.core.sampling import Sampling
from slipstream.engines.options import GenerationOptions


class SentRequest(NamedTuple):
    """`number` is that of its first sample; the others follow."""

    number: int
    prompt: Sequence[int]
    sampling: Sampling
    options: GenerationOptions

    @property
    def numbers(self) -> range:
        """Of its samples."""
        return range(self.number, self.number + self.options.n)

    @property
    def quick(self) -> bool:
        """Whether nothing has to be built or compiled before it starts."""
        asked = self.options.speculation
        return self.options.constraint is None and self.options.prediction is None and asked.drafter is None
