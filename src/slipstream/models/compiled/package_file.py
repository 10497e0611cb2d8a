"""The file format of compiled packages: tensors, then an index in JSON, then a trailer.

Tensors begin at multiples of `ALIGN` bytes and are used in place in the mapped file. The index holds a hash of
the tensors' bytes (`cpu_hash`). The trailer holds the SHA-256 of the index, its length and the format's name. So every
byte is checked, which takes as long as reading the file.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

import torch

from slipstream.core.array_types import Tensor
from slipstream.kernels.cpu import hash as cpu_hash

FORMAT = b"slipstream package 2"
OTHER_FORMAT = re.compile(rb"slipstream[a-z ]* \d+$")
TRAILER = 32 + 8 + len(FORMAT)  # bytes
ALIGN = 64  # bytes: as torch aligns what it allocates


class OtherVersion(ValueError):
    """The file is a package of another version."""


def write(path: Path, facts: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write tensors and facts, which must be of JSON's types."""
    entries: dict[str, tuple[str, list[int], int]] = {}
    end = 0
    with open(path, "wb") as file:
        for name, tensor in tensors.items():
            flat = tensor.contiguous().flatten().view(torch.uint8)
            entries[name] = str(tensor.dtype).removeprefix("torch."), list(tensor.shape), end
            end += file.write(flat.numpy())  # type: ignore[arg-type]
            end += file.write(bytes(-end % ALIGN))
    xxh64 = cpu_hash.kernel().hash_blocks(_map(path, end))
    index = json.dumps({**facts, "tensors": entries, "bytes": end, "xxh64": xxh64}).encode()
    with open(path, "ab") as file:
        file.write(index + hashlib.sha256(index).digest() + len(index).to_bytes(8, "little") + FORMAT)


def read_index(path: Path) -> dict[str, Any]:
    """The index at the end of a package; ValueError if the file is not a complete package."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TRAILER))
        trailer = file.read()
        digest, length = trailer[:32], int.from_bytes(trailer[32:40], "little")
        start = size - TRAILER - length
        if trailer[40:] != FORMAT and OTHER_FORMAT.search(trailer):
            raise OtherVersion(f"{path} is a package of another version")
        if trailer[40:] != FORMAT or start < 0:
            raise ValueError(f"{path} is not a whole package")
        file.seek(start)
        text = file.read(length)
    if hashlib.sha256(text).digest() != digest:
        raise ValueError(f"the index of {path} is damaged")
    index: dict[str, Any] = json.loads(text)
    if index["bytes"] != start:
        raise ValueError(f"{path} holds {start} bytes of tensors, not {index['bytes']}")
    return index


def read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The index and the tensors of a package; ValueError if any byte of it was changed."""
    index = read_index(path)
    if cpu_hash.kernel().hash_blocks(_map(path, index["bytes"])) != index["xxh64"]:
        raise ValueError(f"{path} is damaged: its tensors are not those that were written")
    data = _map(path, index["bytes"])  # a new mapping: the pages that were hashed leave the resident memory
    return index, {name: _tensor(data, *entry) for name, entry in index["tensors"].items()}


def _map(path: Path, size: int) -> Tensor:
    return torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)


def _tensor(data: Tensor, kind: str, shape: list[int], start: int) -> Tensor:
    dtype: torch.dtype = getattr(torch, kind)
    size = torch.Size(shape).numel() * dtype.itemsize
    return data[start : start + size].view(dtype).view(shape)
