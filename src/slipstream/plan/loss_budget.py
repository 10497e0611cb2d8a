"""What drafting may lose, settled before it is lost."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class LossBudget:
    """Seconds that may be lost against plain decoding, and never more than are in it are risked: what a draft costs if
    none of it is accepted.

    A small share of all time goes in, saved up to most of a plain pass; where even one token costs more than that, up
    to what one costs. What drafting wins goes in too. A text may lose again what it won itself, up to a few passes, so
    that some bad luck does not end what pays; of that the texts after it get little. So a text of n tokens that is
    hopeless from its start loses the share of n passes and what it was handed, and no more, whatever came before it.
    """

    share: float = 0.01
    size: float = 0.5  # of a plain pass
    dear: float = 1.0  # the same where a drafted token costs as much
    most: float = 6.0  # plain passes, with what these rows won
    handed: float = 1.25  # of these, to other rows
    balance: float | None = None  # None: nothing was booked yet, and it is full
    poor: float = 0.2  # of the share goes in, at least, while nothing is accepted
    patience: int = 6  # drafts in a row that may fail before less goes in
    losses: int = 0  # drafts in a row of which nothing was accepted

    @property
    def income(self) -> float:
        """The share of all time that goes in now: half as much after every failed draft, once many failed in a row."""
        return max(self.least, self.share * 0.5 ** max(0, self.losses - self.patience))

    @property
    def least(self) -> float:
        """The share of all time that goes in while drafts only fail."""
        return self.share * self.poor

    def holds(self, plain: float) -> float:
        return self.size * plain if self.balance is None else self.balance

    def bet(self, accepted: bool) -> None:
        """Something was drafted, and some of it was accepted or nothing."""
        self.losses = 0 if accepted else self.losses + 1

    def hand_over(self, plain: float) -> None:
        """Other rows come: they get little of what was won, and little of a debt that nobody could foresee."""
        if self.balance is not None:
            self.balance = max(-self.dear * plain, min(self.balance, self.handed * plain))

    def book(self, won: float, plain: float, token: float = 0.0, cycles: int = 1) -> None:
        """So much was won against plain passes, or lost, in so many cycles; `token` is what the least draft costs."""
        held = min(self.holds(plain) + won, self.most * plain)
        size = min(max(self.size * plain, token), self.dear * plain)
        self.balance = max(held, min(held + self.income * plain * cycles, size))
