"""Predictors from history alone, as branch predictors are."""

from __future__ import annotations

from slipstream.plan.policy.config import AcceptanceConfig
from slipstream.plan.predictors.base import Predictor, SlotRecord

PRIOR = 4.0  # observations that the first rate counts as in a table's entry


class Static(Predictor):
    """One rate for ever: the policy's own expectation before anything was observed."""

    def predict(self, depth: int, confidence: float) -> float:
        return AcceptanceConfig().first_rate

    def learn(self, slot: SlotRecord) -> None:
        pass


class Average(Predictor):
    """The moving average that the policy `adaptive` uses for a row."""

    def __init__(self) -> None:
        config = AcceptanceConfig()
        self._rate, self._weight, self._memory = config.first_rate, config.row_prior, config.row_memory

    def predict(self, depth: int, confidence: float) -> float:
        return self._rate

    def learn(self, slot: SlotRecord) -> None:
        self._weight = min(self._weight + 1, self._memory)
        self._rate += (slot.accepted - self._rate) / self._weight


class Counters(Predictor):
    """Saturating counters, one for each depth. A counter's state has the rate that it was observed to have."""

    STATES, DEPTHS = 8, 8

    def __init__(self) -> None:
        self._state = [self.STATES - 3] * self.DEPTHS
        self._rates = RateTable(self.STATES)

    def predict(self, depth: int, confidence: float) -> float:
        return self._rates.rate(self._state[min(depth, self.DEPTHS) - 1])

    def learn(self, slot: SlotRecord) -> None:
        d = min(slot.depth, self.DEPTHS) - 1
        self._rates.learn(self._state[d], slot.accepted)
        self._state[d] = min(self.STATES - 1, max(0, self._state[d] + (1 if slot.accepted else -1)))


class Gshare(Predictor):
    """A table of rates by the latest outcomes, folded with the depth."""

    BITS = 5

    def __init__(self) -> None:
        self._history = (1 << self.BITS) - 1
        self._rates = RateTable(1 << self.BITS)

    def _index(self, depth: int) -> int:
        return (self._history ^ min(depth - 1, 3)) & ((1 << self.BITS) - 1)

    def predict(self, depth: int, confidence: float) -> float:
        return self._rates.rate(self._index(depth))

    def learn(self, slot: SlotRecord) -> None:
        self._rates.learn(self._index(slot.depth), slot.accepted)
        self._history = (self._history << 1 | slot.accepted) & ((1 << self.BITS) - 1)


class RateTable:
    """Acceptance rates of states. A state that was seen rarely leans on the rate of all states."""

    def __init__(self, states: int) -> None:
        self._tried, self._accepted = [0.0] * states, [0.0] * states

    def rate(self, state: int) -> float:
        first = AcceptanceConfig().first_rate
        usual = (PRIOR * first + sum(self._accepted)) / (PRIOR + sum(self._tried))
        return (PRIOR * usual + self._accepted[state]) / (PRIOR + self._tried[state])

    def learn(self, state: int, accepted: bool) -> None:
        self._tried[state] += 1
        self._accepted[state] += accepted
