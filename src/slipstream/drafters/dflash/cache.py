"""The KV cache of the DFlash stack, and the stack's passes over it.

A row of n committed tokens has n - 1 context positions, whose keys and values depend on the target's states alone. A
block is written after them and is overwritten by the next one, so a rejection needs no roll-back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from slipstream.core.array_types import Float, Tensor
from slipstream.core.interfaces import TargetFeatures
from slipstream.core.types import Row
from slipstream.drafters.dflash.cpu_stack import cpu_stack
from slipstream.drafters.dflash.network import DflashNet
from slipstream.models.cache.packing import RowEntries, RowSlice
from slipstream.models.cache.tensors import KVCache, row_places
from slipstream.models.run.attention import view

LAG = 32  # unread positions of a row above which `catch_up` reads them
CHUNK = 512  # committed positions of a row per pass


@dataclass(eq=False)
class BlockRow:
    """A row's first place in the cache, its cached context positions, and the fused state of the last one."""

    index: int
    held: int = 0
    state: Float[Tensor, "1 hidden"] | None = None


class BlockCache:
    """The stack with its KV cache. `embedding`: the target's."""

    def __init__(self, net: DflashNet, embedding: Float[Tensor, "vocab hidden"], target: TargetFeatures) -> None:
        self.net, self.embedding, self.target = net, embedding, target
        self._kernel = cpu_stack(net)
        self.cache = KVCache.on(embedding.device)
        self._rows: dict[Row, BlockRow] = {}
        self._windows: dict[int, int | None] = dict.fromkeys(range(net.config.layers))  # no sliding windows

    def open(self, rows: Sequence[Row]) -> None:
        for row in rows:
            assert row not in self._rows, "the row is open already"
            self._rows[row] = BlockRow(self.cache.take(row_places(row)))

    def close(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self.cache.give(self._rows.pop(row).index)

    def ready(self, row: Row) -> bool:
        """Whether the target has read all tokens of a row but the last, which it reads together with the draft."""
        return row.length > 1 and self.target.cached(row) >= row.length - 1

    def catch_up(self, rows: Sequence[Row]) -> None:
        """Read the unread positions of rows that have more than `LAG`, which are mostly prompts."""
        for row in rows:
            if self.ready(row) and self.unread(row) > LAG:
                self._read([row])

    def index(self, row: Row) -> int:
        """A row's first place in the cache."""
        return self._rows[row].index

    def places(self, row: Row) -> int:
        """How many places a row has."""
        return self.cache.capacity(self._rows[row].index)

    def make_room(self, row: Row, places: int) -> int:
        """Let a row have at least so many places. Returns its first place, which is another one if it had to move."""
        block_row = self._rows[row]
        block_row.index = self.cache.make_room(block_row.index, row, places)
        return block_row.index

    def record_cached(self, rows: Sequence[Row], lengths: Sequence[int]) -> None:
        """Record that a captured cycle wrote all context positions of rows with so many tokens."""
        for row, length in zip(rows, lengths, strict=True):
            block_row = self._rows[row]
            block_row.held, block_row.state = length - 1, None

    def unread(self, row: Row) -> int:
        """Context positions of a row that are not cached."""
        return row.length - 1 - self._rows[row].held

    def take_unread(self, row: Row) -> RowSlice:
        """The unread positions of a row, at least the last one. The caller reads them, so they count as cached."""
        block_row, index = self._rows[row], self.make_room(row, row.length)
        start = min(block_row.held, row.length - 2)
        block_row.held, block_row.state = row.length - 1, None
        return RowSlice(RowEntries.of(index, start, row.tokens[start + 1 :]))

    def last_states(self, rows: Sequence[Row]) -> tuple[Float[Tensor, "rows hidden"], int]:
        """The fused state before each row's last token, and how many positions were read. All rows must be ready."""
        unread = sum(map(self.unread, rows))
        self._read(rows)
        states = [state for row in rows if (state := self._rows[row].state) is not None]
        assert len(states) == len(rows), "the target has not read all rows"
        return torch.cat(states), unread

    def outputs(self, rows: Sequence[Row], depth: int) -> Float[Tensor, "rows depth draft_vocab_and_width"]:
        """The network's `outputs` for the next `depth` tokens of each row, at most a block; without a Markov head these
        are logits. All rows must be ready."""
        device, slots, first = self.embedding.device, self.net.config.slots, self.net.config.first
        state, _ = self.last_states(rows)
        anchor = torch.tensor([row.tokens[-1] for row in rows], device=device)
        inputs = self.net.inputs(functional.embedding(anchor, self.embedding), state).flatten(0, 1)
        pieces = [
            RowSlice(_block_entries(self.make_room(row, row.length + slots), row.length - 1, slots)) for row in rows
        ]
        place = [(piece.line.row, n) for piece in pieces for n in piece.line.position]
        row_index, position = torch.tensor(place, device=device).T.contiguous()
        kept = torch.tensor([n * slots + first + d for n in range(len(rows)) for d in range(depth)], device=device)
        if self._kernel is not None:
            outputs = self._kernel.block(self.cache, pieces, inputs, row_index, position, kept)
        else:
            outputs = self.net.outputs(self._block(pieces, inputs, position)[kept])
        return outputs.view(len(rows), depth, -1)

    def _block(
        self, pieces: Sequence[RowSlice], x: Float[Tensor, "n hidden"], position: Tensor
    ) -> Float[Tensor, "n hidden"]:
        """The stack's outputs at the slots of one block per piece."""
        context, frequency = view(self.cache, self._windows, pieces, x.device), self.net.frequency
        for number, layer in enumerate(self.net.stack):
            projected = layer.queries(x, position, frequency), *layer.keys_values(x, position, frequency)
            query, key, value = (part.transpose(0, 1)[None] for part in projected)
            attended = context.attend(number, query, key, value, None, None, None)
            x = layer.finish(x, attended[0].flatten(1))
        return x

    def _read(self, rows: Sequence[Row]) -> None:
        """Read all unread context positions of the rows. Long ones are read by themselves, chunk by chunk."""
        for row in rows:
            block_row = self._rows[row]
            if block_row.state is None:  # the last position was written without a state, so it is read again
                block_row.held = max(0, min(block_row.held, row.length - 2))
            while self.unread(row) > CHUNK:
                self._read_positions([row], [CHUNK])
        if late := [row for row in rows if self.unread(row)]:
            self._read_positions(late, [self.unread(row) for row in late])

    def _read_positions(self, rows: Sequence[Row], counts: Sequence[int]) -> None:
        """Write the keys and values of the next `counts` context positions of the rows."""
        features, place = list[Tensor](), list[tuple[int, int]]()
        for row, count in zip(rows, counts, strict=True):
            block_row = self._rows[row]
            states = self.target.states(row, block_row.held)
            features.append(torch.cat([states[layer][:count] for layer in self.net.config.features], -1))
            index = self.make_room(row, block_row.held + count)
            place += [(index, n) for n in range(block_row.held, block_row.held + count)]
            block_row.held += count
        fused = self.net.fuse(features[0] if len(features) == 1 else torch.cat(features))
        row_index, position = torch.tensor(place, device=fused.device).T.contiguous()
        if self._kernel is not None:
            self._kernel.read(self.cache, fused, row_index, position)
        else:
            self._write(fused, row_index, position)
        end = 0
        for row, count in zip(rows, counts, strict=True):
            end += count
            self._rows[row].state = fused[end - 1 : end].clone()

    def _write(self, fused: Float[Tensor, "n hidden"], row: Tensor, position: Tensor) -> None:
        for number, layer in enumerate(self.net.stack):
            key, value = layer.context_keys_values(fused, position, self.net.frequency)
            keys, values = self.cache.layer(number, key.transpose(0, 1)[None], value.transpose(0, 1)[None])
            keys[0, :, row + position], values[0, :, row + position] = key.transpose(0, 1), value.transpose(0, 1)

    def check_integrity(self) -> None:
        """Raise AssertionError unless no row holds more positions than it committed and the cache agrees."""
        for row, block_row in self._rows.items():
            assert block_row.held <= max(0, row.length - 1), f"{block_row.held} positions of {row.length} tokens"
            assert block_row.state is None or block_row.held, "a state without positions"
        held = self._rows.values()
        self.cache.check_integrity([row.index for row in held], [row.held for row in held])


def _block_entries(row: int, start: int, slots: int) -> RowEntries:
    """The slots of a block, each of which sees all of them and everything before. Slots have no tokens."""
    none, end = [-1] * slots, start + slots
    return RowEntries(row, start, 0, none, none, range(start, end), [end] * slots, [()] * slots)
