"""Passes of a drafter over slots that it has not read, which are most often prompts.

Slot t reads the target's hidden states of position t and, in an EAGLE head, the token after it. A pass is captured as a
CUDA graph when its size is met for the second time: it has few kernels, and they take longer to launch than to run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.core.device import next_power_of_two
from slipstream.kernels.gpu.attention import AttentionHeads, Layout
from slipstream.models.cache.packing import RowSlice
from slipstream.models.run.gpu.graphs import capture
from slipstream.models.run.gpu.pass_sizes import EVEN, LARGER, PROMPTS, chunks_of, parts_of
from slipstream.models.run.gpu.pass_table import COLUMNS, layout_of, table_of

MAX_SLOTS = LARGER[-1]  # slots that are read in one pass
READ_SIZES = (16, 32, 64, 128, *LARGER)  # slots of a pass
ONCE = 1  # uncaptured passes of a size before it is captured


@runtime_checkable
class StateReader(Protocol):
    """A drafter's part of captured graphs that can read slots in a pass of their own."""

    @property
    def features(self) -> Mapping[int, Tensor]:
        """The target's hidden states by layer, [1, 1, places, hidden]."""

    @property
    def feature_scale(self) -> Tensor | None:
        """The factor of each layer's states."""

    def read(
        self, stacked: Float[Tensor, "slots stacked"], token: Int[Tensor, " slots"], layout: Layout, parts: int
    ) -> Float[Tensor, "slots hidden"]:
        """Read slots from the target's scaled states, concatenated per position. Returns the drafter's states there."""


class ReadKey(NamedTuple):
    """The size of a pass."""

    slots: int
    rows: int
    chunk: int
    chunks: int
    parts: int


class PromptReads:
    """The passes of one drafter. Graphs hold the addresses of caches, so they are dropped when these move.

    `heads`: of the drafter's attention."""

    def __init__(self, heads: AttentionHeads) -> None:
        self._heads = heads
        self.graphs: dict[ReadKey, PromptRead] = {}
        self._met: Counter[ReadKey] = Counter()
        self._version: tuple[int, int] | None = None  # of the caches whose addresses the graphs hold
        self._pool: Any = None  # the memory that all graphs share, since they run one after the other

    def read(
        self, reader: StateReader, version: tuple[int, int], pieces: Sequence[RowSlice], rows: Sequence[int]
    ) -> Float[Tensor, "pieces hidden"]:
        """The drafter's state at the last slot of each piece. `rows`: the pieces' rows in the target's cache."""
        states, begin = list[Tensor](), 0
        while begin < len(rows):
            end, slots = begin + 1, len(pieces[begin])
            while end < len(rows) and slots + len(pieces[end]) <= MAX_SLOTS:
                slots, end = slots + len(pieces[end]), end + 1
            states.append(self._pass(reader, version, pieces[begin:end], rows[begin:end]))
            begin = end
        return torch.cat(states)

    def _pass(
        self, reader: StateReader, version: tuple[int, int], pieces: Sequence[RowSlice], rows: Sequence[int]
    ) -> Float[Tensor, "pieces hidden"]:
        if version != self._version:
            self.graphs.clear()
            self._version, self._pool = version, None  # without graphs, their memory is gone
        key, table = _sized(self._heads, pieces)
        run = self.graphs.get(key)
        if run is None:
            recorded = self._met[key] >= ONCE and key.slots <= MAX_SLOTS
            run = PromptRead(reader, key, recorded, self._pool)
            if recorded:
                self.graphs[key], self._pool = run, run.pool
            self._met[key] += 1
        sizes = list(map(len, pieces))
        owner = np.zeros(key.slots + key.rows, np.int64)  # padding reads place 0; then the last slots
        owner[: sum(sizes)] = np.repeat(rows, sizes)
        owner[key.slots : key.slots + len(rows)] = np.cumsum(sizes) - 1
        return run(table, torch.from_numpy(owner))[: len(rows)].clone()


def _sized(heads: AttentionHeads, pieces: Sequence[RowSlice]) -> tuple[ReadKey, Int[Tensor, "columns slots"]]:
    """The size of a pass over these slots, and its table."""
    count = sum(map(len, pieces))
    slots = next((size for size in READ_SIZES if count <= size), -(-count // EVEN) * EVEN)
    chunk = heads.chunk(slots, slots)
    table, chunks = table_of(pieces, slots, chunk)
    parts = parts_of(max(piece.line.start + len(piece.line) for piece in pieces))
    rows = next_power_of_two(max(PROMPTS, len(pieces)))
    return ReadKey(slots, rows, chunk, chunks_of(chunks, slots, chunk), parts), table


class PromptRead:
    """A pass of one size: what it reads from and, where it is recorded, a graph over it."""

    def __init__(self, reader: StateReader, key: ReadKey, recorded: bool, pool: Any = None) -> None:
        like = next(iter(reader.features.values()))
        device, self._reader, self._key = like.device, reader, key
        self._table = torch.zeros(COLUMNS, key.slots, dtype=torch.long, device=device)
        self._table[2] = -1  # place -1: the warm-up runs of a capture write nothing
        self._owner = torch.zeros(key.slots + key.rows, dtype=torch.long, device=device)
        self._state = torch.empty(key.rows, like.shape[-1], device=device)
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
        reader, (slots, _, chunk, chunks, parts) = self._reader, self._key
        row, ends, layout = self._owner[:slots], self._owner[slots:], layout_of(self._table, chunk, chunks)
        states = [held[0, 0, (row + layout.place).clamp(min=0)] for held in reader.features.values()]
        assert reader.feature_scale is not None, "a drafter that reads states says how large they are"
        scale = reader.feature_scale.to(states[0].dtype)
        stacked = torch.cat([state * factor for state, factor in zip(states, scale, strict=True)], -1)
        hidden = reader.read(stacked, self._table[-1], layout, parts)
        torch.index_select(hidden, 0, ends, out=self._state)
