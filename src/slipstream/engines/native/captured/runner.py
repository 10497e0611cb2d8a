"""Captured cycles: when rows can have one, and what the host must know afterwards.

That is where all rows have one drafter and one rule, draft chains or trees that grow by themselves, ask for nothing but
a temperature and a truncation of the law (top-k, top-p, min-p), and have read all but their last token. Everything else
takes the ordinary path of `Batch`, before and after. Both paths leave caches and rows in the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import lru_cache, partial
from time import perf_counter
from typing import cast

from slipstream.core.device import DeviceRule, DraftSize, GraphKey, SizeMenu
from slipstream.core.interfaces import Drafter, Policy
from slipstream.core.noise import keys
from slipstream.core.shaping import needs_shaping
from slipstream.core.types import Budget, Row
from slipstream.drafters.device.interface import DeviceDraft, DeviceDrafter, TreeDraft
from slipstream.engines.native.captured.capture_budget import CaptureBudget
from slipstream.engines.native.captured.chain_cycle import ChainCycle
from slipstream.engines.native.captured.graph_cache import GraphCache
from slipstream.engines.native.captured.result import CycleResult
from slipstream.engines.native.captured.sizes import DEPTHS, GROWN, LEVELS, WIDEST, BatchShape, size_for
from slipstream.engines.native.captured.tree_cycle import TreeCycle
from slipstream.kernels.gpu.decoder import Held
from slipstream.models.run.gpu.passes import GpuPasses
from slipstream.models.run.torch_model import TorchModel
from slipstream.plan.costs import CostModel


class CapturedRunner:
    def __init__(self, model: TorchModel, passes: GpuPasses, costs: CostModel | None = None) -> None:
        self._model, self._passes, self._costs = model, passes, costs or CostModel()
        self._graphs: dict[int, GraphCache] = {0: GraphCache(self._costs.graph_costs("none"))}  # by drafter; 0: none
        self._device_drafters: dict[int, tuple[Drafter, DeviceDrafter | None]] = {}  # by identity; keeps them alive
        self._captured = False  # whether this cycle had to be captured
        self._latest: tuple[GraphCache, GraphKey, int] | None = None  # what the last cycle's time is of, and its rows
        self.expected_rows = 1  # rows there are or will soon be
        self.cycles = self.captures = 0  # so far
        self.capture_budget = CaptureBudget()

    @property
    def captured(self) -> list[ChainCycle | TreeCycle]:
        return [cycle for graphs in self._graphs.values() for cycle in graphs.cycles.values()]

    def drafts(self, drafter: Drafter) -> bool:
        """Whether a drafter's steps can be part of a cycle."""
        return self._device_drafter(drafter) is not None

    def branches(self, drafter: Drafter, rule: DeviceRule) -> bool:
        """Whether they can be where it drafts trees."""
        device = self._device_drafter(drafter)
        return device is not None and device.branches and rule.trees and self._passes.branches(LEVELS[-1])

    def only_chains(self, drafter: Drafter, rule: DeviceRule) -> bool:
        """Whether a tree would cost rows their whole cycles, which a chain has: no policy should try one then."""
        return self.drafts(drafter) and not self.branches(drafter, rule)

    def suits(self, row: Row, rule: DeviceRule) -> bool:
        """Whether captured cycles support all settings of a row."""
        greedy = row.request.sampling.temperature == 0
        return not needs_shaping(row) and greedy == rule.greedy and row.length > 1

    def ready(self, row: Row) -> bool:
        """Whether it has read all but its last token."""
        return self._model.cached(row) == row.length - 1

    def choose(self, rows: Sequence[Row], drafter: Drafter, rule: DeviceRule, policy: Policy) -> Budget | None:
        """What all rows are to draft in the coming cycle; None where the policy wants the ordinary path."""
        device = self._device_drafter(drafter)
        if device is None or not device.drafts:
            return Budget(0)
        return policy.choose(rows, partial(self._menu, rows, drafter, device, rule), device.ready(rows, DEPTHS[-1]))

    def _menu(self, rows: Sequence[Row], drafter: Drafter, device: DeviceDrafter, rule: DeviceRule) -> SizeMenu:
        shape = BatchShape.of(rows)
        chains = [DraftSize(depth) for depth in DEPTHS if not depth or rule.chains]
        sizes = [size for size in (*chains, *GROWN) if self._fits(shape, size, drafter, rule)]
        may_capture = partial(self.capture_budget.left, shape.lines(sizes[0], self.expected_rows))
        graphs = self._graphs_of(drafter)
        return SizeMenu(graphs.menu(shape, rule, sizes, may_capture), graphs.costs.reading(device.behind(rows)))

    def _graphs_of(self, drafter: Drafter) -> GraphCache:
        if id(drafter) not in self._graphs:
            name = type(drafter).__name__
            while name in self._costs.graphs:
                name += "'"
            self._graphs[id(drafter)] = GraphCache(self._costs.graph_costs(name))
        return self._graphs[id(drafter)]

    def run(
        self,
        rows: Sequence[Row],
        budget: Sequence[Budget],
        drafter: Drafter,
        rule: DeviceRule,
        by_policy: bool = False,
        plain: Collection[Row] = (),
        meanwhile: Callable[[], None] | None = None,
    ) -> list[CycleResult] | None:
        """One cycle for all rows, which are `ready`, committed to the target's cache; None where it must take the
        ordinary path, nothing having changed. `by_policy`: no user asked for this size, so the time to capture it comes
        out of the capture budget. `plain` rows draft nothing this time. `meanwhile` runs while the device works."""
        with self.capture_budget.runs():
            return self._run(rows, budget, drafter, rule, by_policy, plain, meanwhile)

    def paid(self, seconds: float) -> None:
        """What the last cycle took with the host's part. What was published meanwhile is of the cycle before, which
        most often was one like this."""
        if self._latest is not None:
            graphs, key, rows = self._latest
            graphs.costs.learn(key, rows, seconds)

    def _run(
        self,
        rows: Sequence[Row],
        budget: Sequence[Budget],
        drafter: Drafter,
        rule: DeviceRule,
        by_policy: bool,
        plain: Collection[Row],
        meanwhile: Callable[[], None] | None,
    ) -> list[CycleResult] | None:
        if (device := self._device_drafter(drafter)) is None:
            return None
        if not any(row.depth and row.shape for row in budget):
            budget = device.draft_on_host(rows, budget)
        shape, size = BatchShape.of(rows), size_for(budget, rule)
        if size is None or not self._fits(shape, size, drafter, rule):
            return None
        if device.context is not None and shape.used(size) > device.context:
            return None
        context = max(shape.used(size), min(self._model.context, device.context or self._model.context))
        graphs = self._graphs_of(drafter) if device.drafts else self._graphs[0]
        key = graphs.find(shape, size, rule, self.expected_rows, context, by_policy)
        cycle = self._cycle(graphs, key, shape, device, by_policy and size.depth > 0)
        budget = [Budget(0) if row in plain else own for row, own in zip(rows, budget, strict=True)]
        began = perf_counter()
        state, read = device.begin(rows, budget, cycle)
        control = self._control(rows, budget, device, size, key.rows)
        record = cycle(*control, state, meanwhile)[: len(rows)].long().tolist()
        if read:  # the device had read it when the record was there
            graphs.costs.learn_reading(key, len(rows), read, perf_counter() - began)
        self.cycles += 1
        if not all(line[2] for line in record):  # some slot has no law; the ordinary path finds out which row's
            return None
        self._latest = None if self._captured or read else (graphs, key, len(rows))
        results = cycle.told(record)
        accepted = [result.kept for result in results]
        self._model.record_written(rows, accepted)
        device.commit(rows, budget, accepted, cycle)
        return results

    def _fits(self, shape: BatchShape, size: DraftSize, drafter: Drafter, rule: DeviceRule) -> bool:
        if shape.rows * (size.slots + 1) > WIDEST:
            return False
        if not size.nodes:
            return True
        cut = not rule.greedy and shape.cut  # trees are ranked by the law as it is
        return self.branches(drafter, rule) and not cut

    def _device_drafter(self, drafter: Drafter) -> DeviceDrafter | None:
        if id(drafter) not in self._device_drafters:
            self._device_drafters[id(drafter)] = drafter, drafter.device_form(self._model)
        return self._device_drafters[id(drafter)][1]

    def _cycle(
        self, graphs: GraphCache, key: GraphKey, shape: BatchShape, device: DeviceDrafter, counted: bool
    ) -> ChainCycle | TreeCycle:
        """The cycle of a key, captured if it must be. `counted`: in the policy's capture budget."""
        used = shape.used(key.size)
        self._model.make_room(used)
        part, held = device.part(used), self._passes.held(self._model.cache)
        for identity, cache in self._graphs.items():  # graphs must not hold on to caches that have moved
            own = self._device_drafters[identity][1] if identity else None
            cache.set_version((self._model.cache.version, own.version if own else 0))
        self._captured = key not in graphs.cycles
        if self._captured:
            with self.capture_budget.captures(counted), graphs.captures(key):
                graphs.add(key, _new_cycle(key, self._passes, held, part))
            self.captures += 1
        return graphs.cycles[key]

    def _control(
        self, rows: Sequence[Row], budget: Sequence[Budget], device: DeviceDrafter, size: DraftSize, lines: int
    ) -> tuple[list[list[int]], list[list[float]]]:
        """`CycleControl` and the numbers of `SamplingInputs`, filled up to a graph's rows."""
        words = [
            [_stream(row.seed, row.sample) for row in rows],
            [row.length for row in rows],
            [row.depth for row in budget],
            [self._model.index(row) for row in rows],
            [device.index(row) for row in rows],
            [row.tokens[-1] for row in rows],
            [min(size.nodes, row.shape.nodes if row.shape else row.depth) for row in budget],
            [min(size.width, row.shape.width if row.shape else 1) for row in budget],
            [row.tokens[-2] for row in rows],
        ]
        sampling = [row.request.sampling for row in rows]
        numbers = [
            [own.temperature for own in sampling],
            [row.stop_below for row in budget],
            [float(own.top_k) for own in sampling],
            [own.top_p for own in sampling],
            [own.min_p for own in sampling],
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
