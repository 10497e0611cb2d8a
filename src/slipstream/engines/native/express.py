"""When a cycle can run on the device as a whole (`captured`), and what the host must know of it afterwards.

That is where all rows have one drafter and one rule, draft chains, ask for nothing but a temperature, and have read all
but their last token: decoding, that is. Everything else goes through `Batch`'s own lines, before and after: both leave
caches and rows in the same state.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from slipstream.core.interfaces import Drafter
from slipstream.core.law import OneHot
from slipstream.core.noise import keys
from slipstream.core.shapes import Tensor
from slipstream.core.shaping import asks
from slipstream.core.tree import Tree
from slipstream.core.types import Budget, Draft, Row, Verdict
from slipstream.drafters.eagle import Eagle
from slipstream.drafters.eagle_gpu import EagleKernels
from slipstream.drafters.none import NoDrafter
from slipstream.engines.native.captured import Cycle, Head, Kind
from slipstream.models.cache import power
from slipstream.models.gpu_decoder import GpuDecoder, parts_of
from slipstream.models.torch_model import TorchModel

RULES = frozenset({"greedy", "coupled", "token", "block"})
WIDEST = 1024  # tokens of a pass that is worth a graph
DEPTHS = (0, 1, 2, 3, 4, 6, 8)  # that graphs are captured for: a row that drafts less leaves the rest out


class Express:
    def __init__(self, model: TorchModel, decoder: GpuDecoder) -> None:
        self._model, self._decoder = model, decoder
        self._cycles: dict[tuple[Kind, int], Cycle] = {}
        self._kernels: dict[int, tuple[Eagle, EagleKernels, Tensor]] = {}
        self._version: tuple[int, ...] = ()
        self._left: tuple[dict[Row, tuple[int, int]], Cycle] | None = None  # place and length of each row
        self._new = False  # whether this cycle did what others do not: captured a graph, or read a prompt
        self.cycles = 0

    def drafts(self, drafter: Drafter) -> bool:
        """Whether a drafter's steps can be part of a cycle."""
        return isinstance(drafter, Eagle | NoDrafter)

    def run(
        self, rows: Sequence[Row], budget: Sequence[Budget], drafter: Drafter, rule: str
    ) -> tuple[Draft, Verdict, float | None] | None:
        """One cycle for all rows, and the seconds spent on drafting, where they are worth learning from; None where it
        must go the other way, nothing having changed."""
        wanted = max(spend.depth for spend in budget)
        depth = next((size for size in DEPTHS if size >= wanted), wanted)
        if not self._takes(rows, budget, drafter, rule) or len(rows) * (depth + 1) > WIDEST:
            return None
        used = max(row.length + spend.depth for row, spend in zip(rows, budget, strict=True)) + 1
        self._model.make_room(used)
        head = self._head(drafter, used) if isinstance(drafter, Eagle) else None
        kind = Kind(power(len(rows)), depth, rule, parts_of(used))
        cycle = self._cycle(kind, drafter, head)
        state = self._state(rows, drafter, cycle) if isinstance(drafter, Eagle) else None
        words, numbers = self._control(rows, budget, drafter, kind.rows)
        self._left = None
        record = cycle(words, numbers, state)[: len(rows)].tolist()
        self.cycles += 1
        if not all(line[2] for line in record):  # some place has no law: who it was is found out the other way
            return None
        known, self._new = not self._new, False
        return *self._tell(rows, record, drafter, cycle), cycle.drafting if known else None

    def _takes(self, rows: Sequence[Row], budget: Sequence[Budget], drafter: Drafter, rule: str) -> bool:
        if rule not in RULES or not self.drafts(drafter):
            return False
        if any(spend.shape is not None for spend in budget) or any(map(asks, rows)):
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

    def _cycle(self, kind: Kind, drafter: Drafter, head: Head | None) -> Cycle:
        held = self._decoder.held(self._model.cache)
        version = (self._model.cache.version, *sorted(d.slots.cache.version for d, *_ in self._kernels.values()))
        if version != self._version:
            self._cycles.clear()
            self._version = version
        key = kind, id(drafter) if head else 0
        if key not in self._cycles:
            self._cycles[key] = Cycle(kind, self._decoder, held, head)
            self._new = True
        return self._cycles[key]

    def _state(self, rows: Sequence[Row], drafter: Eagle, cycle: Cycle) -> Tensor | None:
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
        self, rows: Sequence[Row], budget: Sequence[Budget], drafter: Drafter, size: int
    ) -> tuple[list[list[int]], list[list[float]]]:
        """`captured.Control` and the temperatures and limits of likelihood, filled up to a graph's rows."""
        index = [self._model.index(row) for row in rows]
        other = [drafter.slots.index(row) for row in rows] if isinstance(drafter, Eagle) else [0] * len(rows)
        words = [
            keys([row.seed for row in rows], [row.sample for row in rows]).tolist(),
            [row.length for row in rows],
            [spend.depth for spend in budget],
            index,
            other,
            [row.tokens[-1] for row in rows],
        ]
        numbers = [[row.request.sampling.temperature for row in rows], [spend.stop_below for spend in budget]]
        missing = size - len(rows)
        fill = [0, 1, -1, 0, 0, 0]
        padded = [line + [value] * missing for line, value in zip(words, fill, strict=True)]
        return padded, [line + [0.0] * missing for line in numbers]

    def _tell(
        self, rows: Sequence[Row], record: Sequence[Sequence[float]], drafter: Drafter, cycle: Cycle
    ) -> tuple[Draft, Verdict]:
        depth = cycle.kind.depth
        counts = [(int(line[0]), int(line[3])) for line in record]
        tree = Tree.chains([drafted for _, drafted in counts])
        token = torch.tensor([int(x) for line in record for x in line[4 : 4 + int(line[3])]], dtype=torch.long)
        chance = torch.tensor([x for line in record for x in line[4 + depth : 4 + depth + int(line[3])]])
        draft = Draft(tree, token, OneHot(token, self._model.vocab), None, chance)
        paths, first = list[list[int]](), 0
        for kept, drafted in counts:
            paths.append([*range(first, first + kept), *[-1] * (depth - kept)])
            first += drafted
        verdict = Verdict(
            torch.tensor(paths, dtype=torch.long).reshape(len(rows), depth),
            torch.tensor([int(line[1]) for line in record]),
            torch.tensor([kept == drafted for kept, drafted in counts]),
        )
        self._model.ran(rows, draft)
        lengths = [row.length + kept + 1 for row, (kept, _) in zip(rows, counts, strict=True)]
        if isinstance(drafter, Eagle):
            for row, length in zip(rows, lengths, strict=True):
                drafter.slots.hold(row, length - 1)
            self._left = {row: (n, length) for n, (row, length) in enumerate(zip(rows, lengths, strict=True))}, cycle
        return draft, verdict
