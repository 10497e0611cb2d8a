"""The expected length of a GGUF file, computed from its header, so that a truncated file is refused.

The layout is that of versions 2 and 3: magic, version, counts of tensors and of entries, the entries (key, type,
value), the tensors (name, shape, type, offset), then the tensors' data, aligned.
"""

from __future__ import annotations

import math
import mmap
import struct
from pathlib import Path

VERSIONS = (2, 3)
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes of a value, by its type
STRING, ARRAY = 8, 9
ALIGNMENT, UINT32 = b"general.alignment", 4


class _Scanner:
    """Reads values one after another; struct.error where the file ends first."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at = data, 4  # after the magic

    def number(self, form: str) -> int:
        (value,) = struct.unpack_from(f"<{form}", self.data, self.at)
        self.at += struct.calcsize(form)
        return int(value)

    def string(self) -> bytes:
        length = self.number("Q")
        self.at += length
        return self.data[self.at - length : self.at]

    def skip(self, kind: int) -> None:
        """Pass over a value of a type."""
        if kind == STRING:
            self.string()
        elif kind == ARRAY:
            inner, count = self.number("I"), self.number("Q")
            if inner in SIZES:
                self.at += SIZES[inner] * count
            else:
                for _ in range(count):
                    self.skip(inner)
        else:
            self.at += SIZES[kind]


def cut_short(path: Path) -> str | None:
    """How a GGUF file is truncated, as the end of a sentence; None where it is complete or of an unknown version."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            expected = _expected_bytes(_Scanner(data))
        except struct.error:
            return f"is cut short: it ends within its header, after {len(data):,} bytes"
        except KeyError:  # a value type of a later version: the reader reports it
            return None
        if expected > len(data):
            return f"is cut short: it holds {len(data):,} of {expected:,} bytes"
    return None


def _expected_bytes(scanner: _Scanner) -> int:
    """The end of the last tensor; 0 for versions of another layout."""
    if scanner.number("I") not in VERSIONS:
        return 0
    tensors, entries = scanner.number("Q"), scanner.number("Q")
    alignment = 32
    for _ in range(entries):
        key, kind = scanner.string(), scanner.number("I")
        if (key, kind) == (ALIGNMENT, UINT32):
            alignment = max(1, scanner.number("I"))
        else:
            scanner.skip(kind)
    ends = [_tensor_end(scanner) for _ in range(tensors)]
    return math.ceil(scanner.at / alignment) * alignment + max(ends, default=0)


def _tensor_end(scanner: _Scanner) -> int:
    """The end of a tensor's data, relative to the first tensor's start; 0 for types that the library lacks."""
    from gguf import GGML_QUANT_SIZES

    scanner.string()
    count = math.prod([scanner.number("Q") for _ in range(scanner.number("I"))])
    kind, offset = scanner.number("I"), scanner.number("Q")
    block, size = GGML_QUANT_SIZES.get(kind, (1, 0))
    return offset + count // int(block) * int(size)
