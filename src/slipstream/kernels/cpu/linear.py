"""`torch.nn.functional.linear` in float32 for few rows.

A pass over one token reads every weight once and is bound by that; libraries made for square matrices take three to
four times as long for two to eight tokens, although the same reading would do. The kernel, `linear.cpp`, keeps weights
that are bfloat16 numbers in two bytes and widens them exactly, so its results are those of float32 arithmetic; and it
sums in one order, so a row's bits depend on that row alone.

Where they may (`integers=True`) and the processor multiplies bytes, weights that are whole numbers of four or eight
bits with scales (`few_bits`) stay in those bits, whether they are found or known (`pack_grid`). They are reproduced
exactly; the rows that meet them are rounded to whole numbers of sixteen bits, 32 with one scale, or, in a library of
its own that is compiled for those who ask (`row_bits=8`), of eight: half of the products, and another result.

Threads are torch's own: the kernel is handed `GOMP_parallel` of the very runtime that torch is linked to, since a
second pool would fight the first one for the cores. A kernel that cannot be had, or fails its check, is not used.
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

SOURCE = Path(__file__).parent / "src" / "linear.cpp"
SMALL = 1 << 15  # multiplications that are done before a second thread has woken up
POINTER, SIZE = ctypes.c_void_p, ctypes.c_int64
ARGUMENTS = (POINTER, POINTER, POINTER, SIZE, ctypes.c_uint, POINTER)  # matrix, x, y, rows, threads, parallel


KINDS = ("float32", "bfloat16", *few_bits.FORMS)


class MatrixStruct(ctypes.Structure):
    """What `linear.hpp` knows of a weight."""

    _fields_ = (("weight", POINTER), ("bias", POINTER), ("inputs", SIZE), ("outputs", SIZE), ("kind", SIZE))


@final
class PackedWeight:
    """A weight and bias as the kernel reads them: outputs side by side, one line of them for every input.

    `data` is [groups, in, 2 × lanes] in float32, [groups, in, lanes, 2] in bfloat16, or bytes for whole numbers of few
    bits; rows that meet those are of `row_bits`. `rounded`: whether the numbers are others than those it was made of.
    Nothing here ever changes.
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
    def halved(self) -> bool:
        """Whether a number takes two bytes."""
        return self.kind == "bfloat16"

    @property
    def whole(self) -> bool:
        """Whether its products are of whole numbers."""
        return self.kind in few_bits.FORMS

    def __deepcopy__(self, _: object) -> PackedWeight:
        return self  # addresses cannot be copied, and need not be

    def __reduce__(self) -> tuple[type[PackedWeight], tuple[Tensor, Tensor | None, int, int, str, int, bool]]:
        return PackedWeight, (self.data, self.bias, *self.facts)

    @property
    def facts(self) -> tuple[int, int, str, int, bool]:
        """All that is known of it beside its tensors, in the order in which it is made of them."""
        return self.inputs, self.outputs, self.kind, self.row_bits, self.rounded

    def unpack(self) -> Tensor:
        """The weight, [out, in], number for number."""
        if self.whole:
            return few_bits.raised(self.data, self.outputs, self.kind)
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
    """A library that passed its check."""

    def __init__(self, path: Path, row_bits: int = 16) -> None:
        try:
            library = ctypes.CDLL(str(path))
        except OSError as error:
            raise Unavailable(f"the kernel cannot be loaded ({error})") from error
        self._parallel = parallel()
        self._call = library.slipstream_linear
        self._call.argtypes, self._call.restype = ARGUMENTS, None
        self.work = ctypes.cast(library.slipstream_work, POINTER).value or 0
        self.path, self.row_bits, self.lanes = path, row_bits, int(library.slipstream_lanes())
        self.side = int(library.slipstream_side())  # outputs of few bits that lie side by side; 0: there are none
        self._check()

    def pack(self, weight: Tensor, bias: Tensor | None, integers: bool = False, rounded: bool = False) -> PackedWeight:
        outputs, inputs = weight.shape
        numbers = few_bits.grid(weight) if integers and self.side else None
        other = few_bits.nearest(weight) if numbers is None and rounded and self.side else None
        if (kept := numbers or other) is not None:
            return self.pack_grid(kept, bias, rounded=other is not None)
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
        data = few_bits.laid(numbers, self.side)
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

    def _check(self) -> None:
        """Small whole numbers have no rounding: results must be torch's to the bit. Then row by row, with rounding."""
        rows, inputs, outputs = 19, 57, 6 * self.lanes + 1
        x, weight, bias = (torch.arange(n) * 37 % 17 - 8.0 for n in (rows * inputs, outputs * inputs, outputs))
        x, weight = x.view(rows, inputs), weight.view(outputs, inputs)
        for scale in (1.0, 1 / 3):  # a third is no bfloat16 number
            packed = self.pack(weight * scale, bias)
            whole, apart = self.linear(x, packed), torch.cat([self.linear(row, packed) for row in x[:, None]])
            expected = functional.linear(x, weight * scale, bias)
            sure = packed.kind == "bfloat16"
            right = torch.equal(whole, expected) if sure else torch.allclose(whole, expected, atol=1e-3)
            if not right or not torch.equal(whole, apart):
                raise Unavailable("it is compiled, but its results are wrong")
        if self.side:
            self._check_integers()

    def _check_integers(self) -> None:
        """Rows of whole numbers whose largest is the largest there is are not rounded."""
        rows, spans, outputs, full = 19, 3, 37, 127 if self.row_bits == 8 else 127 * 256
        number = torch.arange(outputs * spans * few_bits.SPAN).view(outputs, spans, -1) * 37 % 16
        x = (torch.arange(rows * spans * few_bits.SPAN).view(rows, -1) * 12347 % (2 * full + 1) - full).float()
        x[:, :: few_bits.SPAN] = full
        for form in few_bits.FORMS.values():
            scale = (1 + torch.arange(outputs * spans * form.parts).view(outputs, spans, -1) % 5).to(form.scale) / 8
            bytes_ = number.to(torch.uint8) if form.bits == 4 else (number * 15 - 120).to(torch.int8)
            packed = self.pack_grid(QuantizedGrid(bytes_, scale, -3 * scale[..., 0] if form.floor else None), None)
            whole, apart = self.linear(x, packed), torch.cat([self.linear(row, packed) for row in x[:, None]])
            expected = (x.double() @ packed.unpack().double().T).float()
            close = (whole - expected).abs().max() <= 1e-6 * expected.abs().max()
            if not close or not torch.equal(whole, apart):
                raise Unavailable("it is compiled, but its results are wrong")


def pack(
    weight: Tensor, bias: Tensor | None = None, integers: bool = False, rounded: bool = False, row_bits: int = 16
) -> PackedWeight:
    """Weight [out, in] in float32; two bytes a number where all its numbers are bfloat16 ones, else four; with
    `integers` fewer still, where they are whole numbers of few bits and the processor has instructions for those. With
    `rounded` all are made such numbers, of eight bits: a drafter may be any, a target may not."""
    own = None if bias is None else bias.detach().contiguous()
    return _kernel(row_bits).pack(weight.detach(), own, integers, rounded)


def pack_grid(numbers: QuantizedGrid, bias: Tensor | None = None, row_bits: int = 16) -> PackedWeight:
    """A weight that is known to be of few bits, for processors that multiply bytes (`has_integers`)."""
    return _kernel(row_bits).pack_grid(numbers, None if bias is None else bias.detach().contiguous())


def linear(x: Tensor, weight: PackedWeight) -> Tensor:
    """[..., in] to [..., out]: `torch.nn.functional.linear(x, weight.unpack(), weight.bias)` up to rounding."""
    return _kernel(weight.row_bits).linear(x, weight)


def work(row_bits: int = 16) -> int:
    """The address of the function that does a product's work, for kernels that have products among other things."""
    loaded = _found(row_bits)
    if isinstance(loaded, str):
        raise Unavailable(loaded)
    return loaded.work


def available() -> bool:
    return isinstance(_found(16), LinearKernel)


def why_not(row_bits: int = 16) -> str | None:
    """Why there is no kernel, in a clause; None where there is one."""
    loaded = _found(row_bits)
    return loaded if isinstance(loaded, str) else None


def has_integers(row_bits: int = 16) -> bool:
    """Whether weights of few bits can stay in them, and meet rows of so many."""
    loaded = _found(row_bits)
    return isinstance(loaded, LinearKernel) and loaded.side > 0


def status() -> str:
    """One sentence: what is used here, or why it is not."""
    return _sentence(_found(16))


def _sentence(loaded: LinearKernel | str) -> str:
    if isinstance(loaded, LinearKernel):
        small = ", weights of few bits in whole numbers" if loaded.side else ""
        small += ", activations of eight bits" if loaded.row_bits == 8 else ""
        return f"cpu linear kernel: compiled for this processor, {loaded.lanes} lanes{small} ({loaded.path})"
    return f"cpu linear kernel: not available: {loaded}; using torch"


def _kernel(row_bits: int) -> LinearKernel:
    loaded = _found(row_bits)
    if isinstance(loaded, str):
        raise RuntimeError(_sentence(loaded))
    return loaded


@functools.cache
def _found(row_bits: int) -> LinearKernel | str:
    loaded = load(functools.partial(LinearKernel, row_bits=row_bits), SOURCE, row_bits)
    say(_sentence(loaded))
    return loaded
