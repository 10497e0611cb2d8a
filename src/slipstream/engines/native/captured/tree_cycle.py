"""A captured cycle that drafts a tree. Its reference is the ordinary cycle of `Batch`.

The head runs over the most likely open nodes of each row, one level at a time. The most likely nodes of all levels form
the draft (`kernels.gpu.tree`). The target scores them in one pass. The cache entries of the accepted path move to the
places after the committed ones, and the head reads the path (`kernels.gpu.path`). Rows that draft a chain or nothing
are trees of width 1 or without nodes.

The draft is the one that `drafters.growth.TopTreeGrowth` grows, in its order. Under `coupled`, tokens are weighted by
the odds that they win the race given the noise of their position (`Noise.odds`). End tokens are unknown here, so nodes
may follow one; the ordinary path drafts none there. No law changes, and under `greedy` and `coupled` no token does.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from slipstream.core.array_types import Tensor
from slipstream.core.device import DeviceVerdict, GraphKey
from slipstream.core.noise import Purpose
from slipstream.drafters.device.interface import TreeDraft
from slipstream.engines.native.captured.parts import CapturedCycle, CycleInputs, PendingRecord, ScorePass
from slipstream.engines.native.captured.result import CycleResult, told_trees
from slipstream.kernels.gpu.decoder import Held, PassBuffers
from slipstream.kernels.gpu.path import CacheBundle, CommittedTokens, carry, follow, offer, report
from slipstream.kernels.gpu.sample import choose
from slipstream.kernels.gpu.tree import CandidatePool, PackedTree, open_level, plant, rank
from slipstream.models.run.gpu.passes import GpuPasses


class TreeCycle:
    """The buffers of one kind of cycle, and its graph."""

    def __init__(self, key: GraphKey, target: GpuPasses, held: Held, head: TreeDraft) -> None:
        self.key, self._head = key, head
        rows, slots, device = key.rows, key.nodes + 1, target.like.device
        self._inputs = CycleInputs(rows, device)
        self._scoring = ScorePass(target, held, head, rows, slots, key.parts, tree=True)
        parent, far = torch.zeros(2, rows, slots, dtype=torch.long, device=device)
        self._tree = PackedTree(self._scoring.token, parent, far)
        self._path = torch.full((rows, key.depth), -1, device=device)
        self._room = torch.zeros(rows, dtype=torch.long, device=device), torch.zeros_like(far)
        self._moved = [CacheBundle([part for both in held for part in both]), CacheBundle(list(head.features.values()))]
        self._reading = head.committed_read(rows, key.depth + 1, key.parts, target.like)
        self._fused = torch.zeros_like(self._reading.following)
        self._stack = self._scoring.stack.new_zeros(len(self._fused), self._scoring.stack.shape[1])
        self._result = torch.zeros(rows, 2 + 2 * slots + key.depth, dtype=torch.long, device=device)
        self.state = self._reading.state
        self._prepare(head)
        self.whole = CapturedCycle(self._all, self._result)

    def _prepare(self, head: TreeDraft) -> None:
        key, net, device = self.key, head.kernels.net, self.state.device
        opened = key.rows * key.width
        self._pool = CandidatePool(
            key.rows, key.width, key.depth, len(net.head), net.heads.chunk(key.width, opened), device
        )
        self._ends = PassBuffers(net, key.rows, key.parts)
        self._levels = [PassBuffers(net, opened, key.parts) for _ in range(min(2, key.depth - 1))]  # taken in turns
        self._logits = torch.zeros(opened, len(net.head), device=device)
        self._both = head.kernels.embedding.new_zeros(opened, 2 * self.state.shape[1])

    repeats = True  # the next cycle of the same rows needs nothing from the host

    @property
    def columns(self) -> int:
        """Numbers of each row in the record: accepted, next token, whether all had a law, drafted; tokens, parents,
        path."""
        return self._result.shape[1]

    def launch(
        self, words: Sequence[Sequence[int]], numbers: Sequence[Sequence[float]], state: Tensor | None
    ) -> PendingRecord:
        """One cycle; `state` is what the head gave at the last slot of each row, where this is not what the last cycle
        left."""
        self._inputs.load(words, numbers)
        if state is not None:
            self.state[: len(state)].copy_(state)
        return self.whole.launch()

    def told(self, record: Sequence[list[int]]) -> list[CycleResult]:
        return told_trees(record, self.key.nodes)

    def _all(self) -> None:
        self._first()
        self._second()

    def _first(self) -> None:
        inputs, kernels, pool, race = self._inputs, self._head.kernels, self._pool, self.key.rule.shared
        control, room = inputs.control, self._ends
        kernels.begin(room, self.state)
        for level in range(self.key.depth):
            if level:
                layout, before = open_level(pool, level - 1, control), room.hidden
                room = self._levels[level % len(self._levels)]
                torch.index_select(before, 0, pool.source, out=room.hidden)
                kernels.step(pool.word, room, self._both, layout, self._head.held, tree=True)
            logits = self._logits[: len(room.hidden)]
            kernels.logits(room, logits)
            rank(pool, level, logits, self._head.ids, inputs.sampling, control, race)
        plant(pool, control, self._tree, self._scoring.layout)

    def _second(self) -> None:
        control, scoring, reading = self._inputs.control, self._scoring, self._reading
        scoring.run(tree=True)
        self._verify()
        for bundle in self._moved:
            carry(bundle, control, scoring.verdict, self._path)
        committed = CommittedTokens(reading.following, self._fused, reading.layout, reading.end)
        report(control, self._tree, self._pool.total, scoring.verdict, self._path, committed, self._result)
        torch.index_select(scoring.stack, 0, self._fused, out=self._stack)
        reading.run(self._stack)

    def _verify(self) -> None:
        rule, scoring, sampling, far = self.key.rule, self._scoring, self._inputs.sampling, self._tree.far.view(-1)
        purpose = Purpose.FIELD if rule.shared else Purpose.EMIT
        choose(scoring.laws, sampling, scoring.choice, self.key.nodes + 1, purpose, rule.shared, far)
        if rule.verdict is DeviceVerdict.OFFER:
            offer(scoring.laws, self._tree, self._inputs.control, sampling, self._room, scoring.verdict, self._path)
        else:
            follow(scoring.choice, self._tree, self._inputs.control, scoring.laws.best, scoring.verdict, self._path)
