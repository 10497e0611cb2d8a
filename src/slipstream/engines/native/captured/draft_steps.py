"""A drafter's side of a captured cycle: the steps of a chain, and what is read once the verdict is there.

An eagle head steps from the state it gave at a row's last slot, and reads what was committed at the end of a cycle, so
that the next can begin there. A draft model reads the last two committed tokens in its first step: the last one it has
never read, and the one before it not where its whole draft was accepted. What the host drafted is only laid down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol, runtime_checkable

import torch

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.drafters.eagle.gpu_layer import GpuEagleLayer
from slipstream.kernels.gpu.cycle import CycleControl, chain_layout, lay, lay_steps, part
from slipstream.kernels.gpu.decoder import Held, PassBuffers
from slipstream.models.run.gpu_passes import GpuPasses, layout_of, parts_of, size_of, table_of
from slipstream.models.run.packing import RowSlice


@dataclass(frozen=True, eq=False)
class HeadState:
    """An eagle head."""

    kernels: GpuEagleLayer
    held: Held
    features: dict[int, Tensor]  # where the target's states are kept, by layer, [rows, 1, places, hidden]
    ids: Tensor  # its vocabulary
    slot_of: Tensor  # and back: -1 where a token cannot be drafted

    def steps(self, rows: int, depth: int, parts: int, state: Tensor) -> DraftSteps:
        return HeadSteps(self, rows, depth, parts, state)


@dataclass(frozen=True, eq=False)
class DraftModelState:
    """A draft model."""

    passes: GpuPasses
    held: Held
    ids: Tensor
    slot_of: Tensor

    def steps(self, rows: int, depth: int, parts: int, state: Tensor) -> DraftSteps:
        return DraftModelSteps(self, rows, depth, parts)


@dataclass(frozen=True)
class HostDraft:
    """What the host drafted, token by token and sure of each."""


@runtime_checkable
class DraftSteps(Protocol):
    """A chain in each row, one token after the other."""

    def begin(self, control: CycleControl) -> None: ...

    def run(self, n: int, token: Int[Tensor, "rows width"], out: Float[Tensor, "rows draft_vocab"]) -> None:
        """Logits after the n-th of these tokens: the committed end, then what was drafted."""


class HeadSteps:
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


class DraftModelSteps:
    def __init__(self, partner: DraftModelState, rows: int, depth: int, parts: int) -> None:
        passes, device = partner.passes, partner.passes.like.device
        self._partner, self._rows, self._depth = partner, rows, depth
        self._pair, self._one = passes.passing(2 * rows, parts), passes.passing(rows, parts)
        self._ends = torch.zeros(rows, 2, dtype=torch.long, device=device)
        self._far = torch.zeros(rows, dtype=torch.long, device=device)
        self._layout = chain_layout(rows, 2, passes.heads.chunk(2, 2 * rows), device)
        self._after = chain_layout(rows * max(1, depth - 1), 1, 1, device)
        self._last = torch.arange(1, 2 * rows, 2, device=device)
        self._token = torch.zeros(rows, dtype=torch.long, device=device)
        wide = passes.vocab != len(partner.ids)
        self._wide = torch.zeros(rows, passes.vocab, device=device) if wide else None

    def begin(self, control: CycleControl) -> None:
        """Rows that draft read their last two tokens, one place before where a target begins; then what was drafted
        lies at its own place of the text, one beyond a head's slots."""
        drafting = torch.where(control.depth > 0, 1, -1)
        before = control.of_draft(control.start - 1, drafting, control.before)
        lay(before, self._ends, self._far, self._layout)
        self._ends[:, 1].copy_(control.last)
        if self._depth > 1:
            lay_steps(control.of_draft(control.start + 1, control.depth, control.last), self._depth - 1, self._after)

    def run(self, n: int, token: Tensor, out: Tensor) -> None:
        partner, span, rows = self._partner, (0, self._partner.passes.layers), self._rows
        target = out if self._wide is None else self._wide
        if n:
            self._token.copy_(token[:, n])
            layout = part(self._after, (n - 1) * rows, rows)
            self._one.run(self._token, layout, partner.held, span, {}, False, target)
        else:
            self._pair.run(self._ends.view(-1), self._layout, partner.held, span, {}, False, target, self._last)
        if self._wide is not None:
            out.copy_(self._wide[:, : out.shape[1]])


class HeadUpdate:
    """The head reads what was committed, up to `width` tokens of each row, so that the next draft begins there."""

    def __init__(self, head: HeadState | None, rows: int, width: int, parts: int, like: Tensor) -> None:
        self._head, device = head, like.device
        self.following = torch.zeros(rows * width, dtype=torch.long, device=device)
        self.end = torch.zeros(rows, dtype=torch.long, device=device)
        chunk = head.kernels.net.heads.chunk(width, rows * width) if head else 1
        self.layout = chain_layout(rows, width, chunk, device)
        self.state = torch.zeros(rows, like.shape[1], device=device)
        if head is not None:
            self._room = PassBuffers(head.kernels.net, rows * width, parts)
            self._both = like.new_zeros(rows * width, 2 * like.shape[1])

    def run(self, stack: Tensor) -> None:
        if self._head is None:
            return
        self._head.kernels.fuse(stack, self._room.hidden)
        self._head.kernels.step(self.following, self._room, self._both, self.layout, self._head.held)
        torch.index_select(self._room.hidden, 0, self.end, out=self.state)


def read_slots(head: HeadState, pieces: Sequence[RowSlice], rows: Sequence[int]) -> Float[Tensor, "pieces hidden"]:
    """What the head gives at the last of each piece's slots, all of which it reads now, not captured; `rows` say where
    they lie in the target's cache."""
    kernels, sizes = head.kernels, list(map(len, pieces))
    device, tokens = kernels.embedding.device, size_of(sum(sizes), 0)
    chunk = kernels.net.heads.chunk(max(sizes), tokens)
    table = table_of(pieces, tokens, chunk).to(device, non_blocking=True)
    layout = layout_of(table, chunk, sum(-(-size // chunk) for size in sizes))
    owner = [row for row, size in zip(rows, sizes, strict=True) for _ in range(size)]
    index = torch.tensor([*owner, *[0] * (tokens - len(owner)), *(end - 1 for end in accumulate(sizes))])
    index = index.to(device, non_blocking=True)
    row, ends = index[:tokens], index[tokens:]
    states = [held[row, 0, layout.place] for held in head.features.values()]
    scaled = [state * scale for state, scale in zip(states, kernels.scale.to(states[0].dtype), strict=True)]
    room = PassBuffers(kernels.net, tokens, parts_of(max(piece.line.start + len(piece.line) for piece in pieces)))
    kernels.fuse(torch.cat(scaled, -1), room.hidden)
    kernels.step(table[-1], room, states[0].new_empty(tokens, 2 * room.hidden.shape[1]), layout, head.held)
    return room.hidden[ends]
