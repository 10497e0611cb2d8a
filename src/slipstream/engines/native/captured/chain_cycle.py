"""A whole cycle on the device: draft, score, verify and commit as one graph, and one small read at its end.

What it must equal is `Batch`'s own cycle, token for token: the same laws, the same rules, the same noise. The host says
how long each row is and how far it may draft, and learns what was accepted; nothing else crosses over in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from slipstream.core.array_types import Float, Tensor
from slipstream.core.noise import Purpose
from slipstream.engines.native.captured.draft_steps import DraftModelState, HeadState, HeadUpdate, HostDraft
from slipstream.engines.native.captured.parts import CapturedCycle, CycleInputs, ScorePass
from slipstream.engines.native.captured.result import CycleResult, told_chains
from slipstream.kernels.gpu.cycle import commit, lay
from slipstream.kernels.gpu.decoder import Held
from slipstream.kernels.gpu.sample import LawBuffers, choose, draft
from slipstream.kernels.gpu.truncate import cut
from slipstream.kernels.gpu.verify import judge, match, surplus_room
from slipstream.models.run.gpu_passes import GpuPasses


@dataclass(frozen=True)
class ChainGraphKey:
    """What a graph is captured for."""

    rows: int
    depth: int
    rule: str  # greedy, coupled, token or block; what needs no draft, any rule
    parts: int  # of the cache
    cut: bool = False  # whether rows may want some tokens of a law alone


class ChainCycle:
    """The buffers of one kind of cycle, and its graph."""

    def __init__(
        self, kind: ChainGraphKey, target: GpuPasses, held: Held, side: HeadState | DraftModelState | HostDraft | None
    ) -> None:
        self.kind, self._side = kind, side
        head = side if isinstance(side, HeadState) else None
        rows, width, device = kind.rows, kind.depth + 1, target.like.device
        self._inputs = CycleInputs(rows, device)
        self._scoring = ScorePass(target, held, head, rows, width, kind.parts)
        self._chance = torch.zeros(max(1, kind.depth), rows, device=device)
        self._credit = surplus_room(rows, kind.depth, self._scoring.laws)
        self._result = torch.zeros(rows, 2 * width + 2, dtype=torch.float64, device=device)
        self._reading = HeadUpdate(head, rows, width, kind.parts, target.like)
        self.state = self._reading.state
        self._guess = self._scoring.token.new_zeros(rows, kind.depth)
        if isinstance(side, HostDraft):
            self._chance.fill_(1.0)
        elif side is not None and kind.depth:
            self._steps = side.steps(rows, kind.depth, kind.parts, self.state)
            self._drafts = LawBuffers(rows * kind.depth, len(side.ids), device)
        self.whole = CapturedCycle(self._all, self._result)

    def __call__(
        self,
        words: Sequence[Sequence[int]],
        numbers: Sequence[Sequence[float]],
        state: Tensor | None,
        meanwhile: Callable[[], None] | None = None,
    ) -> Float[Tensor, "rows record"]:
        """One cycle; `state` is what the head gave at the last slot of each row, where this is not what the last cycle
        left, or what the host drafted. The record of each row: accepted, next token, whether all had a law, drafted,
        tokens, their chances."""
        self._inputs.load(words, numbers)
        if state is not None:
            target = self._guess if isinstance(self._side, HostDraft) else self.state
            target[: len(state)].copy_(state)
        return self.whole.run(meanwhile)

    def told(self, record: Sequence[list[int]]) -> list[CycleResult]:
        return told_chains(record)

    def _all(self) -> None:
        self._first()
        self._second()

    def _first(self) -> None:
        scoring, inputs = self._scoring, self._inputs
        lay(inputs.control, scoring.token, inputs.far, scoring.layout)
        if isinstance(self._side, HostDraft):
            scoring.token[:, 1:].copy_(self._guess)
        elif self._side is not None and self.kind.depth:
            self._draft(self._side)

    def _second(self) -> None:
        scoring, inputs, reading = self._scoring, self._inputs, self._reading
        scoring.run(tree=False)
        if self.kind.cut:
            cut(scoring.laws.logits, inputs.wishes)
        self._verify()
        commit(
            *(inputs.control, inputs.far, scoring.token, scoring.found, self._chance, reading.following),
            *(reading.layout, reading.end, self._result),
        )
        reading.run(scoring.stack)

    def _draft(self, side: HeadState | DraftModelState) -> None:
        rows, depth, token = self.kind.rows, self.kind.depth, self._scoring.token
        purpose = Purpose.FIELD if self.kind.rule == "coupled" else Purpose.DRAFT
        self._steps.begin(self._inputs.control)
        for n in range(depth):
            laws = self._drafts.some(n * rows, rows)
            self._steps.run(n, token, laws.logits)
            if self.kind.cut:
                cut(laws.logits, self._inputs.wishes)
            draft(laws, self._inputs.wishes, token[:, n + 1 :], depth + 1, n, purpose, self._chance[n], side.ids)

    def _verify(self) -> None:
        rule, width, scoring, wishes = self.kind.rule, self.kind.depth + 1, self._scoring, self._inputs.wishes
        drawn = rule not in ("token", "block") or self._side is None or width == 1
        if drawn:  # each slot's own choice says it all
            purpose = Purpose.FIELD if rule == "coupled" else Purpose.EMIT
            choose(scoring.laws, wishes, scoring.choice, width, purpose, race=rule != "greedy")
            match(scoring.choice, scoring.token, wishes, scoring.laws.best, scoring.found)
            return
        side = self._side
        drafts, slot_of = (None, None) if isinstance(side, HostDraft | None) else (self._drafts, side.slot_of)
        choose(scoring.laws, wishes, scoring.choice, width, Purpose.EMIT, race=False)
        judge(
            *(scoring.laws, drafts, self._chance, scoring.token, wishes, slot_of),
            *(self._credit, rule == "block", scoring.found),
        )
