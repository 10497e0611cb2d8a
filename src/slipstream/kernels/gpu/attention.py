"""Attention of a few queries over the used part of a cache, and what comes before it.

The places of a row are cut into parts of one size, wherever the row ends; a program takes one part for one head of keys
and up to sixteen queries of one row, so keys are read once for a group of heads and several tokens. The parts are put
together in their order. No sum depends on how far the cache reaches or who else is in the pass.

A token sees the places below its `limit` and, in a tree, the places from `base` on whose bits are set; where a layer
has a window, no further back than that. Below a limit a place is a position of the text, and no tree is deeper than a
window.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from slipstream.kernels.gpu.eighth import Weight
from slipstream.kernels.gpu.products import Norm

QUERIES = 16  # queries of a program, the smallest tile matrix units take
PART = 128  # places of a program
WORDS = 4  # of 64 bits: nodes of a tree that one token can choose from
TOGETHER = 16  # parts put together at a time
WARPS = 4  # of a program


@triton.jit
def _weight(one, other, at, inside, first):
    """Of one norm or the other."""
    mine = tl.load(one + at, mask=inside, other=0.0).to(tl.float32)
    return tl.where(first, mine, tl.load(other + at, mask=inside, other=0.0).to(tl.float32))


@triton.jit
def _turn(
    given, cos, sin, position, row, place, query, keys, values, row_step, head_step, query_norm, key_norm, epsilon,
    HEADS: tl.constexpr, KV: tl.constexpr, DIM: tl.constexpr, HALF: tl.constexpr, NORMED: tl.constexpr,
):  # fmt: skip
    """Turn queries and keys to their positions, NORMED head by head before, and write keys and values to their
    places."""
    token, head = tl.program_id(0), tl.program_id(1)
    at = tl.arange(0, HALF)
    inside = at < DIM // 2
    source = given + (token * (HEADS + 2 * KV) + head) * DIM + at
    left = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    right = tl.load(source + DIM // 2, mask=inside, other=0.0).to(tl.float32)
    if NORMED and head < HEADS + KV:
        size = tl.rsqrt((tl.sum(left * left, 0) + tl.sum(right * right, 0)) / DIM + epsilon)
        left = left * size * _weight(query_norm, key_norm, at, inside, head < HEADS)
        right = right * size * _weight(query_norm, key_norm, DIM // 2 + at, inside, head < HEADS)
    if head < HEADS + KV:
        where = tl.load(position + token) * (DIM // 2) + at
        c = tl.load(cos + where, mask=inside, other=0.0).to(tl.float32)
        s = tl.load(sin + where, mask=inside, other=0.0).to(tl.float32)
        left, right = left * c - right * s, right * c + left * s
    there = tl.load(place + token)
    if head < HEADS:
        target = query + (token * HEADS + head) * DIM + at
        tl.store(target, left.to(query.dtype.element_ty), mask=inside)
        tl.store(target + DIM // 2, right.to(query.dtype.element_ty), mask=inside)
    elif there >= 0:
        which = (head - HEADS) % KV
        step = tl.load(row + token) * row_step + which * head_step + there * DIM + at
        if head < HEADS + KV:
            tl.store(keys + step, left.to(keys.dtype.element_ty), mask=inside)
            tl.store(keys + step + DIM // 2, right.to(keys.dtype.element_ty), mask=inside)
        else:
            tl.store(values + step, left.to(values.dtype.element_ty), mask=inside)
            tl.store(values + step + DIM // 2, right.to(values.dtype.element_ty), mask=inside)


@triton.jit
def _put(
    key, value, row, place, keys, values, row_step, head_step, key_head, key_token, value_head, value_token,
    DIM: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Write keys and values that are what they should be to their places."""
    token, head, at = tl.program_id(0), tl.program_id(1), tl.arange(0, WIDE)
    inside, there = at < DIM, tl.load(place + token)
    if there >= 0:
        target = tl.load(row + token) * row_step + head * head_step + there * DIM + at
        left = tl.load(key + head * key_head + token * key_token + at, mask=inside, other=0.0)
        right = tl.load(value + head * value_head + token * value_token + at, mask=inside, other=0.0)
        tl.store(keys + target, left.to(keys.dtype.element_ty), mask=inside)
        tl.store(values + target, right.to(values.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["parts"])
def _attend(
    query, keys, values, row, position, place, limit, base, bits, first, count, weighted, peak, total, parts, row_step,
    head_step, scale, window, cap, WINDOW: tl.constexpr, CAP: tl.constexpr, HEADS: tl.constexpr, KV: tl.constexpr,
    DIM: tl.constexpr, WIDE: tl.constexpr, TREE: tl.constexpr, EXACT: tl.constexpr, QUERIES: tl.constexpr,
    PART: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    chunk, head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    GROUP: tl.constexpr = HEADS // KV
    size = tl.load(count + chunk)
    start = tl.load(first + chunk)
    index = tl.arange(0, QUERIES)
    live = index < size * GROUP
    token = start + tl.where(live, index // GROUP, 0)
    reach = tl.max(tl.where(live, tl.load(place + token) + 1, 0), 0)
    low = tl.zeros((QUERIES,), tl.int64)
    needed = part * PART < reach
    if WINDOW:
        low = tl.maximum(tl.load(position + token) - window + 1, 0)
        needed = needed & ((part + 1) * PART > tl.min(tl.where(live, low, reach), 0))
    if needed:
        precision: tl.constexpr = "ieee" if EXACT else "tf32"
        dim = tl.arange(0, WIDE)
        inside = dim < DIM
        which = token * HEADS + head * GROUP + index % GROUP
        asked = tl.load(query + which[:, None] * DIM + dim[None, :], mask=live[:, None] & inside[None, :], other=0.0)
        at = part * PART + tl.arange(0, PART)
        used = at < reach
        lies = tl.load(row + start) * row_step + head * head_step + at[:, None] * DIM + dim[None, :]
        mask = used[:, None] & inside[None, :]
        key = tl.load(keys + lies, mask=mask, other=0.0)
        value = tl.load(values + lies, mask=mask, other=0.0)
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
        found = tl.dot(weight.to(value.dtype), value, input_precision=precision)
        line = which * parts + part
        tl.store(weighted + line[:, None] * DIM + dim[None, :], found, mask=live[:, None] & inside[None, :])
        tl.store(peak + line, high, mask=live)
        tl.store(total + line, tl.sum(weight, 1), mask=live)


@triton.jit(do_not_specialize=["parts"])
def _together(
    weighted, peak, total, position, place, out, parts, window, sink,
    WINDOW: tl.constexpr, SINK: tl.constexpr, HEADS: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr,
    PART: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    token, head = tl.program_id(0), tl.program_id(1)
    count = (tl.load(place + token) + PART) // PART  # none where the place is -1
    dim = tl.arange(0, WIDE)
    inside = dim < DIM
    some = tl.arange(0, TOGETHER)
    line = (token * HEADS + head) * parts
    top = tl.full((), float("-inf"), tl.float32)
    norm = tl.zeros((), tl.float32)
    found = tl.zeros((WIDE,), tl.float32)
    begin = 0
    if WINDOW:
        begin = tl.maximum(tl.load(position + token) - window + 1, 0) // PART
    for start in range(begin, count, TOGETHER):
        there = start + some < count
        high = tl.load(peak + line + start + some, mask=there, other=float("-inf"))
        new = tl.maximum(top, tl.max(high, 0))
        safe = tl.where(new == float("-inf"), 0.0, new)
        factor = tl.exp(high - safe)
        before = tl.exp(top - safe)
        norm = norm * before + tl.sum(factor * tl.load(total + line + start + some, mask=there, other=0.0), 0)
        lies = (line + start + some)[:, None] * DIM + dim[None, :]
        part = tl.load(weighted + lies, mask=there[:, None] & inside[None, :], other=0.0)
        found = found * before + tl.sum(part * factor[:, None], 0)
        top = new
    if SINK:  # a score that takes weight and gives nothing
        extra = tl.load(sink + head).to(tl.float32)
        new = tl.maximum(top, extra)
        norm = norm * tl.exp(top - new) + tl.exp(extra - new)
        found = found * tl.exp(top - new)
    result = found / tl.where(norm > 0, norm, 1.0)
    tl.store(out + (token * HEADS + head) * DIM + dim, result.to(out.dtype.element_ty), mask=inside)


@dataclass(frozen=True)
class Heads:
    """How attention is cut."""

    heads: int
    kv_heads: int
    dim: int
    scale: float

    @property
    def group(self) -> int:
        return self.heads // self.kv_heads

    @property
    def chunk(self) -> int:
        """Tokens of one row that a program takes."""
        return max(1, QUERIES // self.group)


@dataclass(frozen=True, eq=False)
class Layout:
    """Who reads and writes where: one entry per packed token, then chunks of tokens of one row. A place of -1 is that
    of a token that only fills up the pass."""

    position: Tensor
    row: Tensor
    place: Tensor
    limit: Tensor
    base: Tensor
    bits: Tensor  # [tokens, WORDS]
    first: Tensor
    count: Tensor


@dataclass(frozen=True, eq=False)
class Space:
    """Where parts of attention are kept until they are put together."""

    query: Tensor  # [tokens, heads, dim]
    weighted: Tensor  # [tokens, heads, parts, dim]
    peak: Tensor
    total: Tensor

    @staticmethod
    def of(tokens: int, parts: int, heads: Heads, like: Weight) -> Space:
        def wide(*shape: int) -> Tensor:
            return torch.empty(tokens, heads.heads, *shape, device=like.device)

        query = like.new_empty(tokens, heads.heads, heads.dim)
        return Space(query, wide(parts, heads.dim), wide(parts), wide(parts))


def turn(
    given: Tensor,
    angles: tuple[Tensor, Tensor],
    layout: Layout,
    keys: Tensor,
    values: Tensor,
    out: Tensor,
    heads: Heads,
    norms: tuple[Norm, Norm] | None = None,
) -> None:
    """`given` holds query, key and value of each token side by side; `angles` one line per position, half as wide as a
    head; `norms` are those of each head's query and key, where there are any."""
    grid = len(given), heads.heads + 2 * heads.kv_heads
    steps = keys.stride(0), keys.stride(1)
    half = triton.next_power_of_2(heads.dim // 2)
    weights = (given, given, 0.0) if norms is None else (norms[0].weight, norms[1].weight, norms[0].epsilon)
    _turn[grid](
        *(given, *angles, layout.position, layout.row, layout.place, out, keys, values, *steps, *weights),
        *(heads.heads, heads.kv_heads, heads.dim, half, norms is not None),
        num_warps=1,
    )


def put(key: Tensor, value: Tensor, layout: Layout, keys: Tensor, values: Tensor) -> None:
    """Keys and values [kv_heads, tokens, dim] to their places in the cache."""
    kv_heads, tokens, dim = key.shape
    assert key.stride(2) == value.stride(2) == 1, "a key lies in one piece"
    _put[tokens, kv_heads](
        *(key, value, layout.row, layout.place, keys, values, keys.stride(0), keys.stride(1)),
        *(*key.stride()[:2], *value.stride()[:2], dim, triton.next_power_of_2(dim)),
        num_warps=1,
    )


@dataclass(frozen=True)
class Manner:
    """What else a layer's attention does."""

    window: int | None = None  # places seen, back from a token's own
    cap: float | None = None  # scores never exceed it
    sink: Tensor | None = None  # a score for each head that takes weight and gives nothing


PLAIN = Manner()


def attend(
    layout: Layout,
    keys: Tensor,
    values: Tensor,
    space: Space,
    out: Tensor,
    heads: Heads,
    tree: bool,
    manner: Manner = PLAIN,
) -> None:
    window, windowed = manner.window or 0, manner.window is not None
    tokens, parts = space.peak.shape[0], space.peak.shape[2]
    wide = max(16, triton.next_power_of_2(heads.dim))
    exact = keys.dtype == torch.float32
    _attend[len(layout.first), heads.kv_heads, parts](
        *(space.query, keys, values, layout.row, layout.position, layout.place, layout.limit, layout.base),
        *(layout.bits, layout.first, layout.count, space.weighted, space.peak, space.total, parts),
        *(keys.stride(0), keys.stride(1), heads.scale, window, manner.cap or 0.0, windowed, manner.cap is not None),
        *(heads.heads, heads.kv_heads, heads.dim, wide, tree, exact, QUERIES, PART, WORDS),
        num_warps=WARPS,
    )
    _together[tokens, heads.heads](
        *(space.weighted, space.peak, space.total, layout.position, layout.place, out, parts, window),
        *(out if manner.sink is None else manner.sink, windowed, manner.sink is not None),
        *(heads.heads, heads.dim, wide, PART, TOGETHER),
        num_warps=2,
    )
