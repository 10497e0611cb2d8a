"""What is believed of drafts: of one row's, how likely a token is accepted; of a drafter's, at which rank.

A tree is worth what its second and third candidates catch when the first one fails. How often they do is a matter of
the drafter and the rule, so all rows of both share a table; how often the first one fails is a matter of the text, so
every row has its own rate. Together they give the chance of every node a row could draft, and these in falling order
are the best tree of every size at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from slipstream.plan.tree_shapes import WIDTH, Node, best_first

DEEP = 8  # levels the table tells apart; what lies deeper is taken for the last of them
BEFORE = 8.0  # what was believed beforehand counts as so many observations
KEPT = 400.0  # observations of a rank after which the old ones count half
FADE = 0.998  # what each cycle without siblings leaves of what was seen of them: so they are tried again some time
OFTEN = 16  # cycles without siblings that are looked at together
FIRST = 0.7  # acceptance of the first candidate of a drafter nothing is known of
AFTER = tuple(0.4 * 0.6**k for k in range(WIDTH - 1))  # and of the others, where all before them failed
FAINT = 0.1  # a token of a chain less likely to be emitted than this is not worth a look
DIM = 0.01  # nor is a node of a tree, many of which come at the price of one pass
MOST = 32  # nodes of one row
FADING = 0.05  # of what was seen of a row is forgotten every cycle in which it drafts nothing
PRIOR, LATEST = 6.0, 24.0  # observations that what is believed of a new row, and of any row at most, counts as


class RankTable:
    """Acceptance by depth and rank under one drafter and rule: of candidates whose earlier siblings all failed, the
    share that was accepted. Depths borrow from each other while little is known of them, and all of them from what a
    trained head's candidates are usually worth: with these figures trees of 8, 16, 24 and 48 nodes emit 3.3, 3.7, 3.9
    and 4.3 tokens a pass where chains of five emit 2.9."""

    def __init__(self, width: int = WIDTH, most: int = MOST) -> None:
        self.width, self.most = width, most  # candidates after one slot, nodes of one row
        self._hits = [[0.0] * width for _ in range(DEEP)]
        self._tries = [[0.0] * width for _ in range(DEEP)]
        self._table: list[list[float]] = []
        self._chains = 0  # that were learnt from since they last made a difference

    def learn(self, judged: Sequence[tuple[int, int]]) -> None:
        """From the committed end along an accepted path: which candidate was accepted, -1 for none, of how many."""
        for depth, (rank, count) in enumerate(judged):
            d = min(depth, DEEP - 1)
            for k in range(min(count, self.width)):
                self._tries[d][k] += 1
                self._hits[d][k] += k == rank
                if k == rank:
                    break
        wide = any(count > 1 for _, count in judged)
        self._chains += not wide
        if wide or self._chains >= OFTEN:
            self._settle()

    def _settle(self) -> None:
        """What was learnt makes a difference: at once where there were siblings, now and then where not."""
        self._fade(FADE**self._chains, range(1, self.width))
        self._fade(0.5, [k for k in range(self.width) if sum(row[k] for row in self._tries) > KEPT])
        self._table, self._chains = [], 0

    def _fade(self, left: float, ranks: Sequence[int]) -> None:
        for table in (self._hits, self._tries):
            for row in table:
                for k in ranks:
                    row[k] *= left

    @property
    def rates(self) -> list[list[float]]:
        """By depth and rank: the share accepted where all before failed."""
        if not self._table:
            hits, tries = ([sum(column) for column in zip(*table, strict=True)] for table in (self._hits, self._tries))
            beliefs = zip((FIRST, *AFTER), hits, tries, strict=False)
            usual = [(BEFORE * before + hit) / (BEFORE + tried) for before, hit, tried in beliefs]
            self._table = [
                [(BEFORE * u + h) / (BEFORE + n) for u, h, n in zip(usual, *rows, strict=True)]
                for rows in zip(self._hits, self._tries, strict=True)
            ]
        return self._table

    def accept(self, rate: float, depth: int) -> list[list[float]]:
        """`Acceptance` of a row whose first candidates are accepted at this rate, to so many levels. Where first
        candidates fail more than usual, the others do so too."""
        believed = []
        for d in range(depth):
            first, *others = self.rates[min(d, DEEP - 1)]
            share = min(1.0, rate / first)
            missed, here = 1 - rate, [rate]
            for hazard in others:
                chance = hazard * share
                here.append(min(here[-1], missed * chance))
                missed *= 1 - chance
            believed.append(here)
        return believed


@dataclass
class AcceptanceEstimate:
    """What is believed of one row's drafts: the chance that a drafted token, the first candidate for its place, is
    accepted, given the one before was. It leans on what is usual until it was seen."""

    usual: float  # what others' drafts were worth
    weight: float = PRIOR  # so many observations' worth; that many is what is usual
    reach: int = 3  # the deepest draft it is trusted with; doubles while drafts are accepted whole
    quiet: int = 0  # cycles since the last draft
    wait: int = 4  # plain cycles before the next attempt; doubles while attempts fail
    read: int = 0  # tokens of the row when it was last drafted for: the drafter has read these
    wake: float = 0.0  # seconds the drafter needs to read what it missed
    asleep: bool = False  # whether that is too much
    ranks: RankTable | None = field(default=None, repr=False)  # None: chains only
    _seen: float = 0.0
    _lean: float = 1.0

    @property
    def rate(self) -> float:
        return self._seen + self._lean * self.usual

    def learn(self, drafted: int, accepted: int, first: Sequence[bool] | None = None) -> None:
        """So many levels were drafted and accepted; `first` tells, of every place that was judged, whether its first
        candidate was accepted. In a chain tokens beyond the first rejection say nothing."""
        for hit in [True] * accepted + [False] * (accepted < drafted) if first is None else first:
            self.weight = min(self.weight + 1, LATEST)
            self._seen += (hit - self._seen) / self.weight
            self._lean -= self._lean / self.weight
        self.reach = 2 * self.reach if accepted == drafted else max(3, accepted + 2, (self.reach + accepted) // 2 + 1)
        attempt = self.quiet > self.wait  # one of several drafts in a row that fails is no reason to wait longer
        self.wait = max(4, self.wait // 2) if accepted else min(128, self.wait * 2) if attempt else self.wait
        self.quiet = 0

    def pause(self, usual: float) -> None:
        """Another cycle begins; while nothing is drafted, what was seen of the row tells less and less."""
        self.usual = usual
        self.quiet += 1
        if self.quiet > 1:
            self._seen -= FADING * self._seen
            self._lean += FADING * (1 - self._lean)

    @property
    def second(self) -> float:
        """The best chance that a second candidate has anywhere: right after the committed text; 0 for chains."""
        if self.ranks is None or self.ranks.width < 2:
            return 0.0
        (first, hazard, *_), rate = self.ranks.rates[0], self.rate
        return (1 - rate) * hazard * min(1.0, rate / first)

    def nodes(self, deepest: int, branching: bool = True) -> list[Node]:
        """What the row could draft, the likeliest first: each prefix is the best draft of its size."""
        if self.asleep:
            return []
        depth = min(self.reach, deepest)
        if self.ranks is None or self.ranks.width < 2 or not branching:
            rate = self.rate
            chances = [rate**d for d in range(1, depth + 1)]
            return [Node(p, d, 0) for d, p in enumerate(chances, 1) if p > FAINT]
        return best_first(min(self.ranks.most, 4 * self.reach), self.ranks.accept(self.rate, depth), DIM)
