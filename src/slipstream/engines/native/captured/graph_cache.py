"""The captured cycles there are, what they take, and when another one is worth capturing.

Capturing stops everyone for as long as hundreds of cycles. So a cycle that is larger than it need be serves meanwhile:
one for more rows than there are (rows come and go), or for longer drafts (a row near its end drafts less). What that
costs is added up, and once it comes to what capturing would cost, the right one is captured: whoever had known the
future would have lost half of that at least.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from time import perf_counter

from slipstream.core.device import DeviceRule
from slipstream.engines.native.captured.chain_cycle import ChainCycle
from slipstream.engines.native.captured.graph_key import DraftSize, GraphKey
from slipstream.engines.native.captured.sizes import FIRST, PLAIN, BatchShape
from slipstream.engines.native.captured.tree_cycle import TreeCycle
from slipstream.kernels.machine import say
from slipstream.models.cache.tensors import power
from slipstream.plan.costs import CostCurve, RecentMedian
from slipstream.plan.graph_size import SizeOption

EXPECTED = 0.3  # seconds that capturing is taken to cost at least
COLD = 4.0  # what the first tree takes where its kernels must be compiled; the first chain is worth whatever it takes
SURE = 2  # times that something is timed before it is believed: the first time takes longest
HOPE = 0.08  # of a plain cycle: what a level of drafts is taken to cost before any was captured


class GraphCache:
    """Cycles under one drafter, or with none."""

    def __init__(self) -> None:
        self.cycles: dict[GraphKey, ChainCycle | TreeCycle] = {}
        self._version: tuple[int, int] | None = None
        self._device: dict[GraphKey, float] = {}  # seconds of a cycle there, with no rows in it
        self._whole: dict[
            tuple[GraphKey, int], RecentMedian
        ] = {}  # with the host's part, by the rows there were, rounded up
        self._host = RecentMedian(7)  # the host's part
        self._reading, self._read = (
            CostCurve(),
            0,
        )  # seconds that a drafter read so many tokens it had missed; how often
        self._missed: defaultdict[GraphKey, float] = defaultdict(float)  # seconds lost because there was a larger one
        self._costs: dict[bool, RecentMedian] = {}  # seconds of capturing a chain, a tree

    def lie_at(self, version: tuple[int, int]) -> None:
        """Where the caches of target and drafter lie. Cycles speak of them there, and none is left when one has moved;
        what they cost is still known."""
        if version != self._version:
            self._version = version
            self.cycles.clear()

    def find(
        self, common: BatchShape, size: DraftSize, rule: DeviceRule, crowd: int, most: int, pure: bool
    ) -> GraphKey:
        """The cycle for rows that draft so much: the cheapest there is, unless their own should be captured. A cycle
        looks at no more than `most` places; `pure`: who drafts nothing shall have a cycle without drafts."""
        own = common.key(size, rule, common.lines(size))
        if own in self.cycles:
            return own
        larger = [
            key
            for key in self.cycles
            if key.size.holds(size) and common.fits(key, rule) and common.used(key.size) <= most
            if size.depth or not key.depth or not pure
        ]
        if not larger:
            return common.key(size, rule, common.lines(size, crowd))
        best = min(larger, key=lambda each: self.price(each, common.rows))
        self._missed[own] += self._device.get(best, 0.0) / 2
        return best if self._missed[own] < max(EXPECTED, self._cost(size.nodes > 0)) else own

    def price(self, key: GraphKey, rows: int) -> float:
        """What a cycle takes: what such cycles took, or what it took without rows and what the host adds to others."""
        paid = self._whole.get((key, power(rows)))
        return paid.value if paid else self._device.get(key, 0.0) + self._host.value

    def add(self, key: GraphKey, cycle: ChainCycle | TreeCycle) -> None:
        self.cycles[key] = cycle
        self._missed.pop(key, None)
        if (seconds := cycle.whole.rehearse()) is not None:
            self._device[key] = seconds

    @contextmanager
    def captures(self, key: GraphKey) -> Iterator[None]:
        began = perf_counter()
        yield
        taken = perf_counter() - began
        self._costs.setdefault(key.size.nodes > 0, RecentMedian()).add(taken)
        say(f"captured {key} in {taken:.2f} s: {1000 * self._device.get(key, 0.0):.2f} ms a cycle")

    def _cost(self, tree: bool) -> float:
        """What capturing another one is expected to take."""
        return self._costs[tree].value if tree in self._costs else COLD if tree else 0.0

    def paid(self, key: GraphKey, rows: int, seconds: float) -> None:
        """What a cycle took, for which nothing was captured or read."""
        self._whole.setdefault((key, power(rows)), RecentMedian(7)).add(seconds)
        self._host.add(max(0.0, seconds - self._device.get(key, 0.0)))

    def caught_up(self, key: GraphKey, rows: int, tokens: int, seconds: float) -> None:
        """The drafter had to read so many tokens first, and a cycle took so long with that."""
        self._reading.add(power(tokens), seconds - self.price(key, rows))
        self._read += 1

    def late(self, tokens: int) -> float:
        """What reading so many takes; nothing until it is known."""
        return self._reading(tokens) if self._read >= SURE else 0.0

    def menu(
        self, common: BatchShape, rule: DeviceRule, sizes: Iterable[DraftSize], free: Callable[[float], bool]
    ) -> list[SizeOption]:
        """Sizes to choose from, drafting nothing first; also those that would have to be captured, where `free` says
        that there are so many seconds for it, at a price that is rather too high."""
        there: dict[DraftSize, float] = {}
        for key in self.cycles:
            if common.fits(key, rule):
                size, price = key.size, self.price(key, common.rows)
                there[size] = min(price, there.get(size, price))
        plain = there.pop(PLAIN, 0.0)
        if not plain:
            return [SizeOption(0, 1, 0, 1.0)]
        sizes = list(sizes)
        offers = [SizeOption(size.depth, size.width, size.nodes, there[size]) for size in sizes if size in there]
        fresh = [size for size in sizes if size.depth and size not in there]
        fresh = fresh if there else [size for size in FIRST if size in fresh][:1]
        may = {tree: free(self._cost(tree)) for tree in (False, True)}
        offers += [
            SizeOption(size.depth, size.width, size.nodes, _guess(size, plain, there), there=False)
            for size in fresh
            if may[size.nodes > 0] or not (there or rule.chains)
        ]
        return [SizeOption(0, 1, 0, plain), *offers]


def _guess(size: DraftSize, plain: float, there: dict[DraftSize, float]) -> float:
    """What a size would take: by its levels or by its tokens, whichever says more, as those cost that are there, of its
    own key if there are any."""
    alike = [known for known in there if bool(known.nodes) == bool(size.nodes)] or list(there)
    if not alike:
        return plain * (1 + HOPE * size.depth)
    more = {known: max(0.0, there[known] - plain) for known in alike}
    level = sum(more[known] / known.depth for known in alike) / len(alike)
    token = sum(more[known] / known.slots for known in alike) / len(alike)
    return plain + max(level * size.depth, token * size.slots)
