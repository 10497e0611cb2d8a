"""Decoding of one row, several cycles in one call (`cycle_run.cpp`), plain or with chains of a head.

Cycles one by one define the results: the same passes, the head's drafts, and the same rules (`core.verify`) with the
same draws (`core.noise`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from slipstream.core.device import DeviceVerdict, Draws
from slipstream.core.shaping import needs_shaping
from slipstream.core.types import Row, RunCycle
from slipstream.kernels.cpu.decoder import CachePointers, CpuNetwork, DecoderKernel, PassStruct
from slipstream.kernels.cpu.draft import EmbeddingTables
from slipstream.kernels.cpu.linear import POINTER, SIZE, PackedWeight, unpacker
from slipstream.kernels.cpu.shaping import LogitChanges
from slipstream.kernels.cpu.truncate import TruncationStruct, truncation

HEAD_ADDRESSES = ("net", "embedding", "cos", "sin", "ids", "fuse", "factor", "state", "keys", "values")
HEAD_SIZES = ("fused", "rotated", "row_step", "head_step", "row", "held")
ADDRESSES = ("table", "packed", "unpack", "cos", "sin", "features", "ends", "head", "token", "cycle")
RULES = (DeviceVerdict.MATCH, DeviceVerdict.TOKEN, DeviceVerdict.BLOCK)  # numbered from 1 on, as in choice.hpp
SIZES = ("rule", "stream", "end_count", "row", "place", "depth", "most", "left", "cycles", "emitted")


class _HeadArgs(ctypes.Structure):
    _fields_ = (*((name, POINTER) for name in HEAD_ADDRESSES), *((name, SIZE) for name in HEAD_SIZES))


class _Cycle(ctypes.Structure):
    _fields_ = (("drafted", SIZE), ("emitted", SIZE), ("drafting", ctypes.c_double), ("scoring", ctypes.c_double))


class _CycleArgs(ctypes.Structure):
    _fields_ = (
        *((name, POINTER) for name in ADDRESSES),
        ("temperature", ctypes.c_double),
        ("limits", TruncationStruct),
        ("changes", POINTER),
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


class CycleRun:
    """Valid as long as the cache, the tables of the angles and the places of the features are the same tensors."""

    def __init__(
        self,
        kernel: DecoderKernel,
        net: CpuNetwork,
        embedding: Tensor | PackedWeight,
        cache: CachePointers,
        angles: tuple[Tensor, Tensor],
        features: Mapping[int, Tensor],
    ) -> None:
        """`embedding`: [vocab, hidden]. `angles`: cosines and sines by position, [positions, rotated]. `features`:
        where the output of a layer is kept, [places, hidden], by layer."""
        self._kernel, self._net = kernel, net
        self._alive = embedding, cache, angles, features  # the kernel has addresses only
        self._features = (POINTER * net.layers)()
        for layer, places in features.items():
            assert places.is_contiguous(), "the kernel writes line by line"
            self._features[layer] = places.data_ptr()
        keys, values = map(ctypes.addressof, cache.tables)
        self._call = PassStruct(keys=keys, values=values, rotated=angles[0].shape[1], last=net.layers)
        self._call.row_step, self._call.head_step = cache.steps
        self._args = _CycleArgs(features=ctypes.addressof(self._features))
        self._args.cos, self._args.sin = (table.data_ptr() for table in angles)
        if isinstance(embedding, PackedWeight):
            self._args.packed, self._args.unpack = embedding.address, unpacker(embedding.row_bits)
        else:
            self._args.table = embedding.data_ptr()

    def run(self, row: Row, plan: RunPlan) -> list[RunCycle]:
        """Some cycles of a row: fewer than `plan.most` after an end token, and before one whose logits are not finite.
        The last committed token is not cached yet, and the last one emitted is not cached afterwards."""
        head, draws = plan.head, plan.draws
        unread = 1 if head is None else max(1, row.length - 1 - head.held)
        tokens = (SIZE * (unread + plan.left))(*row.tokens[-unread:])
        ends, cycles = (SIZE * len(row.request.ends))(*row.request.ends), (_Cycle * plan.most)()
        args, first = self._args, unread - 1
        args.token, args.cycle = ctypes.addressof(tokens) + first * ctypes.sizeof(SIZE), ctypes.addressof(cycles)
        args.ends, args.end_count = ctypes.addressof(ends), len(ends)
        args.rule = 0
        if draws is not None:
            args.rule, args.stream = 1 + RULES.index(draws.verdict), draws.stream
            args.temperature, args.limits = draws.sampling.temperature, truncation(draws.sampling)
        changes = LogitChanges(row) if needs_shaping(row) else None
        args.changes = None if changes is None else changes.address
        args.row, args.place, args.depth = plan.index, row.length - 1, plan.depth
        args.most, args.left = plan.most, plan.left
        drafter = None if head is None else self._head_args(head)
        args.head = None if drafter is None else ctypes.addressof(drafter[0])
        self._kernel.run_cycles(self._net, ctypes.addressof(self._call), ctypes.addressof(args))
        if head is not None and drafter is not None:
            head.record(drafter[0].held)
        done, at = list[RunCycle](), first + 1
        for cycle in cycles[: args.cycles]:
            emitted = tokens[at : at + cycle.emitted]
            done.append(RunCycle(emitted, cycle.drafted, cycle.drafting, cycle.scoring))
            at += cycle.emitted
        return done

    def _head_args(self, head: ChainHead) -> tuple[_HeadArgs, object]:
        """The head as the kernel reads it, and a table that must stay alive during the call."""
        assert head.net.row_bits == self._net.row_bits, "head and target use the same activation bits"
        states = (POINTER * len(head.layers))(*(self._features[layer] for layer in head.layers))
        tables = head.tables
        own = _HeadArgs(
            *(head.net.address, tables.embedding.data_ptr(), tables.cos.data_ptr(), tables.sin.data_ptr()),
            *(tables.ids.data_ptr(), head.fuse.address, head.factors.data_ptr(), ctypes.addressof(states)),
            *map(ctypes.addressof, head.cache.tables),
            *(len(head.layers), tables.cos.shape[1], *head.cache.steps, head.row, head.held),
        )
        return own, states
