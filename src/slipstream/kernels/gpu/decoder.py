"""The layers of a decoder on a GPU: seven kernels per layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import triton
import triton.language as tl
from torch import Tensor

from slipstream.kernels.gpu.attention import AttentionHeads, AttentionScratch, Layout, attend, survey, turn
from slipstream.kernels.gpu.int8_weight import Weight
from slipstream.kernels.gpu.launch import early, wait
from slipstream.kernels.gpu.matmul import product
from slipstream.kernels.gpu.residual import MOST_ROWS, ROWS, Norm, ResidualStream, row_tile

MOST_WEIGHTS = 1 << 24  # of the largest product of a layer; beyond, the library is faster for 17 to 64 tokens
ROOMY = 9, 10  # compute capabilities with 227 KiB for a program


@triton.jit
def _embed(token, embedding, out, size, SIZE: tl.constexpr, EARLY: tl.constexpr):
    if EARLY:
        wait()
    row, at = tl.program_id(0), tl.arange(0, SIZE)
    inside = at < size
    vector = tl.load(embedding + tl.load(token + row) * size + at, mask=inside, other=0.0)
    tl.store(out + row * size + at, vector.to(out.dtype.element_ty), mask=inside)


def embed(token: Tensor, embedding: Tensor, out: Tensor) -> None:
    size = embedding.shape[1]
    _embed[(len(out),)](token, embedding, out, size, triton.next_power_of_2(size), **early(out, len(out)))


@dataclass(frozen=True, eq=False)
class GpuLayer:
    """The weights of one layer, those that read the same rows fused."""

    qkv: Weight
    output: Weight
    gate_up: Weight
    down: Weight
    before: Norm | None  # None: what is read was normed already
    between: Norm
    qkv_bias: Tensor | None = None
    output_bias: Tensor | None = None
    head_norms: tuple[Norm, Norm] | None = None  # of each head's query and key


@dataclass(frozen=True, eq=False)
class GpuNetwork:
    blocks: Sequence[GpuLayer]
    norm: Norm
    head: Weight
    heads: AttentionHeads
    angles: tuple[Tensor, Tensor]  # cosines and sines by position, half as wide as a head
    exact: bool = False  # sums in one order for any number of rows, and wherever a pass begins

    def tile_rows(self, tokens: int) -> int:
        """The rows of a tile of our products. 0: products of so many tokens are the library's."""
        return ROWS if self.exact else row_tile(tokens) if tokens <= self.own_tokens else 0

    @cached_property
    def own_tokens(self) -> int:
        """Tokens of a pass whose products are ours. The library's are better for more, and for large weights early."""
        block = self.blocks[0]
        largest = max(math.prod(weight.shape) for weight in (block.qkv, block.output, block.gate_up, block.down))
        return MOST_ROWS if largest <= MOST_WEIGHTS and _has_room(self.norm.weight.device) else ROWS


def _has_room(device: torch.device) -> bool:
    """Whether a processor's own memory holds tiles of 64 rows, which take up to 192 KiB: on Hopper and Blackwell for
    data centres it does."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device)[0] in ROOMY


class PassBuffers:
    """What a pass over so many tokens writes to on its way; `parts` of the cache may be looked at."""

    def __init__(self, net: GpuNetwork, tokens: int, parts: int) -> None:
        block, heads = net.blocks[0], net.heads
        like = block.down
        self.stream = ResidualStream(tokens, like.shape[0], like)
        given = torch.float32 if net.tile_rows(tokens) else like.dtype  # sums as they are, or as the library gives them
        self.given = torch.empty(tokens, len(block.qkv), dtype=given, device=like.device)
        self.attended = like.new_empty(tokens, heads.heads * heads.dim).zero_()  # padding tokens stay finite
        self.inner = like.new_empty(tokens, like.shape[1])
        self.space = AttentionScratch.of(tokens, parts, heads, like)

    @property
    def hidden(self) -> Tensor:
        return self.stream.hidden


Held = Sequence[tuple[Tensor, Tensor]]
"""Keys and values of every layer, [rows, kv_heads, places, dim]."""


Watched = Mapping[int, Callable[[Tensor], object]]
"""What is done with the states that some layers give."""


def walk(
    net: GpuNetwork,
    room: PassBuffers,
    layout: Layout,
    held: Held,
    span: tuple[int, int],
    watched: Watched,
    tree: bool,
    writes: Layout | None = None,
    begun: bool = False,
) -> None:
    """Take what lies in `room.hidden` through the layers of a span; the final norm may read it then.

    `writes`: where keys and values are written, if tokens see more than the places up to their own. `begun`: whether
    the stream is prepared for the first norm already."""
    tile_rows, (first, last) = net.tile_rows(len(room.hidden)), span
    if first < last:
        if not begun:
            room.stream.begin(_norm_before(net, first))
        survey(layout, room.space, net.heads, tree)
    for i in range(first, last):
        after = _norm_before(net, i + 1)
        layer(
            net, net.blocks[i], room, room.stream, layout, held[i], after, tree, tile_rows, surveyed=True, writes=writes
        )
        if i in watched:
            watched[i](room.hidden)


def _norm_before(net: GpuNetwork, layer: int) -> Norm:
    norm = net.blocks[layer].before if layer < len(net.blocks) else net.norm
    assert norm is not None, "only a single layer may read what is normed already"
    return norm


def layer(
    net: GpuNetwork,
    block: GpuLayer,
    room: PassBuffers,
    reads: Tensor | ResidualStream,
    layout: Layout,
    held: tuple[Tensor, Tensor],
    after: Norm,
    tree: bool,
    tile_rows: int,
    surveyed: bool = False,
    writes: Layout | None = None,
) -> None:
    """One layer, which adds to the room's stream what it makes of `reads`; `after` is the norm that comes next."""
    keys, values = held
    product(reads, block.qkv, room.given, block.qkv_bias, tile_rows=tile_rows)
    turn(room.given, net.angles, writes or layout, keys, values, room.space.query, net.heads, block.head_norms)
    attend(layout, keys, values, room.space, room.attended, net.heads, tree, surveyed=surveyed)
    _add(net, room.attended, block.output, room.stream, block.output_bias, block.between, tile_rows)
    product(room.stream, block.gate_up, room.inner, gated=True, tile_rows=tile_rows)
    _add(net, room.inner, block.down, room.stream, None, after, tile_rows)


def _add(
    net: GpuNetwork, x: Tensor, weight: Weight, stream: ResidualStream, bias: Tensor | None, after: Norm, tile_rows: int
) -> None:
    """Add to the stream. Squares are summed by those who leave them, or all at once where that must not matter."""
    product(x, weight, stream, bias, after=None if net.exact else after, tile_rows=tile_rows)
    if net.exact:
        stream.begin(after)


def logits(net: GpuNetwork, stream: ResidualStream, out: Tensor) -> None:
    """The head, of what the final norm reads."""
    product(stream, net.head, out, tile_rows=net.tile_rows(len(stream.hidden)))


def logits_of(net: GpuNetwork, hidden: Tensor, out: Tensor) -> None:
    """The final norm and the head of states that lie elsewhere."""
    stream = ResidualStream(len(hidden), hidden.shape[1], net.head)
    stream.hidden.copy_(hidden)
    stream.begin(net.norm)
    logits(net, stream, out)
