"""The eagle head's own cache, and the passes over it.

A row of n committed tokens has n - 1 slots: slot t reads token t + 1 beside the target's state of position t. The head
is one layer, so a slot's key and value follow from these two alone: catching up with whatever was committed, a prompt
or three accepted tokens, is one projection, and only the last slot attends. Drafted slots are kept beyond the committed
ones, where the next cycle overwrites them: what was drafted from the head's own states is never taken for committed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

import torch
from torch.nn import functional

from slipstream.core.shapes import Float, Tensor
from slipstream.core.types import Row
from slipstream.drafters.eagle_net import EagleNet
from slipstream.kernels import cpu_attention, cpu_linear
from slipstream.models.attention import view
from slipstream.models.cache import Cache
from slipstream.models.linears import PackedLinear
from slipstream.models.packing import Entry, Line, Piece

LAG = 16  # slots behind which it is time to catch up
CHUNK = 512  # committed slots of a row that are projected at once
WINDOWS: dict[int, int | None] = {0: None}  # one layer, which sees everything


@runtime_checkable
class Reader(Protocol):
    """What the head asks of the target: how much of a row it has read, and what its layers gave there."""

    def cached(self, row: Row) -> int: ...

    def states(self, row: Row, start: int = 0) -> dict[int, Float[Tensor, "tokens hidden"]]: ...


@dataclass(eq=False)
class Seat:
    index: int
    held: int = 0  # committed slots in the cache


class Slots:
    def __init__(self, net: EagleNet, embedding: Float[Tensor, "vocab hidden"], target: Reader) -> None:
        self.net, self.embedding, self.target = net, embedding, target
        lean = embedding.is_cpu and embedding.dtype == torch.float32
        self._kernel = cpu_attention.kernel() if lean else None  # for a few queries an order faster than torch's
        self._output = _linear(net.output)
        self._cache = Cache()
        self._seats: dict[Row, Seat] = {}

    def open(self, rows: Sequence[Row]) -> None:
        for row in rows:
            assert row not in self._seats, "the row is open already"
            self._seats[row] = Seat(self._cache.take())

    def close(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._cache.give(self._seats.pop(row).index)

    def ready(self, row: Row) -> bool:
        """Whether the target has read all of a row but its last token, which it always reads with the draft."""
        return row.length > 1 and self.target.cached(row) >= row.length - 1

    def ends(self, rows: Sequence[Row]) -> Float[Tensor, "rows hidden"]:
        """Catch up with the rows; what the head gives at the last slot of each."""
        for row in rows:
            seat = self._seats[row]
            seat.held = min(seat.held, row.length - 2)  # the last slot runs again where nothing was committed since
            while row.length - 1 - seat.held > CHUNK:
                self._hold([row], [CHUNK])
                seat.held += CHUNK
        counts = [row.length - 1 - self._seats[row].held for row in rows]
        state, query, key, value = self._hold(rows, counts)
        if len(state) > len(rows):
            last = torch.tensor(counts, device=state.device).cumsum(0) - 1
            state, query, key, value = (x[last] for x in (state, query, key, value))
        lines = [Line.of(self._seats[row].index, row.length - 2, row.tokens[-1:]) for row in rows]
        state = self._attend([Piece(line) for line in lines], state, query, key, value)
        for row in rows:
            self._seats[row].held = row.length - 1
        return state

    def catch_up(self, rows: Sequence[Row]) -> None:
        """Read what rows committed that is more than a cycle's worth, a prompt mostly, ahead of the next draft."""
        for row in rows:
            seat = self._seats[row]
            while self.ready(row) and (count := min(CHUNK, row.length - 1 - seat.held)) > LAG:
                self._hold([row], [count])
                seat.held += count

    def step(
        self,
        rows: Sequence[Row],
        drafted: Sequence[Sequence[Entry]],
        skip: Sequence[int],
        state: Float[Tensor, "new hidden"],
    ) -> Float[Tensor, "new hidden"]:
        """What the head gives at drafted slots, of which `skip` in each row were run before. `state` is what it gave at
        the slots before the new ones."""
        lines = [
            Line.of(self._seats[row].index, row.length - 1, (), nodes) for row, nodes in zip(rows, drafted, strict=True)
        ]
        pieces = [Piece(line, known) for line, known in zip(lines, skip, strict=True)]
        token = [token for piece in pieces for token, _ in piece.line.entries[piece.skip :]]
        position = [place for piece in pieces for place in piece.line.position[piece.skip :]]
        return self._attend(pieces, state, *self._project(token, position, state))

    def logits(self, state: Float[Tensor, "n hidden"]) -> Float[Tensor, "n draft_vocab"]:
        """`net.logits`, on the kernel for few rows where there is one."""
        return self._output(self.net.norm(state))

    def _hold(self, rows: Sequence[Row], counts: Sequence[int]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Keys and values of the next committed slots of each row; state, query, key and value of all of them."""
        token, position, owner, read = list[int](), list[int](), list[int](), list[Tensor]()
        for row, count in zip(rows, counts, strict=True):
            seat = self._seats[row]
            token += row.tokens[seat.held + 1 : seat.held + 1 + count]
            position += range(seat.held, seat.held + count)
            owner += [seat.index] * count
            states = self.target.states(row, seat.held)
            read.append(torch.cat([states[layer][:count] for layer in self.net.config.features], -1))
        state = self.net.fuse(read[0] if len(read) == 1 else torch.cat(read))
        query, key, value = self._project(token, position, state)
        if len(token) > len(rows):  # one slot a row is written as it attends
            self._cache.reserve(max(position) + 1)
            keys, values = self._cache.layer(0, key.transpose(0, 1)[None], value.transpose(0, 1)[None])
            row_index, place = torch.tensor([owner, position], device=state.device)
            keys[row_index, :, place], values[row_index, :, place] = key, value
        return state, query, key, value

    def _project(
        self, token: list[int], position: list[int], state: Float[Tensor, "n hidden"]
    ) -> tuple[Tensor, Tensor, Tensor]:
        ids, place = torch.tensor([token, position], device=state.device)
        return self.net.project(functional.embedding(ids, self.embedding), state, place)

    def _attend(
        self, pieces: Sequence[Piece], state: Float[Tensor, "n hidden"], query: Tensor, key: Tensor, value: Tensor
    ) -> Float[Tensor, "n hidden"]:
        context = view(self._cache, WINDOWS, pieces, state.device, self._kernel)
        query, key, value = (x.transpose(0, 1)[None] for x in (query, key, value))
        attended = context.attend(0, query, key, value, None, None, None)
        return self.net.finish(state, attended[0].flatten(1))

    def check_integrity(self) -> None:
        """Raise AssertionError unless no row holds more slots than it committed and the cache agrees."""
        for row, seat in self._seats.items():
            assert seat.held <= max(0, row.length - 1), f"{seat.held} slots of {row.length} tokens"
        seats = self._seats.values()
        self._cache.check_integrity([seat.index for seat in seats], [seat.held for seat in seats])


def _linear(weight: Float[Tensor, "out in"]) -> Callable[[Tensor], Tensor]:
    if weight.is_cpu and weight.dtype == torch.float32 and cpu_linear.available():
        return PackedLinear(weight, None)
    return partial(functional.linear, weight=weight)
