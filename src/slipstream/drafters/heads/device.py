"""The device form of medusa, mlp and prophet: a chain or a tree in each row, drafted from the target's own states.

The heads keep no cache. The target's states are in its feature cache, which the score pass of a captured cycle writes.
The tokens beside them are kept on the device as a window for each row: the host sends it with a cycle that it starts,
and a cycle moves it on for the next one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.core.types import Budget, Row
from slipstream.drafters.device.interface import (
    CommittedRead,
    DeviceDrafter,
    DraftSteps,
    TreeDraft,
    TreeSteps,
    inverse,
)
from slipstream.kernels.gpu.attention import Layout
from slipstream.kernels.gpu.cycle import CycleControl

if TYPE_CHECKING:
    from slipstream.drafters.heads.drafter import HeadsDrafter
    from slipstream.models.run.torch_model import TorchModel


class HeadsState(TreeDraft):
    """The heads' part of one captured graph.

    `features`: cache tensors of the target's hidden states by layer, [rows, 1, places, hidden]."""

    def __init__(self, drafter: HeadsDrafter, features: Mapping[int, Tensor], slot_of: Tensor) -> None:
        self.drafter, self.features, self.slot_of = drafter, features, slot_of
        self.ids = drafter.vocabulary.ids.to(slot_of.device)
        self.feature_scale = torch.ones(len(features), device=slot_of.device)

    def steps(self, rows: int, depth: int, parts: int, state: Tensor) -> DraftSteps:
        return StateHeadSteps(self, rows, depth, state)

    def tree_steps(self, rows: int, width: int, depth: int, parts: int, state: Tensor) -> TreeSteps:
        return StateHeadTreeSteps(self, rows, width, depth, state)

    def committed_read(self, rows: int, width: int, parts: int, like: Tensor) -> CommittedRead:
        if width == 1:
            return super().committed_read(rows, width, parts, like)
        return TokenWindow(rows, width, self.drafter.net.window, like)


class StateHeadSteps:
    """The tokens of a chain in each row. Heads that see no drafted token all run before the first one."""

    def __init__(self, part: HeadsState, rows: int, depth: int, window: Float[Tensor, "rows window"]) -> None:
        self._part, self._rows, self._window = part, rows, window
        net, device = part.drafter.net, window.device
        self._heads = min(depth, net.config.heads)
        self._offset = torch.arange(window.shape[1], device=device) - window.shape[1] - 1
        self._parallel = net.parallel
        sample = next(iter(part.features.values()))
        self.state = sample.new_zeros(rows, net.inner)
        shape = (self._heads if self._parallel else 1) * rows, len(part.drafter.vocabulary.ids)
        self.logits = torch.zeros(shape, device=device)

    def begin(self, control: CycleControl) -> None:
        drafter = self._part.drafter
        place = control.start[:, None] + self._offset  # of the window, up to the last position that the target has read
        where = 0, 0, control.row[:, None] + place.clamp(min=0)
        features = torch.cat([held[where] for held in self._part.features.values()], -1)
        length = (control.start - 1).clamp(max=self._window.shape[1])
        embedded = functional.embedding(self._window.long(), drafter.embedding)
        state = drafter.net.end_states(features, embedded, length)
        self.state.copy_(state)
        if self._parallel:
            vectors = torch.cat([drafter.net.vector(state, head) for head in range(self._heads)])
            self.logits.copy_(drafter.logits(vectors))

    def run(self, n: int, token: Int[Tensor, "rows width"], out: Float[Tensor, "rows draft_vocab"]) -> None:
        drafter, head = self._part.drafter, min(n, self._heads - 1)  # no row drafts beyond the last head
        if self._parallel:
            out.copy_(self.logits[head * self._rows : (head + 1) * self._rows])
            return
        if n:
            embedded = functional.embedding(token[:, n], drafter.embedding)
            self.state.copy_(drafter.net.step(self.state, embedded, head))
        out.copy_(drafter.logits(drafter.net.vector(self.state, head)))


class StateHeadTreeSteps:
    """The tokens of a tree in each row."""

    def __init__(self, part: HeadsState, rows: int, width: int, depth: int, window: Tensor) -> None:
        self.chunk = width
        self._part, self._rows, self._chain = part, rows, StateHeadSteps(part, rows, depth, window)
        self._last = min(depth, part.drafter.net.config.heads) - 1  # no row drafts beyond the last head
        self._row = torch.arange(rows * width, device=window.device) // width
        self._ends = torch.zeros(rows, len(part.ids), device=window.device)

    def begin(self, control: CycleControl) -> Tensor:
        self._chain.begin(control)
        self._states = self._chain.state  # of the open nodes of the level before
        self._chain.run(0, control.last[:, None], self._ends)
        return self._ends

    def run(self, level: int, token: Tensor, source: Tensor, layout: Layout) -> Tensor:
        drafter, head = self._part.drafter, min(level, self._last)
        if drafter.net.parallel:
            return self._chain.logits[head * self._rows + self._row]
        embedded = functional.embedding(token, drafter.embedding)
        self._states = drafter.net.step(self._states[source], embedded, head)
        return drafter.logits(drafter.net.vector(self._states, head))


class TokenWindow(CommittedRead):
    """The last tokens of each row, as floats like every start state. A cycle appends the tokens that it commits."""

    def __init__(self, rows: int, width: int, window: int, like: Float[Tensor, "1 hidden"]) -> None:
        super().__init__(rows, width, 1, like)
        self._width = width
        self.state = torch.zeros(rows, window, device=like.device)
        self._first = torch.arange(0, rows * width, width, device=like.device)
        self._at = torch.arange(window, device=like.device)

    def run(self, stack: Tensor) -> None:
        both = torch.cat([self.state, self.following.view(-1, self._width).to(self.state.dtype)], 1)
        count = self.end - self._first + 1
        self.state.copy_(both.gather(1, self._at + count[:, None]))


class HeadsDeviceDrafter(DeviceDrafter):
    """Heads between captured cycles."""

    branches = True

    def __init__(self, drafter: HeadsDrafter, target: TorchModel, like: Float[Tensor, "1 hidden"]) -> None:
        self._drafter, self._target, self._like = drafter, target, like
        self._slot_of = inverse(drafter.vocabulary.ids, drafter.vocabulary.size, target.device)
        self.max_depth = drafter.net.config.heads

    def part(self) -> HeadsState:
        layers = self._drafter.net.config.features
        return HeadsState(self._drafter, self._target.feature_places(layers, self._like), self._slot_of)

    def begin(self, rows: Sequence[Row], budget: Sequence[Budget], cycle: Any) -> tuple[Tensor | None, int]:
        if not cycle.key.depth:
            return None, 0
        size = self._drafter.net.window
        windows = [([0] * size + list(row.tokens[-size:]))[-size:] for row in rows]
        return torch.tensor(windows, dtype=torch.float32), 0
