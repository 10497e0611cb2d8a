"""GGUF's blocks as integers with scales and floors, without rounding (`kernels.cpu.few_bits.QuantizedGrid`).

A block holds the numbers of 32 inputs, or of 256 in the K types. Scales of the K types are integers that share a
float16 factor. The product of the two is exact in float32, so a grid's weight equals that of GGUF's own reader to the
bit. Layouts are those of ggml's `block_q*` structures.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from slipstream.core.array_types import Tensor, UInt8
from slipstream.kernels.cpu.few_bits import SPAN, QuantizedGrid

Bytes = UInt8[Tensor, "out blocks bytes"]


def grid(raw: UInt8[Tensor, "out bytes"], kind: str) -> QuantizedGrid:
    """The integers of rows of blocks of a type in `TYPES`. `raw`: the bytes as stored in the file."""
    size, read = TYPES[kind]
    number, scale, floor, factor = read(_cut(raw, -1, size))
    number = number.reshape(len(raw), -1, SPAN)
    spans = number.shape[1]
    return QuantizedGrid(
        number, scale.reshape(len(raw), spans, -1), None if floor is None else floor.reshape(len(raw), spans), factor
    )


def _q4_0(raw: Bytes) -> QuantizedGrid:
    scale = _half(raw, 0)
    return QuantizedGrid(_nibbles(raw[..., 2:]), scale, -8 * scale)


def _q4_1(raw: Bytes) -> QuantizedGrid:
    return QuantizedGrid(_nibbles(raw[..., 4:]), _half(raw, 0), _half(raw, 2))


def _q5_0(raw: Bytes) -> QuantizedGrid:
    number = _nibbles(raw[..., 6:]) | _bits(raw[..., 2:6]) << 4
    return QuantizedGrid(number.view(torch.int8) - 16, _half(raw, 0), None)


def _q5_1(raw: Bytes) -> QuantizedGrid:
    number = _nibbles(raw[..., 8:]) | _bits(raw[..., 4:8]) << 4
    return QuantizedGrid(number.view(torch.int8), _half(raw, 0).float(), _half(raw, 2).float())


def _q8_0(raw: Bytes) -> QuantizedGrid:
    return QuantizedGrid(raw[..., 2:].contiguous().view(torch.int8), _half(raw, 0), None)


def _q4_k(raw: Bytes) -> QuantizedGrid:
    return QuantizedGrid(_pairs(raw[..., 16:]), *_six_bits(raw), _factors(raw))


def _q5_k(raw: Bytes) -> QuantizedGrid:
    fifth = raw[..., 16:48, None] >> torch.arange(8, dtype=torch.uint8) & 1  # bit k belongs to span k
    number = _pairs(raw[..., 48:]) | fifth.transpose(-1, -2) << 4
    scale, floor = _six_bits(raw)
    factor = _factors(raw).float()
    return QuantizedGrid(number.view(torch.int8), scale * factor[..., :1], floor * factor[..., 1:], None)


def _q6_k(raw: Bytes) -> QuantizedGrid:
    low = _cut(raw[..., :128], 2, 1, 64) >> _shifts(0, 4) & 15  # 64 lower halves, then 64 upper halves
    high = _cut(raw[..., 128:192], 2, 1, 32) >> _shifts(0, 2, 4, 6) & 3
    number = _cut(low.flatten(-3), 8, 32) | high.flatten(-3, -2) << 4
    scale = raw[..., 192:208].contiguous().view(torch.int8)
    return QuantizedGrid(number.view(torch.int8) - 32, scale, None, _half(raw, 208))


def _half(raw: Bytes, at: int) -> Tensor:
    """The float16 number of each block that begins at a byte."""
    return raw[..., at : at + 2].contiguous().view(torch.float16)


def _nibbles(raw: Bytes) -> Tensor:
    """4-bit integers of 16 bytes: the lower halves are inputs 0 to 15, the upper halves inputs 16 to 31."""
    raw = raw.contiguous()
    return torch.cat([raw & 15, raw >> 4], -1)


def _bits(raw: Bytes) -> Tensor:
    """One bit per input, from 32-bit words."""
    return (raw.contiguous().view(torch.int32) >> torch.arange(SPAN, dtype=torch.int32) & 1).to(torch.uint8)


def _pairs(raw: Bytes) -> Tensor:
    """[..., 8, 32]: the lower halves of 32 bytes are one span, the upper halves the next."""
    return (_cut(raw, 4, 1, 32) >> _shifts(0, 4) & 15).flatten(-3, -2)


def _cut(raw: UInt8[Tensor, "..."], *sizes: int) -> Tensor:
    """Split the last axis into axes of these sizes."""
    return raw.view(*raw.shape[:-1], *sizes)


def _shifts(*by: int) -> Tensor:
    return torch.tensor(by, dtype=torch.uint8)[:, None]


def _six_bits(raw: Bytes) -> tuple[Tensor, Tensor]:
    """Scales and floors of the eight spans of a K block, 6-bit integers in 12 bytes.

    The upper two bits of the last four spans are stored in the bytes of the first four spans."""
    first, second, last = _cut(raw[..., 4:16].contiguous(), 3, 4).unbind(-2)
    scale = torch.cat([first & 63, last & 15 | first >> 2 & 48], -1)
    floor = torch.cat([second & 63, last >> 4 | second >> 2 & 48], -1)
    return scale.view(torch.int8), floor.view(torch.int8)


def _factors(raw: Bytes) -> Tensor:
    """The factors of scales and floors of a K block. Floors are subtracted there, and added here."""
    return torch.cat([_half(raw, 0), -_half(raw, 2)], -1)


class BlockType(NamedTuple):
    """A block type of GGUF and its reader."""

    size: int  # bytes of a block
    read: Callable[[Tensor], QuantizedGrid]


TYPES = {
    "Q4_0": BlockType(18, _q4_0),
    "Q4_1": BlockType(20, _q4_1),
    "Q5_0": BlockType(22, _q5_0),
    "Q5_1": BlockType(24, _q5_1),
    "Q8_0": BlockType(34, _q8_0),
    "Q4_K": BlockType(144, _q4_k),
    "Q5_K": BlockType(176, _q5_k),
    "Q6_K": BlockType(210, _q6_k),
}
