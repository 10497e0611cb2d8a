"""Which floating-point type a model runs in, and why.

On a CPU it is float32 where this package's kernels run: they hold weights in two bytes or fewer in any case, and are
faster than libraries at the few tokens of a cycle. Elsewhere bfloat16 halves the bytes that bound decoding, but a
processor without instructions for it emulates them and is slower than in float32. Weights stored in bfloat16 keep their
values in float32, so widening changes rounding only. Weights of eight bits change the model, so they must be requested
by name. So must activations of eight bits, which halve the arithmetic of a processor with integer products.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass

import torch

from slipstream.kernels.cpu import linear as cpu_linear

NAMES = {
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
    "float16": torch.float16,
    "fp16": torch.float16,
    "float32": torch.float32,
    "fp32": torch.float32,
}


EIGHT_BIT_WEIGHTS = ("int8", "fp8")  # weights are rounded to 8 bits; the computation has the type of "auto"
EIGHT_BIT_ACTIVATIONS = "a8"  # activations are rounded to 8 bits; weights are quantised, or rounded to int8


@dataclass(frozen=True)
class Precision:
    """The type of a model, and why it was chosen."""

    dtype: torch.dtype
    why: str
    weights: str | None = None  # the type that weights are rounded to; None: they are not
    row_bits: int = 16  # bits of the activations in integer products

    def __str__(self) -> str:
        return str(self.dtype).removeprefix("torch.")


def choose_device(device: str | torch.device = "auto") -> str:
    """The device asked for, or for "auto" the GPU where there is one; ValueError where it cannot be used."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except Exception as error:  # torch raises a class of its own for each backend
        raise ValueError(f"device is {str(device)!r}, which torch cannot use here; it must be {_devices()}") from error
    return str(device)


def _devices() -> str:
    count = torch.cuda.device_count()
    return "auto or cpu" if not count else f"auto, cpu, cuda or cuda:0 to cuda:{count - 1}"


def choose(dtype: str | torch.dtype = "auto", device: str | torch.device = "cpu", kernels: bool = False) -> Precision:
    """The requested type, or for "auto" the fastest one of this device. `kernels`: this package's kernels run the
    model."""
    if isinstance(dtype, torch.dtype):
        return Precision(dtype, "as asked for")
    if dtype in NAMES:
        return Precision(NAMES[dtype], "as asked for")
    if dtype in EIGHT_BIT_WEIGHTS:
        return _rounded_weights(dtype, torch.device(device).type, choose("auto", device, kernels))
    if dtype == EIGHT_BIT_ACTIVATIONS:
        return _rounded_activations(torch.device(device).type)
    if dtype != "auto":
        legal = ", ".join((*NAMES, *EIGHT_BIT_WEIGHTS, EIGHT_BIT_ACTIVATIONS))
        raise ValueError(f"dtype is {dtype!r}; it must be auto, {legal}")
    if kernels and torch.device(device).type == "cpu" and cpu_linear.available():
        return Precision(torch.float32, "this processor has kernels made for few tokens, in float32")
    if has_bfloat16(torch.device(device)):
        return Precision(torch.bfloat16, f"{_place(device)} has bfloat16 instructions")
    return Precision(torch.float32, f"{_place(device)} has no bfloat16 instructions")


def _rounded_weights(weights: str, device: str, computed: Precision) -> Precision:
    if device == "cpu" and (weights != "int8" or not cpu_linear.has_integers()):
        raise ValueError(f"{weights} weights need a GPU; a processor that multiplies bytes has int8 alone")
    return Precision(computed.dtype, computed.why, weights)


def _rounded_activations(device: str) -> Precision:
    if device == "cpu" and (reason := cpu_linear.why_not(8)):
        raise ValueError(f"a8, activations of eight bits, needs compiled kernels: {reason}; auto runs everywhere")
    if device != "cpu" or not cpu_linear.has_integers(8):
        raise ValueError(
            "a8, activations of eight bits, needs a CPU that multiplies bytes (ARM with asimddp, x86 with AVX2); "
            "auto runs everywhere"
        )
    return Precision(torch.float32, "this processor multiplies bytes", "int8", 8)


def _place(device: str | torch.device) -> str:
    return "this processor" if torch.device(device).type == "cpu" else "this device"


def has_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type != "cpu":
        return False
    if platform.machine().lower() in (
        "x86_64",
        "amd64",
    ):  # oneDNN accepts any AVX-512, on which it only emulates bfloat16
        return _cpu_supports("_is_avx512_bf16_supported") or _cpu_supports("_is_amx_tile_supported")
    try:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    except (AttributeError, RuntimeError):  # builds without oneDNN
        return False


def _cpu_supports(name: str) -> bool:
    check = getattr(torch.cpu, name, None)  # private names of torch, which may be removed
    return bool(check()) if check else False
