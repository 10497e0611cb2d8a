"""The layers of a decoder in one call (`decoder.cpp`); the reference that defines the results is the model's modules.

A small model's forward pass in torch spends most of its time on function calls. Here a pass is one call: a team of
threads runs all layers. Products and attention sum in a fixed order, so the result of a token depends only on the token
and the places that it attends to.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from slipstream.kernels.cpu.compile import function, load_or_none
from slipstream.kernels.cpu.linear import POINTER, SIZE, PackedWeight, parallel, symbol, work
from slipstream.kernels.cpu.move import steps

SOURCE = Path(__file__).parent / "src" / "passes" / "decoder.cpp"
SMALL = 1 << 16  # multiplications of a layer that take no longer than waking a second thread
ATTENTION, MLP = ("query", "key", "value", "output"), ("gate", "up", "down")
PRODUCTS = (*ATTENTION, *MLP)
NORMS = ("attention_norm", "mlp_norm", "second_norm", "query_norm", "key_norm")  # fields of CpuLayer


class _Layer(ctypes.Structure):
    _fields_ = tuple((name, POINTER) for name in (*PRODUCTS, *NORMS))


class _Network(ctypes.Structure):
    _fields_ = (
        *((name, POINTER) for name in ("layers", "norm", "head")),
        *((name, SIZE) for name in ("hidden", "inner", "heads", "kv_heads", "dim")),
        *((name, ctypes.c_float) for name in ("epsilon", "scale")),
    )


PASS_SIZES = ("tokens", "slots", "rotated", "row_step", "head_step", "used", "first", "last", "keys_only")


class PassStruct(ctypes.Structure):
    """A pass as the kernel reads it: `PassArgs` in decoder.hpp."""

    _fields_ = (
        *((name, POINTER) for name in ("hidden", "second", "cos", "sin", "keys", "values", "mask", "features")),
        *((name, POINTER) for name in ("row", "place", "scored", "logits")),
        *((name, SIZE) for name in PASS_SIZES),
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
    attention_norm: Tensor  # weight of the norm before attention
    mlp_norm: Tensor  # weight of the norm before gate and up
    second_norm: Tensor | None = None  # weight of the norm of the second input, if the layer has one
    query_norm: Tensor | None = None  # weight of the norm of each head's query, if queries are normalised
    key_norm: Tensor | None = None


@dataclass(frozen=True)
class SkippedBlocks:
    """The layers whose attention is left out of a pass, and those whose MLP is."""

    attention: frozenset[int]
    mlp: frozenset[int]


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
        self.steps = steps(self.keys[0])
        assert all(steps(x) == self.steps for x in (*self.keys, *self.values)), "all tensors have one layout"
        self.tables = addresses(self.keys), addresses(self.values)


class CpuNetwork:
    """A decoder's weights as the kernel reads them. Without `head` there are no logits.

    `skipped` names attention and MLP blocks that a pass leaves out. Networks of the same blocks share the weights.

    Products that share their input (query, key and value; gate and up) must all have integer weights or none. All
    integer weights must use the same number of activation bits. TypeError otherwise."""

    def __init__(
        self,
        blocks: Sequence[CpuLayer],
        norm: Tensor,
        head: PackedWeight | None,
        sizes: LayerSizes,
        skipped: SkippedBlocks | None = None,
    ) -> None:
        for block in blocks:
            for sharing in ((block.query, block.key, block.value), (block.gate, block.up)):
                if len({packed.is_integer for packed in sharing}) > 1:
                    raise TypeError("products of the same input have integer weights and float weights")
        weights = [getattr(block, name) for block in blocks for name in PRODUCTS] + ([head] if head else [])
        bits = {packed.row_bits for packed in weights if packed.is_integer} or {16}
        if len(bits) > 1:
            raise TypeError("some products use 16-bit activations and others 8-bit ones")
        self.row_bits = bits.pop()
        self._tensors = blocks, norm, head  # kept alive: the kernel has addresses only
        self._sizes = sizes
        self.layers, self.hidden = len(blocks), norm.numel()
        self.outputs = head.outputs if head else 0
        table = (_Layer * len(blocks))(*(_layer(block, _left_out(skipped, i)) for i, block in enumerate(blocks)))
        self._table = table
        inner = blocks[0].gate.outputs
        self.work = self.hidden * inner  # about a quarter of the multiplications of a layer
        self.key_work = self.hidden * blocks[0].key.outputs // 2  # the same share for keys and values alone
        self._net = _Network(
            ctypes.addressof(table),
            norm.data_ptr(),
            head.address if head else None,
            *(self.hidden, inner, sizes.heads, sizes.kv_heads, sizes.dim, sizes.epsilon, sizes.scale),
        )
        self.address = ctypes.addressof(self._net)

    def without(self, skipped: SkippedBlocks) -> CpuNetwork:
        """The same weights with some blocks left out."""
        return CpuNetwork(*self._tensors, self._sizes, skipped)


def _layer(block: CpuLayer, left_out: Sequence[str]) -> _Layer:
    products = (None if name in left_out else getattr(block, name).address for name in PRODUCTS)
    return _Layer(*products, *(_address(getattr(block, name)) for name in NORMS))


def _left_out(skipped: SkippedBlocks | None, layer: int) -> tuple[str, ...]:
    """The products of a layer that are left out."""
    if skipped is None:
        return ()
    attention = ATTENTION if layer in skipped.attention else ()
    return (*attention, *(MLP if layer in skipped.mlp else ()))


@dataclass(eq=False)
class PassArgs:
    """One forward pass over packed tokens, through layers `first` to `last` - 1."""

    hidden: Tensor  # [tokens, hidden] input of the first layer; overwritten with the output of the last one
    angles: tuple[Tensor, Tensor]  # cosines and sines of the rotary embedding, [tokens, rotated]
    row: Tensor  # [tokens] row of the cache
    place: Tensor  # [tokens] place in that row to which keys and values are written
    used: int  # places of the cache that any token may attend to
    mask: Sequence[Tensor | None]  # attention mask by layer, [tokens, used]; None: all places
    features: Sequence[Tensor | None]  # by layer, filled with its output [tokens, hidden]
    first: int
    last: int
    scored: Tensor | None = None  # [slots] tokens whose logits are computed
    second: Tensor | None = None  # [tokens, hidden] the second input
    keys_only: bool = False  # compute only keys and values: each layer's from the input of the first


class DecoderKernel:
    """The compiled decoder. Its users check it against the model's own modules before they rely on it."""

    def __init__(self, path: Path, row_bits: int = 16) -> None:
        self.row_bits = row_bits
        self._call = function(path, "slipstream_decode", POINTER, POINTER, ctypes.c_uint, POINTER, POINTER)
        function(path, "slipstream_products", POINTER)(work(row_bits))
        self._draft = function(path, "slipstream_draft", *(POINTER,) * 3, ctypes.c_uint, POINTER, POINTER)
        self._markov = function(path, "slipstream_markov", POINTER, ctypes.c_uint, POINTER, POINTER)
        self._cycles = function(path, "slipstream_cycle_run", *(POINTER,) * 3, ctypes.c_uint, POINTER, POINTER)
        self._rows = function(path, "slipstream_rows_run", *(POINTER,) * 3, ctypes.c_uint, POINTER, POINTER)
        self._team = parallel(), symbol("omp_get_num_threads")

    def run(self, net: CpuNetwork, cache: CachePointers, args: PassArgs) -> Tensor | None:
        """Run the layers. Returns the logits [slots, outputs] of the tokens in `args.scored`, or None."""
        assert net.row_bits == self.row_bits, "the weights need the library for other activation bits"
        assert args.hidden.is_contiguous(), "hidden states are updated in place"
        tokens, slots = len(args.hidden), 0 if args.scored is None else len(args.scored)
        logits = torch.empty(slots, net.outputs) if slots else None
        call, _tables = _call(cache, args, logits)
        threads = _threads(net.key_work if args.keys_only else net.work, max(tokens, slots))
        self._call(net.address, ctypes.addressof(call), threads, *self._team)
        return logits

    def draft(self, net: CpuNetwork, cache: CachePointers, rotated: int, draft_args: int, tokens: int) -> None:
        """Run a draft. `draft_args`: address of a `_DraftArgs` (`kernels.cpu.draft`). `tokens`: maximum per pass."""
        assert net.row_bits == self.row_bits, "the weights need the library for other activation bits"
        features = addresses([None] * net.layers)
        tables = map(ctypes.addressof, cache.tables)
        call = PassStruct(keys=next(tables), values=next(tables), features=ctypes.addressof(features))
        call.rotated, call.last, (call.row_step, call.head_step) = rotated, net.layers, cache.steps
        self._draft(net.address, ctypes.addressof(call), draft_args, _threads(net.work, tokens), *self._team)

    def run_cycles(self, net: CpuNetwork, call: int, cycle_args: int) -> None:
        """Run some cycles of one row. `call`: address of a `PassStruct`. `cycle_args`: of a `_CycleArgs`
        (`kernels.cpu.runs.cycle_run`)."""
        assert net.row_bits == self.row_bits, "the weights need the library for other activation bits"
        self._cycles(net.address, call, cycle_args, _threads(net.work, 1), *self._team)

    def run_rows(self, net: CpuNetwork, call: int, rows_args: int, rows: int) -> None:
        """Run some cycles of several rows. `rows_args`: address of a `_RowsArgs` (`kernels.cpu.runs.rows_run`)."""
        assert net.row_bits == self.row_bits, "the weights need the library for other activation bits"
        self._rows(net.address, call, rows_args, _threads(net.work, rows), *self._team)

    def markov(self, markov_args: int, products: int) -> None:
        """Run chains. `markov_args`: address of a `_MarkovArgs` (`kernels.cpu.markov`). `products`: multiplications of
        a level."""
        self._markov(markov_args, _threads(products, 1), *self._team)


def _call(cache: CachePointers, args: PassArgs, logits: Tensor | None) -> tuple[PassStruct, object]:
    """A pass as the kernel reads it, and the tables that must stay alive during the call."""
    mask, features, (cos, sin) = addresses(args.mask), addresses(args.features), args.angles
    call = PassStruct(
        *(args.hidden.data_ptr(), _address(args.second), cos.data_ptr(), sin.data_ptr()),
        *(*map(ctypes.addressof, cache.tables), ctypes.addressof(mask), ctypes.addressof(features)),
        *(args.row.data_ptr(), args.place.data_ptr(), _address(args.scored), _address(logits)),
        *(len(args.hidden), 0 if logits is None else len(logits), cos.shape[1], *cache.steps),
        *(args.used, args.first, args.last, args.keys_only),
    )
    return call, (mask, features, logits)


def _threads(work: int, tokens: int) -> int:
    return torch.get_num_threads() if tokens * work > SMALL else 1


def addresses(tensors: Sequence[Tensor | None]) -> ctypes.Array[ctypes.c_void_p]:
    """The addresses of tensors as a C array, which is never written. All arrays of None share one object."""
    first = tensors[0]
    if all(tensor is first for tensor in tensors):
        return (
            _null_table(len(tensors)) if first is None else (POINTER * len(tensors))(*[first.data_ptr()] * len(tensors))
        )
    table = (POINTER * len(tensors))()
    for i, tensor in enumerate(tensors):
        if tensor is not None:
            table[i] = tensor.data_ptr()
    return table


@functools.cache
def _null_table(count: int) -> ctypes.Array[ctypes.c_void_p]:
    return (POINTER * count)()


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def kernel(row_bits: int = 16) -> DecoderKernel | None:
    """The kernel for activations of `row_bits` bits, or None if it is not available."""
    return _kernel(row_bits)


@functools.cache
def _kernel(row_bits: int) -> DecoderKernel | None:
    return load_or_none(functools.partial(DecoderKernel, row_bits=row_bits), SOURCE, row_bits)
