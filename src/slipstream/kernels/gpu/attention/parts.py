"""Attention of a few queries over the KV cache in parts of fixed size.

The places of a row are split into parts of fixed size. A program computes one part for one key head and several queries
of one row, so it reads keys once for a group of query heads and several tokens. A second kernel combines the parts in
their order. No sum depends on the length of the cache. With `AttentionHeads.exact` no sum depends on the other rows of
the pass either: a program then always takes sixteen queries. Nodes of a tree then attend in the order of the text: a
program takes one token and finds where each position of its path is stored.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from slipstream.kernels.gpu.attention.shapes import (
    PART,
    WORDS,
    AttentionHeads,
    AttentionOptions,
    AttentionScratch,
    Layout,
)
from slipstream.kernels.gpu.launch import early, wait

TOGETHER = 8  # parts put together at a time
ABREAST = 4  # heads of a program that puts parts together
WARPS = 4  # of a program


@triton.jit
def reach_of(first, count, place, chunk, GROUP: tl.constexpr, QUERIES: tl.constexpr):
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
    tl.store(chunks + 2 * chunk, reach_of(first, count, place, chunk, GROUP, QUERIES))
    tl.store(chunks + 2 * chunk + 1, tl.load(row + tl.load(first + chunk)))


@triton.jit
def _paths(place, limit, bits, path, ends, WORDS: tl.constexpr, EARLY: tl.constexpr):
    """The nodes that a token attends to, in their order, and its own place in the order of the text."""
    if EARLY:
        wait()
    token, node = tl.program_id(0), tl.arange(0, 64 * WORDS)
    seen = ((tl.load(bits + token * WORDS + node // 64) >> (node % 64)) & 1).to(tl.int32)
    tl.store(path + token * 64 * WORDS + tl.cumsum(seen, 0) - 1, node.to(tl.int64), mask=seen != 0)
    own = tl.load(limit + token) + tl.sum(seen, 0) - 1
    tl.store(ends + token, tl.where(tl.load(place + token) < 0, -1, own))


@triton.jit
def _stored(at, used, path, token, limit, base, WORDS: tl.constexpr):
    """The places where the text that a token attends to is stored: beyond its limit, those of its path's nodes."""
    own = tl.load(limit + token)
    node = tl.load(path + token * 64 * WORDS + at - own, mask=used & (at >= own), other=0)
    return tl.where(at >= own, tl.load(base + token) + node, at)


@triton.jit(do_not_specialize=["parts"])
def _attend(
    query, keys, values, row, position, place, limit, base, bits, path, first, count, chunks, weighted, peak, total,
    parts, row_step, head_step, scale, window, cap, SURVEYED: tl.constexpr, WINDOW: tl.constexpr, CAP: tl.constexpr,
    HEADS: tl.constexpr, KV: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr, TREE: tl.constexpr,
    PATHS: tl.constexpr, EXACT: tl.constexpr, QUERIES: tl.constexpr, PART: tl.constexpr, WORDS: tl.constexpr,
    EARLY: tl.constexpr,
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
        reach, owner = reach_of(first, count, place, chunk, GROUP, QUERIES), tl.load(row + start)
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
        stored = _stored(at, used, path, start, limit, base, WORDS) if PATHS else at
        lies = owner * row_step + head * head_step + stored[:, None] * DIM + dim[None, :]
        mask = used[:, None] & inside[None, :]
        key = tl.load(keys + lies, mask=mask, other=0.0)
        value = tl.load(values + lies, mask=mask, other=0.0)
        which = token * HEADS + head * GROUP + index % GROUP
        asked = tl.load(query + which[:, None] * DIM + dim[None, :], mask=live[:, None] & inside[None, :], other=0.0)
        score = tl.dot(asked, tl.trans(key), input_precision=precision) * scale
        if CAP:
            score = cap * (1.0 - 2.0 / (tl.exp(2.0 * score / cap) + 1.0))  # the hyperbolic tangent
        seen = (at[None, :] < tl.load(limit + token)[:, None]) & (at[None, :] >= low[:, None])
        if PATHS:
            seen = at[None, :] >= low[:, None]
        elif TREE:
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


def survey(layout: Layout, space: AttentionScratch, heads: AttentionHeads, tree: bool = False) -> None:
    """Look once at what is the same in all layers."""
    place = layout.place
    if tree and heads.exact:
        place = space.ends
        _paths[(len(place),)](
            *(layout.place, layout.limit, layout.bits, space.path, space.ends, WORDS),
            num_warps=1,
            **early(layout.row, len(layout.row)),
        )
    _survey[(len(layout.first),)](
        *(layout.row, place, layout.first, layout.count, space.chunks, heads.group, heads.tile(layout.chunk)),
        num_warps=1,
        **early(layout.row, len(layout.row)),
    )


def attend_parts(
    layout: Layout,
    keys: Tensor,
    values: Tensor,
    space: AttentionScratch,
    out: Tensor,
    heads: AttentionHeads,
    tree: bool,
    options: AttentionOptions,
    surveyed: bool,
) -> None:
    window, windowed = options.window or 0, options.window is not None
    tokens, parts = space.peak.shape[0], space.peak.shape[2]
    wide = max(16, triton.next_power_of_2(heads.dim))
    exact, paths = keys.dtype == torch.float32, tree and heads.exact
    assert not paths or (surveyed and layout.chunk == 1), "sums in the order of the text are of one token each"
    place = space.ends if paths else layout.place
    _attend[len(layout.first), heads.kv_heads, parts](
        *(space.query, keys, values, layout.row, layout.position, place, layout.limit, layout.base),
        *(layout.bits, space.path, layout.first, layout.count, space.chunks, space.weighted, space.peak, space.total),
        *(parts, keys.stride(0), keys.stride(1), heads.scale, window, options.cap or 0.0),
        *(surveyed, windowed, options.cap is not None),
        *(heads.heads, heads.kv_heads, heads.dim, wide, tree, paths, exact, heads.tile(layout.chunk), PART, WORDS),
        num_warps=WARPS,
        **early(keys, tokens),
    )
    _together[tokens, triton.cdiv(heads.heads, ABREAST)](
        *(space.weighted, space.peak, space.total, layout.position, place, out, parts, window),
        *(out if options.sink is None else options.sink, parts <= TOGETHER, windowed, options.sink is not None),
        *(heads.heads, heads.dim, wide, PART, TOGETHER, ABREAST),
        num_warps=4,
        **early(keys, tokens),
    )
