"""The noise of `core.noise` in kernels: the same keys give the same numbers."""

from __future__ import annotations

import triton
import triton.language as tl

from slipstream.core.noise import Purpose

ACCEPT, EMIT, FIELD = tl.constexpr(2), tl.constexpr(3), tl.constexpr(4)
assert (Purpose.DRAFT, Purpose.ACCEPT, Purpose.EMIT, Purpose.FIELD) == (1, 2, 3, 4), "kernels say them as numbers"


@triton.jit
def _mix(x):
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def fold(key, field):
    return _mix(_mix(key) + (field + 1).to(tl.uint64) * 0x9E3779B97F4A7C15)


@triton.jit
def key_of(stream, start, node, purpose: tl.constexpr):
    key = fold(fold(stream.to(tl.uint64), start), node)
    return _mix(_mix(key) + tl.full((), purpose + 1, tl.uint64) * 0x9E3779B97F4A7C15)


@triton.jit
def uniform(key):
    return ((key >> 12).to(tl.float64) + 0.5) * 2.220446049250313e-16
