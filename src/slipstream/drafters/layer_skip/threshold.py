"""The confidence below which drafting ends, adapted to each row's acceptance (arXiv 2309.08168, section 3.3)."""

from __future__ import annotations

from dataclasses import dataclass

ACCEPTANCE = 0.9  # the wanted share of accepted tokens, alpha in the paper
STEP = 0.01  # epsilon
RATE_MEMORY, THRESHOLD_MEMORY = 0.5, 0.9  # beta 1 and beta 2


@dataclass
class Threshold:
    """The threshold of one row. A start of 0 never ends a draft and stays 0."""

    value: float
    rate: float = ACCEPTANCE  # running share of accepted tokens

    def update(self, accepted: int, drafted: int) -> None:
        """Learn from the verdict on a draft: raise the threshold if too few tokens are accepted, else lower it."""
        if not drafted or not self.value:
            return
        self.rate = RATE_MEMORY * self.rate + (1 - RATE_MEMORY) * accepted / drafted
        moved = self.value + (STEP if self.rate <= ACCEPTANCE else -STEP)
        self.value = THRESHOLD_MEMORY * self.value + (1 - THRESHOLD_MEMORY) * moved
        self.value = min(1.0, max(STEP, self.value))
