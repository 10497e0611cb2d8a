"""Captured cycles: when rows can have one, and what the host must know afterwards.

That is where all rows have one drafter and one rule (or are greedy: `row_groups`), draft chains or trees that grow by
themselves, ask for nothing but a temperature, a truncation of the law (top-k, top-p, min-p) and a logits processor that
has a device form, and have read all but their last token. Everything else takes the ordinary path of `Batch`, before
and after. Both paths leave caches and rows in the same state.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any, cast

from slipstream.core.device import RECORDED_LOGPROBS, DeviceProcessor, DeviceRule, DraftSize, GraphKey, SizeMenu
from slipstream.core.interfaces import Drafter, Policy
from slipstream.core.shaping import needs_shaping, only_processed
from slipstream.core.types import Budget, Row
from slipstream.drafters.device.interface import DeviceDrafter, PlainDecoding
from slipstream.engines.job import Job
from slipstream.engines.native.captured.capture_budget import CaptureBudget
from slipstream.engines.native.captured.chain_cycle import ChainCycle
from slipstream.engines.native.captured.control_words import control_words
from slipstream.engines.native.captured.deferred import DeferredCycles, Lines
from slipstream.engines.native.captured.flight import FAR, Flight
from slipstream.engines.native.captured.graph_cache import Cycle, GraphCache, new_cycle
from slipstream.engines.native.captured.result import CycleResult, RowCycles
from slipstream.engines.native.captured.room import device_limits, reserve
from slipstream.engines.native.captured.row_groups import alike, mixed, processing
from slipstream.engines.native.captured.sizes import (
    AHEAD,
    GROWN,
    LEVELS,
    WIDEST,
    BatchShape,
    chain_depths,
    deepest_chain,
    size_for,
    up_to,
)
from slipstream.engines.native.scheduler import CPU, DeviceLimits
from slipstream.models.run.gpu.pass_sizes import large_sizes
from slipstream.models.run.gpu.passes import GpuPasses
from slipstream.models.run.torch_model import TorchModel
from slipstream.plan.policy.costs import CostModel

CASCADE = Budget(3)  # of rows that must draft in every cycle, if no depth is given


class CapturedRunner:
    def __init__(self, model: TorchModel, passes: GpuPasses, costs: CostModel | None = None) -> None:
        self._model, self._passes, self._costs = model, passes, costs or CostModel()
        self._graphs: dict[tuple[int, Hashable], GraphCache] = {}  # by drafter, 0 for none, and by logits processor
        self._names = set[str]()  # of drafters in the cost model that are in use; a profile may bring more
        self._device_drafters: dict[int, tuple[Drafter, DeviceDrafter | None]] = {}  # by identity; keeps them alive
        self._alike: Sequence[Row] = ()  # rows that one cycle can shape the laws of
        self._idle = PlainDecoding()  # for drafters without a device form, while they draft nothing
        self.expected_rows = 1  # rows there are or will soon be
        self.captures_all = False  # no larger cycle serves in place of one that is not captured yet
        self.least_text = 0  # cycles are those for a longest row of so many tokens, at least
        self.cycles = self.captures = 0  # so far
        self.capture_budget = CaptureBudget()

    @property
    def limits(self) -> DeviceLimits:
        """Rows and tokens that suit the device."""
        if self._passes.like.device.type != "cuda":
            return replace(CPU, prefill=self._passes.prompt_tokens)
        return device_limits(self._model, self._passes)

    def reserve(self, tokens: int) -> None:
        """Let the target's cache begin with room, for up to so many tokens. Drafters take as much."""
        reserve(self._model, self._passes, tokens)

    @property
    def prompt_sizes(self) -> list[int]:
        """Tokens of passes over prompts that are captured."""
        return large_sizes(self._passes.largest)

    @property
    def captured(self) -> list[Cycle]:
        return [cycle for graphs in self._graphs.values() for cycle in graphs.cycles.values()]

    def drafts(self, drafter: Drafter) -> bool:
        """Whether a drafter's steps can be part of a cycle."""
        return self._device_drafter(drafter) is not None

    def idles(self, drafter: Drafter, rule: DeviceRule) -> bool:
        """Whether rows of a drafter that is never part of a cycle have captured cycles while it drafts nothing. Hidden
        states that a drafter needs are not kept in these."""
        return not self.drafts(drafter) and not drafter.needs.features and not rule.needs_draft

    def idled(self, flight: Flight) -> bool:
        """Whether a cycle was one of these."""
        return flight.device is self._idle

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
        processed = only_processed(row) and isinstance(row.request.processor, DeviceProcessor)
        recorded = row.logprobs is None or row.logprobs <= (0 if processed else RECORDED_LOGPROBS[-1])
        return recorded and (processed or not needs_shaping(row)) and greedy == rule.greedy and row.length > 1

    def ready(self, row: Row) -> bool:
        """Whether it has read all but its last token."""
        return self._model.cached(row) == row.length - 1

    def choose(
        self,
        rows: Sequence[Row],
        drafter: Drafter,
        rule: DeviceRule,
        policy: Policy,
        deferred: DeferredCycles | None = None,
    ) -> Budget | None:
        """What all rows are to draft in the coming cycle; None where the policy wants the ordinary path."""
        device = self._device_drafter(drafter)
        if device is None or not device.drafts:
            return Budget(0)
        if rule.needs_draft:
            return CASCADE  # sizes are compared with plain decoding, which these rows cannot have
        if rows is not self._alike and not alike(rows, device):
            return None
        self._alike = rows
        ready = device.ready(rows, chain_depths(drafter.longest_chain)[-1])
        return policy.choose(rows, partial(self._menu, rows, drafter, device, rule, deferred), ready)

    def _menu(
        self,
        rows: Sequence[Row],
        drafter: Drafter,
        device: DeviceDrafter,
        rule: DeviceRule,
        deferred: DeferredCycles | None,
    ) -> SizeMenu:
        if deferred is not None:
            deferred.update_lengths()
        shape = self._at_least(BatchShape.of(rows, AHEAD) if deferred is None else deferred.shape(rows, AHEAD))
        # of all rows to come: the head would read their prompts in vain
        shape = shape.with_rows(max(shape.rows, self.expected_rows))
        depths = chain_depths(drafter.longest_chain)
        grown: Sequence[DraftSize] = GROWN
        if (deepest := device.max_depth) is not None:
            depths, levels = up_to(depths, deepest), up_to(LEVELS, deepest)
            grown = [size for size in GROWN if size.depth in levels]
        chains = [DraftSize(depth) for depth in depths if not depth or rule.chains]
        only_chains = rows[0].request.processor is not None or mixed(rows, rule)
        sizes = [size for size in (*chains, *grown) if self._fits(shape, size, drafter, rule, only_chains)]
        may_capture = partial(self.capture_budget.left, shape.lines(sizes[0], self.expected_rows))
        graphs = self._graphs_of(drafter, rows[0])
        options = graphs.menu(shape, rule, sizes, may_capture)
        return SizeMenu(options, graphs.costs.reading(device.behind(rows)), partial(graphs.missed, shape, rule))

    def _at_least(self, shape: BatchShape) -> BatchShape:
        return shape if shape.longest >= self.least_text else replace(shape, longest=self.least_text)

    def _graphs_of(self, drafter: Drafter | None, row: Row) -> GraphCache:
        """The graphs of a drafter for rows with the logits processor of `row`."""
        key = 0 if drafter is None else id(drafter), processing(row)
        if key not in self._graphs:
            name = "none" if drafter is None else type(drafter).__name__
            while name in self._names:
                name += "'"
            self._names.add(name)
            self._graphs[key] = GraphCache(self._costs.graph_costs(name))
        return self._graphs[key]

    def launch(
        self,
        rows: Sequence[Row],
        budget: Sequence[Budget],
        goals: Sequence[Budget],
        drafter: Drafter,
        rule: DeviceRule,
        by_policy: bool = False,
        plain: Collection[Row] = (),
    ) -> Flight | None:
        """Start one cycle for all rows, which are `ready`; None where it must take the ordinary path.

        `goals` are the budgets before a row's limits cut them. `by_policy`: no user asked for this size, so the time to
        capture it comes out of the capture budget. `plain` rows draft nothing this time.
        """
        with self.capture_budget.runs():
            return self._launch(rows, budget, goals, drafter, rule, by_policy, plain)

    def _launch(
        self,
        rows: Sequence[Row],
        budget: Sequence[Budget],
        goals: Sequence[Budget],
        drafter: Drafter,
        rule: DeviceRule,
        by_policy: bool,
        plain: Collection[Row],
    ) -> Flight | None:
        device = self._device_drafter(drafter)
        if device is None and by_policy and self.idles(drafter, rule) and not any(own.depth for own in budget):
            device = self._idle
        if device is None or not alike(rows, device):
            return None
        deepest = math.inf if device.max_depth is None else device.max_depth
        if rule.chains and not any(own.shape for own in budget):
            deepest = min(deepest, deepest_chain(len(rows), drafter.longest_chain))
        budget, goals = _no_deeper(budget, deepest), _no_deeper(goals, deepest)
        if not any(row.depth and row.shape for row in budget):
            budget = device.draft_on_host(rows, budget)
        shape, size = self._at_least(BatchShape.of(rows)), size_for(budget, rule, drafter.longest_chain)
        processor = rows[0].request.processor
        if size is None or not self._fits(shape, size, drafter, rule, processor is not None or mixed(rows, rule)):
            return None
        if not self._in_context(shape, size, device):
            return None
        graphs = self._graphs_of(drafter if device.drafts else None, rows[0])
        exact = by_policy or not any(own.depth for own in goals)
        key = shape.key(size, rule, shape.lines(size))
        if not self.captures_all:
            key = graphs.find(shape, size, rule, self.expected_rows, self._context(shape, size, device), exact)
        try:
            for row in rows:
                self._make_room(row, row.length + key.size.places + 1, device)
        except MemoryError:  # on the ordinary path a row waits for memory
            return None
        cycle, captured = self._cycle(graphs, key, shape, device, by_policy and size.depth > 0, processor)
        if isinstance(cycle, ChainCycle) and processor is not None:
            cycle.load_shaping([cast(DeviceProcessor, row.request.processor).row_state(row.tokens) for row in rows])
        budget = [Budget(0) if row in plain else own for row, own in zip(rows, budget, strict=True)]
        began = perf_counter()
        state, read = device.begin(rows, budget, cycle)
        goal = [min(own.depth, key.depth) for own in goals]
        depths = [own.depth for own in budget]
        indices = [self._model.index(row) for row in rows], [device.index(row) for row in rows]
        words = control_words(rows, depths, goals, goal, indices, self._model.context, size, key.rows)
        record = cycle.launch(*words, state)
        lines = list(zip(range(len(rows)), rows, goal, strict=True))
        version, room = (self._model.cache.version, device.version), [self._room(row, device) for row in rows]
        return Flight(
            lines, depths, cycle, graphs, device, record, shape.cut, by_policy, began, read, captured, version, room
        )

    def launch_next(
        self, flight: Flight, chosen: Budget | None = None, deferred: DeferredCycles | None = None
    ) -> Flight | None:
        """Start the next cycle before the record of `flight` is read; None where the rows need something else first.
        `chosen`: what all rows are to draft from now on, if that is not what they drafted so far. `deferred`: cycles
        that are not committed to them yet.

        Where the graph stays the same, rows that have finished keep their lines, and nobody looks at them any more. The
        device does not know that they have, and goes on with them; they must not outgrow the caches either."""
        lines = [line for line in flight.lines if line[1].finish_reason is None]
        device, same = flight.device, chosen is None or DraftSize(chosen.depth) == flight.size
        size = flight.asked(lines) if chosen is None else DraftSize(chosen.depth)
        if (
            not lines
            or self.captures_all
            or not flight.cycle.repeats
            or flight.version != (self._model.cache.version, device.version)
        ):
            return None
        under_way = flight.size.depth + 1  # if all of it is accepted
        if deferred is None:
            lengths = [len(row.tokens) for _, row, _ in lines]
            longest, cached = max(lengths), sum(lengths)
        else:
            longest, cached = deferred.longest, deferred.cached
        shape = BatchShape(len(lines), longest + under_way, flight.cut, flight.key.logprobs, cached)
        room, ended = flight.rooms(under_way, deferred)
        if min(room, ended) < size.places + 1 or not self._in_context(shape, size, device):
            return None
        context = self._context(shape, size, device)
        best = flight.graphs.find(shape, size, flight.rule, self.expected_rows, context, exact=True)
        if min(room, ended) < best.size.places + 1:
            return None
        following = replace(flight, lines=lines, depths=None, ended=ended, read=0, captured=False, overlapped=True)
        if best == flight.key and same:
            return replace(following, record=flight.cycle.whole.launch(), began=perf_counter())
        cycle = flight.graphs.cycles.get(best)
        goals = {goal for _, _, goal in lines} if chosen is None else {chosen.depth}
        if not isinstance(cycle, ChainCycle) or not isinstance(flight.cycle, ChainCycle) or len(goals) > 1:
            return None
        if not cycle.follows(flight.cycle):
            return None
        (goal,) = goals
        record = cycle.launch_after(flight.cycle, [line for line, _, _ in lines], goal)
        rows = [(n, row, goal) for n, (_, row, _) in enumerate(lines)]
        kept = [flight.room[line] for line, _, _ in lines]
        return replace(following, lines=rows, cycle=cycle, record=record, began=perf_counter(), ended=FAR, room=kept)

    def read(self, flight: Flight) -> Lines:
        """Wait for a cycle. Returns its record: the numbers of each line."""
        with self.capture_budget.runs():
            record = flight.record.read(flight.lines[-1][0] + 1, flight.cycle.columns)
        if flight.read:  # the device had read it when the record was there
            seconds, cached = perf_counter() - flight.began, sum(row.length for _, row, _ in flight.lines)
            flight.graphs.costs.learn_reading(flight.key, len(flight.lines), flight.read, seconds, cached)
        self.cycles += 1
        return record

    def land(self, flight: Flight, record: Lines) -> list[tuple[Row, CycleResult]] | None:
        """Commit a cycle to the caches; None where it must be repeated on the ordinary path, nothing having changed.
        Rows that have finished since it was launched are left out."""
        lines, rows, depths = flight.landed(self._model.context)
        own = record[lines]
        if not own[:, 2].all():  # some slot has no law; the ordinary path finds out which row's
            return None
        results = flight.cycle.told(own.tolist())
        if isinstance(flight.cycle, ChainCycle) and flight.cycle.logprobs is not None:
            numbers = flight.record.read_numbers(len(record), flight.cycle.logprobs)
            results = [
                flight.cycle.with_logprobs(result, numbers[line]) for result, line in zip(results, lines, strict=True)
            ]
        accepted = [result.kept for result in results]
        self._model.record_written(rows, accepted)
        flight.device.commit(rows, depths, accepted, flight.cycle, lines)
        return list(zip(rows, results, strict=True))

    def defer(self, flight: Flight, jobs: Sequence[Job]) -> DeferredCycles | None:
        return DeferredCycles.of(flight, jobs, self._model.context)

    def land_deferred(self, cycles: Sequence[RowCycles]) -> None:
        """Commit deferred cycles to the target's cache. The drafter knows of them (`DeferredCycles`)."""
        self._model.record_written([own.job.row for own in cycles], [own.tokens[:-1] for own in cycles])

    def abandon(self, flight: Flight) -> None:
        """Nobody will read this cycle's record. What it wrote beyond the rows' committed text is written again."""
        flight.device.forget()

    def paid(self, flight: Flight, rows: int, cached: int, seconds: float) -> None:
        """What a cycle took with the host's part. What was published meanwhile is of the cycle before, which most often
        was one like this. `cached`: tokens of all rows."""
        if not flight.captured and not flight.read:
            flight.graphs.costs.learn(flight.key, rows, seconds, cached, flight.overlapped)

    def _make_room(self, row: Row, places: int, device: DeviceDrafter) -> None:
        """Let a row have so many places in both caches."""
        self._model.make_room(row, places)
        device.make_room(row, places)

    def _room(self, row: Row, device: DeviceDrafter) -> tuple[int, int]:
        """Places that a row has in both caches, and those beyond its longest text."""
        places = min(self._model.places(row), device.places(row))
        return places, places - row.length - row.room(self._model.context)

    def _in_context(self, shape: BatchShape, size: DraftSize, device: DeviceDrafter) -> bool:
        return device.context is None or shape.used(size) <= device.context

    def _context(self, shape: BatchShape, size: DraftSize, device: DeviceDrafter) -> int:
        """The most places that a cycle may read."""
        return max(shape.used(size), min(self._model.context, device.context or self._model.context))

    def _fits(self, shape: BatchShape, size: DraftSize, drafter: Drafter, rule: DeviceRule, only_chains: bool) -> bool:
        if shape.rows * (size.slots + 1) > WIDEST:
            return False
        if not size.nodes:
            return True
        cut = not rule.greedy and shape.cut  # trees are ranked by the law as it is
        return self.branches(drafter, rule) and not cut and not only_chains and shape.logprobs is None

    def _device_drafter(self, drafter: Drafter) -> DeviceDrafter | None:
        if id(drafter) not in self._device_drafters:
            device: DeviceDrafter | None = drafter.device_form(self._model)
            if device is not None:
                device.grow(self._model.cache.places)
            self._device_drafters[id(drafter)] = drafter, device
        return self._device_drafters[id(drafter)][1]

    def _cycle(
        self,
        graphs: GraphCache,
        key: GraphKey,
        shape: BatchShape,
        device: DeviceDrafter,
        counted: bool,
        processor: Any,
    ) -> tuple[Cycle, bool]:
        """The cycle of a key, and whether it had to be captured. `counted`: in the policy's capture budget."""
        part, held = device.part(), self._passes.held(self._model.cache)
        for (identity, _), cache in self._graphs.items():  # graphs must not hold on to caches that have moved
            own = self._device_drafters[identity][1] if identity else None
            cache.set_version((self._model.cache.version, own.version if own else 0))
        if missing := key not in graphs.cycles:
            with self.capture_budget.captures(counted), graphs.captures(key):
                graphs.add(key, new_cycle(key, self._passes, held, part, processor))
            self.captures += 1
        return graphs.cycles[key], missing


def _no_deeper(budgets: Sequence[Budget], depth: float) -> list[Budget]:
    return [own if own.depth <= depth else replace(own, depth=int(depth)) for own in budgets]
