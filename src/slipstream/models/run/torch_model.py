"""Any Hugging Face causal language model, with a cache that rolls back.

The model's own modules run; only attention and cache are ours (`attention`, `cache`). All rows of a cycle travel as
one packed sequence of one batch: what each row has not read yet of its committed text, then its drafted nodes
(`packing`). The output matrix, often the largest of all, is applied to slots alone.

A pass may end after the first n layers (`peek`) and be taken up there by the next `score`: a drafter that shares the
target's first layers leaves their work, and their part of the cache, behind for it. At all layers, `peek` reads only
what was added to a growing draft since the last call: that is how a draft model steps.

Rows that begin alike compute their beginning once (`shelf`): what any row read of it, open or closed, is copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.core.interfaces import Model
from slipstream.core.types import Draft, LazyRows, Row, Scores, Verdict
from slipstream.models.cache.prefix import leaders
from slipstream.models.cache.prefix_store import PASS, WORTH, PrefixCounts, PrefixStore, default_max_bytes
from slipstream.models.cache.row_state import RowState
from slipstream.models.cache.tensors import KVCache, hidden
from slipstream.models.run.attention import view
from slipstream.models.run.decoder import decoder
from slipstream.models.run.invariant import invariant_attention, no_invariance
from slipstream.models.run.layers import ModuleRunner
from slipstream.models.run.packing import (
    Entry,
    RowEntries,
    RowSlice,
    agree,
    entries_of,
    local_nodes,
    nodes_by_row,
    slot_index,
)
from slipstream.models.run.support_check import ModelAnatomy, check_config, longest_row, probe


class TorchModel(Model):
    """Wraps `model` for good: its attention is ours until `set_attn_implementation` puts another in."""

    def __init__(
        self,
        model: Any,
        features: tuple[int, ...] = (),
        context: int | None = None,
        prefill_chunk: int = 512,
        anatomy: ModelAnatomy | None = None,
        retained: int = 1 << 15,
        max_bytes: int | None = None,
        invariant: bool = False,
        kernels: bool = True,
    ) -> None:
        """`anatomy` is what an earlier wrapper found out about a model that has our attention in it again. `retained`
        tokens are kept for rows that begin alike, in at most `max_bytes` (`retain`); 0 computes everything anew.
        `invariant`: a row's numbers depend on its own tokens only, to the bit. Without `kernels` the model's own
        modules run, its weights as they lie."""
        check_config(model)
        self.model = model.eval()
        with torch.inference_mode():
            self.anatomy = probe(model) if anatomy is None else anatomy
        self.vocab, self.layers = self.anatomy.vocab, len(self.anatomy.layers)
        self.context = longest_row(model, context)
        self.device, self.dtype = torch.device(model.device), model.dtype
        self.prefill_chunk = prefill_chunk
        if prefill_chunk < 1:
            raise ValueError(f"prefill_chunk is {prefill_chunk}; it must be 1 or more")
        self._declared: tuple[int, ...] = ()
        self.declare(features)
        self.features: tuple[int, ...] = self._declared
        self.invariant = invariant
        self.branches = not (invariant and self.device.type == "cuda")  # sums over places: a tree's text lies at others
        self._kernel = invariant_attention(model) if invariant and self.device.type == "cpu" else None
        known = self.anatomy
        self.decoder = decoder(model, known, invariant) if kernels else None
        if invariant and self._kernel is None and self.decoder is None:
            raise no_invariance(model, "its layers are not run by kernels that sum in one order")
        self._modules = ModuleRunner(model, known.layers, known.as_tuple)
        self.cache = KVCache.on(self.device)
        self.retain(retained, max_bytes)
        self._seats: dict[Row, RowState] = {}
        self._draft: Draft | None = None

    def declare(self, features: Iterable[int]) -> None:
        """Keep what these layers give, too. Drafters may come while others' rows are under way, in any thread: it takes
        effect when a row next opens, which is between two passes, and for the rows that open from then on."""
        for layer in (wanted := tuple(features)):
            if not 0 <= layer < self.layers:
                raise ValueError(f"features names layer {layer}; the model has layers 0 to {self.layers - 1}")
        self._declared = tuple(dict.fromkeys((*self._declared, *wanted)))

    @torch.inference_mode()
    def open(self, rows: Sequence[Row]) -> None:
        if self.features != self._declared:
            self.features = self._declared
            self.retain(self.retained, self.max_bytes)  # what was kept so far lacks these layers
            for seat in self._seats.values():
                seat.forget()
        for row in rows:
            assert row not in self._seats, "the row is open already"
            self._room(1, 1)
            self._seats[row] = RowState(self.cache.take(), features=self.features)

    @torch.inference_mode()
    def close(self, rows: Sequence[Row]) -> None:
        for row in rows:
            seat = self._seats.pop(row)
            try:
                if seat.features == self.features:  # others may rely on every layer
                    self._shelf.keep(seat.index, seat.tokens)
            finally:
                self.cache.give(seat.index)

    def retain(self, tokens: int, max_bytes: int | None = None) -> None:
        self._shelf = PrefixStore(
            self.cache, tokens, default_max_bytes(self.device) if max_bytes is None else max_bytes
        )

    def bound(self, places: int) -> None:
        self.cache.limit = places

    @property
    def places(self) -> int:
        """What the cache holds at present, rows times places, full or not."""
        return self.cache.rows * self.cache.places

    def make_room(self, places: int) -> None:
        """Places for rows as long as this, before someone else writes them."""
        self._room(0, places)
        self.cache.reserve(places)

    def took(self, rows: Sequence[Row], tokens: Sequence[Sequence[int]]) -> None:
        """Someone else took what rows had not read yet, and these tokens after it, through all layers, and wrote the
        cache: they are committed."""
        for row, more in zip(rows, tokens, strict=True):
            seat = self._seats[row]
            seat.tokens += [*self._pending(row), *more]
            seat.forget()
            self._show(row)

    def index(self, row: Row) -> int:
        """Where a row lies in the cache."""
        return self._seats[row].index

    def feature_places(
        self, layers: Iterable[int], like: Float[Tensor, "1 hidden"]
    ) -> dict[int, Float[Tensor, "rows 1 places hidden"]]:
        """Where the states of these layers are kept, which are such as this one, to be written by someone else."""
        return {layer: self.cache.hold(hidden(layer), like[None, None])[0] for layer in layers}

    def _room(self, more: int, places: int) -> None:
        """Before rows or places grow beyond the limit, lay what is in use together."""
        if self.cache.crowded(more, places):
            seats = list(self._seats.values())
            held = max((len(seat.tokens) + len(seat.run) for seat in seats), default=1)
            self.cache.relay([seat.index for seat in seats], max(held, places))
            for n, seat in enumerate(seats):
                seat.index = n

    @property
    def retained(self) -> int:
        return self._shelf.retained

    @property
    def max_bytes(self) -> int:
        """How large what is kept for rows that begin alike may become."""
        return self._shelf.max_bytes

    @property
    def counts(self) -> PrefixCounts:
        """What the reuse of beginnings spared so far, and what it keeps."""
        return self._shelf.counts

    @torch.inference_mode()
    def prefill(self, rows: Sequence[Row], limit: int) -> list[int]:
        """Read up to `limit` more committed tokens of each row, never the last one; how many of each were read. A row
        that takes over what another one read gets that instead, however much it is."""
        self._room(0, max(row.length for row in rows))
        taken = [self._recall(row) for row in rows]
        fed = [0 if more else min(limit, len(self._pending(row)) - 1) for row, more in zip(rows, taken, strict=True)]
        self._feed(rows, fed)
        return [max(both) for both in zip(taken, fed, strict=True)]

    def _feed(self, rows: Sequence[Row], counts: Sequence[int]) -> None:
        """Run so many pending tokens of each row."""
        seats = [self._seats[row] for row in rows]
        new = [self._pending(row)[:count] for row, count in zip(rows, counts, strict=True)]
        lines = [RowEntries.of(seat.index, len(seat.tokens), tokens) for seat, tokens in zip(seats, new, strict=True)]
        pieces = [RowSlice(line) for line in lines if len(line)]
        if pieces:
            self._forward(pieces, (0, self.layers), None, self.features)
        for row, seat, tokens in zip(rows, seats, new, strict=True):
            seat.tokens += tokens
            seat.forget()
            self._show(row)

    def _recall(self, row: Row) -> int:
        """Take over what is kept of a row's text, all but its last token; how many tokens that gained."""
        seat, pending = self._seats[row], self._pending(row)
        if len(pending) <= WORTH or seat.hidden:  # a pass that is to be resumed has read them already
            return 0
        gained = self._shelf.recall(seat.index, row.tokens[:-1], len(seat.tokens)) - len(seat.tokens)
        seat.tokens += pending[:gained]
        if gained:
            seat.forget()
        return gained

    def _show(self, row: Row) -> None:
        """Let others take over the prompt as it is read; what follows it is shown when the row closes."""
        seat = self._seats[row]
        if seat.shown < min(len(row.request.prompt), len(seat.tokens)) and seat.features == self.features:
            self._shelf.keep(seat.index, seat.tokens)
            seat.shown = len(seat.tokens)

    def _share(self, rows: Sequence[Row]) -> None:
        """Of rows that are to begin alike in one pass, one reads ahead and the others take it over."""
        while True:
            for row in rows:
                self._recall(row)
            fresh = [row for row in rows if len(self._pending(row)) > WORTH and not self._seats[row].hidden]
            if len(fresh) < 2 or not self._shelf.open:
                return
            held = [len(self._seats[row].tokens) for row in fresh]
            ahead = leaders([row.tokens[:-1] for row in fresh], held, WORTH, PASS)
            if not ahead:
                return
            sizes = {fresh[n]: size for n, size in ahead.items()}
            while counts := {row: left for row, size in sizes.items() if (left := size - len(self._seats[row].tokens))}:
                self._feed(list(counts), [min(left, self.prefill_chunk) for left in counts.values()])

    @torch.inference_mode()
    def score(self, rows: Sequence[Row], draft: Draft) -> Scores:
        lines = self._lines(rows, draft)
        seats = [self._seats[row] for row in rows]
        depth = max((seat.depth for seat in seats if seat.hidden), default=0)
        if depth:
            self._begin(seats, lines, depth)
        slots = self._slots(lines, draft)
        held = {layer: torch.cat([seat.hidden[layer] for seat in seats]) for layer in seats[0].hidden} if depth else {}
        resumed = held[depth - 1] if depth else None
        wanted = [layer for layer in self.features if layer >= depth]
        logits, found = self._forward([RowSlice(line) for line in lines], (depth, self.layers), resumed, wanted, slots)
        assert logits is not None
        for seat, line in zip(seats, lines, strict=True):
            seat.run, seat.depth, seat.hidden = line.entries, self.layers, {}
        self._draft = draft
        where = slice(lines[0].pending - 1, None) if len(lines) == 1 else slots  # of one row all that follows, in order
        states = held | found
        return Scores(logits, LazyRows({layer: states[layer] for layer in self.features}, where))

    @torch.inference_mode()
    def peek(self, rows: Sequence[Row], draft: Draft, layers: int) -> Float[Tensor, "slots hidden"]:
        """The hidden state after the first `layers` layers at every slot. What an earlier call with the same rows and
        the beginning of the same draft has run is not run again."""
        if not 1 <= layers <= self.layers:
            raise ValueError(f"layers is {layers}; the model has 1 to {self.layers}")
        lines = self._lines(rows, draft)
        seats = [self._seats[row] for row in rows]
        self._begin(seats, lines, layers)
        states = torch.cat([seat.hidden[layers - 1] for seat in seats])
        return states[self._slots(lines, draft)]

    def _slots(self, lines: Sequence[RowEntries], draft: Draft) -> Int[Tensor, " slots"]:
        return torch.from_numpy(np.array(slot_index(lines, draft))).to(self.device)

    def _begin(self, seats: Sequence[RowState], lines: Sequence[RowEntries], layers: int) -> None:
        """Run the first layers over what they have not run over yet."""
        pieces = [RowSlice(line, seat.known(line.entries, layers)) for seat, line in zip(seats, lines, strict=True)]
        wanted = sorted({layers - 1, *(layer for layer in self.features if layer < layers)})
        found: dict[int, Tensor] = {}
        if any(map(len, pieces)):
            _, found = self._forward([piece for piece in pieces if len(piece)], (0, layers), None, wanted)
        self._hold(seats, pieces, found, layers)

    def _hold(
        self, seats: Sequence[RowState], pieces: Sequence[RowSlice], found: dict[int, Tensor], layers: int
    ) -> None:
        """Lay what a partial pass found beside what each row held of the entries before."""
        offset = 0
        for seat, piece in zip(seats, pieces, strict=True):
            new = {layer: state[offset : offset + len(piece)] for layer, state in found.items()}
            old = {layer: state[: piece.skip] for layer, state in seat.hidden.items()} if piece.skip else {}
            both = {layer: torch.cat([old[layer], new[layer]]) for layer in old.keys() & new.keys()}
            seat.run, seat.depth, seat.hidden = piece.line.entries, layers, old | new | both
            offset += len(piece)

    @torch.inference_mode()
    def logits(self, hidden: Float[Tensor, "n hidden"]) -> Float[Tensor, "n vocab"]:
        """The model's own norm and head on hidden states after some layer: no layer runs."""
        if self.decoder is not None:
            return self.decoder.logits(hidden)
        return self._modules.logits(hidden)

    @torch.inference_mode()
    def commit(self, rows: Sequence[Row], verdict: Verdict, draft: Draft | None = None) -> None:
        """`draft` is the one the verdict speaks of, where it is not the one scored last; nodes of it that never ran
        are not kept, and are read again as committed text."""
        draft = self._draft if draft is None else draft
        assert draft is not None, "commit follows score"
        number = {i: n for numbers in nodes_by_row(draft) for n, i in enumerate(numbers)} if len(draft.tree) else {}
        moves: list[tuple[int, int, int]] = []
        for row, path, nodes in zip(rows, verdict.path.tolist(), local_nodes(draft), strict=True):
            moves += self._keep(row, nodes, [number[i] for i in path if i >= 0])
        if moves:
            self.cache.move(moves)
        for row in rows:
            self._show(row)

    def _keep(self, row: Row, nodes: Sequence[Entry], path: Sequence[int]) -> list[tuple[int, int, int]]:
        """Make the pending tokens and the accepted nodes of one row its cached text; the entries to move for it."""
        seat, pending = self._seats[row], self._pending(row)
        start, count = len(seat.tokens), len(pending)
        entries = entries_of(pending, nodes)
        whole = agree(seat.run, entries) if seat.depth == self.layers else 0
        kept = [i for i in (*range(count), *(count + n for n in path)) if i < whole]
        seat.tokens += [entries[i][0] for i in kept]
        seat.forget()
        return [(seat.index, start + i, start + n) for n, i in enumerate(kept) if i != n]

    def check_integrity(self) -> None:
        """Raise AssertionError unless every row's cache is the beginning of its text and the cache agrees."""
        for row, seat in self._seats.items():
            size = min(len(seat.tokens), row.length)  # an end token may cut what was accepted
            assert seat.tokens[:size] == row.tokens[:size], f"the cache holds {seat.tokens}, the row {row.tokens}"
        seats = self._seats.values()
        self.cache.check_integrity([seat.index for seat in seats], [len(seat.tokens) for seat in seats])
        self._shelf.check_integrity()

    def _pending(self, row: Row) -> list[int]:
        """Committed tokens not cached yet: at least the last one, whose logits are always asked for."""
        seat, tokens = self._seats[row], row.tokens
        if len(seat.tokens) >= len(tokens):
            del seat.tokens[len(tokens) - 1 :]
            seat.forget()
        return tokens[len(seat.tokens) :]

    def _lines(self, rows: Sequence[Row], draft: Draft) -> list[RowEntries]:
        """What each row reads next, its backlog beyond one chunk fed beforehand."""
        assert rows, "there is nothing to read"
        assert draft.tree.rows == len(rows), f"the draft speaks of {draft.tree.rows} rows, not {len(rows)}"
        drafted = local_nodes(draft)
        self._room(0, max(row.length + len(nodes) for row, nodes in zip(rows, drafted, strict=True)))
        pending = [self._pending(row) for row in rows]
        if max(map(len, pending)) > min(WORTH, self.prefill_chunk):
            pending = self._backlog(rows)
        seats = [self._seats[row] for row in rows]
        lines = [
            RowEntries.of(seat.index, len(seat.tokens), new, nodes)
            for seat, new, nodes in zip(seats, pending, drafted, strict=True)
        ]
        longest = max(max(line.position) for line in lines) + 1
        assert longest <= self.context, f"{longest} tokens do not fit the context of {self.context}"
        return lines

    def _backlog(self, rows: Sequence[Row]) -> list[list[int]]:
        """Read what rows are behind by more than one chunk; what each has still to read."""
        self._share(rows)
        while long := [row for row in rows if len(self._pending(row)) > self.prefill_chunk]:
            self.prefill(long, self.prefill_chunk)
        return [self._pending(row) for row in rows]

    def cached(self, row: Row) -> int:
        """How many of a row's tokens were read."""
        return len(self._seats[row].tokens)

    def states(self, row: Row, start: int = 0) -> dict[int, Float[Tensor, "tokens hidden"]]:
        """What the layers declared before the row opened gave for its cached tokens from `start` on, whoever computed
        it. Not a copy: to be read before the row closes."""
        seat = self._seats[row]
        return {layer: self.cache.row(hidden(layer), seat.index, start, len(seat.tokens))[0] for layer in seat.features}

    def _forward(
        self,
        pieces: Sequence[RowSlice],
        span: tuple[int, int],
        given: Float[Tensor, "tokens hidden"] | None,
        watched: Sequence[int] = (),
        keep: Tensor | None = None,
    ) -> tuple[Tensor | None, dict[int, Tensor]]:
        """Run packed entries through a span of layers, from `given` where it does not begin with the first; the logits
        at `keep`, where they are wanted, and what the watched layers gave."""
        if self.decoder is not None and self.decoder.takes(pieces):
            logits, found, (row, place) = self.decoder.forward(self.cache, pieces, span, given, watched, keep)
            for layer in self.features:
                if layer in found:
                    self._remember(layer, found[layer], pieces, (row, place))
            return logits, found
        if self.invariant and self._kernel is None:
            raise no_invariance(self.model, "a tree as wide as this is not run by kernels that sum in one order")
        context = view(self.cache, self.anatomy.windows, pieces, self.device, self._kernel)
        token = [token for piece in pieces for token, _ in piece.line.entries[piece.skip :]]
        position = [place for piece in pieces for place in piece.line.position[piece.skip :]]
        token_ids, position_ids = torch.tensor([token, position], device=self.device)
        logits, found = self._modules.run(token_ids, position_ids, context, span, given, watched, keep)
        for layer in found.keys() & set(self.features):
            context.remember(layer, found[layer])
        return logits, found

    def _remember(self, layer: int, state: Tensor, pieces: Sequence[RowSlice], where: tuple[Tensor, Tensor]) -> None:
        """Keep what a layer gave for packed entries, each at its row and place. For a few numbers numpy takes a third
        of the time."""
        held = self.cache.hold(hidden(layer), state[None, None])[0]
        if len(pieces) == 1:
            held[pieces[0].stretch] = state
        elif held.is_cpu and held.dtype == torch.float32:
            row, place = where
            held.numpy()[row.numpy(), 0, place.numpy()] = state.numpy()
        else:
            held[where[0], 0, where[1]] = state
