"""Scoring drafts: one pass over the pending tokens and drafted nodes of all rows.

A pass may end after the first n layers (`peek`), and the next `score` resumes it there: a drafter that shares the
target's first layers leaves their outputs and their part of the KV cache to it. At all layers, `peek` runs only the
nodes that were added to a growing draft since the last call. A draft model steps in this way.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.core.types import Draft, LazyRows, Row, Scores, Verdict
from slipstream.kernels.cpu.decoder import SkippedBlocks
from slipstream.models.cache.packing import RowEntries, RowSlice, local_nodes, nodes_by_row, slot_index
from slipstream.models.cache.row_state import RowState
from slipstream.models.run.forward_pass import LayerPass
from slipstream.models.run.pending_reader import PendingReader
from slipstream.models.run.prefix_reuse import PrefixReuse
from slipstream.models.run.row_table import RowTable


class DraftScorer:
    """Scores drafts, and commits what was accepted of them."""

    def __init__(
        self,
        rows: RowTable,
        prefixes: PrefixReuse,
        reader: PendingReader,
        forward: LayerPass,
        context: int,
        device: torch.device,
    ) -> None:
        self._rows, self._prefixes, self._reader, self._forward = rows, prefixes, reader, forward
        self._features, self._context, self._device = forward.features, context, device
        self._draft: Draft | None = None  # the one scored last

    def score(self, rows: Sequence[Row], draft: Draft) -> Scores:
        """Run the pending tokens and the nodes of all rows; the logits and the features at every slot."""
        lines = self._lines(rows, draft)
        states = [self._rows.states[row] for row in rows]
        for state in states:
            if state.skipped is not None:
                state.drop_uncommitted()
        depth = max((state.depth for state in states if state.hidden), default=0)
        if depth:
            self._run_first(states, lines, depth)
        slots = self._slots(lines, draft)
        held = {n: torch.cat([state.hidden[n] for state in states]) for n in states[0].hidden} if depth else {}
        resumed = held[depth - 1] if depth else None
        watched = [layer for layer in self._features.layers if layer >= depth]
        span, pieces = (depth, self._forward.all_layers[1]), [RowSlice(line) for line in lines]
        logits, outputs = self._forward.run(pieces, span, resumed, watched, slots)
        assert logits is not None
        for state, line in zip(states, lines, strict=True):
            state.drop_uncommitted()
            state.uncommitted, state.depth = line.entries, span[1]
        self._draft = draft
        where = slice(lines[0].pending - 1, None) if len(lines) == 1 else slots  # the slots of one row are consecutive
        outputs = held | outputs
        return Scores(logits, LazyRows({layer: outputs[layer] for layer in self._features.layers}, where))

    def peek(
        self, rows: Sequence[Row], draft: Draft, layers: int, skipped: SkippedBlocks | None = None
    ) -> Float[Tensor, "slots hidden"]:
        """The hidden state after the first `layers` layers at every slot.

        Entries that an earlier call ran for the same rows and the beginning of the same draft do not run again. With
        `skipped` blocks, `score` runs all entries again, so that nothing of this pass remains in the cache.
        """
        layer_count = self._forward.all_layers[1]
        if not 1 <= layers <= layer_count:
            raise ValueError(f"layers is {layers}; the model has 1 to {layer_count}")
        lines = self._lines(rows, draft)
        states = [self._rows.states[row] for row in rows]
        self._run_first(states, lines, layers, skipped)
        outputs = torch.cat([state.hidden[layers - 1] for state in states])
        return outputs[self._slots(lines, draft)]

    def commit(self, rows: Sequence[Row], verdict: Verdict, draft: Draft | None) -> None:
        """Keep the accepted path of `draft` (None: the one scored last) in the cache."""
        draft = self._draft if draft is None else draft
        assert draft is not None, "commit follows score"
        number = {i: n for numbers in nodes_by_row(draft) for n, i in enumerate(numbers)} if len(draft.tree) else {}
        layer_count, moves = self._forward.all_layers[1], list[tuple[int, int, int]]()
        for row, path, nodes in zip(rows, verdict.path.tolist(), local_nodes(draft), strict=True):
            moves += self._rows.accept(row, nodes, [number[i] for i in path if i >= 0], layer_count)
        if moves:
            self._rows.cache.move(moves)
        for row in rows:
            self._prefixes.publish(row)

    def _lines(self, rows: Sequence[Row], draft: Draft) -> list[RowEntries]:
        """What each row reads next. Pending tokens beyond one chunk are read first."""
        assert rows, "there is nothing to read"
        assert draft.tree.rows == len(rows), f"the draft speaks of {draft.tree.rows} rows, not {len(rows)}"
        drafted = local_nodes(draft)
        for row, nodes in zip(rows, drafted, strict=True):
            self._rows.reserve(row, row.length + len(nodes))
        pending = [self._rows.pending(row) for row in rows]
        if self._reader.is_behind(pending):
            pending = self._reader.catch_up(rows)
        states = [self._rows.states[row] for row in rows]
        lines = [
            RowEntries.of(state.index, len(state.tokens), new, nodes)
            for state, new, nodes in zip(states, pending, drafted, strict=True)
        ]
        longest = max(max(line.position) if line.branched else line.position[-1] for line in lines) + 1
        assert longest <= self._context, f"{longest} tokens do not fit the context of {self._context}"
        return lines

    def _slots(self, lines: Sequence[RowEntries], draft: Draft) -> Int[Tensor, " slots"]:
        return torch.from_numpy(np.array(slot_index(lines, draft))).to(self._device)

    def _run_first(
        self,
        states: Sequence[RowState],
        lines: Sequence[RowEntries],
        layers: int,
        skipped: SkippedBlocks | None = None,
    ) -> None:
        """Run the first layers over the entries that they have not run over yet, and keep their outputs."""
        pieces = [
            RowSlice(line, state.computed(line.entries, layers, skipped))
            for state, line in zip(states, lines, strict=True)
        ]
        watched = sorted({layers - 1, *(layer for layer in self._features.layers if layer < layers)})
        outputs: dict[int, Tensor] = {}
        if any(map(len, pieces)):
            running = [piece for piece in pieces if len(piece)]
            _, outputs = self._forward.run(running, (0, layers), None, watched, None, skipped)
        offset = 0
        for state, piece in zip(states, pieces, strict=True):
            new = {layer: output[offset : offset + len(piece)] for layer, output in outputs.items()}
            state.append_outputs(piece.line.entries, piece.skip, new, layers, skipped)
            offset += len(piece)
