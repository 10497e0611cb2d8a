"""The hidden states that drafters read: which layers' outputs are kept, and where they are stored in the KV cache."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from slipstream.core.array_types import Float, Tensor
from slipstream.models.cache.packing import RowSlice
from slipstream.models.cache.tensors import KVCache, hidden


class FeatureStore:
    """Stores the outputs of declared layers in the KV cache, at the places of the same tokens."""

    def __init__(self, cache: KVCache, layer_count: int) -> None:
        self.layers: tuple[int, ...] = ()  # in effect: their outputs are kept
        self._cache, self._layer_count = cache, layer_count
        self._declared: tuple[int, ...] = ()
        self._flat: dict[int, Float[Tensor, "places hidden"]] = {}  # cache tensors by layer
        self._flat_version = -1  # of the cache they belong to
        self._all: tuple[int, dict[int, Float[Tensor, "places hidden"]]] | None = None  # and that version

    def declare(self, layers: Iterable[int]) -> None:
        """Add layers. They take effect at the next `apply_declared`, so any thread may call this at any time."""
        for layer in (new := tuple(layers)):
            if not 0 <= layer < self._layer_count:
                raise ValueError(f"features names layer {layer}; the model has layers 0 to {self._layer_count - 1}")
        self._declared = tuple(dict.fromkeys((*self._declared, *new)))

    def apply_declared(self) -> bool:
        """Put the declared layers into effect. Returns whether that changed which layers are kept."""
        declared = self._declared
        changed = self.layers != declared
        self.layers = declared
        return changed

    def places(
        self, layers: Sequence[int], pieces: Sequence[RowSlice], like: Float[Tensor, "1 hidden"]
    ) -> dict[int, Float[Tensor, "tokens hidden"]] | None:
        """Views of the cache that a pass writes the outputs of these layers to. None where `write` copies them.

        A plain pass over one row writes them itself. Drafted nodes are copied, because a commit moves them in the cache
        and must not change the scores of the pass."""
        if not layers or len(pieces) > 1 or len(pieces[0].line) > pieces[0].line.pending:
            return None
        if any(layer not in self.layers for layer in layers):
            return None
        self._cache.check_room(pieces)
        flat = self._flattened(layers, like)
        return {layer: flat[layer][pieces[0].stretch] for layer in layers}

    def all_places(self, like: Float[Tensor, "1 hidden"]) -> Mapping[int, Float[Tensor, "places hidden"]]:
        """Where the outputs of the declared layers are kept, by layer: the same object as long as nothing changes."""
        if self._all is None or self._all[0] != self._cache.version or self._all[1].keys() != {*self.layers}:
            flat = self._flattened(self.layers, like) if self.layers else {}
            self._all = self._cache.version, {layer: flat[layer] for layer in self.layers}
        return self._all[1]

    def _flattened(
        self, layers: Sequence[int], like: Float[Tensor, "1 hidden"]
    ) -> dict[int, Float[Tensor, "places hidden"]]:
        """The cache tensors of layers as matrices. They are kept, because every view of a tensor takes time."""
        if self._flat_version != self._cache.version:
            self._flat, self._flat_version = {}, self._cache.version
        missing = [layer for layer in layers if layer not in self._flat]
        if missing:
            self._flat |= {layer: held[0, 0] for layer, held in self.tensors(missing, like).items()}
        return self._flat

    def write(
        self,
        layer: int,
        state: Float[Tensor, "tokens hidden"],
        pieces: Sequence[RowSlice],
        where: tuple[Tensor, Tensor],
    ) -> None:
        """Keep a layer's output for packed entries. `where` holds the cache row and the place of each entry."""
        held = self._cache.hold(hidden(layer), state[None, None])[0]
        if len(pieces) == 1:
            held[0, 0, pieces[0].stretch] = state
        elif held.is_cpu and held.dtype == torch.float32:  # numpy takes a third of torch's time for a few numbers
            row, place = where
            held[0, 0].numpy()[row.numpy() + place.numpy()] = state.numpy()
        else:
            held[0, 0, where[0] + where[1]] = state

    def read(
        self, layers: Iterable[int], index: int, start: int, end: int
    ) -> dict[int, Float[Tensor, "tokens hidden"]]:
        """Views of the states of one cache row, from place `start` up to `end`."""
        return {layer: self._cache.row(hidden(layer), index, start, end)[0] for layer in layers}

    def tensors(
        self, layers: Iterable[int], like: Float[Tensor, "1 hidden"]
    ) -> dict[int, Float[Tensor, "1 1 places hidden"]]:
        """The cache tensors of these layers, for a writer outside this class. `like` gives width, type and device."""
        return {layer: self._cache.hold(hidden(layer), like[None, None])[0] for layer in layers}
