"""Acceptance by depth and rank: what the second and third candidates of a tree catch where the first one fails."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.plan.policy.config import AcceptanceConfig, TreeConfig

Judged = Sequence[tuple[int, int]]
"""Of each slot along an accepted path that had candidates: the rank of the accepted one, -1 for none; their number."""


class RankTable:
    """Acceptance by depth and rank under one drafter and rule: of candidates whose earlier siblings were all rejected,
    the share that was accepted.

    Depths borrow from each other while little is known of them. All of them start from what a trained head's candidates
    are usually worth: with the default figures trees of 8, 16, 24 and 48 nodes emit 3.3, 3.7, 3.9 and 4.3 tokens per
    pass where chains of five emit 2.9."""

    def __init__(
        self, width: int | None = None, max_nodes: int | None = None, config: AcceptanceConfig | None = None
    ) -> None:
        self._config, tree = config or AcceptanceConfig(), TreeConfig()
        self.width, self.max_nodes = width or tree.width, max_nodes or tree.max_nodes
        self._accepted = [[0.0] * self.width for _ in range(self._config.table_depths)]
        self._tried = [[0.0] * self.width for _ in range(self._config.table_depths)]
        self._rates: list[list[float]] = []
        self._chains = 0  # observed since the last update

    def load(self, counts: Sequence[Sequence[tuple[float, float]]]) -> None:
        """Add what was counted elsewhere: (accepted, tried) by depth and rank. It counts as half of `table_memory`
        observations of a rank at most, so that the text at hand is soon followed."""
        last = self._config.table_depths - 1
        most = (
            max((sum(level[k][1] for level in counts) for k in range(len(counts[0]))), default=0.0) if counts else 0.0
        )
        share = min(1.0, self._config.table_memory / 2 / most) if most else 0.0
        for depth, level in enumerate(counts):
            for k, (accepted, tried) in enumerate(level[: self.width]):
                self._accepted[min(depth, last)][k] += share * accepted
                self._tried[min(depth, last)][k] += share * tried
        self._rates = []

    @property
    def counts(self) -> list[list[tuple[float, float]]]:
        """(accepted, tried) by depth and rank."""
        return [list(zip(*rows, strict=True)) for rows in zip(self._accepted, self._tried, strict=True)]

    def learn(self, judged: Judged) -> None:
        last = self._config.table_depths - 1
        for depth, (rank, count) in enumerate(judged):
            d = min(depth, last)
            for k in range(min(count, self.width)):
                self._tried[d][k] += 1
                self._accepted[d][k] += k == rank
                if k == rank:
                    break
        branched = any(count > 1 for _, count in judged)
        self._chains += not branched
        if branched or self._chains >= self._config.chains_per_update:
            self._update()

    def _update(self) -> None:
        """Forget a little: of siblings while only chains are drafted, so that trees are tried again some day; of every
        rank that was observed very often."""
        config = self._config
        self._fade(config.sibling_memory**self._chains, range(1, self.width))
        often = [k for k in range(self.width) if sum(row[k] for row in self._tried) > config.table_memory]
        self._fade(0.5, often)
        self._rates, self._chains = [], 0

    def _fade(self, kept: float, ranks: Sequence[int]) -> None:
        for table in (self._accepted, self._tried):
            for row in table:
                for k in ranks:
                    row[k] *= kept

    @property
    def rates(self) -> list[list[float]]:
        """By depth and rank: the share accepted where all candidates before were rejected."""
        if not self._rates:
            prior, tables = self._config.table_prior, (self._accepted, self._tried)
            accepted, tried = ([sum(column) for column in zip(*table, strict=True)] for table in tables)
            usual = [
                (prior * self._prior_rate(k) + hits) / (prior + tries)
                for k, (hits, tries) in enumerate(zip(accepted, tried, strict=True))
            ]
            self._rates = [
                [(prior * u + hits) / (prior + tries) for u, hits, tries in zip(usual, *rows, strict=True)]
                for rows in zip(*tables, strict=True)
            ]
        return self._rates

    def _prior_rate(self, rank: int) -> float:
        config = self._config
        return config.sibling_rate * config.sibling_decay ** (rank - 1) if rank else config.first_rate

    def accept(self, rate: float, depth: int) -> list[list[float]]:
        """`tree_shapes.Acceptance` of a row whose first candidates are accepted at this rate. Where first candidates
        fail more than usual, the others do so too."""
        levels = []
        for d in range(depth):
            first, *others = self.rates[min(d, self._config.table_depths - 1)]
            share = min(1.0, rate / first)
            rejected, chances = 1 - rate, [rate]
            for hazard in others:
                chance = hazard * share
                chances.append(min(chances[-1], rejected * chance))
                rejected *= 1 - chance
            levels.append(chances)
        return levels
