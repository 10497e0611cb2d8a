"""The device form of an EAGLE head: chains and trees.

A draft starts from the head's state at a row's last slot. At the end of a cycle with drafts the head reads the
committed tokens, so that the next cycle can start from their last slot. A cycle without drafts reads nothing: it costs
what plain decoding costs, and the next cycle with drafts first reads what was missed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.core.types import Row
from slipstream.drafters.device.interface import CommittedRead, DraftSteps, TreeDraft, TreeSteps, inverse
from slipstream.drafters.device.prompt_read import PromptReads
from slipstream.drafters.device.state_drafter import PromptReadingDrafter
from slipstream.drafters.eagle.gpu_layer import GpuEagleLayer
from slipstream.kernels.gpu.attention import Layout
from slipstream.kernels.gpu.cycle import CycleControl, chain_layout, lay_steps, part
from slipstream.kernels.gpu.decoder import Held, PassBuffers
from slipstream.models.cache.packing import RowSlice

if TYPE_CHECKING:
    from slipstream.drafters.eagle.drafter import Eagle
    from slipstream.models.run.torch_model import TorchModel


class HeadState(TreeDraft):
    """The head's part of one captured graph.

    `features`: cache tensors of the target's hidden states by layer, [rows, 1, places, hidden]."""

    def __init__(
        self, kernels: GpuEagleLayer, held: Held, features: Mapping[int, Tensor], ids: Tensor, slot_of: Tensor
    ) -> None:
        self.kernels: GpuEagleLayer = kernels
        self.held = held
        self.features, self.feature_scale, self.ids, self.slot_of = features, kernels.scale, ids, slot_of

    def read(
        self, stacked: Float[Tensor, "slots stacked"], token: Int[Tensor, " slots"], layout: Layout, parts: int
    ) -> Float[Tensor, "slots hidden"]:
        room = PassBuffers(self.kernels.net, len(stacked), parts)
        self.kernels.fuse(stacked, room.hidden)
        both = stacked.new_empty(len(stacked), 2 * room.hidden.shape[1])
        self.kernels.step(token, room, both, layout, self.held)
        return room.hidden

    def steps(self, rows: int, depth: int, parts: int, state: Tensor) -> DraftSteps:
        return HeadSteps(self, rows, depth, parts, state)

    def tree_steps(self, rows: int, width: int, depth: int, parts: int, state: Tensor) -> TreeSteps:
        return HeadTreeSteps(self, rows, width, depth, parts, state)

    def committed_read(self, rows: int, width: int, parts: int, like: Tensor) -> CommittedRead:
        drafts = width > 1
        return HeadRead(self, rows, width, parts, like) if drafts else super().committed_read(rows, width, parts, like)


class HeadSteps:
    """The steps of a chain in each row."""

    def __init__(self, head: HeadState, rows: int, depth: int, parts: int, state: Tensor) -> None:
        self._head, self._rows, self._depth, self._state = head, rows, depth, state
        self._room = PassBuffers(head.kernels.net, rows, parts)
        self._layout = chain_layout(rows * max(1, depth - 1), 1, 1, state.device)
        self._both = head.kernels.embedding.new_zeros(rows, 2 * state.shape[1])

    def begin(self, control: CycleControl) -> None:
        if self._depth > 1:
            lay_steps(control, self._depth - 1, self._layout)
        self._head.kernels.begin(self._room, self._state)

    def run(self, n: int, token: Tensor, out: Tensor) -> None:
        kernels = self._head.kernels
        if n:
            layout = part(self._layout, (n - 1) * self._rows, self._rows)
            kernels.step(token[:, n:], self._room, self._both, layout, self._head.held, token.shape[1])
        kernels.logits(self._room, out)


class HeadTreeSteps:
    """The steps of a tree in each row."""

    def __init__(self, head: HeadState, rows: int, width: int, depth: int, parts: int, state: Tensor) -> None:
        self._head, self._state = head, state
        net, opened = head.kernels.net, rows * width
        self.chunk = net.heads.chunk(width, opened)
        self._ends = PassBuffers(net, rows, parts)
        self._levels = [PassBuffers(net, opened, parts) for _ in range(min(2, depth - 1))]  # taken in turns
        self._logits = torch.zeros(opened, len(net.head), device=state.device)
        self._both = head.kernels.embedding.new_zeros(opened, 2 * state.shape[1])

    def begin(self, control: CycleControl) -> Tensor:
        self._room = self._ends
        self._head.kernels.begin(self._room, self._state)
        return self._read()

    def run(self, level: int, token: Tensor, source: Tensor, layout: Layout) -> Tensor:
        before, self._room = self._room.hidden, self._levels[level % len(self._levels)]
        torch.index_select(before, 0, source, out=self._room.hidden)
        self._head.kernels.step(token, self._room, self._both, layout, self._head.held, tree=True)
        return self._read()

    def _read(self) -> Tensor:
        logits = self._logits[: len(self._room.hidden)]
        self._head.kernels.logits(self._room, logits)
        return logits


class HeadRead(CommittedRead):
    """Reads the committed tokens at the end of a cycle."""

    def __init__(self, head: HeadState, rows: int, width: int, parts: int, like: Tensor) -> None:
        super().__init__(rows, width, head.kernels.net.heads.chunk(width, rows * width), like)
        self._head = head
        self._room = PassBuffers(head.kernels.net, rows * width, parts)
        self._both = like.new_zeros(rows * width, 2 * like.shape[1])

    def run(self, stack: Tensor) -> None:
        self._head.kernels.fuse(stack, self._room.hidden)
        self._head.kernels.step(self.following, self._room, self._both, self.layout, self._head.held)
        torch.index_select(self._room.hidden, 0, self.end, out=self.state)


class EagleDeviceDrafter(PromptReadingDrafter):
    """An EAGLE head between captured cycles."""

    branches = True

    def __init__(self, drafter: Eagle, target: TorchModel, like: Float[Tensor, "1 hidden"]) -> None:
        self._drafter, self._target, self._like = drafter, target, like
        slots, vocabulary = drafter.slots, drafter.vocabulary
        self._kernels = GpuEagleLayer(slots.net, slots.embedding, target.context)
        self._slot_of = inverse(vocabulary.ids, vocabulary.size, target.device)
        self._reads = PromptReads(self._kernels.net.heads)

    @property
    def version(self) -> int:
        return self._drafter.slots.cache.version

    def places(self, row: Row) -> int:
        return self._drafter.slots.places(row)

    def make_room(self, row: Row, places: int) -> None:
        self._drafter.slots.make_room(row, places)

    def grow(self, places: int) -> None:
        self._drafter.slots.cache.grow(places)

    def part(self) -> HeadState:
        slots, heads = self._drafter.slots, self._kernels.net.heads
        like = slots.embedding.new_empty(1, heads.kv_heads, 1, heads.dim)
        features = self._target.feature_places(self._drafter.needs.features, self._like)
        held = [slots.cache.layer(0, like, like)]
        return HeadState(self._kernels, held, features, self._drafter.vocabulary.ids, self._slot_of)

    def index(self, row: Row) -> int:
        return self._drafter.slots.index(row)

    def unread(self, row: Row) -> int:
        return self._drafter.slots.unread(row)

    def record_cached(self, rows: Sequence[Row], lengths: Sequence[int]) -> None:
        self._drafter.slots.record_cached(rows, lengths)

    def reader(self) -> HeadState:
        return self.part()

    def take_unread(self, row: Row) -> RowSlice:
        return self._drafter.slots.take_unread(row)
