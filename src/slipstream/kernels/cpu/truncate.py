"""Top-k, top-p and min-p as the kernels read them (`truncate.hpp`); the reference is `core.sampling`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from slipstream.core.sampling import Sampling
from slipstream.kernels.cpu.linear import SIZE


class TruncationStruct(ctypes.Structure):
    """`Truncation` in truncate.hpp."""

    _fields_ = (("top_k", SIZE), ("top_p", ctypes.c_double), ("min_p", ctypes.c_double))


def truncation(sampling: Sampling) -> TruncationStruct:
    return TruncationStruct(sampling.top_k, sampling.top_p, sampling.min_p)


def truncations(sampling: Sequence[Sampling]) -> ctypes.Array[TruncationStruct] | None:
    """Those of rows as a C array; None if no row has any."""
    if not any(params.truncates for params in sampling):
        return None
    return (TruncationStruct * len(sampling))(*map(truncation, sampling))


def address(limits: ctypes.Array[TruncationStruct] | None) -> int | None:
    return None if limits is None else ctypes.addressof(limits)
