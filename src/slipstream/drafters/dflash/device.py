"""The device form of a DFlash stack: a chain or a tree in each row, drafted by one pass of the stack.

At the end of a cycle with drafts the stack reads the committed positions: their context keys and values, and the fused
state of the last one, which the next block starts from. A cycle without drafts reads nothing.
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
from slipstream.drafters.dflash.gpu_stack import GpuStack
from slipstream.kernels.gpu.attention import Layout
from slipstream.kernels.gpu.blocks.layout import BlockLayout
from slipstream.kernels.gpu.cycle import CycleControl
from slipstream.kernels.gpu.decoder import Held, PassBuffers, logits
from slipstream.kernels.gpu.residual import ROWS, ResidualStream
from slipstream.models.cache.packing import RowSlice

if TYPE_CHECKING:
    from slipstream.drafters.dflash.drafter import Dflash
    from slipstream.models.run.torch_model import TorchModel

DEEPEST = 8  # tokens of the deepest captured chain; a smaller block has no device form


class StackState(TreeDraft):
    """The stack's part of one captured graph.

    `features`: cache tensors of the target's hidden states by layer, [rows, 1, places, hidden]."""

    def __init__(
        self, kernels: GpuStack, held: Held, features: Mapping[int, Tensor], ids: Tensor, slot_of: Tensor
    ) -> None:
        self.kernels, self.held = kernels, held
        self.features, self.feature_scale, self.ids, self.slot_of = features, kernels.scale, ids, slot_of

    def read(
        self, stacked: Float[Tensor, "slots stacked"], token: Int[Tensor, " slots"], layout: Layout, parts: int
    ) -> Float[Tensor, "slots hidden"]:
        """Write the context keys and values of positions. The tokens after them do not matter."""
        room = PassBuffers(self.kernels.net, len(stacked), 1)
        self.kernels.read(stacked, room, layout, self.held)
        return room.hidden

    def steps(self, rows: int, depth: int, parts: int, state: Tensor) -> DraftSteps:
        return BlockSteps(self, rows, depth, parts, state)

    def tree_steps(self, rows: int, width: int, depth: int, parts: int, state: Tensor) -> TreeSteps:
        return BlockTreeSteps(self, rows, width, depth, parts, state)

    def committed_read(self, rows: int, width: int, parts: int, like: Tensor) -> CommittedRead:
        return ContextRead(self, rows, width, like) if width > 1 else super().committed_read(rows, width, parts, like)


class BlockSteps:
    """The tokens of a chain in each row. The first step runs the block; a Markov head runs in every step."""

    def __init__(self, stack: StackState, rows: int, depth: int, parts: int, state: Tensor) -> None:
        self._stack, self._state = stack, state
        kernels, device = stack.kernels, state.device
        net, block = kernels.net, kernels.config.block
        # the block may reach one part of the cache further than the chain
        self._room = PassBuffers(net, rows * block, parts + 1)
        self._layout = BlockLayout.of(rows, block, net.heads.chunk(block, rows * block), device)
        self._both = kernels.embedding.new_zeros(rows, 2 * state.shape[1])
        self._index = torch.tensor([r * block + n for r in range(rows) for n in range(depth)], device=device)
        all_slots = depth == block or rows * block <= ROWS  # few or no slots beyond the chain
        self._drafted = None if all_slots else ResidualStream(rows * depth, state.shape[1], net.head)
        self.outputs = torch.zeros(rows, block if all_slots else depth, len(net.head), device=device)

    def begin(self, control: CycleControl) -> None:
        kernels = self._stack.kernels
        self._layout.lay(control)
        kernels.run(control.last, self._state, self._both, self._room, self._layout, self._stack.held)
        if self._drafted is not None:
            torch.index_select(self._room.hidden, 0, self._index, out=self._drafted.hidden)
            self._drafted.begin(kernels.net.norm)
        logits(kernels.net, self._drafted or self._room.stream, self.outputs.flatten(0, 1))

    def run(self, n: int, token: Tensor, out: Tensor) -> None:
        outputs, markov = self.outputs[:, n], self._stack.kernels.markov
        if markov is None:
            out.copy_(outputs)
        else:
            markov(outputs, token[:, n], out)


class BlockTreeSteps:
    """The tokens of a tree in each row. All nodes of a level follow from the same slot of the block, and by a Markov
    head from the token before them."""

    def __init__(self, stack: StackState, rows: int, width: int, depth: int, parts: int, state: Tensor) -> None:
        self.chunk = width
        self._last = min(depth, stack.kernels.config.block) - 1  # no row drafts beyond the block
        self._block, self._markov = BlockSteps(stack, rows, self._last + 1, parts, state), stack.kernels.markov
        self._row = torch.arange(rows * width, device=state.device) // width
        self._ends = torch.zeros(rows, 1, dtype=torch.long, device=state.device)
        self._logits = torch.zeros(rows * width, len(stack.ids), device=state.device)

    def begin(self, control: CycleControl) -> Tensor:
        self._block.begin(control)
        self._ends.copy_(control.last[:, None])
        logits = self._logits[: len(self._ends)]
        self._block.run(0, self._ends, logits)
        return logits

    def run(self, level: int, token: Tensor, source: Tensor, layout: Layout) -> Tensor:
        outputs = self._block.outputs[:, min(level, self._last)][self._row]
        if self._markov is None:
            return outputs
        self._markov(outputs, token, self._logits)
        return self._logits


class ContextRead(CommittedRead):
    """Reads the committed positions at the end of a cycle."""

    def __init__(self, stack: StackState, rows: int, width: int, like: Tensor) -> None:
        super().__init__(rows, width, stack.kernels.net.heads.chunk(width, rows * width), like)
        self._stack, self._room = stack, PassBuffers(stack.kernels.net, rows * width, 1)

    def run(self, stack: Tensor) -> None:
        self._stack.kernels.read(stack, self._room, self.layout, self._stack.held)
        torch.index_select(self._room.hidden, 0, self.end, out=self.state)


class DflashDeviceDrafter(PromptReadingDrafter):
    """A DFlash stack between captured cycles."""

    branches = True

    def __init__(self, drafter: Dflash, target: TorchModel, like: Float[Tensor, "1 hidden"]) -> None:
        self._drafter, self._target, self._like = drafter, target, like
        slots, vocabulary = drafter.slots, drafter.vocabulary
        self._kernels = GpuStack(slots.net, slots.embedding, target.context)
        self._slot_of = inverse(vocabulary.ids, vocabulary.size, target.device)
        self.max_depth = drafter.block
        self._reads = PromptReads(self._kernels.net.heads)

    @property
    def version(self) -> int:
        return self._drafter.slots.cache.version

    def places(self, row: Row) -> int:
        return self._drafter.slots.places(row) - self._drafter.block

    def make_room(self, row: Row, places: int) -> None:
        self._drafter.slots.make_room(row, places + self._drafter.block)

    def grow(self, places: int) -> None:
        self._drafter.slots.cache.grow(places)

    def part(self) -> StackState:
        slots, heads = self._drafter.slots, self._kernels.net.heads
        like = slots.embedding.new_empty(1, heads.kv_heads, 1, heads.dim)
        features = self._target.feature_places(self._drafter.needs.features, self._like)
        held = [slots.cache.layer(layer, like, like) for layer in range(slots.net.config.layers)]
        return StackState(self._kernels, held, features, self._drafter.vocabulary.ids, self._slot_of)

    def index(self, row: Row) -> int:
        return self._drafter.slots.index(row)

    def unread(self, row: Row) -> int:
        return self._drafter.slots.unread(row)

    def record_cached(self, rows: Sequence[Row], lengths: Sequence[int]) -> None:
        self._drafter.slots.record_cached(rows, lengths)

    def reader(self) -> StackState:
        return self.part()

    def take_unread(self, row: Row) -> RowSlice:
        return self._drafter.slots.take_unread(row)
