"""The residual stream of a pass: products read it through a norm, and add to it.

It is kept in float32. A kernel that adds to it also writes the stream multiplied by the weight of the next norm, and
the sum of its squares. The reader divides by the root of that sum. If the library computes the product, the norm is
a separate kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from slipstream.kernels.gpu.int8_weight import Weight
from slipstream.kernels.gpu.launch import early, wait

ROWS = 16  # the smallest tile that matrix units take
MOST_ROWS = 64  # of a tile
MOST = 512  # programs that may add to the stream side by side
SHARED = 1 << 14  # sums of a row, over all shares, that there is room for


@triton.jit
def _ready(x, weight, ready, left, size, SIZE: tl.constexpr, MOST: tl.constexpr, EARLY: tl.constexpr):
    if EARLY:
        wait()
    row, at = tl.program_id(0), tl.arange(0, SIZE)
    inside = at < size
    piece = tl.load(x + row * size + at, mask=inside, other=0.0).to(tl.float32)
    scaled = piece * tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(ready + row * size + at, scaled.to(ready.dtype.element_ty), mask=inside)
    tl.store(left + row * MOST, tl.sum(piece * piece, 0))


@triton.jit
def _sums_ready(
    left, right, weight, out, ready, squares, size, count,
    SIZE: tl.constexpr, MOST: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:
        wait()
    row, at = tl.program_id(0), tl.arange(0, SIZE)
    inside = at < size
    piece = tl.load(left + row // count * size + at, mask=inside, other=0.0).to(tl.float32)
    piece += tl.load(right + row % count * size + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * size + at, piece, mask=inside)
    scaled = piece * tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(ready + row * size + at, scaled.to(ready.dtype.element_ty), mask=inside)
    tl.store(squares + row * MOST, tl.sum(piece * piece, 0))


@triton.jit
def _norm(x, weight, out, size, epsilon, SIZE: tl.constexpr, EARLY: tl.constexpr):
    if EARLY:
        wait()
    row = tl.program_id(0)
    at = tl.arange(0, SIZE)
    inside = at < size
    piece = tl.load(x + row * size + at, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(piece * piece, 0) / size + epsilon)
    piece = piece * scale * tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * size + at, piece.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _added(x, addend, weight, out, size, epsilon, SIZE: tl.constexpr, EARLY: tl.constexpr):
    """Add to a stream, and normalise it for the next reader."""
    if EARLY:
        wait()
    row, at = tl.program_id(0), tl.arange(0, SIZE)
    inside = at < size
    piece = tl.load(x + row * size + at, mask=inside, other=0.0)
    piece += tl.load(addend + row * size + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(x + row * size + at, piece, mask=inside)
    scale = tl.rsqrt(tl.sum(piece * piece, 0) / size + epsilon)
    piece = piece * scale * tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * size + at, piece.to(out.dtype.element_ty), mask=inside)


@dataclass(frozen=True, eq=False)
class Norm:
    weight: Tensor
    epsilon: float


def row_tile(tokens: int) -> int:
    """The rows that a program computes at a time: all of them, up to `MOST_ROWS`."""
    return min(MOST_ROWS, max(ROWS, int(triton.next_power_of_2(tokens))))


class ResidualStream:
    """The residual stream of a pass, and the sums that the next norm needs."""

    def __init__(self, tokens: int, size: int, like: Weight) -> None:
        self.hidden = torch.empty(tokens, size, device=like.device)
        self.ready = like.new_empty(tokens, size)
        self.squares = torch.empty(tokens, MOST, device=like.device)
        spread = SHARED if tokens <= MOST_ROWS else 0
        self.partial = torch.empty(row_tile(tokens), spread, device=like.device)  # sums of shares of the inputs
        self.arrived = torch.zeros(MOST, dtype=torch.int32, device=like.device)  # programs that have left theirs
        self.norm: Norm | None = None
        self.parts = 0  # of the squares; 0: nobody left any
        self.normed = False  # whether `ready` is what the norm gives, and not only what it multiplies

    def begin(self, norm: Norm) -> None:
        """Prepare `hidden` for a first read through this norm."""
        (tokens, size), hidden = self.hidden.shape, self.hidden
        wide = triton.next_power_of_2(size)
        _ready[(tokens,)](hidden, norm.weight, self.ready, self.squares, size, wide, MOST, **early(hidden, tokens))
        self.norm, self.parts, self.normed = norm, 1, False

    def begin_sums(self, left: Tensor, right: Tensor, norm: Norm) -> None:
        """Set `hidden` to all sums of a row of `left` and a row of `right`, for a first read through this norm."""
        (tokens, size), wide = self.hidden.shape, triton.next_power_of_2(self.hidden.shape[1])
        _sums_ready[(tokens,)](
            *(left, right, norm.weight, self.hidden, self.ready, self.squares, size, len(right), wide, MOST),
            **early(left, tokens),
        )
        self.norm, self.parts, self.normed = norm, 1, False

    def through_norm(self) -> Tensor:
        """The stream, normalised by the pending norm."""
        assert self.norm is not None, "a stream is read through a norm"
        tokens, size = self.hidden.shape
        if not self.normed:
            wide, how = triton.next_power_of_2(size), early(self.hidden, tokens)
            _norm[(tokens,)](self.hidden, self.norm.weight, self.ready, size, self.norm.epsilon, wide, **how)
        return self.ready

    def add(self, addend: Tensor, after: Norm | None) -> None:
        """Add an output to the stream. The stream is read through the norm `after` next."""
        tokens, size = self.hidden.shape
        self.norm, self.parts, self.normed = after, 0, after is not None
        if after is None:
            self.hidden += addend
            return
        wide = triton.next_power_of_2(size)
        _added[(tokens,)](
            *(self.hidden, addend, after.weight, self.ready, size, after.epsilon, wide),
            num_warps=8,
            **early(addend, tokens),
        )
