"""What drafting may lose, settled before it is lost."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Purse:
    """Seconds that may be lost against plain decoding: a share of all time, saved up to most of a plain pass, and what
    drafting won, up to a few passes, so that one bad draft after good ones does not end it and an old win does not pay
    for long. Half may be risked at a time, so that no single draft empties it; but where even one token costs more than
    that, one may take it all, and so much is then saved."""

    share: float = 0.01
    size: float = 0.6  # of a plain pass
    dear: float = 1.0  # the same where a drafted token costs as much
    most: float = 1.5  # plain passes, with what was won
    balance: float | None = None  # None: nothing was booked yet, and it is full

    def stake(self, plain: float) -> float:
        return (self.size * plain if self.balance is None else self.balance) / 2

    def book(self, won: float, plain: float, token: float = 0.0) -> None:
        """So much was won against a plain pass, or lost; `token` is what the least draft costs."""
        held = self.size * plain if self.balance is None else self.balance
        held = min(held + won, self.most * plain)
        size = min(max(self.size * plain, token), self.dear * plain)
        saved = min(held + self.share * plain, size)
        self.balance = max(held, saved)
