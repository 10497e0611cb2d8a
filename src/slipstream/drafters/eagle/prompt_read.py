"""Passes of an EAGLE head over slots that it has not read, which are most often prompts.

A pass is captured as a CUDA graph when its size is met for the second time: it has few kernels, and they take longer to
launch than to run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.core.device import next_power_of_two
from slipstream.kernels.gpu.decoder import PassBuffers
from slipstream.models.cache.packing import RowSlice
from slipstream.models.run.gpu.graphs import capture
from slipstream.models.run.gpu.pass_sizes import EVEN, LARGER, PROMPTS, chunks_of, parts_of
from slipstream.models.run.gpu.pass_table import COLUMNS, layout_of, table_of

if TYPE_CHECKING:
    from slipstream.drafters.eagle.device import HeadState

MAX_SLOTS = LARGER[-1]  # slots that a head reads in one pass
SIZES = (16, 32, 64, 128, *LARGER)  # slots of a pass
ONCE = 1  # uncaptured passes of a size before it is captured


class ReadKey(NamedTuple):
    """The size of a pass."""

    slots: int
    rows: int
    chunk: int
    chunks: int
    parts: int


class PromptReads:
    """The passes of one head. Graphs hold the addresses of caches, so they are dropped when these move."""

    def __init__(self) -> None:
        self.graphs: dict[ReadKey, PromptRead] = {}
        self._met: Counter[ReadKey] = Counter()
        self._version: tuple[int, int] | None = None  # of the caches whose addresses the graphs hold
        self._pool: Any = None  # the memory that all graphs share, since they run one after the other

    def read(
        self, head: HeadState, version: tuple[int, int], pieces: Sequence[RowSlice], rows: Sequence[int]
    ) -> Float[Tensor, "pieces hidden"]:
        """The head's state at the last slot of each piece. `rows`: the pieces' rows in the target's cache."""
        if version != self._version:
            self.graphs.clear()
            self._version = version
        key, table = _sized(head, pieces)
        run = self.graphs.get(key)
        if run is None:
            recorded = self._met[key] >= ONCE and key.slots <= MAX_SLOTS
            run = PromptRead(head, key, recorded, self._pool)
            if recorded:
                self.graphs[key], self._pool = run, run.pool
            self._met[key] += 1
        sizes = list(map(len, pieces))
        owner = np.zeros(key.slots + key.rows, np.int64)  # padding reads row 0; then the last slots
        owner[: sum(sizes)] = np.repeat(rows, sizes)
        owner[key.slots : key.slots + len(rows)] = np.cumsum(sizes) - 1
        return run(table, torch.from_numpy(owner))[: len(rows)].clone()


def _sized(head: HeadState, pieces: Sequence[RowSlice]) -> tuple[ReadKey, Int[Tensor, "columns slots"]]:
    """The size of a pass over these slots, and its table."""
    count = sum(map(len, pieces))
    slots = next((size for size in SIZES if count <= size), -(-count // EVEN) * EVEN)
    chunk = head.kernels.net.heads.chunk(slots, slots)
    table, chunks = table_of(pieces, slots, chunk)
    parts = parts_of(max(piece.line.start + len(piece.line) for piece in pieces))
    rows = next_power_of_two(max(PROMPTS, len(pieces)))
    return ReadKey(slots, rows, chunk, chunks_of(chunks, slots, chunk), parts), table


class PromptRead:
    """A pass of one size: what it reads from and, where it is recorded, a graph over it."""

    def __init__(self, head: HeadState, key: ReadKey, recorded: bool, pool: Any = None) -> None:
        kernels = head.kernels
        device = kernels.embedding.device
        self._head, self._key = head, key
        self._table = torch.zeros(COLUMNS, key.slots, dtype=torch.long, device=device)
        self._table[2] = -1  # place -1: the warm-up runs of a capture write nothing
        self._owner = torch.zeros(key.slots + key.rows, dtype=torch.long, device=device)
        self._state = torch.empty(key.rows, kernels.embedding.shape[1], device=device)
        self._replay: Callable[[], None] = self._run
        self.pool = pool
        if device.type == "cuda" and recorded:
            self.pool = pool or torch.cuda.graph_pool_handle()
            self._replay = capture(self._run, self.pool)

    def __call__(
        self, table: Int[Tensor, "columns slots"], owner: Int[Tensor, " slots_and_rows"]
    ) -> Float[Tensor, "rows hidden"]:
        self._table.copy_(table, non_blocking=True)
        self._owner.copy_(owner, non_blocking=True)
        self._replay()
        return self._state

    def _run(self) -> None:
        head, (slots, _, chunk, chunks, parts) = self._head, self._key
        kernels, row, ends = head.kernels, self._owner[:slots], self._owner[slots:]
        layout = layout_of(self._table, chunk, chunks)
        states = [held[row, 0, layout.place] for held in head.features.values()]
        scaled = [state * scale for state, scale in zip(states, kernels.scale.to(states[0].dtype), strict=True)]
        room = PassBuffers(kernels.net, slots, parts)
        kernels.fuse(torch.cat(scaled, -1), room.hidden)
        both = states[0].new_empty(slots, 2 * room.hidden.shape[1])
        kernels.step(self._table[-1], room, both, layout, head.held)
        torch.index_select(room.hidden, 0, ends, out=self._state)
