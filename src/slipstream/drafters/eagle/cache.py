"""The KV cache of the EAGLE head, and the head's passes over it.

A row of n committed tokens has n - 1 slots: slot t reads token t + 1 beside the target's state of position t. The head
is one layer, so a slot's key and value follow from these two alone: of a long prompt nothing else is computed. Drafted
slots are kept beyond the committed ones, where the next cycle overwrites them: what was drafted from the head's own
states is never taken for committed.
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
from slipstream.drafters.eagle.cpu_layer import eagle_call
from slipstream.drafters.eagle.network import EagleNet
from slipstream.kernels.cpu.draft import CandidateMode, DraftedNodes, RowDraftArgs
from slipstream.models.cache.packing import Entry, RowEntries, RowSlice
from slipstream.models.cache.tensors import KVCache
from slipstream.models.run.attention import view

LAG = 32  # slots behind which it is time to catch up
BRIEF = 4  # slots of a row that all but the last are worth a brief call of their own
CHUNK = 512  # committed slots of a row that are projected at once
WINDOWS: dict[int, int | None] = {0: None}  # one layer, which sees everything


@dataclass(eq=False)
class HeadRow:
    index: int
    held: int = 0  # committed slots in the cache


class HeadCache:
    """`ids` are the tokens `net` gives logits for, of those that `embedding` has rows for."""

    def __init__(
        self,
        net: EagleNet,
        ids: Int[Tensor, " draft_vocab"],
        embedding: Float[Tensor, "vocab hidden"],
        target: TargetFeatures,
    ) -> None:
        self.net, self.ids, self.embedding, self.target = net, ids, embedding, target
        self._call = eagle_call(net)
        self.cache = KVCache.on(embedding.device)
        self._head_rows: dict[Row, HeadRow] = {}
        self._fresh: tuple[Tensor, Tensor] | None = None  # what the last run gave, and its logits where they are known

    def open(self, rows: Sequence[Row]) -> None:
        for row in rows:
            assert row not in self._head_rows, "the row is open already"
            self._head_rows[row] = HeadRow(self.cache.take())

    def close(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self.cache.give(self._head_rows.pop(row).index)

    def index(self, row: Row) -> int:
        """Where a row lies in the cache."""
        return self._head_rows[row].index

    def hold(self, row: Row, slots: int) -> None:
        """Someone else wrote the cache: so many committed slots of a row are in it."""
        self._head_rows[row].held = slots

    def rest(self, row: Row) -> RowSlice:
        """The slots of a row that are still to be read, the last one at least: someone else does it."""
        head_row = self._head_rows[row]
        start, head_row.held = min(head_row.held, row.length - 2), row.length - 1
        return RowSlice(RowEntries.of(head_row.index, start, row.tokens[start + 1 :]))

    def ready(self, row: Row) -> bool:
        """Whether the target has read all of a row but its last token, which it always reads with the draft."""
        return row.length > 1 and self.target.cached(row) >= row.length - 1

    def ends(self, rows: Sequence[Row]) -> Float[Tensor, "rows hidden"]:
        """Catch up with the rows; what the head gives at the last slot of each."""
        for row in rows:
            head_row = self._head_rows[row]
            head_row.held = min(
                head_row.held, row.length - 2
            )  # the last slot runs again where nothing was committed since
            while (behind := row.length - 1 - head_row.held) > (BRIEF if self.whole else CHUNK):
                self._read([row], [min(CHUNK, behind - 1)], None)
        counts = [row.length - 1 - self._head_rows[row].held for row in rows]
        return self._read(rows, counts, [last - 1 for last in accumulate(counts)])

    def catch_up(self, rows: Sequence[Row]) -> None:
        """Read what rows committed that is more than a cycle's worth, a prompt mostly, ahead of the next draft."""
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
        """What the head gives at drafted slots, of which `skip` in each row were run before. `state` is what it gave at
        the slots before the new ones."""
        lines = [
            RowEntries.of(self._head_rows[row].index, row.length - 1, (), nodes)
            for row, nodes in zip(rows, drafted, strict=True)
        ]
        pieces = [RowSlice(line, skipped) for line, skipped in zip(lines, skip, strict=True)]
        return self._run(pieces, state, range(len(state)))

    @property
    def whole(self) -> bool:
        """Whether a draft is one call."""
        return self._call is not None

    def drafts(
        self, how: CandidateMode, rows: Sequence[Row], spends: Sequence[Budget], keys: Sequence[Sequence[int]]
    ) -> list[DraftedNodes]:
        """What the head drafts after each row: a best-first tree, or a chain where there is no shape. `keys` are of the
        noise that candidates of the next positions are drawn by or raced on."""
        assert self._call is not None, "asked for where there is none"
        state = self.ends(rows)
        arguments = [self._arguments(*each) for each in zip(rows, spends, keys, strict=True)]
        return self._call.drafts(self.cache, how, arguments, (state, self.logits(state)), (self.embedding, self.ids))

    def _arguments(self, row: Row, spend: Budget, keys: Sequence[int]) -> RowDraftArgs:
        width, nodes = (1, spend.depth) if spend.shape is None else (spend.shape.width, spend.shape.nodes)
        heat, ends = ranking_sampling(row).temperature, tuple(row.request.ends)
        place = self._head_rows[row].index, row.length - 1
        return RowDraftArgs(*place, spend.depth, width, nodes, spend.stop_below, heat, ends, keys)

    def logits(self, state: Float[Tensor, "n hidden"]) -> Float[Tensor, "n draft_vocab"]:
        if self._fresh is not None and self._fresh[0] is state:
            return self._fresh[1]
        return self.net.logits(state) if self._call is None else self._call.logits(state)

    def _read(
        self, rows: Sequence[Row], counts: Sequence[int], kept: Sequence[int] | None
    ) -> Float[Tensor, "kept hidden"]:
        """Run the next committed slots of each row; what the head gives at the kept ones."""
        pieces, features = list[RowSlice](), list[Tensor]()
        for row, count in zip(rows, counts, strict=True):
            head_row = self._head_rows[row]
            pieces.append(
                RowSlice(
                    RowEntries.of(
                        head_row.index, head_row.held, row.tokens[head_row.held + 1 : head_row.held + 1 + count]
                    )
                )
            )
            states = self.target.states(row, head_row.held)
            features.append(torch.cat([states[layer][:count] for layer in self.net.config.features], -1))
            head_row.held += count
        fused = self.net.fuse(features[0] if len(features) == 1 else torch.cat(features))
        return self._run(pieces, fused, kept)

    def _run(
        self, pieces: Sequence[RowSlice], state: Float[Tensor, "n hidden"], kept: Sequence[int] | None
    ) -> Float[Tensor, "kept hidden"]:
        """What the layer gives at the kept ones of packed slots, each after a state; without any the cache alone is
        written."""
        token = [token for piece in pieces for token, _ in piece.line.entries[piece.skip :]]
        position = [place for piece in pieces for place in piece.line.position[piece.skip :]]
        ids, place = torch.tensor([token, position], device=state.device)
        embedding = functional.embedding(ids, self.embedding)
        if self._call is not None:
            which = None if kept is None else torch.tensor(kept)
            out, logits = self._call.run(self.cache, pieces, embedding, state, place, which)
            out = _some(out, kept or ())
            self._fresh = None if logits is None else (out, logits)
            return out
        context = view(self.cache, WINDOWS, pieces, state.device)
        query, key, value = (x.transpose(0, 1)[None] for x in self.net.project(embedding, state, place))
        attended = context.attend(0, query, key, value, None, None, None)
        return _some(self.net.finish(state, attended[0].flatten(1)), kept or ())

    def check_integrity(self) -> None:
        """Raise AssertionError unless no row holds more slots than it committed and the cache agrees."""
        for row, head_row in self._head_rows.items():
            assert head_row.held <= max(0, row.length - 1), f"{head_row.held} slots of {row.length} tokens"
        seats = self._head_rows.values()
        self.cache.check_integrity([head_row.index for head_row in seats], [head_row.held for head_row in seats])


def _some(state: Float[Tensor, "n hidden"], kept: Sequence[int]) -> Float[Tensor, "kept hidden"]:
    """Some of all states; of one row it is the last that is kept."""
    if len(kept) == len(state):
        return state
    return state[kept[0] : kept[0] + 1] if len(kept) == 1 else state[torch.tensor(kept, dtype=torch.long)]
