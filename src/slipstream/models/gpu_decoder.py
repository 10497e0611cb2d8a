"""A model whose layers are the common kind on a GPU: few kernels a layer (`kernels.gpu`), replayed as captured graphs.

Passes of few tokens are captured once for each size and replayed: what tokens, positions and places they are about is
read from a table that is copied in. Long prompts run the same kernels uncaptured. Graphs speak of tensors where they
lie, so they are dropped when the cache moves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from slipstream.core.shapes import Float, Int, Tensor
from slipstream.kernels.gpu.attention import PART, WORDS, Heads, Layout
from slipstream.kernels.gpu.decoder import Block, Net, Room, embed, logits_of, walk
from slipstream.kernels.gpu.eighth import Weight, fused
from slipstream.kernels.gpu.products import Norm
from slipstream.models.cache import Cache, power
from slipstream.models.packing import Piece
from slipstream.models.rounded import RoundedLinear

Where = tuple[Int[Tensor, " tokens"], Int[Tensor, " tokens"]]
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32, 40, 48, 56, 64, 80, 96, 128)  # tokens of captured passes
LEAST = 8  # parts of the cache a captured pass can look at
COLUMNS = 7 + WORDS + 1  # of the table: where tokens and chunks of them are, what they see, and which they are


class GpuDecoder:
    """A model's layers, norm and head on the kernels, with the embedding and the angles of its own modules."""

    def __init__(self, model: Any, layers: Sequence[Any], windows: dict[int, int | None], exact: bool = False) -> None:
        if any(window is not None for window in windows.values()):
            raise TypeError("some layers see a window alone")
        base = model.base_model
        self.heads = _heads(layers[0])
        self.embedding: Tensor = _plain_embedding(model.get_input_embeddings())
        longest = model.config.get_text_config().max_position_embeddings
        angles = _angles(base.rotary_emb, longest, self.heads.dim, self.embedding.device)
        head = _weight(model.get_output_embeddings())
        blocks = [_block(layer) for layer in layers]
        norm = Norm(base.norm.weight.detach(), base.norm.variance_epsilon)
        self.net = Net(blocks, norm, head, self.heads, angles, exact)
        self.captures = 0
        self._graphs: dict[Any, Captured] = {}
        self._held: tuple[Cache, int, list[tuple[Tensor, Tensor]]] | None = None

    def takes(self, pieces: Sequence[Piece]) -> bool:
        """Whether every branch is narrow enough to be told in bits."""
        reach = (
            seen[-1] - limit for p in pieces for seen, limit in zip(p.line.seen, p.line.limit, strict=True) if seen
        )
        return max(reach, default=0) < 64 * WORDS

    def forward(
        self,
        cache: Cache,
        pieces: Sequence[Piece],
        span: tuple[int, int],
        hidden: Float[Tensor, "tokens hidden"] | None = None,
        watched: Sequence[int] = (),
        kept: Tensor | None = None,
    ) -> tuple[Tensor | None, dict[int, Tensor], Where]:
        """Run layers `span` over packed entries, from the embeddings or from `hidden`; the logits of the kept ones,
        what the watched layers gave, and the row and place each entry was written to."""
        used = max(piece.line.start + len(piece.line) for piece in pieces)
        cache.reserve(used)
        held = self.held(cache)
        tokens, slots = sum(map(len, pieces)), 0 if kept is None else len(kept)
        size, room = _size(tokens), _size(slots) if slots else 0
        parts, tree = parts_of(used), any(any(p.line.seen) for p in pieces)
        table = _table(pieces, size, self.heads.chunk)
        key = size, room, parts, span, tuple(watched), hidden is not None, tree
        run = self._graphs.get(key) or self._new(key, held)
        where = run(table, hidden, kept)
        found = {layer: run.watched[layer][:tokens].clone() for layer in watched}
        return (run.logits[:slots].clone() if slots else None), found, (where.row[:tokens], where.place[:tokens])

    def _new(self, key: Any, held: list[tuple[Tensor, Tensor]]) -> Captured:
        run = Captured(self, key, held)
        if key[0] <= SIZES[-1]:  # others are as many as there are lengths of prompts
            self._graphs[key] = run
            self.captures += 1
        return run

    def logits(self, hidden: Float[Tensor, "n hidden"]) -> Float[Tensor, "n vocab"]:
        """The model's norm and head alone."""
        out = torch.empty(len(hidden), len(self.net.head), device=hidden.device)
        logits_of(self.net, hidden, out)
        return out

    def held(self, cache: Cache) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of every layer, where they lie now."""
        if self._held is None or self._held[0] is not cache or self._held[1] != cache.version:
            like = self.embedding.new_empty(1, self.heads.kv_heads, 1, self.heads.dim)
            found = [cache.layer(i, like, like) for i in range(len(self.net.blocks))]
            self._held = cache, cache.version, found
            self._graphs.clear()
        return self._held[2]


class Captured:
    """One size of pass: its buffers, and on a GPU, for few tokens, a graph over them."""

    def __init__(self, decoder: GpuDecoder, key: Any, held: list[tuple[Tensor, Tensor]]) -> None:
        size, slots, parts, self._span, watched, self._resumed, self._tree = key
        self._decoder, self._held, net = decoder, held, decoder.net
        device = decoder.embedding.device
        self._table = torch.zeros(COLUMNS, size, dtype=torch.long, device=device)
        self._table[2] = -1  # nothing is written before there is something to write
        self._kept = torch.zeros(slots, dtype=torch.long, device=device)
        self._room = Room(net, size, parts)
        self.watched = {layer: decoder.embedding.new_empty(self._room.hidden.shape) for layer in watched}
        self.logits = torch.empty(slots, len(net.head), device=device)
        self._layout = layout_of(self._table)
        self._replay: Callable[[], None] = self._run
        if device.type == "cuda" and size <= SIZES[-1]:
            self._replay = capture(self._run)

    def __call__(self, table: Tensor, hidden: Tensor | None, kept: Tensor | None) -> Layout:
        self._table.copy_(table, non_blocking=True)
        if kept is not None:
            self._kept[: len(kept)].copy_(kept, non_blocking=True)
        if hidden is not None:
            self._room.hidden[: len(hidden)].copy_(hidden)
        self._replay()
        return self._layout

    def _run(self) -> None:
        net, room = self._decoder.net, self._room
        if not self._resumed:
            embed(self._table[-1], self._decoder.embedding, room.hidden)
        watched = {layer: state.copy_ for layer, state in self.watched.items()}
        walk(net, room, self._layout, self._held, self._span, watched, self._tree)
        if len(self._kept):
            logits_of(net, room.hidden.index_select(0, self._kept), self.logits)


def capture(run: Callable[[], None]) -> Callable[[], None]:
    """A function as one graph: it runs twice as it is, so that everything is compiled, then it is recorded."""
    aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads may go on
        run()
    return graph.replay


def layout_of(table: Int[Tensor, "columns tokens"]) -> Layout:
    position, row, place, limit, base, first, count = table[:7]
    return Layout(position, row, place, limit, base, table[7 : 7 + WORDS].view(-1, WORDS), first, count)


def _table(pieces: Sequence[Piece], size: int, chunk: int) -> Int[Tensor, "columns size"]:
    """Where each packed entry stands and what it sees, on the host. What fills up the pass has place -1."""
    table = torch.zeros(COLUMNS, size, dtype=torch.long)
    columns: list[list[int]] = [[] for _ in range(6)]
    first, count, words, offset = list[int](), list[int](), list[tuple[int, int, int]](), 0
    for piece in pieces:
        line = piece.line
        for i in range(piece.skip, len(line)):
            entry = line.position[i], line.row, line.start + i, line.limit[i], line.limit[i], line.entries[i][0]
            for column, value in zip(columns, entry, strict=True):
                column.append(value)
            for place in line.seen[i]:
                word, bit = divmod(place - line.limit[i], 64)
                words.append((offset + i - piece.skip, word, bit))
        starts = range(offset, offset + len(piece), chunk)
        first += starts
        count += [min(chunk, offset + len(piece) - start) for start in starts]
        offset += len(piece)
    tokens = len(columns[0])
    table[:5, :tokens] = torch.tensor(columns[:5])
    table[-1, :tokens] = torch.tensor(columns[5])
    table[2, tokens:] = -1
    table[5:7, : len(first)] = torch.tensor([first, count])
    bits = table[7 : 7 + WORDS].view(-1, WORDS)
    for token, word, bit in words:
        bits[token, word] |= 1 << bit if bit < 63 else -(1 << 63)
    return table


def parts_of(used: int) -> int:
    """Parts of the cache that a pass may look at; one that has nothing in it costs next to nothing."""
    return power(max(LEAST, -(-used // PART)))


def _size(tokens: int) -> int:
    return next((size for size in SIZES if size >= tokens), tokens)


def _block(layer: Any) -> Block:
    attention, mlp = layer.self_attn, layer.mlp
    qkv, bias = _fused([attention.q_proj, attention.k_proj, attention.v_proj])
    gate_up, none = _fused([mlp.gate_proj, mlp.up_proj])
    if none is not None or mlp.down_proj.bias is not None:
        raise TypeError("the feed-forward part has biases")
    before, between = layer.input_layernorm, layer.post_attention_layernorm
    return Block(
        qkv,
        _weight(attention.o_proj),
        gate_up,
        _weight(mlp.down_proj),
        Norm(before.weight.detach(), before.variance_epsilon),
        Norm(between.weight.detach(), between.variance_epsilon),
        bias,
        attention.o_proj.bias,
    )


def _fused(modules: Sequence[Any]) -> tuple[Weight, Tensor | None]:
    """Weights of several layers as one, of which theirs become views: nothing is held twice."""
    biases = [module.bias for module in modules]
    if any(bias is None for bias in biases) and any(bias is not None for bias in biases):
        raise TypeError("some of the products that are fused have a bias")
    bias = None if biases[0] is None else torch.cat([bias.detach() for bias in biases])
    if all(isinstance(module, RoundedLinear) for module in modules):
        return fused([module.eighth for module in modules]), bias
    parts = [_plain(module) for module in modules]
    weight = _side_by_side(parts) if _adjacent(parts) else torch.cat(parts)
    start = 0
    for module in modules:
        module.weight.data = weight[start : start + len(module.weight)]
        start += len(module.weight)
    return weight, bias


def _adjacent(parts: Sequence[Tensor]) -> bool:
    """Whether weights were fused before: each begins where the one before it ends."""
    ends = [part.data_ptr() + part.nbytes for part in parts]
    same = len({part.untyped_storage().data_ptr() for part in parts}) == 1
    return same and [part.data_ptr() for part in parts[1:]] == ends[:-1]


def _side_by_side(parts: Sequence[Tensor]) -> Tensor:
    first = parts[0]
    return first.as_strided((sum(map(len, parts)), first.shape[1]), first.stride())


def _weight(module: Any) -> Weight:
    return module.eighth if isinstance(module, RoundedLinear) else _plain(module)


def _plain(module: Any) -> Tensor:
    if type(module) is not nn.Linear or not module.weight.is_contiguous():
        raise TypeError(f"{type(module).__name__} is no plain product")
    return module.weight.detach()


def _plain_embedding(module: Any) -> Tensor:
    if type(module) is not nn.Embedding:
        raise TypeError(f"{type(module).__name__} is no plain embedding")
    return module.weight.detach()


def _heads(layer: Any) -> Heads:
    attention = layer.self_attn
    dim = attention.head_dim
    heads, kv_heads = len(attention.q_proj.weight) // dim, len(attention.k_proj.weight) // dim
    if dim % 2 or heads % kv_heads or heads // kv_heads > 16:
        raise TypeError(f"{heads} heads of {dim} over {kv_heads} are not what the kernels are made for")
    return Heads(heads, kv_heads, dim, attention.scaling)


def _angles(rotary: Any, longest: int, dim: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Of every position: where angles depend on more than that, a model was refused before."""
    with torch.inference_mode():
        both = rotary(torch.zeros(1, 1, device=device), torch.arange(longest, device=device)[None])
    if any(turn.shape[-1] != dim for turn in both):
        raise TypeError("only a part of each head is turned")
    cos, sin = (turn[0, :, : dim // 2].float().contiguous() for turn in both)
    return cos, sin
