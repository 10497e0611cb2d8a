"""What runs of several cycles share, as the kernels read it (`run_parts.hpp`)."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

from torch import Tensor

from slipstream.core.device import DeviceVerdict, Draws
from slipstream.core.shaping import needs_shaping
from slipstream.core.types import Row
from slipstream.kernels.cpu.decoder import CachePointers, CpuNetwork, DecoderKernel, PassStruct
from slipstream.kernels.cpu.linear import POINTER, SIZE, PackedWeight, unpacker
from slipstream.kernels.cpu.runs.shaping import LogitChanges
from slipstream.kernels.cpu.truncate import TruncationStruct, truncation

RULES = (DeviceVerdict.MATCH, DeviceVerdict.TOKEN, DeviceVerdict.BLOCK)  # numbered from 1 on, as in choice.hpp


class InputsStruct(ctypes.Structure):
    """`Inputs` in run_parts.hpp."""

    _fields_ = tuple((name, POINTER) for name in ("table", "packed", "unpack", "cos", "sin", "features"))


class RowDrawsStruct(ctypes.Structure):
    """`RowDraws` in run_parts.hpp."""

    _fields_ = (
        ("end", POINTER),
        ("temperature", ctypes.c_double),
        ("limits", TruncationStruct),
        ("changes", POINTER),
        *((name, SIZE) for name in ("end_count", "rule", "stream")),
    )


class RowDraws:
    """How the tokens of a row are drawn from its present text on. Without `draws` each is the most probable one."""

    def __init__(self, row: Row, draws: Draws | None) -> None:
        ends = self._ends = (SIZE * len(row.request.ends))(*row.request.ends)  # the kernel has addresses only
        changes = self._changes = LogitChanges(row) if needs_shaping(row) else None
        self.struct = RowDrawsStruct(end=ctypes.addressof(ends), end_count=len(ends))
        self.struct.changes = None if changes is None else changes.address
        if draws is not None:
            self.struct.rule, self.struct.stream = 1 + RULES.index(draws.verdict), draws.stream
            self.struct.temperature, self.struct.limits = draws.sampling.temperature, truncation(draws.sampling)


class RunInputs:
    """A model and its cache. Valid as long as the cache, the tables of the angles and the places of the features are
    the same tensors."""

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
        self.kernel, self.net = kernel, net
        self._alive = embedding, cache, angles, features
        self.features = (POINTER * net.layers)()
        for layer, places in features.items():
            assert places.is_contiguous(), "the kernel writes line by line"
            self.features[layer] = places.data_ptr()
        keys, values = map(ctypes.addressof, cache.tables)
        self._pass = PassStruct(keys=keys, values=values, rotated=angles[0].shape[1], last=net.layers)
        self._pass.row_step, self._pass.head_step = cache.steps
        self.pass_address = ctypes.addressof(self._pass)
        self.struct = InputsStruct(features=ctypes.addressof(self.features))
        self.struct.cos, self.struct.sin = (table.data_ptr() for table in angles)
        if isinstance(embedding, PackedWeight):
            self.struct.packed, self.struct.unpack = embedding.address, unpacker(embedding.row_bits)
        else:
            self.struct.table = embedding.data_ptr()
