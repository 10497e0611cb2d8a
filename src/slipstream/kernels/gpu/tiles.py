"""Tile sizes of products for few rows, measured on an H200 (`benchmarks/gpu.py --parts tiles`)."""

from __future__ import annotations

COLUMNS = 32  # of most
SOME, ENOUGH = 100, 400  # programs that keep most of a chip busy, and beyond which more are no use
SHORTEST = 384  # inputs of a share


def tile(outputs: int, inputs: int, gated: bool, eighth: bool = False) -> tuple[int, int, int, int, int]:
    """Columns and inputs a program takes at a time, warps and stages, and shares of the inputs: the processors of a
    chip share the columns, and each keeps enough of the weight under way. A weight has one tile, so sums have one
    order."""
    large = inputs >= 1 << 11
    if large and eighth and not gated:
        return (64, 256, 4, 4, 1) if outputs >= 1 << 15 else (32, 256, 4, 6 if inputs > 1 << 13 else 4, 1)
    if gated:
        return (32, 256, 4, 3, 1) if inputs >= 1 << 12 else (32, 128, 4, 4, 1) if large else (32, 64, 4, 6, 1)
    if outputs >= 1 << 13 and not large:
        return 64, 64, 4, 6, 1
    shares = _shares(-(-outputs // COLUMNS), inputs)
    return COLUMNS, 128, 4, 4 if shares > 1 else 6, shares


def _shares(blocks: int, inputs: int) -> int:
    """Cut the inputs where there are not enough outputs to keep a chip busy, and its programs are long."""
    if blocks >= SOME and inputs < 1 << 13:
        return 1
    return next((n for n in (8, 4, 2) if blocks * n <= ENOUGH and inputs >= n * SHORTEST), 1)
