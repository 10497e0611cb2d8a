"""Attention of a few queries over long texts: each row's places are split evenly among a fixed number of programs.

A program goes through its share of the places in tiles and keeps one running sum for a key head and several queries of
one row. A second kernel merges the shares. The shares follow the length of the row, not of the cache, so sums depend on
how long the row is and on how many chunks the pass has. Where they must not, attention goes by parts.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from slipstream.kernels.gpu.attention.parts import reach_of
from slipstream.kernels.gpu.attention.shapes import (
    WORDS,
    AttentionHeads,
    AttentionOptions,
    AttentionScratch,
    Layout,
    splits_of,
)
from slipstream.kernels.gpu.launch import early, wait

TILE, STAGES, WARPS = 64, 3, 4  # places of a step, steps whose loads are under way, warps of a program


@triton.jit
def _share(reach, low, split, splits, TILE: tl.constexpr):
    """The tiles of a share of the places from `low` up to `reach`, first and last + 1."""
    first, last = low.to(tl.int32) // TILE, tl.cdiv(reach, TILE)
    share = tl.cdiv(tl.maximum(last - first, 0), splits)
    return first + split * share, tl.minimum(first + (split + 1) * share, last)


@triton.jit
def _chosen(bits, token, node, live, WORDS: tl.constexpr):
    """Whether the bit of a node is set for a token."""
    among = (node >= 0) & (node < 64 * WORDS) & live[:, None]
    word = tl.load(bits + token[:, None] * WORDS + node // 64, mask=among, other=0)
    return among & (((word >> (node % 64)) & 1) != 0)


@triton.jit
def _weights(score, top):
    """The highest scores so far, the weights of a tile, and the factor of what was summed before."""
    new = tl.maximum(top, tl.max(score, 1))
    safe = tl.where(new == float("-inf"), 0.0, new)
    return new, tl.exp(score - safe[:, None]), tl.exp(top - safe)


@triton.jit
def _add_sink(sink, head, top, norm, result):
    """A score that takes weight and gives nothing."""
    extra = tl.load(sink + head).to(tl.float32)
    new = tl.maximum(top, extra)
    return norm * tl.exp(top - new) + tl.exp(extra - new), result * tl.exp(top - new)[:, None]


@triton.jit(do_not_specialize=["splits"])
def _attend_share(
    query, keys, values, row, position, place, limit, base, bits, first, count, chunks, weighted, peak, total, out,
    sink, splits, row_step, head_step, scale, window, cap, SURVEYED: tl.constexpr, WINDOW: tl.constexpr,
    CAP: tl.constexpr, SINK: tl.constexpr, HEADS: tl.constexpr, KV: tl.constexpr, DIM: tl.constexpr,
    WIDE: tl.constexpr, TREE: tl.constexpr, EXACT: tl.constexpr, WHOLE: tl.constexpr, QUERIES: tl.constexpr,
    TILE: tl.constexpr, STAGES: tl.constexpr, WORDS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One share of a row's places. WHOLE: there is one share, and the result is written at once."""
    if EARLY:
        wait()
    chunk, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    GROUP: tl.constexpr = HEADS // KV
    start, index = tl.load(first + chunk), tl.arange(0, QUERIES)
    live = index < tl.load(count + chunk) * GROUP
    token = start + tl.where(live, index // GROUP, 0)
    if SURVEYED:
        reach, owner = tl.load(chunks + 2 * chunk), tl.load(chunks + 2 * chunk + 1)
    else:
        reach, owner = reach_of(first, count, place, chunk, GROUP, QUERIES), tl.load(row + start)
    reach = reach.to(tl.int32)
    low = tl.zeros((QUERIES,), tl.int64)
    if WINDOW:
        low = tl.maximum(tl.load(position + token) - window + 1, 0)
    begin, end = _share(reach, tl.min(tl.where(live, low, reach), 0), split, splits, TILE)
    precision: tl.constexpr = "ieee" if EXACT else "tf32"
    dim, inside = tl.arange(0, WIDE), tl.arange(0, WIDE) < DIM
    which = token * HEADS + head * GROUP + index % GROUP
    stored = live[:, None] & inside[None, :]
    asked = tl.load(query + which[:, None] * DIM + dim[None, :], mask=stored, other=0.0)
    own_limit, own_base = tl.load(limit + token), tl.load(base + token)
    cached = owner * row_step + head * head_step + dim[None, :]
    top, norm = tl.full((QUERIES,), float("-inf"), tl.float32), tl.zeros((QUERIES,), tl.float32)
    result = tl.zeros((QUERIES, WIDE), tl.float32)
    for tile in tl.range(begin, end, num_stages=STAGES):
        at = tile * TILE + tl.arange(0, TILE)
        used = at < reach
        mask = used[:, None] & inside[None, :]
        key = tl.load(keys + cached + at[:, None] * DIM, mask=mask, other=0.0)
        score = tl.dot(asked, tl.trans(key), input_precision=precision) * scale
        if CAP:
            score = cap * (1.0 - 2.0 / (tl.exp(2.0 * score / cap) + 1.0))  # the hyperbolic tangent
        seen = (at[None, :] < own_limit[:, None]) & (at[None, :] >= low[:, None])
        if TREE:
            seen = seen | _chosen(bits, token, at[None, :] - own_base[:, None], live, WORDS)
        score = tl.where(seen & used[None, :] & live[:, None], score, float("-inf"))
        new, weight, before = _weights(score, top)
        norm = norm * before + tl.sum(weight, 1)
        value = tl.load(values + cached + at[:, None] * DIM, mask=mask, other=0.0)
        result = tl.dot(weight.to(value.dtype), value, result * before[:, None], input_precision=precision)
        top = new
    if WHOLE:
        if SINK:
            norm, result = _add_sink(sink, head * GROUP + index % GROUP, top, norm, result)
        result = result / tl.where(norm > 0, norm, 1.0)[:, None]
        tl.store(out + which[:, None] * DIM + dim[None, :], result.to(out.dtype.element_ty), mask=stored)
    else:
        line = which * splits + split
        tl.store(weighted + line[:, None] * DIM + dim[None, :], result, mask=stored)
        tl.store(peak + line, top, mask=live)
        tl.store(total + line, norm, mask=live)


@triton.jit(do_not_specialize=["splits"])
def _merge_shares(
    weighted, peak, total, place, out, sink, splits,
    SINK: tl.constexpr, HEADS: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr, SPLITS: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Merge the shares of one query head. Padding tokens give zeros."""
    if EARLY:
        wait()
    token, head = tl.program_id(0), tl.program_id(1)
    split, dim = tl.arange(0, SPLITS), tl.arange(0, WIDE)
    line = (token * HEADS + head) * splits + split
    there = (split < splits) & (tl.load(place + token) + 0 * split >= 0)
    high = tl.load(peak + line, mask=there, other=float("-inf"))
    each = tl.load(total + line, mask=there, other=0.0)
    mask = there[:, None] & (dim < DIM)[None, :]
    shares = tl.load(weighted + line[:, None] * DIM + dim[None, :], mask=mask, other=0.0)
    top = tl.max(high, 0)
    extra = float("-inf")
    if SINK:  # a score that takes weight and gives nothing
        extra = tl.load(sink + head).to(tl.float32)
        top = tl.maximum(top, extra)
    safe = tl.where(top == float("-inf"), 0.0, top)
    factor = tl.exp(high - safe)
    norm = tl.sum(factor * each, 0)
    if SINK:
        norm += tl.exp(extra - safe)
    result = tl.sum(shares * factor[:, None], 0) / tl.where(norm > 0, norm, 1.0)
    tl.store(out + (token * HEADS + head) * DIM + dim, result.to(out.dtype.element_ty), mask=dim < DIM)


def attend_shares(
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
    tokens, chunks = len(space.query), len(layout.first)
    splits = splits_of(chunks, heads, space.peak.shape[2])
    wide, exact = max(16, triton.next_power_of_2(heads.dim)), keys.element_size() == 4
    sink, has_sink = (out, False) if options.sink is None else (options.sink, True)
    window, cap = options.window or 0, options.cap or 0.0
    _attend_share[chunks, heads.kv_heads, splits](
        *(space.query, keys, values, layout.row, layout.position, layout.place, layout.limit, layout.base),
        *(layout.bits, layout.first, layout.count, space.chunks, space.weighted, space.peak, space.total, out, sink),
        *(splits, keys.stride(0), keys.stride(1), heads.scale, window, cap),
        *(surveyed, options.window is not None, options.cap is not None, has_sink),
        *(heads.heads, heads.kv_heads, heads.dim, wide, tree, exact, splits == 1, heads.tile(layout.chunk)),
        *(TILE, STAGES, WORDS),
        num_warps=WARPS,
        **early(keys, tokens),
    )
    if splits > 1:
        _merge_shares[tokens, heads.heads](
            *(space.weighted, space.peak, space.total, layout.place, out, sink, splits, has_sink),
            *(heads.heads, heads.dim, wide, max(2, triton.next_power_of_2(splits))),
            num_warps=4,
            **early(keys, tokens),
        )
