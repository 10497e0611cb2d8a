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

    def holds(self, plain: float) -> float:
        return self.size * plain if self.balance is None else self.balance

    def hand_over(self, plain: float) -> None:
        """Other rows come."""
        if self.balance is not None:
            self.balance = min(self.balance, self.handed * plain)

    def book(self, won: float, plain: float, token: float = 0.0) -> None:
        """So much was won against a plain pass, or lost; `token` is what the least draft costs."""
        held = min(self.holds(plain) + won, self.most * plain)
        size = min(max(self.size * plain, token), self.dear * plain)
        self.balance = max(held, min(held + self.share * plain, size))
