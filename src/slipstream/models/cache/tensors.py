"""The KV cache: keys and values of every layer, in tensors that outlive the passes.

Two tensors per layer, and one with a single head for each layer whose hidden states a drafter declared. All rows share
one axis of places (`segments`): a row is known by its first place, and the entry of its i-th token is at that place
plus i. A tensor is [1, heads, places, dim] with the stride of a place on the first axis, so that kernels for tensors
[rows, heads, places, dim] read the row that begins at any place.

A roll-back only shortens a row's length, since a place beyond it is never read before it is written again. The tensors
grow by doubling, so growing costs a constant per token. A sliding-window layer keeps everything too: tokens that left
the window are visible again when a draft is rolled back. Where growing would exceed the limit, the rows are moved
together (`compact`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch

from slipstream.core.array_types import Float, Tensor
from slipstream.core.types import Row
from slipstream.kernels.cpu.move import CacheBlocks, Move, kernel
from slipstream.models.cache.packing import RowSlice
from slipstream.models.cache.run_copier import Run, RunCopier
from slipstream.models.cache.segments import UNIT, Segments, round_up

SMALLEST = 64  # places of a new cache, and of a row whose length nobody knows
AHEAD = 512  # tokens that a row has room for beyond its text, at least; or a quarter of its text
ENDLESS = 1 << 62  # tokens of a text
SPARE = 64  # places of a row beyond its text: drafted nodes, and cycles that are under way when it ends
LINE = 64  # bytes of a cache line, where tensors begin
USUAL = 1 << 12  # places of a cache in use on a CPU, where they take memory when they are first written
ON_GPU = 1 << 14  # places of a new cache on a GPU, where all graphs are captured again when it grows


class KVCache:
    """Entries of all rows. Rows are known by their first place, which changes when they are moved."""

    def __init__(self, places: int = SMALLEST) -> None:
        self.version = 0  # increases whenever tensors are replaced
        self.limit: int | None = None  # places of all rows together; exceeded only if the rows in use need more
        self._segments = Segments(round_up(places))
        self.release: Callable[[], bool] | None = None  # gives a retained row's places back; False: there is none
        self._layers: dict[object, tuple[Tensor, ...]] = {}
        self._table: CacheBlocks | None = None  # addresses of all tensors; None after one is replaced
        self._copier: RunCopier | None = None  # the same
        self._token_bytes = 0

    @staticmethod
    def on(device: torch.device) -> KVCache:
        """A cache with the initial size for a device."""
        return KVCache(ON_GPU if device.type == "cuda" else SMALLEST)

    @property
    def places(self) -> int:
        """Places of all rows together, taken or not."""
        return self._segments.size

    def bound(self, places: int) -> None:
        """Set the limit, and begin with a usual size within it."""
        self.limit = places
        self.grow(min(places // UNIT * UNIT, USUAL))

    def grow(self, places: int) -> None:
        """Make room for at least so many places, if the limit allows it. Tensors grow when they are next written."""
        places = round_up(places)
        if places > self.places and (self.limit is None or places <= self.limit):
            self._segments.grow(places)
            self.version += 1

    def take(self, places: int = SMALLEST) -> int:
        """The first place of a new row of up to so many places."""
        self._release_for(places)
        start = self._segments.take(places)
        while start is None:
            self._enlarge(places)
            start = self._segments.take(places)
        return start

    def trim(self, row: int, skip: int, places: int) -> int:
        """Free all places of a row but so many after the first `skip`. Returns its new first place."""
        return self._segments.trim(row, skip, places)

    def give(self, row: int) -> None:
        self._segments.give(row)

    def capacity(self, row: int) -> int:
        """How many places a row has."""
        return self._segments.capacity(row)

    def reserve(self, row: int, places: int) -> int:
        """Make room for this many tokens in a row. Returns its first place, which is another one if it had to move."""
        self._release_for(places)
        if self._segments.extend(row, places):
            return row
        held = self.capacity(row)
        last = row + held + self._segments.last_gap == self.places and not self._segments.fits(places)
        if last and (self.limit is None or self._enlarged(places - held) <= self.limit):  # it stays where it is
            self._enlarge(places - held)
            self._segments.extend(row, places)
            return row
        moved = self.take(places)
        self.copy([(row, moved, held)])
        self._segments.give(row)
        return moved

    def make_room(self, index: int, row: Row, places: int) -> int:
        """`reserve` for a row's text, with room for more of it."""
        if places <= self.capacity(index):
            return index
        return self.reserve(index, max(places, row_places(row)))

    def extend(self, row: int, places: int) -> bool:
        """Make room for so many tokens in a row where it is; False where other rows are in the way."""
        return self._segments.extend(row, places)

    def would_exceed_limit(self, places: int) -> bool:
        """Whether a new row of so many places fits only if the cache exceeds its limit, or rows are moved together,
        even without the retained rows."""
        if self.limit is None:
            return False
        self._release_for(places)
        return not self._segments.fits(places) and self._enlarged(places) > self.limit

    def _release_for(self, places: int) -> None:
        """Give places of retained rows back until there is a gap of so many, unless the cache can grow instead."""
        while not self._segments.fits(places):
            if self.grows_cheaply and (self.limit is None or self._enlarged(places) <= self.limit):
                return
            if self.release is None or not self.release():
                return

    def compact(self, grown: int | None = None, places: int = 0) -> dict[int, int]:
        """Move all rows together; the row `grown` gets so many places. Returns the new first place of each row that
        moved."""
        while self.release is not None and self.release():
            pass  # only rows in use are worth moving
        held = {row: self.capacity(row) for row in self._segments.starts}
        need = self._segments.used + (0 if grown is None else round_up(places) - held[grown])
        if need > self.places:
            self._resize(max(need, (self.limit or need) // UNIT * UNIT))
        moves = self._segments.compact(grown, places)
        for row, moved in moves.items():
            self.copy([(row, moved, held[row])])
        return moves

    def check_room(self, pieces: Sequence[RowSlice]) -> None:
        """Raise AssertionError where a pass would write beyond its rows."""
        for piece in pieces:
            need, have = piece.line.start + len(piece.line), self.capacity(piece.line.row)
            assert need <= have, f"the row at place {piece.line.row} has {have} places and needs {need}"

    def _enlarge(self, places: int) -> None:
        """Double the cache until there is a gap of so many places at its end."""
        self._resize(self._enlarged(places))

    def _resize(self, places: int) -> None:
        """Grow to so many places, or raise MemoryError with nothing changed. Tensors grow when they are next written,
        one after the other: beside what is added, the largest is there twice."""
        free = free_bytes(self.device)
        largest = max((held[0].nbytes for held in self._layers.values()), default=0)
        need = (places - self.places) * self.token_bytes + largest
        if free is not None and need > free:
            raise MemoryError(
                f"the KV cache has no memory for {places} tokens: {need / 1e9:.1f} GB are needed and {free / 1e9:.1f} "
                "are free; Limits(tokens=…) bounds the tokens of all requests"
            )
        self._segments.grow(places)
        self.version += 1

    def _enlarged(self, places: int) -> int:
        """The size of the cache after it has grown for a row of so many places."""
        need = self._segments.size - self._segments.last_gap + round_up(places)
        grown = 2 * self.places
        while grown < need:
            grown *= 2
        if self.limit is not None and grown > self.limit:  # the last bit of the limit is worth having, too
            grown = max(need, self.limit // UNIT * UNIT)
        return grown

    def copy(self, runs: Sequence[Run]) -> None:
        """Copy runs of entries to other places, in every layer."""
        tensors = [held for _, layer in self.all_tensors() for held in layer]
        if self._copier is None:
            self._copier = RunCopier(tensors)
        self._copier.copy(runs)

    def layer(
        self, index: int, key: Float[Tensor, "1 kv_heads tokens dim"], value: Float[Tensor, "1 kv_heads tokens dim_v"]
    ) -> tuple[Tensor, Tensor]:
        """The key and value tensors of one layer, made or grown on demand. `key` and `value` give shapes and type."""
        keys, values = self.hold(index, key, value)
        return keys, values

    def hold(self, name: object, *like: Float[Tensor, "_ _ _ _"]) -> tuple[Tensor, ...]:
        """The tensors of a name, made or grown on demand. `like` gives shapes and type."""
        held = self._layers.get(name)
        if held is None or held[0].shape[2] < self.places:
            old = held or [None] * len(like)
            if held is None:
                self._token_bytes += sum(entry.shape[1] * entry.shape[3] * entry.element_size() for entry in like)
            held = self._layers[name] = tuple(map(self._grown, like, old))
            self._table = self._copier = None
        return held

    def all_tensors(self) -> Iterator[tuple[object, tuple[Tensor, ...]]]:
        """All tensors by name, grown to hold every place."""
        for name, held in list(self._layers.items()):
            yield name, self.hold(name, *held)

    def row(self, name: object, row: int, start: int, end: int) -> Float[Tensor, "heads tokens dim"]:
        """The entries of one row from `start` up to `end`, in the first tensor of a name."""
        assert name in self._layers, f"nothing was written to {name} yet"
        return self._layers[name][0][0, :, row + start : row + end]

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's entries in all layers."""
        return self._token_bytes

    @property
    def grows_cheaply(self) -> bool:
        """Whether growing costs little, as on a CPU. On a GPU all graphs have to be captured again."""
        return self.device.type != "cuda"

    @property
    def device(self) -> torch.device:
        return next((held[0].device for held in self._layers.values()), torch.device("cpu"))

    def _grown(self, like: Tensor, old: Tensor | None) -> Tensor:
        # zeros, not empty: a masked place has weight 0, and 0 times a stray NaN would not be 0
        heads, dim = like.shape[1], like.shape[3]
        new = _zeros(like, (1, heads, self.places, dim))
        if old is not None:
            for start in self._segments.starts:
                end = min(start + self.capacity(start), old.shape[2])
                new[:, :, start:end] = old[:, :, start:end]
        return new.as_strided(new.shape, (dim, self.places * dim, dim, 1))

    def move(self, moves: Sequence[Move]) -> None:
        """Copy entries from place to place within their rows, in every layer. All reads come before the writes."""
        copier = kernel() if self.device.type == "cpu" else None
        if copier is not None:
            if self._table is None:
                self._table = CacheBlocks([held for tensors in self._layers.values() for held in tensors])
            copier.move(self._table, moves)
            return
        row, source, target = torch.tensor(moves, device=self.device).T
        for tensors in self._layers.values():
            for held in tensors:
                held[0, :, row + target] = held[0, :, row + source]

    def check_integrity(self, taken: Iterable[int], lengths: Sequence[int]) -> None:
        """Raise AssertionError unless every place is either free or of one row, and the rows' tokens fit them."""
        rows = list(taken)
        self._segments.check_integrity(rows)
        for row, length in zip(rows, lengths, strict=True):
            assert length <= self.capacity(row), f"{length} tokens do not fit the {self.capacity(row)} places of a row"
        for name, held in self._layers.items():
            sizes = [tensor.shape[2] for tensor in held]
            assert len(set(sizes)) == 1, f"layer {name} holds tensors of {sizes} places"
            assert all(bool(torch.isfinite(tensor).all()) for tensor in held), f"layer {name} is not finite"


def hidden(layer: int) -> str:
    """The cache's name for the output of a layer."""
    return f"hidden {layer}"


def row_places(row: Row, context: int = ENDLESS) -> int:
    """Places that a row has, or gets when it needs more: for its text and some more of it, up to its end, and for
    drafted nodes."""
    longest = row.length + row.room(context)
    return round_up(min(longest, row.length + max(AHEAD, row.length // 4)) + SPARE)


def free_bytes(device: torch.device) -> int | None:
    """Memory of a GPU that tensors can still have; None on a CPU, where memory is taken when it is first written.

    The driver takes 0.2 ms to say it. So it is asked only when a cache grows, and not for every row."""
    if device.type != "cuda":
        return None
    reserved = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + reserved


def _zeros(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Zeros of the type and on the device of `like`. On a CPU the memory is one that the system fills with zeros when
    it is first used: places that no token has reached take neither time nor memory."""
    if like.device.type != "cpu":
        return like.new_zeros(shape)
    size = math.prod(shape) * like.element_size()
    memory = torch.from_numpy(np.zeros(size + LINE, np.uint8))
    return memory[-memory.data_ptr() % LINE :][:size].view(like.dtype).view(shape)
