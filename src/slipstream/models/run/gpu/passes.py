"""Passes on a GPU, replayed as CUDA graphs. Our kernels (`gpu.decoder`) or a model's own modules (`gpu.modules`) run.

A pass of few tokens is captured when its size is met for the second time, and replayed from then on. A replay reads its
tokens, positions and places from a table that is copied in. Passes of many tokens are captured where the model is so
small that they take longer to launch than to run. Graphs hold addresses, so they are dropped when the cache moves.
"""

from __future__ import annotations

import gc
import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.core.device import next_power_of_two
from slipstream.kernels.gpu.attention import LONG, PART, WORDS, AttentionHeads, Layout, PromptSlice
from slipstream.kernels.gpu.decoder import Held, Watched
from slipstream.models.cache.packing import RowSlice
from slipstream.models.cache.tensors import KVCache

Where = tuple[Int[Tensor, " tokens"], Int[Tensor, " tokens"]]
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32, 40, 48, 56, 64, 80, 96, 128)  # tokens of captured passes
LARGER = [step * n for step in (32, 64, 128, 256, 512, 1024) for n in range(5, 9)]  # 160 to 8192, for small models
MANY = 8  # captured passes of the sizes in LARGER, at most
SPARE = 1.25  # tokens of a captured pass that serves for one of fewer tokens, in multiples of these
PROMPTS = 8  # tokens whose logits a pass of a size in LARGER has room for, at least
SCRATCH = 1 << 17  # tokens times parts of the cache of a captured pass, at most: it keeps its buffers
EVEN = 16  # passes that are not captured have room for a multiple of this many tokens
ONCE = 1  # uncaptured runs of a size before it is captured
WORK = 1.2e12  # weights times tokens above which a pass runs longer than the host takes to launch it
PROMPT, LONGEST_PROMPT = 2048, 8192  # tokens of a pass over prompts, at least and at most
FEW_CHUNKS = 16  # of a pass that has room for a chunk per token
LEAST = 8  # parts of the cache that a captured pass can read, at least
COLUMNS = 7 + WORDS + 1  # of the table: layout of tokens and chunks, visibility bits, token ids


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
        cache.reserve(used)
        held = self.held(cache)
        tokens, slots = sum(map(len, pieces)), 0 if kept is None else len(kept)
        size = size_of(tokens, self.largest)
        room = size_of(slots if size <= SIZES[-1] else max(PROMPTS, slots)) if slots else 0
        parts, tree = parts_of(used), any(piece.line.branched for piece in pieces)
        prompts = [] if self.heads.exact or size <= self.largest else prompt_slices(pieces)
        chunk = self.heads.chunk(max(map(len, pieces)), tokens, parts, tree)
        sliced = {prompt.first for prompt in prompts}
        table, count = table_of(pieces, size, chunk, sliced)
        key = size, room, parts, span, tuple(watched), hidden is not None, tree, chunk, _chunks(count, size)
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
        if not SIZES[-1] < size <= self.largest:
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
        few = sum(captured[0] > SIZES[-1] for captured in self._graphs) < MANY and size * parts <= SCRATCH
        sized = size <= SIZES[-1] or (size <= self.largest and few)
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


def capture(run: Callable[[], None]) -> Callable[[], None]:
    """Capture a function as one CUDA graph. Returns what replays it.

    The function first runs twice uncaptured, so that all kernels are compiled. A capture that fails leaves its stream
    unusable, so each one has a stream of its own. Garbage collection is off meanwhile: it might free an old graph,
    which is not allowed during a capture.
    """
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        for _ in range(2):
            run()
        torch.cuda.synchronize()
        collecting = gc.isenabled()
        gc.disable()
        graph.capture_begin(capture_error_mode="thread_local")  # other threads may go on
        try:
            run()
        finally:
            graph.capture_end()
            if collecting:
                gc.enable()
    torch.cuda.current_stream().wait_stream(stream)
    return graph.replay


@contextmanager
def sync_forbidden() -> Iterator[None]:
    """Raise an error if code in this block reads a number back from the device, which no graph can record.

    Failing here is better than failing within a capture.
    """
    if not torch.cuda.is_available():
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that the mode does not notice everything
        try:
            torch.cuda.set_sync_debug_mode("error")
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)


def layout_of(
    table: Int[Tensor, "columns tokens"], chunk: int, chunks: int, prompts: Sequence[PromptSlice] = ()
) -> Layout:
    """The layout that a table describes, with up to `chunks` chunks of up to `chunk` tokens."""
    position, row, place, limit, base, first, count = table[:7]
    bits = table[7 : 7 + WORDS].view(-1, WORDS)
    return Layout(position, row, place, limit, base, bits, first[:chunks], count[:chunks], chunk, prompts)


def prompt_slices(pieces: Sequence[RowSlice]) -> list[PromptSlice]:
    """The pieces that are long stretches of text."""
    prompts, offset = [], 0
    for piece in pieces:
        if len(piece) >= LONG and not piece.line.branched:
            prompts.append(PromptSlice(piece.line.row, offset, len(piece), piece.line.start + piece.skip))
        offset += len(piece)
    return prompts


def table_of(
    pieces: Sequence[RowSlice], size: int, chunk: int, sliced: Collection[int] = ()
) -> tuple[Int[Tensor, "columns size"], int]:
    """The position, place and visibility of each packed entry, on the host, and the number of chunks.

    Padding entries have place -1. Pieces that begin at an entry in `sliced` are in no chunk."""
    table = torch.zeros(COLUMNS, size, dtype=torch.long)
    numbers = table.numpy()
    first, count, words, offset = list[int](), list[int](), list[tuple[int, int, int]](), 0
    for piece in pieces:
        line, skip = piece.line, piece.skip
        here = slice(offset, offset + len(piece))
        numbers[0, here], numbers[1, here] = _array(line.position[skip:]), line.row
        numbers[2, here] = np.arange(line.start + skip, line.start + len(line))
        numbers[3, here] = numbers[4, here] = _array(line.limit[skip:])
        numbers[-1, here] = line.token[skip:]
        for i in range(skip, len(line)) if line.branched else ():
            for place in line.seen[i]:
                word, bit = divmod(place - line.limit[i], 64)
                words.append((offset + i - skip, word, bit))
        starts = range(offset, offset + (0 if offset in sliced else len(piece)), chunk)
        first += starts
        count += [min(chunk, offset + len(piece) - start) for start in starts]
        offset += len(piece)
    table[2, offset:] = -1
    table[5:7, : len(first)] = torch.tensor([first, count])
    bits = table[7 : 7 + WORDS].view(-1, WORDS)
    for token, word, bit in words:
        bits[token, word] |= 1 << bit if bit < 63 else -(1 << 63)
    return table, len(first)


def _array(values: Sequence[int]) -> NDArray[np.int64]:
    return np.arange(values.start, values.stop) if isinstance(values, range) else np.array(values)


@cache
def parts_of(used: int) -> int:
    """How many parts of the cache a pass may read. An empty part costs next to nothing."""
    return next_power_of_two(max(LEAST, -(-used // PART)))


def _chunks(count: int, size: int) -> int:
    """How many chunks a pass has room for, at least one. Empty chunks take time, and few sizes mean few graphs."""
    return 1 if count <= 1 else size if size <= FEW_CHUNKS else min(size, next_power_of_two(count))


def size_of(tokens: int, largest: int = SIZES[-1]) -> int:
    """How many tokens a pass has room for: a size that is captured, or `tokens` rounded up to a multiple of `EVEN`.

    Tables of such sizes are aligned; for others the kernels would be compiled once more.
    """
    return next((size for size in (*SIZES, *LARGER) if tokens <= size <= largest), -(-tokens // EVEN) * EVEN)


def largest_of(weights: int) -> int:
    """The most tokens of a pass that is worth a graph, by the number of weights that each token passes."""
    return max(SIZES[-1], min(LARGER[-1], int(WORK / weights)))


def prompt_tokens_of(weights: int) -> int:
    """How many tokens of prompts are worth reading in one pass, by the number of weights that each token passes.

    Fewer take longer to launch than to run. More make the rows that decode meanwhile wait.
    """
    return max(PROMPT, min(LONGEST_PROMPT, int(WORK / weights)))
