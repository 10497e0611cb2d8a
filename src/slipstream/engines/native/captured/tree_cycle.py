"""A whole cycle that drafts a tree, on the device: what it must equal is `Batch`'s own cycle, as for chains.

The head is run over the likeliest open nodes of each row, a level at a time, and the likeliest nodes of all levels are
the draft (`kernels.gpu.tree`); the target reads them in one pass, a path is accepted, its entries are moved to the
places after the committed ones, and the head reads it (`kernels.gpu.path`). Rows that draft a chain or nothing are
trees of width 1 or of no node, so they ride along.

What is drafted is what `drafters.growth.Chosen` grows, in its order; under `coupled` weighed by the odds that a token
wins the race given the noise of its position, as there (`Noise.odds`). But nothing is known here of end tokens, after
which the host drafts nothing: that moves no token's law, and under `greedy` and `coupled` no token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from slipstream.core.array_types import Int, Tensor
from slipstream.core.noise import Purpose
from slipstream.engines.native.captured.draft_steps import HeadState, HeadUpdate
from slipstream.engines.native.captured.parts import CapturedCycle, CycleInputs, ScorePass
from slipstream.engines.native.captured.result import CycleResult, told_trees
from slipstream.kernels.gpu.decoder import Held, PassBuffers
from slipstream.kernels.gpu.path import CacheBundle, CommittedTokens, carry, follow, offer, report
from slipstream.kernels.gpu.sample import choose
from slipstream.kernels.gpu.tree import CandidatePool, PackedTree, open_level, plant, rank
from slipstream.models.run.gpu_passes import GpuPasses


@dataclass(frozen=True)
class TreeGraphKey:
    """What a graph is captured for: rows may have smaller trees than this."""

    rows: int
    nodes: int
    depth: int
    width: int
    rule: str  # greedy, coupled or chosen
    parts: int  # of the cache


class TreeCycle:
    """The buffers of one kind of cycle, and its graph."""

    def __init__(self, kind: TreeGraphKey, target: GpuPasses, held: Held, head: HeadState) -> None:
        self.kind, self._head = kind, head
        rows, slots, device = kind.rows, kind.nodes + 1, target.like.device
        self._inputs = CycleInputs(rows, device)
        self._scoring = ScorePass(target, held, head, rows, slots, kind.parts)
        parent, far = torch.zeros(2, rows, slots, dtype=torch.long, device=device)
        self._tree = PackedTree(self._scoring.token, parent, far)
        self._path = torch.full((rows, kind.depth), -1, device=device)
        self._room = torch.zeros(rows, dtype=torch.long, device=device), torch.zeros_like(far)
        self._moved = [CacheBundle([part for both in held for part in both]), CacheBundle(list(head.features.values()))]
        self._reading = HeadUpdate(head, rows, kind.depth + 1, kind.parts, target.like)
        self._fused = torch.zeros_like(self._reading.following)
        self._stack = self._scoring.stack.new_zeros(len(self._fused), self._scoring.stack.shape[1])
        self._result = torch.zeros(rows, 2 + 2 * slots + kind.depth, dtype=torch.long, device=device)
        self.state = self._reading.state
        self._prepare(head)
        self.whole = CapturedCycle(self._all, self._result)

    def _prepare(self, head: HeadState) -> None:
        kind, net, device = self.kind, head.kernels.net, self.state.device
        opened = kind.rows * kind.width
        self._pool = CandidatePool(
            kind.rows, kind.width, kind.depth, len(net.head), net.heads.chunk(kind.width, opened), device
        )
        self._ends = PassBuffers(net, kind.rows, kind.parts)
        self._levels = [PassBuffers(net, opened, kind.parts) for _ in range(min(2, kind.depth - 1))]  # taken in turns
        self._logits = torch.zeros(opened, len(net.head), device=device)
        self._both = head.kernels.embedding.new_zeros(opened, 2 * self.state.shape[1])

    def __call__(
        self,
        words: Sequence[Sequence[int]],
        numbers: Sequence[Sequence[float]],
        state: Tensor | None,
        meanwhile: Callable[[], None] | None = None,
    ) -> Int[Tensor, "rows record"]:
        """One cycle; `state` is what the head gave at the last slot of each row, where this is not what the last cycle
        left. The record of each row: accepted, next token, whether all had a law, drafted; tokens, parents, path."""
        self._inputs.load(words, numbers)
        if state is not None:
            self.state[: len(state)].copy_(state)
        return self.whole.run(meanwhile)

    def told(self, record: Sequence[list[int]]) -> list[CycleResult]:
        return told_trees(record, self.kind.nodes)

    def _all(self) -> None:
        self._first()
        self._second()

    def _first(self) -> None:
        inputs, kernels, pool, race = self._inputs, self._head.kernels, self._pool, self.kind.rule == "coupled"
        control, room = inputs.control, self._ends
        kernels.begin(room, self.state)
        for level in range(self.kind.depth):
            if level:
                layout, before = open_level(pool, level - 1, control), room.hidden
                room = self._levels[level % len(self._levels)]
                torch.index_select(before, 0, pool.source, out=room.hidden)
                kernels.step(pool.word, room, self._both, layout, self._head.held, tree=True)
            logits = self._logits[: len(room.hidden)]
            kernels.logits(room, logits)
            rank(pool, level, logits, self._head.ids, inputs.wishes, control, race)
        plant(pool, control, self._tree, self._scoring.layout)

    def _second(self) -> None:
        control, scoring, reading = self._inputs.control, self._scoring, self._reading
        scoring.run(tree=True)
        self._verify()
        for bundle in self._moved:
            carry(bundle, control, scoring.found, self._path)
        committed = CommittedTokens(reading.following, self._fused, reading.layout, reading.end)
        report(control, self._tree, self._pool.total, scoring.found, self._path, committed, self._result)
        torch.index_select(scoring.stack, 0, self._fused, out=self._stack)
        reading.run(self._stack)

    def _verify(self) -> None:
        rule, scoring, wishes, far = self.kind.rule, self._scoring, self._inputs.wishes, self._tree.far.view(-1)
        race, purpose = rule == "coupled", Purpose.FIELD if rule == "coupled" else Purpose.EMIT
        choose(scoring.laws, wishes, scoring.choice, self.kind.nodes + 1, purpose, race, far)
        if rule == "chosen":
            offer(scoring.laws, self._tree, self._inputs.control, wishes, self._room, scoring.found, self._path)
        else:
            follow(scoring.choice, self._tree, self._inputs.control, scoring.laws.best, scoring.found, self._path)
