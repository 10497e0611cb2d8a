"""When a cycle can run on the device as a whole (`captured`, `captured_tree`), and what the host must know of it
afterwards.

That is where all rows have one drafter and one rule, draft chains or trees that grow by themselves, ask for nothing but
a temperature and a cut of the law (top-k, top-p, min-p), and have read all but their last token: decoding, that is.
Everything else goes through `Batch`'s own lines, before and after: both leave caches and rows in the same state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from slipstream.core.interfaces import Drafter
from slipstream.core.noise import keys
from slipstream.core.shaping import asks
from slipstream.core.types import Budget, Draft, Row, Verdict
from slipstream.engines.native.allowance import Allowance
from slipstream.engines.native.captured import Cycle, Kind
from slipstream.engines.native.captured_draft import Guesses, Head, Partner
from slipstream.engines.native.captured_tree import TreeCycle, TreeKind
from slipstream.engines.native.express_sides import Side, side_of
from slipstream.kernels.gpu.decoder import Held
from slipstream.kernels.machine import say
from slipstream.models.cache import power
from slipstream.models.gpu_passes import Passes, parts_of
from slipstream.models.torch_model import TorchModel
from slipstream.plan.costs import Recent
from slipstream.plan.menu import Chooser, Offer

CHAINS = frozenset({"greedy", "coupled", "token", "block"})
TREES = frozenset({"greedy", "coupled", "chosen"})  # that verify trees on the device
WIDEST = 1024  # tokens of a pass that is worth a graph
DEPTHS = (0, 1, 2, 3, 5, 8)  # that graphs are captured for: a row that drafts less leaves the rest out
LEVELS, WIDTHS = (3, 6, 10, 16), (6, 8)  # the same for trees; none is larger. Few: each is captured when first met
HOPE = 0.08  # of a plain cycle: what a level of drafts is taken to cost before any was captured
NODES = (8, 15, 24, 32, 48, 64)  # 15 and the committed end are as many tokens as products of few rows take

Key = tuple[Kind | TreeKind, int]  # a cycle, and whose drafts


class Express:
    def __init__(self, model: TorchModel, passes: Passes) -> None:
        self._model, self._passes = model, passes
        self._cycles: dict[Key, Cycle | TreeCycle] = {}
        self._sides: dict[int, tuple[Drafter, Side | None]] = {}  # by who they are, which is held on to
        self._version: tuple[int, ...] = ()
        self._new = self._counted = False  # whether this cycle captured a graph; whether that was a policy's wish
        self._prices: dict[Key, Recent] = {}  # seconds of a cycle, with the host's part
        self._rehearsed: dict[Key, float] = {}  # the device's part
        self._host = Recent(7)  # the host's
        self._latest: Key | None = None  # whose price the last cycle tells
        self.cycles, self.allowance = 0, Allowance()

    def drafts(self, drafter: Drafter) -> bool:
        """Whether a drafter's steps can be part of a cycle."""
        return self._side(drafter) is not None

    def branches(self, drafter: Drafter, rule: str) -> bool:
        """Whether they can be where it drafts trees."""
        side = self._side(drafter)
        return side is not None and side.branches and rule in TREES and self._passes.branches(LEVELS[-1])

    def only_chains(self, drafter: Drafter, rule: str) -> bool:
        """Whether a tree would cost rows their whole cycles, which a chain has: no policy should try one then."""
        return self.drafts(drafter) and not self.branches(drafter, rule)

    def ready(self, row: Row, rule: str) -> bool:
        """Whether a row asks for nothing but what is done here, and has read all but its last token."""
        if rule not in CHAINS | TREES or asks(row) or (row.request.sampling.temperature == 0) != (rule == "greedy"):
            return False
        return row.length > 1 and self._model.cached(row) == row.length - 1

    def choose(self, rows: Sequence[Row], drafter: Drafter, rule: str, chooser: Chooser) -> Budget:
        """What all rows are to draft in the coming cycle: of what is captured, or may be, the fastest."""
        side = self._side(drafter)
        if side is None or not side.drafts:
            return Budget(0)
        ready = side.ready(rows, DEPTHS[-1])
        held = chooser.held(rows) if ready is None else None
        return (held or chooser.choose(rows, self._menu(rows, drafter, rule), ready)).budget

    def _menu(self, rows: Sequence[Row], drafter: Drafter, rule: str) -> list[Offer]:
        """Sizes that may be chosen, the least first, and what they take. What is not captured is offered if it may be:
        its price is a guess, on the low side."""
        sizes = [Size(depth) for depth in DEPTHS if not depth or rule in CHAINS]
        sizes += GROWN if self.branches(drafter, rule) else []
        common = _common(rows)
        kinds = {size: common.kind(size, rule) for size in sizes if self._fits(common, size, drafter, rule)}
        known = {size: self._prices.get((kind, id(drafter))) for size, kind in kinds.items()}
        plain = known.get(Size(0))
        if plain is None:
            return [Offer(0, 1, 0, 1.0)]
        paid = {size: price.value for size, price in known.items() if price}
        levels = [(paid[size] - plain.value) / size.depth for size in paid if size.depth]
        level = sum(levels) / len(levels) if levels else HOPE * plain.value
        free = self.allowance.left(common.lines)
        offers = []
        for size, kind in kinds.items():
            there = self._there(kind, drafter)
            if there or free or not size.depth:
                price = paid.get(size, plain.value + max(0.0, level) * size.depth)
                offers.append(Offer(size.depth, size.width, size.nodes, price, there))
        return offers

    def _there(self, kind: Kind | TreeKind, drafter: Drafter) -> bool:
        return (kind, id(drafter)) in self._cycles or (kind, 0) in self._cycles

    def run(
        self, rows: Sequence[Row], budget: Sequence[Budget], drafter: Drafter, rule: str, free: bool = False
    ) -> tuple[Draft, Verdict] | None:
        """One cycle for all rows, which are `ready`, committed to the target's cache; None where it must go the other
        way, nothing having changed. `free`: nobody asked for drafts of this size, so time to capture it is counted."""
        self._counted = free and any(spend.depth for spend in budget)
        with self.allowance.runs():
            return self._run(rows, budget, drafter, rule)

    def paid(self, seconds: float) -> None:
        """What the last cycle took, until its tokens were known."""
        if self._latest is not None:
            key, self._latest = self._latest, None
            if key in self._rehearsed:
                self._host.add(seconds - self._rehearsed[key])
            self._prices.setdefault(key, Recent(7)).add(seconds)

    def _run(
        self, rows: Sequence[Row], budget: Sequence[Budget], drafter: Drafter, rule: str
    ) -> tuple[Draft, Verdict] | None:
        if (side := self._side(drafter)) is None:
            return None
        if not any(spend.depth and spend.shape for spend in budget):
            budget = side.guess(rows, budget)
        size = _size(budget, rule)
        common = _common(rows)
        if size is None or not self._fits(common, size, drafter, rule):
            return None
        used = common.used(size)
        if side.context is not None and used > side.context:
            return None
        self._model.make_room(used)
        part = side.part(used)
        kind = common.kind(size, rule)
        cycle = self._cycle(kind, drafter, part)
        state, read = side.begin(rows, budget, cycle)
        record = cycle(*self._control(rows, budget, side, size, cycle.kind.rows), state)[: len(rows)].tolist()
        self.cycles += 1
        if not all(line[2] for line in record):  # some place has no law: who it was is found out the other way
            return None
        self._latest, self._new = None if self._new or read else (kind, id(drafter)), False
        told = cycle.told(record, self._model.vocab)
        self._model.took(rows, told.kept)
        side.commit(rows, budget, told, cycle)
        return told.draft, told.verdict

    def _fits(self, common: Common, size: Size, drafter: Drafter, rule: str) -> bool:
        if common.rows * (size.slots + 1) > WIDEST:
            return False
        if not size.nodes:
            return True
        cut = rule != "greedy" and common.cut  # what trees are ranked by is not cut here
        return self.branches(drafter, rule) and not cut

    def _side(self, drafter: Drafter) -> Side | None:
        if id(drafter) not in self._sides:
            self._sides[id(drafter)] = drafter, side_of(drafter, self._model, self._passes)
        return self._sides[id(drafter)][1]

    def _cycle(
        self, kind: Kind | TreeKind, drafter: Drafter, part: Head | Partner | Guesses | None
    ) -> Cycle | TreeCycle:
        held = self._passes.held(self._model.cache)
        version = self._model.cache.version, *(side.version for _, side in self._sides.values() if side)
        if version != self._version:
            self._cycles.clear()
            self._version = version
        key = kind, id(drafter) if part else 0
        if key not in self._cycles:
            with self.allowance.captures(self._counted):
                made = self._cycles[key] = _new_cycle(kind, self._passes, held, part)
                if (seconds := made.whole.rehearse()) is not None:
                    self._rehearsed[kind, id(drafter)] = seconds
                    self._prices[kind, id(drafter)] = Recent.of(seconds + self._host.value)
                    say(f"captured {kind}: {1000 * seconds:.2f} ms a cycle")
            self._new = True
        return self._cycles[key]

    def _control(
        self, rows: Sequence[Row], budget: Sequence[Budget], side: Side, size: Size, lines: int
    ) -> tuple[list[list[int]], list[list[float]]]:
        """`cycle.Control` and what `draw.Wishes` has of numbers, filled up to a graph's rows."""
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
        return padded, [line + [0.0] * missing for line in numbers]


@lru_cache(maxsize=1 << 12)
def _stream(seed: int, sample: int) -> int:
    """The key of a row's noise."""
    return int(keys([seed], [sample]))


def _cut(row: Row) -> bool:
    """Whether only some tokens of a law are wanted."""
    wish = row.request.sampling
    return wish.temperature > 0 and bool(wish.top_k or wish.top_p < 1 or wish.min_p)


@dataclass(frozen=True)
class Size:
    """What the largest draft of a cycle takes, rounded up to what graphs are captured for; no nodes: a chain."""

    depth: int
    width: int = 1
    nodes: int = 0

    @property
    def slots(self) -> int:
        """Drafted tokens of a row in the target's pass."""
        return self.nodes or self.depth

    @property
    def places(self) -> int:
        """In the caches beyond the committed ones: of the target, or of the head, which keeps all it looked at."""
        return max(self.slots, self.depth * self.width)


@dataclass(frozen=True)
class Common:
    """What all rows of a cycle come to."""

    rows: int
    longest: int
    cut: bool  # whether some want some tokens of a law alone

    @property
    def lines(self) -> int:
        """Rows that a graph is captured for."""
        return power(self.rows)

    def used(self, size: Size) -> int:
        """Places of the caches that a cycle may look at."""
        return self.longest + size.places + 1

    def kind(self, size: Size, rule: str) -> Kind | TreeKind:
        parts = parts_of(self.used(size))
        if not size.nodes:
            return Kind(self.lines, size.depth, rule, parts, self.cut)
        return TreeKind(self.lines, size.nodes, size.depth, size.width, rule, parts)


def _common(rows: Sequence[Row]) -> Common:
    return Common(len(rows), max(row.length for row in rows), any(map(_cut, rows)))


GROWN = [Size(3, 6, 8), Size(6, 6, 15), Size(10, 6, 24)]  # trees that a chooser may choose from


def _size(budget: Sequence[Budget], rule: str) -> Size | None:
    """None where it is too large, or is not the drafter's to choose. Of trees that would make a pass too wide only the
    likeliest nodes are drafted: so many as there is room for."""
    deep = max(min(spend.depth, spend.shape.size if spend.shape else spend.depth) for spend in budget)
    shapes = [spend.shape for spend in budget if spend.depth and spend.shape is not None]
    if not deep or (not shapes and rule in CHAINS):
        return Size(_least(DEPTHS, deep) or deep)
    nodes = max([deep, *(shape.nodes for shape in shapes)])
    wide = max([1, *(shape.width for shape in shapes)])
    depth, width, most = _least(LEVELS, deep), _least(WIDTHS, wide), _least(NODES, nodes)
    if depth is None or width is None or most is None or any(shape.parents for shape in shapes):
        return None
    fitting = [size for size in NODES if size <= most and len(budget) * (size + 1) <= WIDEST]
    return Size(depth, width, fitting[-1]) if fitting else None


def _least(sizes: Sequence[int], wanted: int) -> int | None:
    return next((size for size in sizes if size >= wanted), None)


def _new_cycle(
    kind: Kind | TreeKind, passes: Passes, held: Held, part: Head | Partner | Guesses | None
) -> Cycle | TreeCycle:
    if isinstance(kind, Kind):
        return Cycle(kind, passes, held, part)
    assert isinstance(part, Head), "trees are drafted by a head"
    return TreeCycle(kind, passes, held, part)
