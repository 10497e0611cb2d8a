"""Plain greedy decoding of one row, several tokens in one call (`continuation.cpp`).

Decoding token by token defines the results: the same passes, and the most probable token after each.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Mapping

from torch import Tensor

from slipstream.kernels.cpu.decoder import CachePointers, CpuNetwork, DecoderKernel, PassStruct
from slipstream.kernels.cpu.linear import POINTER, SIZE, PackedWeight, unpacker

ADDRESSES = ("table", "packed", "unpack", "cos", "sin", "features", "ends", "token")


class _ContinuationArgs(ctypes.Structure):
    _fields_ = (
        *((name, POINTER) for name in ADDRESSES),
        *((name, SIZE) for name in ("end_count", "row", "place", "most", "count")),
    )


class Continuation:
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
        self._args = _ContinuationArgs(features=ctypes.addressof(self._features))
        self._args.cos, self._args.sin = (table.data_ptr() for table in angles)
        if isinstance(embedding, PackedWeight):
            self._args.packed, self._args.unpack = embedding.address, unpacker(embedding.row_bits)
        else:
            self._args.table = embedding.data_ptr()

    def run(self, row: int, place: int, token: int, most: int, ends: Collection[int]) -> list[int]:
        """The tokens after `token`, which is at `place` of a cache row and not cached yet: up to `most`, the last one
        not cached; fewer after an end token, and where logits are not finite."""
        tokens, stops = (SIZE * (most + 1))(token), (SIZE * len(ends))(*ends)
        args = self._args
        args.token, args.ends, args.end_count = ctypes.addressof(tokens), ctypes.addressof(stops), len(ends)
        args.row, args.place, args.most = row, place, most
        self._kernel.continue_row(self._net, ctypes.addressof(self._call), ctypes.addressof(args))
        return tokens[1 : args.count + 1]
