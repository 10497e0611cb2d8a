"""The rotary embedding of queries and keys, and writing keys and values to the KV cache."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from slipstream.kernels.gpu.attention.shapes import AttentionHeads, Layout
from slipstream.kernels.gpu.launch import early, wait
from slipstream.kernels.gpu.residual import Norm

TURNED = 8  # heads of a program


@triton.jit
def _turn(
    given, given_step, cos, sin, position, row, place, query, keys, values, row_step, head_step, query_norm, key_norm,
    epsilon,
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
    source = given + token * given_step + head[:, None] * DIM + at[None, :]
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
    """`given` holds query, key and value of each token side by side, or key and value if there are no query heads;
    `angles` one line per position, half as wide as a head; `norms` are those of each head's query and key, where there
    are any."""
    grid = len(given), triton.cdiv(heads.heads + 2 * heads.kv_heads, TURNED)
    steps = keys.stride(0), keys.stride(1)
    half = triton.next_power_of_2(heads.dim // 2)
    weights = (given, given, 0.0) if norms is None else (norms[0].weight, norms[1].weight, norms[0].epsilon)
    _turn[grid](
        *(given, given.stride(0), *angles, layout.position, layout.row, layout.place, out, keys, values),
        *(*steps, *weights),
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
