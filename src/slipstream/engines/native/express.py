"""When a cycle can run on the device as a whole (`captured`, `captured_tree`), and what the host must know of it
afterwards.

That is where all rows have one drafter and one rule, draft chains or trees that grow by themselves, ask for nothing but
a temperature, and have read all but their last token: decoding, that is. Everything else goes through `Batch`'s own
lines, before and after: both leave caches and rows in the same state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from slipstream.core.interfaces import Drafter
from slipstream.core.noise import keys
from slipstream.core.shapes import Tensor
from slipstream.core.shaping import asks
from slipstream.core.types import Budget, Draft, Row, Verdict
from slipstream.drafters.eagle import Eagle
from slipstream.drafters.eagle_gpu import EagleKernels
from slipstream.drafters.none import NoDrafter
from slipstream.engines.native.captured import Cycle, Kind
from slipstream.engines.native.captured_parts import Head
from slipstream.engines.native.captured_tree import TreeCycle, TreeKind
from slipstream.engines.native.told import Told
from slipstream.kernels.gpu.decoder import Held
from slipstream.models.cache import power
from slipstream.models.gpu_decoder import GpuDecoder, parts_of
from slipstream.models.torch_model import TorchModel

CHAINS = frozenset({"greedy", "coupled", "token", "block"})
TREES = frozenset({"greedy", "coupled", "chosen"})  # that verify trees on the device
WIDEST = 1024  # tokens of a pass that is worth a graph
DEPTHS = (0, 1, 2, 3, 4, 6, 8)  # that graphs are captured for: a row that drafts less leaves the rest out
LEVELS, WIDTHS = (3, 6, 8, 10, 16), (3, 6, 8)  # the same for trees; none is larger
NODES = (8, 15, 16, 24, 32, 48, 64)  # 15 and the committed end are as many tokens as products of few rows take


class Express:
    def __init__(self, model: TorchModel, decoder: GpuDecoder) -> None:
        self._model, self._decoder = model, decoder
        self._cycles: dict[tuple[Kind | TreeKind, int], Cycle | TreeCycle] = {}
        self._kernels: dict[int, tuple[Eagle, EagleKernels, Tensor]] = {}
        self._version: tuple[int, ...] = ()
        # place and length of each row
        self._left: tuple[dict[Row, tuple[int, int]], Cycle | TreeCycle] | None = None
        self._new = False  # whether this cycle did what others do not: captured a graph, or read a prompt
        self.cycles = 0

    def drafts(self, drafter: Drafter) -> bool:
        """Whether a drafter's steps can be part of a cycle."""
        return isinstance(drafter, Eagle | NoDrafter)

    def branches(self, drafter: Drafter, rule: str) -> bool:
        """Whether they can be where it drafts trees."""
        return isinstance(drafter, Eagle) and rule in TREES

    def only_chains(self, drafter: Drafter, rule: str) -> bool:
        """Whether a tree would cost rows their whole cycles, which a chain has: no policy should try one then."""
        return self.drafts(drafter) and not self.branches(drafter, rule)

    def run(
        self, rows: Sequence[Row], budget: Sequence[Budget], drafter: Drafter, rule: str
    ) -> tuple[Draft, Verdict, float | None] | None:
        """One cycle for all rows, committed to the target's cache, and the seconds spent on drafting, where they are
        worth learning from; None where it must go the other way, nothing having changed."""
        size = _size(budget, rule)
        if size is None or not self._takes(rows, size, drafter, rule):
            return None
        used = max(row.length for row in rows) + size.places + 1
        self._model.make_room(used)
        head = self._head(drafter, used) if isinstance(drafter, Eagle) else None
        cycle = self._cycle(size.kind(power(len(rows)), rule, parts_of(used)), drafter, head)
        state = self._state(rows, drafter, cycle) if isinstance(drafter, Eagle) else None
        words, numbers = self._control(rows, budget, drafter, size, cycle.kind.rows)
        self._left = None
        record = cycle(words, numbers, state)[: len(rows)].tolist()
        self.cycles += 1
        if not all(line[2] for line in record):  # some place has no law: who it was is found out the other way
            return None
        known, self._new = not self._new, False
        told = cycle.told(record, self._model.vocab)
        self._commit(rows, told, drafter, cycle)
        return told.draft, told.verdict, cycle.drafting if known else None

    def _takes(self, rows: Sequence[Row], size: Size, drafter: Drafter, rule: str) -> bool:
        if rule not in CHAINS | TREES or not self.drafts(drafter) or len(rows) * (size.slots + 1) > WIDEST:
            return False
        if any(map(asks, rows)) or (size.nodes and not self.branches(drafter, rule)):
            return False
        wishes = [row.request.sampling for row in rows]
        if any(
            wish.top_k or wish.top_p < 1 or wish.min_p or (wish.temperature == 0) != (rule == "greedy")
            for wish in wishes
        ):
            return False
        return all(row.length > 1 and self._model.cached(row) == row.length - 1 for row in rows)

    def _head(self, drafter: Eagle, used: int) -> Head:
        slots, model = drafter.slots, self._model
        if id(drafter) not in self._kernels:
            size = drafter.vocabulary.size
            slot_of = torch.full((size,), -1, device=model.device)
            slot_of[drafter.vocabulary.ids] = torch.arange(len(drafter.vocabulary.ids), device=model.device)
            kernels = EagleKernels(slots.net, slots.embedding, model.context)
            self._kernels[id(drafter)] = drafter, kernels, slot_of
        _, kernels, slot_of = self._kernels[id(drafter)]
        heads = kernels.net.heads
        like = slots.embedding.new_empty(1, heads.kv_heads, 1, heads.dim)
        slots.cache.reserve(used)
        features = model.feature_places(drafter.needs.features)
        return Head(kernels, [slots.cache.layer(0, like, like)], features, drafter.vocabulary.ids, slot_of)

    def _cycle(self, kind: Kind | TreeKind, drafter: Drafter, head: Head | None) -> Cycle | TreeCycle:
        held = self._decoder.held(self._model.cache)
        version = (self._model.cache.version, *sorted(d.slots.cache.version for d, *_ in self._kernels.values()))
        if version != self._version:
            self._cycles.clear()
            self._version = version
        key = kind, id(drafter) if head else 0
        if key not in self._cycles:
            self._cycles[key] = _new_cycle(kind, self._decoder, held, head)
            self._new = True
        return self._cycles[key]

    def _state(self, rows: Sequence[Row], drafter: Eagle, cycle: Cycle | TreeCycle) -> Tensor | None:
        """What the head gave at the last slot of each row: what the last cycle left, or read anew."""
        left, before = self._left or ({}, None)
        if before is None or any(row not in left or left[row][1] != row.length for row in rows):
            self._new = True
            return drafter.slots.ends(rows)
        index = [left[row][0] for row in rows]
        if before is cycle and index == list(range(len(rows))):
            return None
        return before.state[torch.tensor(index, device=before.state.device)]

    def _control(
        self, rows: Sequence[Row], budget: Sequence[Budget], drafter: Drafter, size: Size, lines: int
    ) -> tuple[list[list[int]], list[list[float]]]:
        """`cycle.Control` and the temperatures and limits of likelihood, filled up to a graph's rows."""
        other = [drafter.slots.index(row) for row in rows] if isinstance(drafter, Eagle) else [0] * len(rows)
        words = [
            keys([row.seed for row in rows], [row.sample for row in rows]).tolist(),
            [row.length for row in rows],
            [spend.depth for spend in budget],
            [self._model.index(row) for row in rows],
            other,
            [row.tokens[-1] for row in rows],
            [min(size.nodes, spend.shape.nodes if spend.shape else spend.depth) for spend in budget],
            [min(size.width, spend.shape.width if spend.shape else 1) for spend in budget],
        ]
        numbers = [[row.request.sampling.temperature for row in rows], [spend.stop_below for spend in budget]]
        missing = lines - len(rows)
        fill = [0, 1, -1, 0, 0, 0, 0, 0]
        padded = [line + [value] * missing for line, value in zip(words, fill, strict=True)]
        return padded, [line + [0.0] * missing for line in numbers]

    def _commit(self, rows: Sequence[Row], told: Told, drafter: Drafter, cycle: Cycle | TreeCycle) -> None:
        """Tell target and drafter what their caches hold now."""
        cached, verdict = told.cached
        self._model.ran(rows, cached)
        self._model.commit(rows, verdict)
        if isinstance(drafter, Eagle):
            lengths = [row.length + emitted for row, emitted in zip(rows, told.emitted, strict=True)]
            for row, length in zip(rows, lengths, strict=True):
                drafter.slots.hold(row, length - 1)
            self._left = {row: (n, length) for n, (row, length) in enumerate(zip(rows, lengths, strict=True))}, cycle


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

    def kind(self, rows: int, rule: str, parts: int) -> Kind | TreeKind:
        if not self.nodes:
            return Kind(rows, self.depth, rule, parts)
        return TreeKind(rows, self.nodes, self.depth, self.width, rule, parts)


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


def _new_cycle(kind: Kind | TreeKind, decoder: GpuDecoder, held: Held, head: Head | None) -> Cycle | TreeCycle:
    if isinstance(kind, Kind):
        return Cycle(kind, decoder, held, head)
    assert head is not None, "trees are drafted by a head"
    return TreeCycle(kind, decoder, held, head)
