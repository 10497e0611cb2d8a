"""The captured cycles there are, and when another one is worth capturing.

Capturing stops everyone for as long as hundreds of cycles. So a larger cycle serves meanwhile: one for more rows than
there are (rows come and go), or for longer drafts (a row near its end drafts less). The time that this costs is added
up. Once it comes to what capturing would cost, the right cycle is captured. The same holds for sizes that a policy
would rather have than those there are. This loses at most twice what an engine would lose that knew all requests in
advance. Only the first size that drafts is captured without having been missed: nothing can be learnt before.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import cast

from slipstream.core.device import DeviceProcessor, DeviceRule, DraftSize, GraphKey, SizeOption
from slipstream.drafters.device.interface import DeviceDraft, TreeDraft
from slipstream.engines.native.captured.capture_budget import COUNTED
from slipstream.engines.native.captured.chain_cycle import ChainCycle
from slipstream.engines.native.captured.sizes import FIRST, PLAIN, BatchShape
from slipstream.engines.native.captured.tree_cycle import TreeCycle
from slipstream.kernels.gpu.decoder import Held
from slipstream.kernels.machine import say
from slipstream.models.run.gpu.passes import GpuPasses
from slipstream.plan.policy.graph_costs import GraphCosts

MIN_CAPTURE = 0.05  # seconds that capturing is expected to take at least
BETWEEN_MENUS = 8  # cycles, about
TAIL = 4  # of so many rows one is left when a batch is nearly done
FIRST_TREE = 4.0  # seconds of the first tree, whose kernels must be compiled; the first chain is always captured


Cycle = ChainCycle | TreeCycle


class GraphCache:
    """Captured cycles under one drafter, or with none."""

    def __init__(self, costs: GraphCosts | None = None) -> None:
        self.costs = costs or GraphCosts()
        self.cycles: dict[GraphKey, Cycle] = {}
        # of these cycles, by rule and recorded log-probabilities, and then by size
        self._alike: defaultdict[tuple[DeviceRule, int | None], dict[DraftSize, list[GraphKey]]] = defaultdict(dict)
        self._version: tuple[int, int] | None = None
        self._missed: defaultdict[GraphKey, float] = defaultdict(float)  # seconds lost because a larger one served
        self._offered: set[GraphKey] = set()  # to be captured if they are chosen from the last menu
        self._captures: dict[bool, float] = {}  # least seconds of capturing a chain, a tree

    def set_version(self, version: tuple[int, int]) -> None:
        """Versions of the target's and the drafter's caches. Graphs hold their addresses, so all graphs are dropped
        when one was moved. What they cost is still known."""
        if version != self._version:
            self._version = version
            self.cycles.clear()
            self._alike.clear()

    def find(
        self, shape: BatchShape, size: DraftSize, rule: DeviceRule, expected_rows: int, context: int, exact: bool
    ) -> GraphKey:
        """The cycle for rows that draft so much: the cheapest there is, unless their own should be captured. A cycle
        reads at most `context` places. `exact`: rows that draft nothing shall have a cycle without drafts."""
        own = shape.key(size, rule, shape.lines(size))
        if own in self.cycles or own in self._offered:
            return own
        larger = [
            key
            for key in self.cycles
            if key.size.covers(size) and shape.fits(key, rule) and shape.used(key.size) <= context
            if size.depth or not key.depth or not exact
        ]
        if not larger:
            return shape.key(size, rule, shape.lines(size, expected_rows))
        best = min(larger, key=lambda key: self.costs.seconds(key, shape.rows, shape.cached))
        self._missed[own] += _saved_share(best, own) * self.costs.device(best)
        return best if self._missed[own] < max(MIN_CAPTURE, self._capture_time(size.nodes > 0)) else own

    def add(self, key: GraphKey, cycle: ChainCycle | TreeCycle) -> None:
        if key not in self.cycles:
            self._alike[key.rule, key.logprobs].setdefault(key.size, []).append(key)
        self.cycles[key] = cycle
        self._missed.pop(key, None)
        self._offered.discard(key)
        if (seconds := cycle.whole.rehearse()) is not None:
            self.costs.captured(key, seconds)

    @contextmanager
    def captures(self, key: GraphKey) -> Iterator[None]:
        began = perf_counter()
        yield
        seconds, tree = perf_counter() - began, key.size.nodes > 0
        self._captures[tree] = min(seconds, self._captures.get(tree, seconds))
        say(f"captured {key} in {seconds:.2f} s: {1000 * self.costs.device(key):.2f} ms a cycle")

    def _capture_time(self, tree: bool) -> float:
        """Seconds that capturing another one is expected to take: the least so far, since some compiled kernels, which
        most others share."""
        if tree in self._captures:
            return min(self._captures[tree], COUNTED)
        return FIRST_TREE if tree else 0.0

    def menu(
        self, shape: BatchShape, rule: DeviceRule, sizes: Sequence[DraftSize], may_capture: Callable[[float], bool]
    ) -> list[SizeOption]:
        """Sizes to choose from, drafting nothing first; also those that would have to be captured, at a time that is
        guessed rather too high. They are barred until as much was lost without them as capturing takes. The first one
        is offered at once if `may_capture` says that there are so many seconds for it."""
        captured = self._captured_sizes(shape, rule)
        self._offered = set()
        plain = captured.pop(PLAIN, 0.0)
        if not plain or self._plain_owed(shape, rule):
            return [SizeOption(PLAIN, plain or 1.0)]
        options = list[SizeOption]()
        few = shape.with_rows(max(1, shape.rows // TAIL))
        tails = self._captured_sizes(few, rule)
        barred = {size: not self._owed(shape, size, rule) for size in sizes}
        for size in (size for size in sizes if size in captured):
            own = self._cost_of_own(shape, size, rule)
            better = own is not None and own < captured[size]
            if not better or barred[size]:
                options.append(SizeOption(size, captured[size], tail=tails.get(size)))
            if own is not None and better:
                options.append(SizeOption(size, own, captured=False, barred=barred[size], tail=tails.get(size)))
        missing = [size for size in sizes if size.depth and size not in captured]
        known = {size: self._known_price(shape, size, rule, plain) for size in missing}
        if not captured:
            first = [size for size in FIRST if size in missing][:1]
            missing = [size for size in missing if known[size] is not None] or first
            barred = {size: barred[size] and not may_capture(self._capture_time(size.nodes > 0)) for size in missing}
        for size in missing:
            seconds, tail = known[size] or self.costs.guess(size, plain, captured), tails.get(size)
            if tail is None and PLAIN in tails:
                tail = self._known_price(few, size, rule, tails[PLAIN])
            only = not captured and not rule.chains  # nothing else could ever be drafted
            closed = barred[size] and not only
            options.append(SizeOption(size, seconds, False, closed, tail, known[size] is not None))
        offered = [option.size for option in options if not option.captured and not option.barred]
        self._offered = {shape.key(size, rule, shape.lines(size)) for size in offered if captured}
        return [SizeOption(PLAIN, plain, tail=tails.get(PLAIN)), *options]

    def missed(self, shape: BatchShape, rule: DeviceRule, size: DraftSize, seconds: float) -> None:
        """So much time was lost because this size is not captured for just these rows."""
        self._missed[shape.key(size, rule, shape.lines(size))] += seconds

    def _owed(self, shape: BatchShape, size: DraftSize, rule: DeviceRule) -> bool:
        """Whether as much time was lost without a size as capturing it takes."""
        missed = self._missed.get(shape.key(size, rule, shape.lines(size)), 0.0)
        return missed >= max(MIN_CAPTURE, self._capture_time(size.nodes > 0))

    def _plain_owed(self, shape: BatchShape, rule: DeviceRule) -> bool:
        """Whether plain decoding of just these rows is to be captured now. All other sizes are compared with it, and
        one for more rows may take much longer."""
        own = shape.key(PLAIN, rule, shape.lines(PLAIN))
        if own in self.cycles:
            return False
        larger = [key for key in self._alike[rule, shape.logprobs].get(PLAIN, ()) if shape.fits(key, rule)]
        if larger:
            best = min(larger, key=self.costs.device)
            self.missed(shape, rule, PLAIN, BETWEEN_MENUS * _saved_share(best, own) * self.costs.device(best))
        return self._owed(shape, PLAIN, rule)

    def _known_price(self, shape: BatchShape, size: DraftSize, rule: DeviceRule, plain: float) -> float | None:
        """Seconds of a cycle that is not captured now, but was timed before, as by a profile. Or plain decoding of
        these rows takes `plain`, and cycles like it were timed, as by a warm-up."""
        own = shape.key(size, rule, shape.lines(size))
        if self.costs.device(own):
            return self.costs.seconds(own, shape.rows, shape.cached)
        added = self.costs.drafting(own)
        return None if added is None else plain + added

    def _captured_sizes(self, shape: BatchShape, rule: DeviceRule) -> dict[DraftSize, float]:
        """Seconds of the cycle that these rows would have, by size: their own, or else the cheapest that holds them."""
        captured: dict[DraftSize, float] = {}
        for size, keys in self._alike[rule, shape.logprobs].items():
            own = shape.key(size, rule, shape.lines(size))
            fitting = [own] if own in self.cycles else [key for key in keys if shape.fits(key, rule)]
            if fitting:
                captured[size] = min(self.costs.seconds(key, shape.rows, shape.cached) for key in fitting)
        return captured

    def _cost_of_own(self, shape: BatchShape, size: DraftSize, rule: DeviceRule) -> float | None:
        """Seconds that a cycle for just these rows is expected to take, if only one for more rows is captured. None if
        it is captured already, or if plain decoding is not captured for just these rows."""
        own, plain = (shape.key(each, rule, shape.lines(each)) for each in (size, PLAIN))
        if own in self.cycles or plain not in self.cycles:
            return None
        seconds = self.costs.seconds(plain, shape.rows, shape.cached)
        return self._known_price(shape, size, rule, seconds) or self.costs.guess(size, seconds, {})


def _saved_share(larger: GraphKey, own: GraphKey) -> float:
    """The share of a larger cycle's time that one for just these rows is expected to save. On an H200 a cycle of the
    default model takes about a tenth less for half the rows and a twentieth less for each level."""
    halvings = math.log2(larger.rows / own.rows)
    return min(0.5, max(0.05, 0.1 * halvings + 0.05 * (larger.depth - own.depth)))


def new_cycle(
    key: GraphKey, passes: GpuPasses, held: Held, part: DeviceDraft, processor: DeviceProcessor | None
) -> Cycle:
    """Capture the cycle of a key."""
    if key.nodes:
        return TreeCycle(key, passes, held, cast(TreeDraft, part))  # asked for only where the drafter branches
    return ChainCycle(key, passes, held, part, processor)
