"""When a cycle can run on the device as a whole (`captured`, `captured_tree`), and what the host must know of it
afterwards.

That is where all rows have one drafter and one rule, draft chains or trees that grow by themselves, ask for nothing but
a temperature and a cut of the law (top-k, top-p, min-p), and have read all but their last token: decoding, that is.
Everything else goes through `Batch`'s own lines, before and after: both leave caches and rows in the same state.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache, partial
from time import perf_counter
from typing import cast

from slipstream.core.device import DeviceRule
from slipstream.core.interfaces import Drafter
from slipstream.core.noise import keys
from slipstream.core.shaping import asks
from slipstream.core.types import Budget, Row
from slipstream.drafters.device.interface import DeviceDraft, DeviceDrafter, TreeDraft
from slipstream.engines.native.captured.capture_budget import CaptureBudget
from slipstream.engines.native.captured.chain_cycle import ChainCycle
from slipstream.engines.native.captured.graph_cache import GraphCache
from slipstream.engines.native.captured.graph_key import DraftSize, GraphKey
from slipstream.engines.native.captured.result import CycleResult
from slipstream.engines.native.captured.sizes import DEPTHS, GROWN, LEVELS, WIDEST, BatchShape, size_for
from slipstream.engines.native.captured.tree_cycle import TreeCycle
from slipstream.kernels.gpu.decoder import Held
from slipstream.models.run.gpu.passes import GpuPasses
from slipstream.models.run.torch_model import TorchModel
from slipstream.plan.graph_size import GraphSizePolicy


class CapturedRunner:
    def __init__(self, model: TorchModel, passes: GpuPasses) -> None:
        self._model, self._passes = model, passes
        self._stocks: defaultdict[int, GraphCache] = defaultdict(GraphCache)  # by drafter; 0 with none
        self._sides: dict[int, tuple[Drafter, DeviceDrafter | None]] = {}  # by who they are, which is held on to
        self._captured = False  # whether this cycle was
        self._latest: tuple[GraphCache, GraphKey, int] | None = (
            None  # whose price the last cycle tells, and of how many rows
        )
        self.crowd = 1  # rows there are or will soon be
        self.cycles = self.captures = 0  # so far
        self.allowance = CaptureBudget()

    @property
    def captured(self) -> list[ChainCycle | TreeCycle]:
        return [cycle for stock in self._stocks.values() for cycle in stock.cycles.values()]

    def drafts(self, drafter: Drafter) -> bool:
        """Whether a drafter's steps can be part of a cycle."""
        return self._side(drafter) is not None

    def branches(self, drafter: Drafter, rule: DeviceRule) -> bool:
        """Whether they can be where it drafts trees."""
        side = self._side(drafter)
        return side is not None and side.branches and rule.trees and self._passes.branches(LEVELS[-1])

    def only_chains(self, drafter: Drafter, rule: DeviceRule) -> bool:
        """Whether a tree would cost rows their whole cycles, which a chain has: no policy should try one then."""
        return self.drafts(drafter) and not self.branches(drafter, rule)

    def suits(self, row: Row, rule: DeviceRule) -> bool:
        """Whether a row asks for nothing but what is done here."""
        greedy = row.request.sampling.temperature == 0
        return not asks(row) and greedy == rule.greedy and row.length > 1

    def ready(self, row: Row) -> bool:
        """Whether it has read all but its last token."""
        return self._model.cached(row) == row.length - 1

    def choose(self, rows: Sequence[Row], drafter: Drafter, rule: DeviceRule, chooser: GraphSizePolicy) -> Budget:
        """What all rows are to draft in the coming cycle: of what is captured, or may be, the fastest."""
        side = self._side(drafter)
        if side is None or not side.drafts:
            return Budget(0)
        ready = side.ready(rows, DEPTHS[-1])
        held = chooser.held(rows) if ready is None else None
        if held is not None:
            return held.budget
        common = BatchShape.of(rows)
        sizes = [DraftSize(depth) for depth in DEPTHS if not depth or rule.chains]
        sizes = [size for size in (*sizes, *GROWN) if self._fits(common, size, drafter, rule)]
        free = partial(self.allowance.left, common.lines(sizes[0], self.crowd))
        stock = self._stocks[id(drafter)]
        menu = stock.menu(common, rule, sizes, free)
        return chooser.choose(rows, menu, ready, stock.late(side.behind(rows))).budget

    def run(
        self,
        rows: Sequence[Row],
        budget: Sequence[Budget],
        drafter: Drafter,
        rule: DeviceRule,
        free: bool = False,
        quiet: Collection[Row] = (),
        meanwhile: Callable[[], None] | None = None,
    ) -> list[CycleResult] | None:
        """One cycle for all rows, which are `ready`, committed to the target's cache; None where it must go the other
        way, nothing having changed. `free`: nobody asked for drafts of this size, so time to capture it is counted.
        `quiet` rows draft nothing this time. `meanwhile` is done while the device works."""
        with self.allowance.runs():
            return self._run(rows, budget, drafter, rule, free, quiet, meanwhile)

    def paid(self, seconds: float) -> None:
        """What the last cycle took, with the host's part: what was done meanwhile is of the cycle before, which was
        most often one like this."""
        if self._latest is not None:
            stock, key, rows = self._latest
            stock.paid(key, rows, seconds)

    def _run(
        self,
        rows: Sequence[Row],
        budget: Sequence[Budget],
        drafter: Drafter,
        rule: DeviceRule,
        free: bool,
        quiet: Collection[Row],
        meanwhile: Callable[[], None] | None,
    ) -> list[CycleResult] | None:
        if (side := self._side(drafter)) is None:
            return None
        if not any(spend.depth and spend.shape for spend in budget):
            budget = side.draft_on_host(rows, budget)
        common, size = BatchShape.of(rows), size_for(budget, rule)
        if size is None or not self._fits(common, size, drafter, rule):
            return None
        if side.context is not None and common.used(size) > side.context:
            return None
        most = max(common.used(size), min(self._model.context, side.context or self._model.context))
        stock = self._stocks[id(drafter) if side.drafts else 0]
        key = stock.find(common, size, rule, self.crowd, most, free)
        cycle = self._cycle(stock, key, common, side, free and size.depth > 0)
        budget = [Budget(0) if row in quiet else spend for row, spend in zip(rows, budget, strict=True)]
        began = perf_counter()
        state, read = side.begin(rows, budget, cycle)
        words = self._control(rows, budget, side, size, key.rows)
        record = cycle(*words, state, meanwhile)[: len(rows)].long().tolist()
        if read:  # the device had read it when the record was there
            stock.caught_up(key, len(rows), read, perf_counter() - began)
        self.cycles += 1
        if not all(line[2] for line in record):  # some place has no law: who it was is found out the other way
            return None
        self._latest = None if self._captured or read else (stock, key, len(rows))
        told = cycle.told(record)
        accepted = [result.kept for result in told]
        self._model.took(rows, accepted)
        side.commit(rows, budget, accepted, cycle)
        return told

    def _fits(self, common: BatchShape, size: DraftSize, drafter: Drafter, rule: DeviceRule) -> bool:
        if common.rows * (size.slots + 1) > WIDEST:
            return False
        if not size.nodes:
            return True
        cut = not rule.greedy and common.cut  # what trees are ranked by is not cut here
        return self.branches(drafter, rule) and not cut

    def _side(self, drafter: Drafter) -> DeviceDrafter | None:
        if id(drafter) not in self._sides:
            self._sides[id(drafter)] = drafter, drafter.device_form(self._model)
        return self._sides[id(drafter)][1]

    def _cycle(
        self, stock: GraphCache, key: GraphKey, common: BatchShape, side: DeviceDrafter, counted: bool
    ) -> ChainCycle | TreeCycle:
        """The cycle of a key, captured if it must be; `counted`: that was a policy's wish."""
        used = common.used(key.size)
        self._model.make_room(used)
        part, held = side.part(used), self._passes.held(self._model.cache)
        for name, each in self._stocks.items():  # whose caches have moved must not hold on to the old ones
            own = self._sides[name][1] if name else None
            each.lie_at((self._model.cache.version, own.version if own else 0))
        self._captured = key not in stock.cycles
        if self._captured:
            with self.allowance.captures(counted), stock.captures(key):
                stock.add(key, _new_cycle(key, self._passes, held, part))
            self.captures += 1
        return stock.cycles[key]

    def _control(
        self, rows: Sequence[Row], budget: Sequence[Budget], side: DeviceDrafter, size: DraftSize, lines: int
    ) -> tuple[list[list[int]], list[list[float]]]:
        """`CycleControl` and the numbers of `SamplingInputs`, filled up to a graph's rows."""
        words = [
            [_stream(row.seed, row.sample) for row in rows],
            [row.length for row in rows],
            [spend.depth for spend in budget],
            [self._model.index(row) for row in rows],
            [side.index(row) for row in rows],
            [row.tokens[-1] for row in rows],
            [min(size.nodes, spend.shape.nodes if spend.shape else spend.depth) for spend in budget],
            [min(size.width, spend.shape.width if spend.shape else 1) for spend in budget],
            [row.tokens[-2] for row in rows],
        ]
        wants = [row.request.sampling for row in rows]
        numbers = [
            [wish.temperature for wish in wants],
            [spend.stop_below for spend in budget],
            [float(wish.top_k) for wish in wants],
            [wish.top_p for wish in wants],
            [wish.min_p for wish in wants],
        ]
        missing = lines - len(rows)
        fill = [0, 1, -1, 0, 0, 0, 0, 0, 0]
        padded = [line + [value] * missing for line, value in zip(words, fill, strict=True)]
        return padded, [line + line[:1] * missing for line in numbers]


@lru_cache(maxsize=1 << 12)
def _stream(seed: int, sample: int) -> int:
    """The key of a row's noise."""
    return int(keys([seed], [sample]))


def _new_cycle(key: GraphKey, passes: GpuPasses, held: Held, part: DeviceDraft) -> ChainCycle | TreeCycle:
    if key.nodes:
        return TreeCycle(key, passes, held, cast(TreeDraft, part))  # asked for only where the drafter branches
    return ChainCycle(key, passes, held, part)
