"""A captured cycle that drafts a tree. Its reference is the ordinary cycle of `Batch`.

The drafter runs over the most likely open nodes of each row, one level at a time. The most likely nodes of all levels
form the draft (`kernels.gpu.tree`). The target scores them in one pass. The cache entries of the accepted path move to
the places after the committed ones, and the drafter reads the path (`kernels.gpu.path`). Rows that draft a chain or
nothing are trees of width 1 or without nodes.

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
from slipstream.kernels.gpu.decoder import Held
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
        self._steps = head.tree_steps(rows, key.width, key.depth, key.parts, self.state)
        self._pool = CandidatePool(rows, key.width, key.depth, len(head.ids), self._steps.chunk, device)
        self.whole = CapturedCycle(self._all, self._result)

    repeats = True  # the next cycle of the same rows needs nothing from the host

    @property
    def columns(self) -> int:
        """Numbers of each row in the record: accepted, next token, whether all had a law, drafted; tokens, parents,
        path."""
        return self._result.shape[1]

    def launch(
        self, words: Sequence[Sequence[int]], numbers: Sequence[Sequence[float]], state: Tensor | None
    ) -> PendingRecord:
        """One cycle; `state` is what the drafter starts from in each row, unless the last cycle left it."""
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
        inputs, pool, race = self._inputs, self._pool, self.key.rule.shared
        control = inputs.control
        logits = self._steps.begin(control)
        for level in range(self.key.depth):
            if level:
                layout = open_level(pool, level - 1, control)
                logits = self._steps.run(level, pool.word, pool.source, layout)
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
