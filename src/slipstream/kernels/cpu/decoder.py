"""The layers of a decoder in one call (`decoder.cpp`); the reference that defines the results is the model's modules.

A small model's pass through torch spends most of its time on calls. Here a whole pass is one call: a team of threads
runs all layers. Products and attention sum in a fixed order, so a token's bits depend only on it and what it sees.
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
SMALL = 1 << 16  # multiplications of a layer that take no longer than waking a second thread
PRODUCTS = ("query", "key", "value", "output", "gate", "up", "down")
NORMS = ("before", "between", "beside", "query_norm", "key_norm")  # fields of CpuLayer


class _Layer(ctypes.Structure):
    _fields_ = tuple((name, POINTER) for name in (*PRODUCTS, *NORMS))


class _Network(ctypes.Structure):
    _fields_ = (
        *((name, POINTER) for name in ("layers", "norm", "head")),
        *((name, SIZE) for name in ("hidden", "inner", "heads", "kv_heads", "dim")),
        *((name, ctypes.c_float) for name in ("epsilon", "scale")),
    )


class _PassArgs(ctypes.Structure):
    _fields_ = (
        *((name, POINTER) for name in ("hidden", "second", "cos", "sin", "keys", "values", "mask", "features")),
        *((name, POINTER) for name in ("row", "place", "scored", "logits")),
        *((name, SIZE) for name in ("tokens", "slots", "rotated", "places", "used", "first", "last", "keys_only")),
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
    between: Tensor  # of the norm before gate and up
    beside: Tensor | None = None  # of the norm of the second input, if the layer has one
    query_norm: Tensor | None = None  # of each head's query, if queries are normalised
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
    """The cache of every layer, keys and values [rows, kv_heads, places, dim]; valid as long as the tensors are."""

    keys: Sequence[Tensor]
    values: Sequence[Tensor]

    def __post_init__(self) -> None:
        assert all(x.is_contiguous() for x in (*self.keys, *self.values)), "the kernel reads the cache in place"
        self.places = self.keys[0].shape[2]
        self.tables = addresses(self.keys), addresses(self.values)


class CpuNetwork:
    """A decoder's weights as the kernel reads them. Without `head` there are no logits. Products of the same rows must
    use the same layout of rows, and all integer weights the same bits of activations; TypeError where they do not."""

    def __init__(self, blocks: Sequence[CpuLayer], norm: Tensor, head: PackedWeight | None, sizes: LayerSizes) -> None:
        for block in blocks:
            for sharing in ((block.query, block.key, block.value), (block.gate, block.up)):
                if len({packed.whole for packed in sharing}) > 1:
                    raise TypeError("products of the same rows are of whole numbers and of others")
        weights = [getattr(block, name) for block in blocks for name in PRODUCTS] + ([head] if head else [])
        bits = {packed.row_bits for packed in weights if packed.whole} or {16}
        if len(bits) > 1:
            raise TypeError("products are of activations of sixteen bits and of eight")
        self.row_bits = bits.pop()
        self._tensors = blocks, norm, head  # kept alive: the kernel has addresses only
        self.layers, self.hidden = len(blocks), norm.numel()
        self.outputs = head.outputs if head else 0
        table = (_Layer * len(blocks))(*map(_layer, blocks))
        self._table = table
        inner = blocks[0].gate.outputs
        self.work = self.hidden * inner
        self._net = _Network(
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
    """One pass over packed tokens. `hidden` is the input of layer `first`, then the output of layer `last` - 1."""

    hidden: Tensor  # [tokens, hidden]
    angles: tuple[Tensor, Tensor]  # cosines and sines, [tokens, turned]
    row: Tensor  # [tokens]
    place: Tensor
    used: int  # places of the cache that any token may see
    seen: Sequence[Tensor | None]  # attention mask by layer, [tokens, used]; None: all
    watched: Sequence[Tensor | None]  # by layer, filled with its output
    first: int
    last: int
    kept: Tensor | None = None  # tokens whose logits are wanted
    beside: Tensor | None = None  # [tokens, hidden] the second input
    brief: bool = False  # whether keys and values of the first layer are all that is wanted


class DecoderKernel:
    """The compiled decoder. Its users check it against the model's own modules before they rely on it."""

    def __init__(self, path: Path, row_bits: int = 16) -> None:
        self.row_bits = row_bits
        self._call = function(path, "slipstream_decode", POINTER, POINTER, ctypes.c_uint, POINTER, POINTER)
        function(path, "slipstream_products", POINTER)(work(row_bits))
        self._draft = function(path, "slipstream_draft", *(POINTER,) * 3, ctypes.c_uint, POINTER, POINTER)
        self._team = parallel(), symbol("omp_get_num_threads")

    def run(self, net: CpuNetwork, cache: CachePointers, args: PassArgs) -> Tensor | None:
        """Run the layers; the logits of the tokens in `args.kept`, if there are any."""
        assert net.row_bits == self.row_bits, "the weights need the library for other activation bits"
        assert args.hidden.is_contiguous(), "hidden states are updated in place"
        tokens, slots = len(args.hidden), 0 if args.kept is None else len(args.kept)
        logits = torch.empty(slots, net.outputs) if slots else None
        call, _tables = _call(cache, args, logits)
        self._call(net.address, ctypes.addressof(call), _threads(net, max(tokens, slots)), *self._team)
        return logits

    def draft(self, net: CpuNetwork, cache: CachePointers, rotated: int, draft_args: int, tokens: int) -> None:
        """Run the draft whose `_DraftArgs` (`kernels.cpu.draft`) lie at an address; `tokens`: the most in one pass."""
        assert net.row_bits == self.row_bits, "the weights need the library for other activation bits"
        features = addresses([None] * net.layers)
        tables = map(ctypes.addressof, cache.tables)
        call = _PassArgs(keys=next(tables), values=next(tables), features=ctypes.addressof(features))
        call.rotated, call.places, call.last = rotated, cache.places, net.layers
        self._draft(net.address, ctypes.addressof(call), draft_args, _threads(net, tokens), *self._team)


def _call(cache: CachePointers, args: PassArgs, logits: Tensor | None) -> tuple[_PassArgs, object]:
    """A pass as the kernel reads it, and the tables that must live as long."""
    seen, watched, (cos, sin) = addresses(args.seen), addresses(args.watched), args.angles
    call = _PassArgs(
        *(args.hidden.data_ptr(), _address(args.beside), cos.data_ptr(), sin.data_ptr()),
        *(*map(ctypes.addressof, cache.tables), ctypes.addressof(seen), ctypes.addressof(watched)),
        *(args.row.data_ptr(), args.place.data_ptr(), _address(args.kept), _address(logits)),
        *(len(args.hidden), 0 if logits is None else len(logits), cos.shape[1], cache.places),
        *(args.used, args.first, args.last, args.brief),
    )
    return call, (seen, watched, logits)


def _threads(net: CpuNetwork, tokens: int) -> int:
    return torch.get_num_threads() if tokens * net.work > SMALL else 1


def addresses(tensors: Sequence[Tensor | None]) -> ctypes.Array[ctypes.c_void_p]:
    """Addresses of tensors as a table that is never written; all tables of None share one."""
    first = tensors[0]
    if all(tensor is first for tensor in tensors):
        return _blank(len(tensors)) if first is None else (POINTER * len(tensors))(*[first.data_ptr()] * len(tensors))
    table = (POINTER * len(tensors))()
    for i, tensor in enumerate(tensors):
        if tensor is not None:
            table[i] = tensor.data_ptr()
    return table


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
