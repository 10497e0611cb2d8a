"""Matrix products for few rows, with the norm, bias, gate and residual of a decoder's layer fused in.

A product of few rows costs the time to read the weight. The norm before a product is folded in (`stream`). The
activation of a gate and the addition to the stream are computed with the sums.

A program computes 16, 32 or 64 rows (`tile_rows`), and every sum has a fixed order. With 16, however many rows there
are, a row's result depends on that row alone, bit for bit: invariant mode. If there are too few outputs to fill the
chip, the inputs are divided into shares that are summed in parallel. The last program to finish adds the shares, from
the first to the last.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import triton
import triton.language as tl
from torch import Tensor

from slipstream.kernels.gpu.int8_weight import Int8Weight, Weight
from slipstream.kernels.gpu.launch import early, fetch, wait
from slipstream.kernels.gpu.residual import MOST, ROWS, SHARED, Norm, ResidualStream
from slipstream.kernels.gpu.tiles import tile

LINES = 8  # of 128 bytes, of each of its outputs' weights, that a program fetches before its turn has come
SMALL = 1 << 22  # bytes of a weight that this pays for


@triton.jit
def _sums(
    x, weight, row, column, valid, real, begin, end, inputs, outputs,
    GATED: tl.constexpr, EXACT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """The sums over the inputs from `begin` to `end`, and those of the gated half."""
    step = tl.arange(0, STEP)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    other = tl.zeros((ROWS, COLUMNS), tl.float32)
    precision: tl.constexpr = "ieee" if EXACT else "tf32"
    lines = x + row[:, None] * inputs + step[None, :]
    where = weight + column.to(tl.int64)[:, None] * inputs + step[None, :]
    beside = where + tl.cast(outputs, tl.int64) * inputs
    for start in range(begin, end, STEP):
        inside = start + step < inputs
        piece = tl.load(lines + start, mask=valid[:, None] & inside[None, :], other=0.0)
        mask = real[:, None] & inside[None, :]
        part = tl.load(where + start, mask=mask, other=0.0).to(x.dtype.element_ty)
        total = tl.dot(piece, tl.trans(part), total, input_precision=precision)
        if GATED:
            second = tl.load(beside + start, mask=mask, other=0.0).to(x.dtype.element_ty)
            other = tl.dot(piece, tl.trans(second), other, input_precision=precision)
    return total, other


@triton.jit
def _all_shares(
    mine, partial, arrived, SHARES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write the sums of this program's share to shared memory. The last program of an output adds all shares. Returns
    whether this is the last one, and the total."""
    tile = tl.program_id(0)
    at = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    first = partial + tile * SHARES * ROWS * COLUMNS + at
    tl.store(first + tl.program_id(2) * ROWS * COLUMNS, mine)
    tl.debug_barrier()  # all of it is there before it is said to be
    last = tl.atomic_add(arrived + tile, 1, sem="acq_rel") == SHARES - 1
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    if last:
        tl.store(arrived + tile, 0)
        for n in tl.static_range(SHARES):
            total += tl.load(first + n * ROWS * COLUMNS, cache_modifier=".cg")
    return last, total


@triton.jit(do_not_specialize=["tokens", "parts"])
def _product(
    x, weight, scales, squares, bias, out, after, ready, left, partial, arrived,
    tokens, inputs, outputs, parts, share, epsilon,
    EIGHTH: tl.constexpr, NORM: tl.constexpr, BIAS: tl.constexpr, GATED: tl.constexpr, ADD: tl.constexpr,
    AFTER: tl.constexpr, EXACT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
    PARTS: tl.constexpr, MOST: tl.constexpr, LINE: tl.constexpr, LINES: tl.constexpr, SHARES: tl.constexpr,
    SPREAD: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The inputs are divided into SHARES of length `share`. SPREAD: one share per program, else all in turn."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    valid = row < tokens
    real = column < outputs
    begin = tl.program_id(2) * share
    if EARLY and LINES:
        ahead = tl.minimum(begin + tl.arange(0, LINES) * LINE, inputs - 1)
        begins = weight + tl.minimum(column, outputs - 1).to(tl.int64)[:, None] * inputs + ahead[None, :]
        fetch(begins)
        if GATED:
            fetch(begins + tl.cast(outputs, tl.int64) * inputs)
    if EARLY:
        wait()
    if NORM:
        index = tl.arange(0, PARTS)
        left_there = valid[:, None] & (index < parts)[None, :]
        each = tl.load(squares + row[:, None] * MOST + index[None, :], mask=left_there, other=0.0)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for _n in tl.static_range(1 if SPREAD else SHARES):
        end = inputs if SHARES == 1 else tl.minimum(begin + share, inputs)
        sums, other = _sums(
            x, weight, row, column, valid, real, begin, end, inputs, outputs, GATED, EXACT, ROWS, COLUMNS, STEP
        )
        total += sums
        begin += share
    if SPREAD:
        last, total = _all_shares(total, partial, arrived, SHARES, ROWS, COLUMNS)
        if not last:
            return
    if EIGHTH:
        total = total * tl.load(scales + column, mask=real, other=0.0)[None, :]
        if GATED:
            other = other * tl.load(scales + outputs + column, mask=real, other=0.0)[None, :]
    if NORM:
        size = tl.rsqrt(tl.sum(each, 1) / inputs + epsilon)[:, None]
        total = total * size
        other = other * size
    if BIAS:
        total += tl.load(bias + column, mask=real, other=0.0).to(tl.float32)[None, :]
    if GATED:
        total = total / (1.0 + tl.exp(-total)) * other
    place = row.to(tl.int64)[:, None] * outputs + column[None, :]
    mask = valid[:, None] & real[None, :]
    if ADD:
        total += tl.load(out + place, mask=mask, other=0.0)
    tl.store(out + place, total.to(out.dtype.element_ty), mask=mask)
    if AFTER:
        total = tl.where(real[None, :], total, 0.0)
        scaled = total * tl.load(after + column, mask=real, other=0.0).to(tl.float32)[None, :]
        tl.store(ready + place, scaled.to(ready.dtype.element_ty), mask=mask)
        tl.store(left + row * MOST + tl.program_id(0), tl.sum(total * total, 1), mask=valid)


@triton.jit
def _gate(both, out, size, SIZE: tl.constexpr, EARLY: tl.constexpr):
    if EARLY:
        wait()
    row, at = tl.program_id(0), tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    inside = at < size
    gate = tl.load(both + row * 2 * size + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(both + row * 2 * size + size + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * size + at, (gate / (1.0 + tl.exp(-gate)) * up).to(out.dtype.element_ty), mask=inside)


def product(
    x: Tensor | ResidualStream,
    weight: Weight,
    out: Tensor | ResidualStream,
    bias: Tensor | None = None,
    gated: bool = False,
    after: Norm | None = None,
    tile_rows: int = ROWS,
) -> None:
    """out = act(x weight^T + bias). A stream is read through its pending norm, and the result is added to it; `after`
    is the norm that reads it next. `gated`: the weight holds the gate's rows and below them the other rows, and the
    result is silu(gate) * other. `tile_rows`: rows that a program of this kernel computes at a time; 0: use the
    library, which is faster for many rows."""
    if not tile_rows:
        _library(x, weight, out, bias, gated, after)
        return
    inputs, outputs = weight.shape[1], weight.shape[0] // (2 if gated else 1)
    columns, step, warps, stages, shares = tile(outputs, inputs, gated, isinstance(weight, Int8Weight))
    step = step // 2 if weight.dtype == torch.float32 else step  # as many bytes
    share = triton.cdiv(triton.cdiv(inputs, step), shares) * step
    reads, norm, squares, parts = (
        (x.ready, x.norm, x.squares, x.parts) if isinstance(x, ResidualStream) else (x, None, x, 0)
    )
    target, ready, left = (out.hidden, out.ready, out.squares) if isinstance(out, ResidualStream) else (out, out, out)
    room = out if isinstance(out, ResidualStream) else x if isinstance(x, ResidualStream) else None
    spread = shares > 1 and room is not None and len(reads) <= tile_rows
    partial, arrived = (room.partial, room.arrived) if room else (reads, reads)
    grid = triton.cdiv(outputs, columns), triton.cdiv(len(reads), tile_rows), shares if spread else 1
    assert not spread or (grid[0] <= MOST and grid[0] * columns * shares <= SHARED), "more sums than there is room for"
    number, scales = (weight.number, weight.scale) if isinstance(weight, Int8Weight) else (weight, reads)
    _product[grid](
        *(reads, number, scales, squares, reads if bias is None else bias, target, after.weight if after else reads),
        *(ready, left, partial, arrived, len(reads), inputs, outputs, parts, share, norm.epsilon if norm else 0.0),
        *(isinstance(weight, Int8Weight), norm is not None, bias is not None, gated),
        *(isinstance(out, ResidualStream), after is not None),
        *(weight.dtype == torch.float32, tile_rows, columns, step, triton.next_power_of_2(max(1, parts)), MOST),
        *(
            128 // number.element_size(),
            LINES if number.nbytes <= SMALL and len(reads) <= tile_rows else 0,
            shares,
            spread,
        ),
        num_warps=warps,
        num_stages=stages,
        **early(reads, len(reads), number.nbytes),
    )
    if isinstance(out, ResidualStream):
        out.norm, out.parts, out.normed = after, grid[0], False
        assert grid[0] <= MOST, "more programs than there is room for their squares"


def _library(
    x: Tensor | ResidualStream,
    weight: Weight,
    out: Tensor | ResidualStream,
    bias: Tensor | None,
    gated: bool,
    after: Norm | None,
) -> None:
    weight = weight.wide() if isinstance(weight, Int8Weight) else weight
    if isinstance(x, ResidualStream):
        x = x.through_norm()
    plain = isinstance(out, Tensor) and not gated and (out.dtype == x.dtype or (x.is_cuda and bias is None))
    product = _multiply(x, weight, bias, out if plain else None)  # type: ignore[arg-type]
    if isinstance(out, ResidualStream):
        out.add(product, after)
    elif gated:
        size = product.shape[1] // 2
        _gate[(len(product), triton.cdiv(size, 1024))](product, out, size, 1024, **early(product, len(product)))
    elif not plain:
        out.copy_(product)


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor | None) -> Tensor:
    with _chosen_library(x):
        if out is not None and out.dtype != x.dtype:  # sums as they are
            return torch.mm(x, weight.T, out_dtype=out.dtype, out=out)
        if bias is None:
            return torch.mm(x, weight.T, out=out)
        return torch.addmm(bias, x, weight.T, out=out)


@contextmanager
def _chosen_library(x: Tensor) -> Iterator[None]:
    """The newer of the two libraries of a CUDA build. For a hundred rows and few outputs it takes 10 to 20 % less time,
    and it is never more than 1 % slower."""
    if not x.is_cuda:
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that it is new
        before = torch.backends.cuda.preferred_blas_library()
        torch.backends.cuda.preferred_blas_library("cublaslt")
        try:
            yield
        finally:
            torch.backends.cuda.preferred_blas_library(before)
