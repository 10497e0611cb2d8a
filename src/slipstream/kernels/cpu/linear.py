"""`torch.nn.functional.linear` in float32 for few rows.

A pass over one token is bound by reading every weight once. For two to eight tokens, libraries made for square matrices
take three to four times as long, although the memory traffic is the same. The kernel is `linear.cpp`.

- bfloat16 weights are stored in two bytes and widened exactly, so the arithmetic is that of float32.
- Sums have a fixed order, so the result of a row depends on that row alone.
- With `integers=True`, block-quantised weights (`few_bits`) stay in 4 or 8 bits, if the processor multiplies bytes. The
  weights are represented exactly. Activations are rounded to 16-bit integers with one scale per 32 inputs.
- With `row_bits=8`, activations are rounded to 8-bit integers. This halves the products and changes the results. The
  kernel for it is a separate library, compiled on demand.
- The kernel runs on torch's own threads, through `GOMP_parallel` of the OpenMP runtime that torch is linked to. A
  second thread pool would compete for the cores.

A kernel that cannot be compiled or fails its self-check is not used.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import final

import torch
from torch import Tensor
from torch.nn import functional

from slipstream.kernels.cpu import few_bits
from slipstream.kernels.cpu.compile import Unavailable, load
from slipstream.kernels.cpu.few_bits import QuantizedGrid
from slipstream.kernels.machine import say

SOURCE = Path(__file__).parent / "src" / "products" / "linear.cpp"
SMALL = 1 << 15  # multiplications that one thread does faster than a team, which must be woken first
POINTER, SIZE = ctypes.c_void_p, ctypes.c_int64
ARGUMENTS = (POINTER, POINTER, POINTER, SIZE, ctypes.c_uint, POINTER)  # matrix, x, y, rows, threads, parallel


KINDS = ("float32", "bfloat16", *few_bits.FORMS)


class MatrixStruct(ctypes.Structure):
    """A weight as the kernels read it: `Matrix` in matrix.hpp."""

    _fields_ = (("weight", POINTER), ("bias", POINTER), ("inputs", SIZE), ("outputs", SIZE), ("kind", SIZE))


@final
class PackedWeight:
    """A weight and bias as the kernel reads them. Immutable.

    `data` is [groups, in, 2 × lanes] in float32, [groups, in, lanes, 2] in bfloat16, or the bytes of quantised blocks
    (`few_bits.pack_blocks`). `row_bits`: bits of the activations that are multiplied with quantised blocks. `rounded`:
    whether packing changed the weight.
    """

    def __init__(
        self,
        data: Tensor,
        bias: Tensor | None,
        inputs: int,
        outputs: int,
        kind: str,
        row_bits: int = 16,
        rounded: bool = False,
    ) -> None:
        self.data, self.bias, self.inputs, self.outputs, self.kind = data, bias, inputs, outputs, kind
        self.row_bits, self.rounded = row_bits, rounded
        address = None if bias is None else bias.data_ptr()
        self._matrix = MatrixStruct(data.data_ptr(), address, inputs, outputs, KINDS.index(kind))
        self.address = ctypes.addressof(self._matrix)

    @property
    def is_bfloat16(self) -> bool:
        """Whether a number takes two bytes."""
        return self.kind == "bfloat16"

    @property
    def is_integer(self) -> bool:
        """Whether the weight is stored as quantised blocks."""
        return self.kind in few_bits.FORMS

    def __deepcopy__(self, _: object) -> PackedWeight:
        return self  # immutable, and the C structure holds addresses of these tensors

    def __reduce__(self) -> tuple[type[PackedWeight], tuple[Tensor, Tensor | None, int, int, str, int, bool]]:
        return PackedWeight, (self.data, self.bias, *self.metadata)

    @property
    def metadata(self) -> tuple[int, int, str, int, bool]:
        """The constructor's arguments after the tensors."""
        return self.inputs, self.outputs, self.kind, self.row_bits, self.rounded

    def unpack(self) -> Tensor:
        """The float32 weight [out, in], exactly."""
        if self.is_integer:
            return unpack_outputs(self, torch.arange(self.outputs))
        lines = self.data.transpose(2, 3).flatten(2) if self.kind == "bfloat16" else self.data
        return lines.transpose(1, 2).flatten(0, 1)[: self.outputs].float()


def parallel() -> int:
    """The address of `GOMP_parallel` in the runtime torch is linked to."""
    return symbol("GOMP_parallel")


def symbol(name: str) -> int:
    """The address of a function in the OpenMP runtime torch is linked to."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        return ctypes.cast(getattr(library, name), POINTER).value or 0
    except (OSError, AttributeError) as error:
        raise Unavailable(f"the OpenMP runtime of torch cannot be loaded ({error})") from error


class LinearKernel:
    """A compiled library that passed its self-check."""

    def __init__(self, path: Path, row_bits: int = 16) -> None:
        try:
            library = ctypes.CDLL(str(path))
        except OSError as error:
            raise Unavailable(f"the kernel cannot be loaded ({error})") from error
        self._parallel = parallel()
        self._call = library.slipstream_linear
        self._call.argtypes, self._call.restype = ARGUMENTS, None
        self._unpack = library.slipstream_unpack
        self._unpack.argtypes, self._unpack.restype = (POINTER, POINTER, SIZE, POINTER), ctypes.c_int
        self.work = ctypes.cast(library.slipstream_compute, POINTER).value or 0
        self.unpacker = ctypes.cast(self._unpack, POINTER).value or 0
        self.path, self.row_bits, self.lanes = path, row_bits, int(library.slipstream_lanes())
        self.side = int(library.slipstream_side())  # outputs per group of quantised blocks; 0: not supported
        self._check()

    def pack(self, weight: Tensor, bias: Tensor | None, integers: bool = False, rounded: bool = False) -> PackedWeight:
        outputs, inputs = weight.shape
        numbers = few_bits.grid(weight) if integers and self.side else None
        nearest = few_bits.round_to_int8(weight) if numbers is None and rounded and self.side else None
        if (quantised := numbers or nearest) is not None:
            return self.pack_grid(quantised, bias, rounded=nearest is not None)
        half = weight.bfloat16()
        exact = torch.equal(half.float(), weight)
        padded = functional.pad(half if exact else weight, (0, 0, 0, -outputs % (2 * self.lanes)))
        lines = padded.view(-1, 2 * self.lanes, inputs).transpose(1, 2)
        data = lines.reshape(*lines.shape[:2], 2, self.lanes).transpose(2, 3) if exact else lines
        kind = "bfloat16" if exact else "float32"
        return PackedWeight(data.contiguous(), bias, inputs, outputs, kind, self.row_bits)

    def pack_grid(self, numbers: QuantizedGrid, bias: Tensor | None, rounded: bool = False) -> PackedWeight:
        assert self.side, "this processor does not multiply bytes"
        outputs, spans, span = numbers.number.shape
        data = few_bits.pack_blocks(numbers, self.side)
        return PackedWeight(data, bias, spans * span, outputs, numbers.kind, self.row_bits, rounded)

    def linear(self, x: Tensor, weight: PackedWeight) -> Tensor:
        shape = x.shape
        if x.dtype != torch.float32 or not x.is_cpu or shape[-1] != weight.inputs:
            given = f"{list(shape)} in {str(x.dtype).removeprefix('torch.')} on {x.device}"
            raise ValueError(f"the kernel takes [..., {weight.inputs}] in float32 on cpu, not {given}")
        if not x.is_contiguous():
            x = x.contiguous()
        y = torch.empty((*shape[:-1], weight.outputs))
        work = x.numel() * weight.outputs
        if work:
            threads = torch.get_num_threads() if work > SMALL else 1
            rows = x.numel() // weight.inputs
            self._call(weight.address, x.data_ptr(), y.data_ptr(), rows, threads, self._parallel)
        return y

    def unpack_outputs(self, weight: PackedWeight, outputs: Tensor) -> Tensor:
        assert weight.is_integer, "floats are not stored in blocks"
        y = torch.empty((*outputs.shape, weight.inputs))
        outputs = outputs.contiguous()
        if not self._unpack(weight.address, outputs.data_ptr(), outputs.numel(), y.data_ptr()):
            raise IndexError(f"an output is not between 0 and {weight.outputs - 1}")
        return y

    def _check(self) -> None:
        """Compare with torch, and all rows at once with row by row. Small integers must give equal results."""
        rows, inputs, outputs = 19, 57, 6 * self.lanes + 1
        x, weight, bias = (torch.arange(n) * 37 % 17 - 8.0 for n in (rows * inputs, outputs * inputs, outputs))
        x, weight = x.view(rows, inputs), weight.view(outputs, inputs)
        for scale in (1.0, 1 / 3):  # 1/3 is not a bfloat16 number, so the weight is packed as float32
            packed = self.pack(weight * scale, bias)
            result, by_row = self.linear(x, packed), torch.cat([self.linear(row, packed) for row in x[:, None]])
            expected = functional.linear(x, weight * scale, bias)
            exact = packed.kind == "bfloat16"
            right = torch.equal(result, expected) if exact else torch.allclose(result, expected, atol=1e-3)
            if not right or not torch.equal(result, by_row):
                raise Unavailable("it is compiled, but its results are wrong")
        if self.side:
            self._check_integers()

    def _check_integers(self) -> None:
        """Check products with quantised blocks. The activations are integers that the kernel represents exactly."""
        rows, spans, outputs, full = 19, few_bits.SHARING, 37, 127 if self.row_bits == 8 else 127 * 256
        x = (torch.arange(rows * spans * few_bits.SPAN).view(rows, -1) * 12347 % (2 * full + 1) - full).float()
        x[:, :: few_bits.SPAN] = full
        for form in few_bits.FORMS.values():
            grid = few_bits.example(form, outputs, spans)
            packed = self.pack_grid(grid, None)
            result, by_row = self.linear(x, packed), torch.cat([self.linear(row, packed) for row in x[:, None]])
            expected = (x.double() @ grid.weight().double().T).float()
            same = torch.equal(self.unpack_outputs(packed, torch.arange(outputs)), grid.weight())
            close = (result - expected).abs().max() <= 1e-6 * expected.abs().max()
            if not close or not same or not torch.equal(result, by_row):
                raise Unavailable("it is compiled, but its results are wrong")


def pack(
    weight: Tensor, bias: Tensor | None = None, integers: bool = False, rounded: bool = False, row_bits: int = 16
) -> PackedWeight:
    """Pack a float32 weight [out, in]: as bfloat16 if that is exact, otherwise as float32.

    `integers`: as quantised blocks, if these are exact and the processor supports them. `rounded`: round other weights
    to 8 bits; only for drafters, because it would change a target's distribution."""
    own = None if bias is None else bias.detach().contiguous()
    return _kernel(row_bits).pack(weight.detach(), own, integers, rounded)


def pack_grid(numbers: QuantizedGrid, bias: Tensor | None = None, row_bits: int = 16) -> PackedWeight:
    """Pack a weight given as integers. The processor must support it (`has_integers`)."""
    return _kernel(row_bits).pack_grid(numbers, None if bias is None else bias.detach().contiguous())


def linear(x: Tensor, weight: PackedWeight) -> Tensor:
    """[..., in] to [..., out]: `torch.nn.functional.linear(x, weight.unpack(), weight.bias)` up to rounding."""
    return _kernel(weight.row_bits).linear(x, weight)


def unpack_outputs(weight: PackedWeight, outputs: Tensor) -> Tensor:
    """The float32 weights [..., in] of some outputs, exactly. The weight must be quantised. `outputs`: int64."""
    return _kernel(weight.row_bits).unpack_outputs(weight, outputs)


def work(row_bits: int = 16) -> int:
    """The address of the C function that computes a part of a product, for other kernels."""
    loaded = _loaded(row_bits)
    if isinstance(loaded, str):
        raise Unavailable(loaded)
    return loaded.work


def unpacker(row_bits: int = 16) -> int:
    """The address of the C function that unpacks outputs of quantised weights."""
    return _kernel(row_bits).unpacker


def available() -> bool:
    return isinstance(_loaded(16), LinearKernel)


def why_not(row_bits: int = 16) -> str | None:
    """Why the kernel is not available, as a clause; None if it is."""
    loaded = _loaded(row_bits)
    return loaded if isinstance(loaded, str) else None


def has_integers(row_bits: int = 16) -> bool:
    """Whether the kernel for `row_bits` supports quantised blocks on this processor."""
    loaded = _loaded(row_bits)
    return isinstance(loaded, LinearKernel) and loaded.side > 0


def status() -> str:
    """One sentence: the kernel in use, or why there is none."""
    return _sentence(_loaded(16))


def _sentence(loaded: LinearKernel | str) -> str:
    if isinstance(loaded, LinearKernel):
        features = ", quantised weights" if loaded.side else ""
        features += ", 8-bit activations" if loaded.row_bits == 8 else ""
        return f"cpu linear kernel: compiled for this processor, {loaded.lanes} lanes{features} ({loaded.path})"
    return f"cpu linear kernel: not available: {loaded}; using torch"


def _kernel(row_bits: int) -> LinearKernel:
    loaded = _loaded(row_bits)
    if isinstance(loaded, str):
        raise RuntimeError(_sentence(loaded))
    return loaded


@functools.cache
def _loaded(row_bits: int) -> LinearKernel | str:
    loaded = load(functools.partial(LinearKernel, row_bits=row_bits), SOURCE, row_bits)
    say(_sentence(loaded))
    return loaded
