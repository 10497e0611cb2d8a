"""Passes on a GPU, replayed as CUDA graphs. Our kernels (`gpu.decoder`) or a model's own modules (`gpu.modules`) run.

A pass of few tokens is captured when its size is met for the second time, and replayed from then on. A replay reads its
tokens, positions and places from a table that is copied in. Passes of many tokens are captured where the model is so
small that they take longer to launch than to run. Graphs hold addresses, so they are dropped when the cache moves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.kernels.gpu.attention import WORDS, AttentionHeads, Layout, PromptSlice
from slipstream.kernels.gpu.decoder import Held, Watched
from slipstream.models.cache.packing import RowSlice
from slipstream.models.cache.tensors import KVCache
from slipstream.models.run.gpu.graphs import capture
from slipstream.models.run.gpu.pass_sizes import PROMPT, SIZES, chunks_of, is_large, parts_of, size_of
from slipstream.models.run.gpu.pass_table import COLUMNS, layout_of, prompt_slices, table_of

Where = tuple[Int[Tensor, " tokens"], Int[Tensor, " tokens"]]
MOST_TOKENS = 1 << 16  # of all captured passes over prompts together: they keep their buffers
SPARE = 1.5  # tokens of a captured pass that serves for one of fewer tokens, in multiples of these
KEPT = 8  # tokens whose logits a pass over prompts has room for, at least
SCRATCH = 1 << 17  # tokens times parts of the cache of a captured pass, at most: it keeps its buffers
ONCE = 1  # uncaptured runs of a size before it is captured


@runtime_checkable
class PassRunner(Protocol):
    """The buffers of a pass over a fixed number of tokens."""

    @property
    def hidden(self) -> Float[Tensor, "tokens hidden"]:
        """The input of a pass that does not begin with tokens."""

    def run(
        self,
        token: Int[Tensor, " tokens"] | None,
        layout: Layout,
        held: Held,
        span: tuple[int, int],
        watched: Watched,
        tree: bool,
        out: Float[Tensor, "kept vocab"] | None = None,
        kept: Int[Tensor, " kept"] | None = None,
    ) -> None:
        """Run tokens, or the states in `hidden`, through the layers of a span; `out` gets the logits of `kept`."""


class GpuPasses(ABC):
    """A model's layers on a GPU. `like` gives the shape of a hidden state, `entries` of each layer's key and value."""

    heads: AttentionHeads
    layers: int
    vocab: int
    like: Float[Tensor, "1 hidden"]
    entries: Sequence[tuple[Float[Tensor, "1 kv_heads 1 dim"], Float[Tensor, "1 kv_heads 1 dim"]]]
    deepest: int = 64 * WORDS  # the deepest tree
    largest: int = SIZES[-1]  # tokens of a pass that is worth a graph
    row_bytes: int = 0  # of a row beside its KV cache
    prompt_tokens: int = PROMPT  # tokens of prompts that are worth reading in one pass

    def __init__(self) -> None:
        self.captures = 0
        self._graphs: dict[Any, CapturedPass] = {}
        self._met: Counter[Any] = Counter()  # uncaptured runs by size
        self._held: tuple[KVCache, int, list[tuple[Tensor, Tensor]]] | None = None

    @abstractmethod
    def passing(self, tokens: int, parts: int) -> PassRunner:
        """Buffers for a pass over `tokens` tokens that may read `parts` parts of the cache."""

    @abstractmethod
    def logits(self, hidden: Float[Tensor, "n hidden"]) -> Float[Tensor, "n vocab"]:
        """The model's final norm and head on hidden states; no layer runs."""

    def branches(self, levels: int) -> bool:
        """Whether trees of this depth can run, and their paths can be moved in all layers at once."""
        return levels <= self.deepest and len({key.shape for key, _ in self.entries}) == 1

    def supports(self, pieces: Sequence[RowSlice]) -> bool:
        """Whether every branch is narrow enough for the visibility bits."""
        reach = (
            seen[-1] - limit
            for piece in pieces
            if piece.line.branched
            for seen, limit in zip(piece.line.seen, piece.line.limit, strict=True)
            if seen
        )
        return max(reach, default=0) < 64 * WORDS

    def forward(
        self,
        cache: KVCache,
        pieces: Sequence[RowSlice],
        span: tuple[int, int],
        hidden: Float[Tensor, "tokens hidden"] | None = None,
        watched: Sequence[int] = (),
        kept: Tensor | None = None,
    ) -> tuple[Tensor | None, dict[int, Tensor], Where]:
        """Run the layers from `span[0]` up to `span[1]` over packed entries, from the embeddings or from `hidden`.

        Returns the logits of the `kept` entries, the outputs of the watched layers, and the cache row and the place
        that each entry was written to.
        """
        used = max(piece.line.start + len(piece.line) for piece in pieces)
        cache.check_room(pieces)
        held = self.held(cache)
        tokens, slots = sum(map(len, pieces)), 0 if kept is None else len(kept)
        size = size_of(tokens, self.largest)
        large = is_large(size)
        room = size_of(max(KEPT, slots) if large else slots) if slots else 0
        parts, tree = parts_of(used), any(piece.line.branched for piece in pieces)
        prompts = [] if self.heads.exact or size <= self.largest else prompt_slices(pieces)
        width = size if large else max(map(len, pieces))  # one graph serves for prompts of all lengths
        chunk = self.heads.chunk(width, size if large else tokens, parts, tree)
        sliced = {prompt.first for prompt in prompts}
        table, count = table_of(pieces, size, chunk, sliced)
        key = size, room, parts, span, tuple(watched), hidden is not None, tree, chunk, chunks_of(count, size, chunk)
        run = self._graphs.get(key)
        if run is None and (larger := self._larger(key)) is not None:
            run, (table, _) = self._graphs[larger], table_of(pieces, larger[0], chunk, sliced)
        run = run or self._new(key, held, prompts)
        where = run(table, hidden, kept)
        outputs = {layer: run.watched[layer][:tokens].clone() for layer in watched}
        return (run.logits[:slots].clone() if slots else None), outputs, (where.row[:tokens], where.place[:tokens])

    def _larger(self, key: Any) -> Any:
        """The key of a captured pass over somewhat more tokens than these, if they are many and there is one: it takes
        less time than to launch the kernels of a pass that is not captured."""
        size, room, parts, *others, chunks = key
        if not is_large(size) or size > self.largest:
            return None
        fitting = [
            known
            for known in self._graphs
            if size <= known[0] <= SPARE * size and known[1] >= room and known[2] >= parts and known[-1] >= chunks
            if list(known[3:-1]) == others and bool(known[1]) == bool(room)
        ]
        return min(fitting, key=lambda known: known[0], default=None)

    def _new(self, key: Any, held: Held, prompts: Sequence[PromptSlice]) -> CapturedPass:
        """A pass of this key, captured if the key was met before and its size is one that is captured.

        A capture takes as long as several passes.
        """
        size, parts = key[0], key[2]
        sized = size <= self.largest
        if is_large(size):
            taken = sum(captured[0] for captured in self._graphs if is_large(captured[0]))
            sized = sized and taken + size <= MOST_TOKENS and size * parts <= SCRATCH
        recorded = sized and self._met[key] >= ONCE
        run = CapturedPass(self, key, held, recorded, prompts)
        if recorded:
            self._graphs[key] = run
            self.captures += 1
        elif sized:
            self._met[key] += 1
        return run

    def held(self, cache: KVCache) -> list[tuple[Tensor, Tensor]]:
        """The key and value tensors of every layer, at their current addresses."""
        if self._held is None or self._held[0] is not cache or self._held[1] != cache.version:
            layers = [cache.layer(i, *entry) for i, entry in enumerate(self.entries)]
            self._held = cache, cache.version, layers
            self._graphs.clear()
        return self._held[2]


class CapturedPass:
    """A pass of one size: its buffers and, where it is recorded, a graph over them."""

    def __init__(
        self, passes: GpuPasses, key: Any, held: Held, recorded: bool, prompts: Sequence[PromptSlice] = ()
    ) -> None:
        size, slots, parts, self._span, watched, self._resumed, self._tree, chunk, chunks = key
        self._held, device = held, passes.like.device
        self._table = torch.zeros(COLUMNS, size, dtype=torch.long, device=device)
        self._table[2] = -1  # place -1: the warm-up runs of a capture write nothing
        self._kept = torch.zeros(slots, dtype=torch.long, device=device)
        self._pass = passes.passing(size, parts)
        self.watched = {layer: passes.like.new_empty(self._pass.hidden.shape) for layer in watched}
        self.logits = torch.empty(slots, passes.vocab, device=device)
        self._layout = layout_of(self._table, chunk, chunks, prompts)
        self._replay: Callable[[], None] = self._run
        if device.type == "cuda" and recorded:
            self._replay = capture(self._run)

    def __call__(self, table: Tensor, hidden: Tensor | None, kept: Tensor | None) -> Layout:
        self._table.copy_(table, non_blocking=True)
        if kept is not None:
            self._kept[: len(kept)].copy_(kept, non_blocking=True)
        if hidden is not None:
            self._pass.hidden[: len(hidden)].copy_(hidden)
        self._replay()
        return self._layout

    def _run(self) -> None:
        token = None if self._resumed else self._table[-1]
        watched = {layer: state.copy_ for layer, state in self.watched.items()}
        logits = (self.logits, self._kept) if len(self._kept) else ()
        self._pass.run(token, self._layout, self._held, self._span, watched, self._tree, *logits)
