"""The interface of predictors, and what they may look at.

A predictor may use the outcomes of earlier slots of the row, the depth of the slot, and the draft law of the slot: its
largest probability. It never sees the drafted token, so that a decision to stop drafting there keeps the output's law.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple


class SlotRecord(NamedTuple):
    """One drafted slot: what was known before its token was drawn, and the outcome."""

    depth: int  # from 1
    confidence: float  # the largest probability of the draft law
    accepted: bool
    judged: bool = True  # False: a token before it was rejected, so its outcome is unknown


Trace = Sequence[Sequence[SlotRecord]]
"""The cycles of one row. A cycle holds its slots: accepted ones, one that was rejected, and those never judged."""


class Predictor(ABC):
    """State of one row. Slots are learnt in the order in which they were judged."""

    @abstractmethod
    def predict(self, depth: int, confidence: float) -> float:
        """The probability that the next drafted token is accepted."""

    @abstractmethod
    def learn(self, slot: SlotRecord) -> None:
        """Receive an outcome."""
