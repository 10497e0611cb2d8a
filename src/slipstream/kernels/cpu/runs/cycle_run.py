"""Decoding of one row, several cycles in one call (`cycle_run.cpp`), plain or with chains of a head.

Cycles one by one define the results: the same passes, the head's drafts, and the same rules (`core.verify`) with the
same draws (`core.noise`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from slipstream.core.device import Draws
from slipstream.core.types import Row, RunCycle
from slipstream.kernels.cpu.decoder import CachePointers, CpuNetwork
from slipstream.kernels.cpu.draft import EmbeddingTables
from slipstream.kernels.cpu.linear import POINTER, SIZE, PackedWeight
from slipstream.kernels.cpu.runs.run_parts import InputsStruct, RowDraws, RowDrawsStruct, RunInputs

HEAD_ADDRESSES = ("net", "embedding", "cos", "sin", "ids", "fuse", "factor", "state", "keys", "values")
HEAD_SIZES = ("fused", "rotated", "row_step", "head_step", "row", "held")
SIZES = ("row", "place", "depth", "most", "left", "cycles", "emitted")


class _HeadArgs(ctypes.Structure):
    _fields_ = (*((name, POINTER) for name in HEAD_ADDRESSES), *((name, SIZE) for name in HEAD_SIZES))


class _Cycle(ctypes.Structure):
    _fields_ = (("drafted", SIZE), ("emitted", SIZE), ("drafting", ctypes.c_double), ("scoring", ctypes.c_double))


class _CycleArgs(ctypes.Structure):
    _fields_ = (
        ("inputs", InputsStruct),
        ("draws", RowDrawsStruct),
        *((name, POINTER) for name in ("head", "token", "cycle")),
        *((name, SIZE) for name in SIZES),
    )


@dataclass(frozen=True, eq=False)
class ChainHead:
    """A head of one layer that drafts chains for one row, as `drafters.eagle` describes it."""

    net: CpuNetwork
    cache: CachePointers
    tables: EmbeddingTables
    fuse: PackedWeight  # fuses the target's states into the one that a slot reads
    factors: Tensor  # [layers] of the states of each layer
    layers: Sequence[int]  # the target's layers
    row: int  # of the head's cache
    held: int  # committed slots that are cached
    record: Callable[[int], None]  # receives how many are cached afterwards


@dataclass(frozen=True, eq=False)
class RunPlan:
    """What to run for a row."""

    index: int  # of the row in the cache
    most: int  # cycles at most
    left: int  # tokens that may be emitted
    depth: int = 0  # of chains at most
    head: ChainHead | None = None  # drafts them
    draws: Draws | None = None  # None: the most probable token is chosen


def run_cycles(inputs: RunInputs, row: Row, plan: RunPlan) -> list[RunCycle]:
    """Some cycles of a row: fewer than `plan.most` after an end token, and before one whose logits are not finite.
    The last committed token is not cached yet, and the last one emitted is not cached afterwards."""
    head, draws = plan.head, RowDraws(row, plan.draws)
    unread = 1 if head is None else max(1, row.length - 1 - head.held)
    tokens, cycles = (SIZE * (unread + plan.left))(*row.tokens[-unread:]), (_Cycle * plan.most)()
    first = unread - 1
    drafter = None if head is None else _head_args(inputs, head)
    args = _CycleArgs(
        *(inputs.struct, draws.struct, None if drafter is None else ctypes.addressof(drafter[0])),
        *(ctypes.addressof(tokens) + first * ctypes.sizeof(SIZE), ctypes.addressof(cycles)),
        *(plan.index, row.length - 1, plan.depth, plan.most, plan.left),
    )
    inputs.kernel.run_cycles(inputs.net, inputs.pass_address, ctypes.addressof(args))
    if head is not None and drafter is not None:
        head.record(drafter[0].held)
    done, at = list[RunCycle](), first + 1
    for cycle in cycles[: args.cycles]:
        emitted = tokens[at : at + cycle.emitted]
        done.append(RunCycle(emitted, cycle.drafted, cycle.drafting, cycle.scoring))
        at += cycle.emitted
    return done


def _head_args(inputs: RunInputs, head: ChainHead) -> tuple[_HeadArgs, object]:
    """The head as the kernel reads it, and a table that must stay alive during the call."""
    assert head.net.row_bits == inputs.net.row_bits, "head and target use the same activation bits"
    states = (POINTER * len(head.layers))(*(inputs.features[layer] for layer in head.layers))
    tables = head.tables
    own = _HeadArgs(
        *(head.net.address, tables.embedding.data_ptr(), tables.cos.data_ptr(), tables.sin.data_ptr()),
        *(tables.ids.data_ptr(), head.fuse.address, head.factors.data_ptr(), ctypes.addressof(states)),
        *map(ctypes.addressof, head.cache.tables),
        *(len(head.layers), tables.cos.shape[1], *head.cache.steps, head.row, head.held),
    )
    return own, states
