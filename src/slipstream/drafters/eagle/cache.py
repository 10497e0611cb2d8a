"""The KV cache of the EAGLE head, and the head's passes over it.

A row of n committed tokens has n - 1 slots. Slot t reads token t + 1 and the target's state of position t. The head has
one layer, so the key and value of a slot depend on these two only. For all but the last slot of a prompt, only keys and
values are computed. Drafted slots read the head's own states. They are stored after the committed slots, and the next
cycle overwrites them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch.nn import functional

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.core.interfaces import TargetFeatures
from slipstream.core.shaping import ranking_sampling
from slipstream.core.types import Budget, Row
from slipstream.drafters.eagle.cpu_layer import cpu_layer
from slipstream.drafters.eagle.network import EagleNet
from slipstream.kernels.cpu.draft import CandidateMode, DraftedNodes, RowDraftArgs
from slipstream.kernels.cpu.runs.cycle_run import ChainHead
from slipstream.models.cache.packing import Entry, RowEntries, RowSlice
from slipstream.models.cache.tensors import KVCache, row_places
from slipstream.models.run.attention import view
from slipstream.models.weights.linears import PackedLinear

LAG = 32  # unread slots of a row above which `catch_up` reads them
KEYS_ONLY_ABOVE = (
    4  # unread slots of a row above which all but the last run in a separate call, for keys and values only
)
CHUNK = 512  # committed slots of a row per call
WINDOWS: dict[int, int | None] = {0: None}  # one layer without a sliding window


@dataclass(eq=False)
class HeadRow:
    """A row's first place in the cache, and how many committed slots of it are cached."""

    index: int
    held: int = 0


class HeadCache:
    """The head with its KV cache. `ids`: token id of each of the head's logits. `embedding`: the target's."""

    def __init__(
        self,
        net: EagleNet,
        ids: Int[Tensor, " draft_vocab"],
        embedding: Float[Tensor, "vocab hidden"],
        target: TargetFeatures,
    ) -> None:
        self.net, self.ids, self.embedding, self.target = net, ids, embedding, target
        self._kernel = cpu_layer(net)
        self.cache = KVCache.on(embedding.device)
        self._head_rows: dict[Row, HeadRow] = {}
        self._last_run: tuple[Tensor, Tensor] | None = None  # states and logits of the last kernel call

    def open(self, rows: Sequence[Row]) -> None:
        for row in rows:
            assert row not in self._head_rows, "the row is open already"
            self._head_rows[row] = HeadRow(self.cache.take(row_places(row)))

    def close(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self.cache.give(self._head_rows.pop(row).index)

    def rewind(self, row: Row, length: int) -> None:
        """Drop the slots that read tokens from position `length` on."""
        self._head_rows[row].held = min(self._head_rows[row].held, max(0, length - 1))

    def index(self, row: Row) -> int:
        """A row's first place in the cache."""
        return self._head_rows[row].index

    def places(self, row: Row) -> int:
        """How many places a row has."""
        return self.cache.capacity(self._head_rows[row].index)

    def make_room(self, row: Row, places: int) -> int:
        """Let a row have at least so many places. Returns its first place, which is another one if it had to move."""
        head_row = self._head_rows[row]
        head_row.index = self.cache.make_room(head_row.index, row, places)
        return head_row.index

    def record_cached(self, rows: Sequence[Row], lengths: Sequence[int]) -> None:
        """Record that a captured cycle wrote all committed slots of rows with so many tokens."""
        held = self._head_rows
        for row, length in zip(rows, lengths, strict=True):
            held[row].held = length - 1

    def unread(self, row: Row) -> int:
        """Committed slots of a row that are not cached."""
        return row.length - 1 - self._head_rows[row].held

    def take_unread(self, row: Row) -> RowSlice:
        """The unread slots of a row, at least the last one. The caller reads them, so they count as cached."""
        head_row, index = self._head_rows[row], self.make_room(row, row.length)
        start, head_row.held = min(head_row.held, row.length - 2), row.length - 1
        return RowSlice(RowEntries.of(index, start, row.tokens[start + 1 :]))

    def ready(self, row: Row) -> bool:
        """Whether the target has read all tokens of a row but the last, which it reads together with the draft."""
        return row.length > 1 and self.target.cached(row) >= row.length - 1

    def end_states(self, rows: Sequence[Row]) -> Float[Tensor, "rows hidden"]:
        """Read all unread slots of the rows. Returns the head's state at the last slot of each."""
        for row in rows:
            head_row = self._head_rows[row]
            head_row.held = min(head_row.held, row.length - 2)  # if nothing is unread, the last slot runs again
            while (unread := row.length - 1 - head_row.held) > (KEYS_ONLY_ABOVE if self.has_kernel else CHUNK):
                self._read([row], [min(CHUNK, unread - 1)], None)
        counts = [row.length - 1 - self._head_rows[row].held for row in rows]
        return self._read(rows, counts, [last - 1 for last in accumulate(counts)])

    def catch_up(self, rows: Sequence[Row]) -> None:
        """Read the unread slots of rows that have more than `LAG`, which are mostly prompts, before the next draft."""
        for row in rows:
            head_row = self._head_rows[row]
            while self.ready(row) and (count := min(CHUNK, row.length - 1 - head_row.held)) > LAG:
                self._read([row], [count], None)

    def step(
        self,
        rows: Sequence[Row],
        drafted: Sequence[Sequence[Entry]],
        skip: Sequence[int],
        state: Float[Tensor, "new hidden"],
    ) -> Float[Tensor, "new hidden"]:
        """The head's states at the drafted slots of each row, except the first `skip`, which ran before.

        `state`: the head's states at the slots before the new ones."""
        lines = [
            RowEntries.of(self.make_room(row, row.length + len(nodes)), row.length - 1, (), nodes)
            for row, nodes in zip(rows, drafted, strict=True)
        ]
        pieces = [RowSlice(line, skipped) for line, skipped in zip(lines, skip, strict=True)]
        return self._run(pieces, state, range(len(state)))

    @property
    def has_kernel(self) -> bool:
        """Whether the head runs as one kernel call, and a whole draft too."""
        return self._kernel is not None

    def drafts(
        self, mode: CandidateMode, rows: Sequence[Row], budget: Sequence[Budget], keys: Sequence[Sequence[int]]
    ) -> list[DraftedNodes]:
        """Draft a best-first tree for each row, or a chain if its budget has no shape.

        `keys`: the noise keys of the next positions of each row."""
        assert self._kernel is not None, "drafts need the kernel"
        state = self.end_states(rows)
        arguments = [self._arguments(*args) for args in zip(rows, budget, keys, strict=True)]
        ends, tables = (state, self.logits(state)), (self.embedding, self.ids)
        return self._kernel.drafts(self.cache, mode, arguments, ends, tables)

    @property
    def has_chain_head(self) -> bool:
        """Whether a kernel can run all of the head."""
        return self.has_kernel and isinstance(self.net.fc, PackedLinear)

    def chain_head(self, row: Row, tokens: int) -> ChainHead:
        """What a kernel needs to draft chains for a row that may grow by so many tokens."""
        assert self._kernel is not None, "chains need the kernel"
        assert isinstance(self.net.fc, PackedLinear), "chains need the kernel"
        head_row = self._head_rows[row]
        while (unread := row.length - 1 - head_row.held) > KEYS_ONLY_ABOVE:
            self._read([row], [min(CHUNK, unread - 1)], None)
        place = self.make_room(row, row.length + tokens), head_row.held

        def record(slots: int) -> None:
            head_row.held = slots

        tables, layers = (self.embedding, self.ids), self.net.config.features
        head = self._kernel.head(self.cache, row.length + tokens, tables)
        return ChainHead(*head, self.net.fc.packed, self.net.scale, layers, *place, record)

    def _arguments(self, row: Row, budget: Budget, keys: Sequence[int]) -> RowDraftArgs:
        width, nodes = (1, budget.depth) if budget.shape is None else (budget.shape.width, budget.shape.nodes)
        sampling, ends = ranking_sampling(row), tuple(row.request.ends)
        place = self.make_room(row, row.length + budget.depth * width), row.length - 1
        return RowDraftArgs(*place, budget.depth, width, nodes, budget.stop_below, sampling, ends, keys)

    def logits(self, state: Float[Tensor, "n hidden"]) -> Float[Tensor, "n draft_vocab"]:
        """The head's logits. Those of the last kernel call are not computed again."""
        if self._last_run is not None and self._last_run[0] is state:
            return self._last_run[1]
        return self.net.logits(state) if self._kernel is None else self._kernel.logits(state)

    def _read(
        self, rows: Sequence[Row], counts: Sequence[int], kept: Sequence[int] | None
    ) -> Float[Tensor, "kept hidden"]:
        """Run the next `counts` committed slots of the rows. Returns the head's states at the kept ones."""
        pieces, features = list[RowSlice](), list[Tensor]()
        for row, count in zip(rows, counts, strict=True):
            head_row = self._head_rows[row]
            tokens = row.tokens[head_row.held + 1 : head_row.held + 1 + count]
            index = self.make_room(row, head_row.held + count)
            pieces.append(RowSlice(RowEntries.of(index, head_row.held, tokens)))
            states = self.target.states(row, head_row.held)
            features.append(torch.cat([states[layer][:count] for layer in self.net.config.features], -1))
            head_row.held += count
        fused = self.net.fuse(features[0] if len(features) == 1 else torch.cat(features))
        return self._run(pieces, fused, kept)

    def _run(
        self, pieces: Sequence[RowSlice], state: Float[Tensor, "n hidden"], kept: Sequence[int] | None
    ) -> Float[Tensor, "kept hidden"]:
        """Run packed slots. `state`: the state that each slot reads. Returns the layer's outputs at the kept slots.

        `kept` None: only the cache is written."""
        token = [token for piece in pieces for token in piece.line.token[piece.skip :]]
        position = [place for piece in pieces for place in piece.line.position[piece.skip :]]
        ids, place = torch.tensor([token, position], device=state.device)
        embedding = functional.embedding(ids, self.embedding)
        if self._kernel is not None:
            scored = None if kept is None else torch.tensor(kept)
            out, logits = self._kernel.run(self.cache, pieces, embedding, state, place, scored)
            out = _select(out, kept or ())
            self._last_run = None if logits is None else (out, logits)
            return out
        context = view(self.cache, WINDOWS, pieces, state.device)
        query, key, value = (x.transpose(0, 1)[None] for x in self.net.project(embedding, state, place))
        attended = context.attend(0, query, key, value, None, None, None)
        return _select(self.net.finish(state, attended[0].flatten(1)), kept or ())

    def check_integrity(self) -> None:
        """Raise AssertionError unless no row holds more slots than it committed and the cache agrees."""
        for row, head_row in self._head_rows.items():
            assert head_row.held <= max(0, row.length - 1), f"{head_row.held} slots of {row.length} tokens"
        rows = self._head_rows.values()
        self.cache.check_integrity([head_row.index for head_row in rows], [head_row.held for head_row in rows])


def _select(state: Float[Tensor, "n hidden"], kept: Sequence[int]) -> Float[Tensor, "kept hidden"]:
    """`state[kept]`, without a copy if all or one are kept."""
    if len(kept) == len(state):
        return state
    return state[kept[0] : kept[0] + 1] if len(kept) == 1 else state[torch.tensor(kept, dtype=torch.long)]
