"""The weights of a converted folder as the blocks of its GGUF file, in place of a safetensors file.

Float32 holds the numbers of some block types exactly (`gguf.convert`), in five times the bytes. The blocks are then all
that the folder stores, together with the header of the safetensors file. Both together give that file again, byte for
byte, so a model keeps its sha256. Models are loaded from the blocks. The file itself is written only where another
program needs it (`full_folder`).
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from slipstream.core.array_types import Float, Tensor
from slipstream.models.sources import store
from slipstream.models.sources.folder import (
    ABOUT,
    FULL_HEADER,
    FULL_SHA256,
    PACKED,
    about_packed,
    entries,
    header_text,
    is_packed,
)
from slipstream.models.sources.gguf.weights import KINDS, GgufWeights, matched
from slipstream.models.sources.progress import progress
from slipstream.models.sources.store import MANIFEST, WEIGHTS


def pack(gguf: Path, folder: Path) -> dict[str, Any]:
    """Replace the float32 weights of a folder by the blocks of its GGUF file. Returns facts for the manifest.

    The folder stays as it is, and nothing is returned, where the blocks do not give the same file again."""
    full = folder / WEIGHTS
    tensors = list(matched(gguf, folder)) if full.is_file() else []
    blocks = {name: raw.contiguous() for name, raw, _, _ in tensors if raw is not None}
    if not blocks or len(blocks) < len(tensors):
        return {}
    kinds, sha256 = {name: kind for name, _, kind, _ in tensors}, store.sha256(full)
    about = {KINDS: kinds, FULL_HEADER: header_text(full), FULL_SHA256: sha256}
    save_file(blocks, folder / PACKED, {ABOUT: json.dumps(about)})  # one entry: safetensors writes several in any order
    digest = hashlib.sha256()
    for part in _full_file(folder):
        digest.update(part)
    if digest.hexdigest() != sha256:
        (folder / PACKED).unlink()
        return {}
    full.unlink()
    return {"sha256": sha256}


def open_packed(folder: Path) -> GgufWeights:
    """The weights of a packed folder, to be read one by one."""
    return GgufWeights(folder / PACKED, about_packed(folder / PACKED)[KINDS])


def read(folder: Path) -> dict[str, Float[Tensor, "..."]]:
    """The weights of a packed folder in float32, by name, in the order of the safetensors file."""
    weights = open_packed(folder)
    return {name: weights.value(name) for name in entries(_header(folder))}


def write_full(source: Path, folder: Path) -> dict[str, Any]:
    """Copy a packed folder with its weights as a safetensors file. Returns facts for the manifest."""
    for path in source.iterdir():
        if path.is_file() and path.name not in (PACKED, MANIFEST):
            shutil.copyfile(path, folder / path.name)
    with open(folder / WEIGHTS, "wb") as file:
        for part in _full_file(source):
            file.write(part)
    about = store.manifest(source) or {}
    return {key: value for key, value in about.items() if key not in ("layout", "files")}


def full_folder(folder: Path) -> Path:
    """A folder that any program can load: `folder` itself, or a copy in the cache if its weights are packed."""
    if not is_packed(folder):
        return folder
    copy = store.home() / f"{folder.name}.full"

    def make(partial: Path) -> dict[str, Any]:
        with progress(f"writing the weights of {folder.name} as safetensors, once"):
            return write_full(folder, partial)

    return store.build(copy, make)


def _header(folder: Path) -> str:
    header: str = about_packed(folder / PACKED)[FULL_HEADER]
    return header


def _full_file(folder: Path) -> Iterator[Any]:
    """The bytes of the safetensors file that a packed folder stands for, in parts."""
    text, weights = _header(folder), open_packed(folder)
    header = text.encode()
    yield len(header).to_bytes(8, "little") + header
    for name in entries(text):
        yield weights.value(name).contiguous().numpy().data
