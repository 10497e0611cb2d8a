"""Split-KV attention of a few queries over the KV cache, and the rotary embedding before it.

The places of a row are split into parts of fixed size. A program computes one part for one key head and several queries
of one row, so it reads keys once for a group of query heads and several tokens. A second kernel combines the parts in
their order. No sum depends on the length of the cache. With `AttentionHeads.exact` no sum depends on the other rows of
the pass either: a program then always takes sixteen queries.

A token attends to the places below its `limit`. In a tree it also attends to the places from `base` on whose bits are
set. A sliding window limits how far back it attends. Below the limit, a place is a position of the text; no tree is
deeper than a window.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from slipstream.kernels.gpu.int8_weight import Weight
from slipstream.kernels.gpu.launch import early, wait
from slipstream.kernels.gpu.residual import Norm

QUERIES, WIDEST = 16, 64  # queries of a program: the smallest tile matrix units take, and the largest that pays
MANY = 64  # tokens of a pass that has programs enough with larger tiles
PART = 128  # places of a program
WORDS = 4  # of 64 bits: nodes of a tree that one token can choose from
TOGETHER = 8  # parts put together at a time
ABREAST, TURNED = 4, 8  # heads of a program that puts parts together, and of one that turns them
WARPS = 4  # of a program


@triton.jit
def _turn(
    given, cos, sin, position, row, place, query, keys, values, row_step, head_step, query_norm, key_norm, epsilon,
    HEADS: tl.constexpr, KV: tl.constexpr, DIM: tl.constexpr, HALF: tl.constexpr, NORMED: tl.constexpr,
    TURNED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Apply the rotary embedding to queries and keys, after a norm of each head if NORMED, and write keys and values
    to their places."""
    if EARLY:
        wait()
    token, head = tl.program_id(0), tl.program_id(1) * TURNED + tl.arange(0, TURNED)
    at = tl.arange(0, HALF)
    inside = at < DIM // 2
    mask = (head < HEADS + 2 * KV)[:, None] & inside[None, :]
    source = given + (token * (HEADS + 2 * KV) + head)[:, None] * DIM + at[None, :]
    left = tl.load(source, mask=mask, other=0.0).to(tl.float32)
    right = tl.load(source + DIM // 2, mask=mask, other=0.0).to(tl.float32)
    there = tl.load(place + token)
    owner = tl.load(row + token)
    turns = (head < HEADS + KV)[:, None]
    if NORMED:
        size = tl.rsqrt((tl.sum(left * left, 1) + tl.sum(right * right, 1)) / DIM + epsilon)[:, None]
        asks = (head < HEADS)[:, None]
        first = tl.where(asks, _line(query_norm + at, inside), _line(key_norm + at, inside))
        second = tl.where(asks, _line(query_norm + DIM // 2 + at, inside), _line(key_norm + DIM // 2 + at, inside))
        left, right = tl.where(turns, left * size * first, left), tl.where(turns, right * size * second, right)
    where = tl.load(position + token) * (DIM // 2) + at
    c, s = _line(cos + where, inside), _line(sin + where, inside)
    left, right = tl.where(turns, left * c - right * s, left), tl.where(turns, right * c + left * s, right)
    asked = mask & (head < HEADS)[:, None]
    target = query + (token * HEADS + head)[:, None] * DIM + at[None, :]
    tl.store(target, left.to(query.dtype.element_ty), mask=asked)
    tl.store(target + DIM // 2, right.to(query.dtype.element_ty), mask=asked)
    kept = mask & ((head >= HEADS) & (there + 0 * head >= 0))[:, None]
    which = tl.where(head >= HEADS, (head - HEADS) % KV, 0)
    step = owner * row_step + which[:, None] * head_step + there * DIM + at[None, :]
    tl.store(keys + step, left.to(keys.dtype.element_ty), mask=kept & turns)
    tl.store(keys + step + DIM // 2, right.to(keys.dtype.element_ty), mask=kept & turns)
    tl.store(values + step, left.to(values.dtype.element_ty), mask=kept & (head >= HEADS + KV)[:, None])
    tl.store(values + step + DIM // 2, right.to(values.dtype.element_ty), mask=kept & (head >= HEADS + KV)[:, None])


@triton.jit
def _line(lies, inside):
    return tl.load(lies, mask=inside, other=0.0).to(tl.float32)[None, :]


@triton.jit
def _put(
    key, value, row, place, keys, values, row_step, head_step, key_head, key_token, value_head, value_token,
    DIM: tl.constexpr, WIDE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Write keys and values, already rotated, to their places."""
    if EARLY:
        wait()
    token, head, at = tl.program_id(0), tl.program_id(1), tl.arange(0, WIDE)
    inside, there = at < DIM, tl.load(place + token)
    if there >= 0:
        target = tl.load(row + token) * row_step + head * head_step + there * DIM + at
        left = tl.load(key + head * key_head + token * key_token + at, mask=inside, other=0.0)
        right = tl.load(value + head * value_head + token * value_token + at, mask=inside, other=0.0)
        tl.store(keys + target, left.to(keys.dtype.element_ty), mask=inside)
        tl.store(values + target, right.to(values.dtype.element_ty), mask=inside)


@triton.jit
def _reach(first, count, place, chunk, GROUP: tl.constexpr, QUERIES: tl.constexpr):
    """The number of places that the tokens of a chunk attend to."""
    index = tl.arange(0, QUERIES)
    live = index < tl.load(count + chunk) * GROUP
    token = tl.load(first + chunk) + tl.where(live, index // GROUP, 0)
    return tl.max(tl.where(live, tl.load(place + token) + 1, 0), 0)


@triton.jit
def _survey(row, place, first, count, chunks, GROUP: tl.constexpr, QUERIES: tl.constexpr, EARLY: tl.constexpr):
    if EARLY:
        wait()
    chunk = tl.program_id(0)
    tl.store(chunks + 2 * chunk, _reach(first, count, place, chunk, GROUP, QUERIES))
    tl.store(chunks + 2 * chunk + 1, tl.load(row + tl.load(first + chunk)))


@triton.jit(do_not_specialize=["parts"])
def _attend(
    query, keys, values, row, position, place, limit, base, bits, first, count, chunks, weighted, peak, total, parts,
    row_step, head_step, scale, window, cap, SURVEYED: tl.constexpr, WINDOW: tl.constexpr, CAP: tl.constexpr,
    HEADS: tl.constexpr, KV: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr, TREE: tl.constexpr,
    EXACT: tl.constexpr, QUERIES: tl.constexpr, PART: tl.constexpr, WORDS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:
        wait()
    chunk, head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    GROUP: tl.constexpr = HEADS // KV
    size = tl.load(count + chunk)
    start = tl.load(first + chunk)
    index = tl.arange(0, QUERIES)
    live = index < size * GROUP
    token = start + tl.where(live, index // GROUP, 0)
    if SURVEYED:
        reach, owner = tl.load(chunks + 2 * chunk), tl.load(chunks + 2 * chunk + 1)
    else:
        reach, owner = _reach(first, count, place, chunk, GROUP, QUERIES), tl.load(row + start)
    low = tl.zeros((QUERIES,), tl.int64)
    needed = part * PART < reach
    if WINDOW:
        low = tl.maximum(tl.load(position + token) - window + 1, 0)
        needed = needed & ((part + 1) * PART > tl.min(tl.where(live, low, reach), 0))
    if needed:
        precision: tl.constexpr = "ieee" if EXACT else "tf32"
        dim = tl.arange(0, WIDE)
        inside = dim < DIM
        at = part * PART + tl.arange(0, PART)
        used = at < reach
        lies = owner * row_step + head * head_step + at[:, None] * DIM + dim[None, :]
        mask = used[:, None] & inside[None, :]
        key = tl.load(keys + lies, mask=mask, other=0.0)
        value = tl.load(values + lies, mask=mask, other=0.0)
        which = token * HEADS + head * GROUP + index % GROUP
        asked = tl.load(query + which[:, None] * DIM + dim[None, :], mask=live[:, None] & inside[None, :], other=0.0)
        score = tl.dot(asked, tl.trans(key), input_precision=precision) * scale
        if CAP:
            score = cap * (1.0 - 2.0 / (tl.exp(2.0 * score / cap) + 1.0))  # the hyperbolic tangent
        seen = (at[None, :] < tl.load(limit + token)[:, None]) & (at[None, :] >= low[:, None])
        if TREE:
            node = at[None, :] - tl.load(base + token)[:, None]
            among = (node >= 0) & (node < 64 * WORDS) & live[:, None]
            word = tl.load(bits + token[:, None] * WORDS + node // 64, mask=among, other=0)
            seen = seen | (among & (((word >> (node % 64)) & 1) != 0))
        seen = seen & used[None, :] & live[:, None]
        score = tl.where(seen, score, float("-inf"))
        high = tl.max(score, 1)
        safe = tl.where(high == float("-inf"), 0.0, high)
        weight = tl.exp(score - safe[:, None])
        product = tl.dot(weight.to(value.dtype), value, input_precision=precision)
        line = which * parts + part
        tl.store(weighted + line[:, None] * DIM + dim[None, :], product, mask=live[:, None] & inside[None, :])
        tl.store(peak + line, high, mask=live)
        tl.store(total + line, tl.sum(weight, 1), mask=live)


@triton.jit(do_not_specialize=["parts"])
def _together(
    weighted, peak, total, position, place, out, parts, window, sink,
    ONCE: tl.constexpr, WINDOW: tl.constexpr, SINK: tl.constexpr, HEADS: tl.constexpr, DIM: tl.constexpr,
    WIDE: tl.constexpr, PART: tl.constexpr, TOGETHER: tl.constexpr, ABREAST: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Combine the parts of each query. ONCE: all parts of the cache fit into one step, so the loads do not wait for the
    number of used parts; the sums are the same."""
    if EARLY:
        wait()
    token, head = tl.program_id(0), tl.program_id(1) * ABREAST + tl.arange(0, ABREAST)
    dim = tl.arange(0, WIDE)
    inside = dim < DIM
    real = head < HEADS
    index = tl.arange(0, TOGETHER)
    line = (token * HEADS + head)[:, None] * parts + index[None, :]
    lies = line[:, :, None] * DIM + dim[None, None, :]
    count = (tl.load(place + token) + PART) // PART  # none where the place is -1
    top = tl.full((ABREAST,), float("-inf"), tl.float32)
    norm = tl.zeros((ABREAST,), tl.float32)
    weighted_sum = tl.zeros((ABREAST, WIDE), tl.float32)
    if ONCE and not WINDOW:
        mask = (index < parts)[None, :] & real[:, None]
        there = (index < count)[None, :] & real[:, None]
        high = tl.load(peak + line, mask=mask, other=float("-inf"))
        each = tl.load(total + line, mask=mask, other=0.0)
        part = tl.load(weighted + lies, mask=mask[:, :, None] & inside[None, None, :], other=0.0)
        high = tl.where(there, high, float("-inf"))
        top = tl.max(high, 1)
        factor = tl.exp(high - tl.where(top == float("-inf"), 0.0, top)[:, None])
        norm = tl.sum(factor * tl.where(there, each, 0.0), 1)
        weighted_sum = tl.sum(tl.where(there[:, :, None], part, 0.0) * factor[:, :, None], 1)
    else:
        begin = 0
        if WINDOW:
            begin = tl.maximum(tl.load(position + token) - window + 1, 0) // PART
        for start in range(begin, count, TOGETHER):
            there = (start + index < count)[None, :] & real[:, None]
            high = tl.load(peak + start + line, mask=there, other=float("-inf"))
            new = tl.maximum(top, tl.max(high, 1))
            safe = tl.where(new == float("-inf"), 0.0, new)
            factor = tl.exp(high - safe[:, None])
            before = tl.exp(top - safe)
            norm = norm * before + tl.sum(factor * tl.load(total + start + line, mask=there, other=0.0), 1)
            part = tl.load(weighted + start * DIM + lies, mask=there[:, :, None] & inside[None, None, :], other=0.0)
            weighted_sum = weighted_sum * before[:, None] + tl.sum(part * factor[:, :, None], 1)
            top = new
    if SINK:  # a score that takes weight and gives nothing
        extra = tl.load(sink + head, mask=real, other=0.0).to(tl.float32)
        new = tl.maximum(top, extra)
        norm = norm * tl.exp(top - new) + tl.exp(extra - new)
        weighted_sum = weighted_sum * tl.exp(top - new)[:, None]
    result = weighted_sum / tl.where(norm > 0, norm, 1.0)[:, None]
    place_of = (token * HEADS + head)[:, None] * DIM + dim[None, :]
    tl.store(out + place_of, result.to(out.dtype.element_ty), mask=real[:, None] & inside[None, :])


@dataclass(frozen=True)
class AttentionHeads:
    """The sizes of attention heads, and the tiles of the kernels."""

    heads: int
    kv_heads: int
    dim: int
    scale: float
    exact: bool = False  # one tile for any number of tokens

    @property
    def group(self) -> int:
        return self.heads // self.kv_heads

    def chunk(self, width: int, tokens: int) -> int:
        """Tokens of one row that a program takes, where rows have up to `width` of all tokens of a pass."""
        tile = QUERIES if self.exact or tokens <= MANY else min(WIDEST, self.tile(width))
        return max(1, tile // self.group)

    def tile(self, chunk: int) -> int:
        """Queries of a program that takes so many tokens."""
        return max(QUERIES, int(triton.next_power_of_2(chunk * self.group)))


@dataclass(frozen=True, eq=False)
class Layout:
    """Positions, rows and places of packed tokens, and chunks of up to `chunk` tokens of one row. Padding tokens have
    the place -1."""

    position: Tensor
    row: Tensor
    place: Tensor
    limit: Tensor
    base: Tensor
    bits: Tensor  # [tokens, WORDS]
    first: Tensor
    count: Tensor
    chunk: int


@dataclass(frozen=True, eq=False)
class AttentionScratch:
    """Scratch memory: the partial results of attention before they are combined, and the reach and row of each chunk,
    which `survey` computes once for all layers."""

    query: Tensor  # [tokens, heads, dim]
    weighted: Tensor  # [tokens, heads, parts, dim]
    peak: Tensor
    total: Tensor
    chunks: Tensor  # [tokens, 2]

    @staticmethod
    def of(tokens: int, parts: int, heads: AttentionHeads, like: Weight) -> AttentionScratch:
        def wide(*shape: int) -> Tensor:
            return torch.empty(tokens, heads.heads, *shape, device=like.device)

        query = like.new_empty(tokens, heads.heads, heads.dim)
        chunks = torch.empty(tokens, 2, dtype=torch.long, device=like.device)
        return AttentionScratch(query, wide(parts, heads.dim), wide(parts), wide(parts), chunks)


def turn(
    given: Tensor,
    angles: tuple[Tensor, Tensor],
    layout: Layout,
    keys: Tensor,
    values: Tensor,
    out: Tensor,
    heads: AttentionHeads,
    norms: tuple[Norm, Norm] | None = None,
) -> None:
    """`given` holds query, key and value of each token side by side; `angles` one line per position, half as wide as a
    head; `norms` are those of each head's query and key, where there are any."""
    grid = len(given), triton.cdiv(heads.heads + 2 * heads.kv_heads, TURNED)
    steps = keys.stride(0), keys.stride(1)
    half = triton.next_power_of_2(heads.dim // 2)
    weights = (given, given, 0.0) if norms is None else (norms[0].weight, norms[1].weight, norms[0].epsilon)
    _turn[grid](
        *(given, *angles, layout.position, layout.row, layout.place, out, keys, values, *steps, *weights),
        *(heads.heads, heads.kv_heads, heads.dim, half, norms is not None, TURNED),
        num_warps=1,
        **early(given, len(given)),
    )


def put(key: Tensor, value: Tensor, layout: Layout, keys: Tensor, values: Tensor) -> None:
    """Keys and values [kv_heads, tokens, dim] to their places in the cache."""
    kv_heads, tokens, dim = key.shape
    assert key.stride(2) == value.stride(2) == 1, "a key lies in one piece"
    _put[tokens, kv_heads](
        *(key, value, layout.row, layout.place, keys, values, keys.stride(0), keys.stride(1)),
        *(*key.stride()[:2], *value.stride()[:2], dim, triton.next_power_of_2(dim)),
        num_warps=1,
        **early(key, tokens),
    )


@dataclass(frozen=True)
class AttentionOptions:
    """What else a layer's attention does."""

    window: int | None = None  # places seen, back from a token's own
    cap: float | None = None  # scores never exceed it
    sink: Tensor | None = None  # a score for each head that takes weight and gives nothing


PLAIN = AttentionOptions()


def survey(layout: Layout, space: AttentionScratch, heads: AttentionHeads) -> None:
    """Look once at what is the same in all layers."""
    _survey[(len(layout.first),)](
        *(layout.row, layout.place, layout.first, layout.count, space.chunks, heads.group, heads.tile(layout.chunk)),
        num_warps=1,
        **early(layout.row, len(layout.row)),
    )


def attend(
    layout: Layout,
    keys: Tensor,
    values: Tensor,
    space: AttentionScratch,
    out: Tensor,
    heads: AttentionHeads,
    tree: bool,
    manner: AttentionOptions = PLAIN,
    surveyed: bool = False,
) -> None:
    window, windowed = manner.window or 0, manner.window is not None
    tokens, parts = space.peak.shape[0], space.peak.shape[2]
    wide = max(16, triton.next_power_of_2(heads.dim))
    exact = keys.dtype == torch.float32
    _attend[len(layout.first), heads.kv_heads, parts](
        *(space.query, keys, values, layout.row, layout.position, layout.place, layout.limit, layout.base),
        *(layout.bits, layout.first, layout.count, space.chunks, space.weighted, space.peak, space.total, parts),
        *(keys.stride(0), keys.stride(1), heads.scale, window, manner.cap or 0.0),
        *(surveyed, windowed, manner.cap is not None),
        *(heads.heads, heads.kv_heads, heads.dim, wide, tree, exact, heads.tile(layout.chunk), PART, WORDS),
        num_warps=WARPS,
        **early(keys, tokens),
    )
    _together[tokens, triton.cdiv(heads.heads, ABREAST)](
        *(space.weighted, space.peak, space.total, layout.position, layout.place, out, parts, window),
        *(out if manner.sink is None else manner.sink, parts <= TOGETHER, windowed, manner.sink is not None),
        *(heads.heads, heads.dim, wide, PART, TOGETHER, ABREAST),
        num_warps=4,
        **early(keys, tokens),
    )
