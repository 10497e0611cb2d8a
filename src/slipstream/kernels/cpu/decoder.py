"""The layers of a decoder in one call (`decoder.cpp`): what they must equal is the model's own modules.

Between the products of a small model, a pass of torch calls spends most of its time on calling. Here a whole pass is
one call: the team of threads walks through all layers, with products and attention that sum in one order, so a token's
bits depend on that token and what it sees alone.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from slipstream.kernels.cpu.compile import function, had
from slipstream.kernels.cpu.linear import POINTER, SIZE, PackedWeight, parallel, symbol, work

SOURCE = Path(__file__).parent / "src" / "decoder.cpp"
SMALL = 1 << 16  # multiplications of a layer that are done before a second thread has woken up
PRODUCTS = ("query", "key", "value", "output", "gate", "up", "down")
NORMS = ("before", "between", "beside", "query_norm", "key_norm")


class _Layer(ctypes.Structure):
    _fields_ = tuple((name, POINTER) for name in (*PRODUCTS, *NORMS))


class _Net(ctypes.Structure):
    _fields_ = (
        *((name, POINTER) for name in ("layers", "norm", "head")),
        *((name, SIZE) for name in ("hidden", "inner", "heads", "kv_heads", "dim")),
        *((name, ctypes.c_float) for name in ("epsilon", "scale")),
    )


class _Call(ctypes.Structure):
    _fields_ = (
        *((name, POINTER) for name in ("hidden", "beside", "cos", "sin", "keys", "values", "seen", "watched")),
        *((name, POINTER) for name in ("row", "place", "kept", "logits")),
        *((name, SIZE) for name in ("tokens", "slots", "turned", "places", "used", "first", "last", "brief")),
    )


@dataclass(frozen=True, eq=False)
class CpuLayer:
    """The weights of one layer."""

    query: PackedWeight
    key: PackedWeight
    value: PackedWeight
    output: PackedWeight
    gate: PackedWeight
    up: PackedWeight
    down: PackedWeight
    before: Tensor  # of the norm before attention
    between: Tensor  # of the norm before the products that follow
    beside: Tensor | None = None  # of the norm of what is read beside the hidden state, where something is
    query_norm: Tensor | None = None  # of each head's query, where it is normed
    key_norm: Tensor | None = None


@dataclass(frozen=True)
class LayerSizes:
    heads: int
    kv_heads: int
    dim: int
    epsilon: float
    scale: float


@dataclass(eq=False)
class CachePointers:
    """Where keys and values of every layer lie, [rows, kv_heads, places, dim]; kept as long as the tensors are."""

    keys: Sequence[Tensor]
    values: Sequence[Tensor]

    def __post_init__(self) -> None:
        assert all(held.is_contiguous() for held in (*self.keys, *self.values)), "the cache is read where it lies"
        self.places = self.keys[0].shape[2]
        self.tables = addresses(self.keys), addresses(self.values)


class CpuNetwork:
    """A decoder's weights as the kernel reads them. Without `head` there are no logits. Products of the same rows must
    read them laid out the same way, and all whole numbers meet activations of as many bits; TypeError where they do
    not."""

    def __init__(self, blocks: Sequence[CpuLayer], norm: Tensor, head: PackedWeight | None, sizes: LayerSizes) -> None:
        for block in blocks:
            for sharing in ((block.query, block.key, block.value), (block.gate, block.up)):
                if len({packed.whole for packed in sharing}) > 1:
                    raise TypeError("products of the same rows are of whole numbers and of others")
        own = [getattr(block, name) for block in blocks for name in PRODUCTS] + ([head] if head else [])
        bits = {packed.row_bits for packed in own if packed.whole} or {16}
        if len(bits) > 1:
            raise TypeError("products are of activations of sixteen bits and of eight")
        self.row_bits = bits.pop()
        self._held = blocks, norm, head  # addresses are all the kernel has
        self.layers, self.hidden = len(blocks), norm.numel()
        self.outputs = head.outputs if head else 0
        table = (_Layer * len(blocks))(*map(_layer, blocks))
        self._table = table
        inner = blocks[0].gate.outputs
        self.work = self.hidden * inner
        self._net = _Net(
            ctypes.addressof(table),
            norm.data_ptr(),
            head.address if head else None,
            *(self.hidden, inner, sizes.heads, sizes.kv_heads, sizes.dim, sizes.epsilon, sizes.scale),
        )
        self.address = ctypes.addressof(self._net)


def _layer(block: CpuLayer) -> _Layer:
    products = (getattr(block, name).address for name in PRODUCTS)
    return _Layer(*products, *(_address(getattr(block, name)) for name in NORMS))


@dataclass(eq=False)
class PassArgs:
    """One pass over packed tokens; `hidden` is what layer `first` reads and, in the end, what layer `last` - 1 gave."""

    hidden: Tensor  # [tokens, hidden]
    angles: tuple[Tensor, Tensor]  # cosines and sines, [tokens, turned]
    row: Tensor  # [tokens]
    place: Tensor
    used: int  # places any token looks at
    seen: Sequence[Tensor | None]  # by layer, [tokens, used]; None: all
    watched: Sequence[Tensor | None]  # by layer, filled with what it gave
    first: int
    last: int
    kept: Tensor | None = None  # tokens whose logits are wanted
    beside: Tensor | None = None  # [tokens, hidden]
    brief: bool = False  # whether keys and values of the first layer are all that is wanted


class DecoderKernel:
    """Whether it is right for a model is checked by who uses it."""

    def __init__(self, path: Path, row_bits: int = 16) -> None:
        self.row_bits = row_bits
        self._call = function(path, "slipstream_decode", POINTER, POINTER, ctypes.c_uint, POINTER, POINTER)
        function(path, "slipstream_products", POINTER)(work(row_bits))
        self._draft = function(path, "slipstream_draft", *(POINTER,) * 3, ctypes.c_uint, POINTER, POINTER)
        self._team = parallel(), symbol("omp_get_num_threads")

    def run(self, net: CpuNetwork, stay: CachePointers, walk: PassArgs) -> Tensor | None:
        """Walk through the layers; the logits of the tokens that are kept, if any are."""
        assert net.row_bits == self.row_bits, "another library lays out the rows of these products"
        assert walk.hidden.is_contiguous(), "hidden states are worked on where they lie"
        tokens, slots = len(walk.hidden), 0 if walk.kept is None else len(walk.kept)
        logits = torch.empty(slots, net.outputs) if slots else None
        call, _held = _call(stay, walk, logits)
        self._call(net.address, ctypes.addressof(call), _threads(net, max(tokens, slots)), *self._team)
        return logits

    def draft(self, net: CpuNetwork, stay: CachePointers, turned: int, grove: int, tokens: int) -> None:
        """Draft as what lies at an address says (`cpu_draft`), with at most so many tokens in a pass."""
        assert net.row_bits == self.row_bits, "another library lays out the rows of these products"
        watched = addresses([None] * net.layers)
        tables = map(ctypes.addressof, stay.tables)
        call = _Call(keys=next(tables), values=next(tables), watched=ctypes.addressof(watched))
        call.turned, call.places, call.last = turned, stay.places, net.layers
        self._draft(net.address, ctypes.addressof(call), grove, _threads(net, tokens), *self._team)


def _call(stay: CachePointers, walk: PassArgs, logits: Tensor | None) -> tuple[_Call, object]:
    """A pass as the kernel reads it, and what must be held as long as it is."""
    seen, watched, (cos, sin) = addresses(walk.seen), addresses(walk.watched), walk.angles
    call = _Call(
        *(walk.hidden.data_ptr(), _address(walk.beside), cos.data_ptr(), sin.data_ptr()),
        *(*map(ctypes.addressof, stay.tables), ctypes.addressof(seen), ctypes.addressof(watched)),
        *(walk.row.data_ptr(), walk.place.data_ptr(), _address(walk.kept), _address(logits)),
        *(len(walk.hidden), 0 if logits is None else len(logits), cos.shape[1], stay.places),
        *(walk.used, walk.first, walk.last, walk.brief),
    )
    return call, (seen, watched, logits)


def _threads(net: CpuNetwork, tokens: int) -> int:
    return torch.get_num_threads() if tokens * net.work > SMALL else 1


def addresses(tensors: Sequence[Tensor | None]) -> ctypes.Array[ctypes.c_void_p]:
    """As a table that is read, never written: the one of no tensors at all is everybody's."""
    first = tensors[0]
    if all(tensor is first for tensor in tensors):
        return _blank(len(tensors)) if first is None else (POINTER * len(tensors))(*[first.data_ptr()] * len(tensors))
    return (POINTER * len(tensors))(*map(_address, tensors))


@functools.cache
def _blank(count: int) -> ctypes.Array[ctypes.c_void_p]:
    return (POINTER * count)()


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def kernel(row_bits: int = 16) -> DecoderKernel | None:
    """The kernel for activations of so many bits, where it can be had."""
    return _kernel(row_bits)


@functools.cache
def _kernel(row_bits: int) -> DecoderKernel | None:
    return had(functools.partial(DecoderKernel, row_bits=row_bits), SOURCE, row_bits)
