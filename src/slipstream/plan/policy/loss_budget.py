"""What drafting may lose against plain decoding, settled before it is lost."""

from __future__ import annotations

from slipstream.plan.policy.config import LossConfig


class LossBudget:
    """Seconds that may be lost. A draft is made only where the budget covers its cost, should none of it be accepted.

    A small share of all time goes in, saved up to part of a plain pass; where even one token costs more than that, up
    to what one costs. What drafting wins goes in too. Rows may lose again what they won themselves, up to a few passes,
    so that some bad luck does not end what pays. What they won beyond that is the surplus. Rows that come after them
    start with the same small amount, whatever the rows just before them lost, while the surplus pays for it. So a
    hopeless text of n tokens loses the share of n passes and what it was handed, and no more, whatever came before it,
    and many of them lose no more than was won before.
    """

    def __init__(self, config: LossConfig | None = None) -> None:
        self.config = config or LossConfig()
        self.balance: float | None = None  # None: nothing was booked yet, and it is full
        self._first = self.config.size  # held then, in plain passes
        self.surplus = 0.0  # seconds that were won and that no row may lose again, except what rows are handed
        self.losses = 0  # drafts in a row of which nothing was accepted

    @property
    def income(self) -> float:
        """The share of all time that goes in now: half as much after every failed draft, once many failed in a row."""
        return max(self.least, self.config.share * 0.5 ** max(0, self.losses - self.config.patience))

    @property
    def least(self) -> float:
        """The share of all time that goes in while drafts only fail."""
        return self.config.share * self.config.failing_share

    def holds(self, plain: float) -> float:
        return self._first * plain if self.balance is None else self.balance

    def trust(self) -> None:
        """Costs and acceptance were measured before the start: the first rows get what later ones are handed."""
        self._first = self.config.handed_over

    def settle(self, accepted: bool) -> None:
        """Something was drafted, and some of it was accepted or nothing."""
        self.losses = 0 if accepted else self.losses + 1

    def hand_over(self, plain: float) -> None:
        """Other rows come: they get little of what was won, and little of a debt that nobody could foresee."""
        if self.balance is not None:
            handed = min(self.config.handed_over * plain, self.balance + self.surplus)
            self._save(self.balance - handed, plain)
            self.balance = max(-self.config.max_size * plain, handed)

    def _save(self, won: float, plain: float) -> None:
        """Move seconds from the balance to the surplus, or back."""
        self.surplus = min(max(0.0, self.surplus + won), self.config.max_surplus * plain)

    def book(self, won: float, plain: float, token: float = 0.0, cycles: int = 1) -> None:
        """So much was won against plain passes, or lost, in so many cycles; `token` is what the least draft costs."""
        config = self.config
        held, most = self.holds(plain) + won, config.max_won * plain
        if held > most:
            self._save(held - most, plain)
            held = most
        size = min(max(config.size * plain, token), config.max_size * plain)
        self.balance = max(held, min(held + self.income * plain * cycles, size))
