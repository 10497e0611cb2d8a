"""Decoding of several rows without drafts, several cycles in one call (`rows_run.cpp`).

Cycles one by one define the results, as for one row (`cycle_run.py`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from slipstream.core.device import Draws
from slipstream.core.types import Row, RunCycle
from slipstream.kernels.cpu.linear import POINTER, SIZE
from slipstream.kernels.cpu.runs.run_parts import InputsStruct, RowDraws, RowDrawsStruct, RunInputs


class _RowArgs(ctypes.Structure):
    _fields_ = (("draws", RowDrawsStruct), ("token", POINTER), ("row", SIZE), ("place", SIZE))


class _RowsArgs(ctypes.Structure):
    _fields_ = (
        ("inputs", InputsStruct),
        ("row", POINTER),
        ("seconds", POINTER),
        *((name, SIZE) for name in ("rows", "most", "cycles")),
    )


def run_rows(
    inputs: RunInputs, rows: Sequence[Row], indices: Sequence[int], most: int, draws: Sequence[Draws | None]
) -> list[list[RunCycle]]:
    """Up to `most` cycles of each row, by row; fewer after an end token of any of them, and before a cycle whose logits
    are not finite. `indices`: of the rows in the cache. The last committed tokens are not cached yet, and the last ones
    emitted are not cached afterwards."""
    tokens, seconds = [(SIZE * (1 + most))(row.tokens[-1]) for row in rows], (ctypes.c_double * most)()
    own = [RowDraws(row, drawn) for row, drawn in zip(rows, draws, strict=True)]
    parts = zip(own, tokens, indices, rows, strict=True)
    each = [_RowArgs(drawn.struct, ctypes.addressof(line), index, row.length - 1) for drawn, line, index, row in parts]
    table = (_RowArgs * len(rows))(*each)
    args = _RowsArgs(inputs.struct, ctypes.addressof(table), ctypes.addressof(seconds), len(rows), most)
    inputs.kernel.run_rows(inputs.net, inputs.pass_address, ctypes.addressof(args), len(rows))
    times = seconds[: args.cycles]
    return [[RunCycle([token], 0, 0.0, time) for token, time in zip(line[1:], times, strict=False)] for line in tokens]
