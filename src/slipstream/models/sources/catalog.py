"""Models by name: catalog names, Hugging Face ids, folders and GGUF files all end as one folder to load from.

`scaled:NAME:8x+5` is one of them at the cost of a larger one (`scaled`). Only safetensors and GGUF are read, never
pickles; code that a model brings along runs only on request.

This module is the interface of the folder: `names`, `installed`, `resolve` and `load` hold the parts.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from slipstream.models.sources import hub, store
from slipstream.models.sources.folder import is_packed
from slipstream.models.sources.gguf.packed import full_folder, write_full
from slipstream.models.sources.installed import InstalledModel, installed, remove
from slipstream.models.sources.load import ModelFiles, describe, load_model, load_text, load_tokenizer
from slipstream.models.sources.names import HUB_ID, catalog_names, names_model
from slipstream.models.sources.resolve import damaged_files, resolve
from slipstream.models.sources.store import CatalogError
from slipstream.models.sources.verify import FileCheck, check_files

__all__ = [
    "CatalogError",
    "InstalledModel",
    "ModelFiles",
    "catalog_names",
    "convert",
    "full_folder",
    "inspect",
    "installed",
    "load_model",
    "load_text",
    "load_tokenizer",
    "names_model",
    "pull",
    "remove",
    "resolve",
    "verify",
]


def pull(name: str, *, trust_remote_code: bool = False) -> ModelFiles:
    """Fetch a model, or convert it, so that later uses find it at once; one that is here already is checked."""
    files = resolve(name, trust_remote_code=trust_remote_code, repair=True)
    if files.kind == "folder" and (problems := damaged_files(name, files.path)):
        raise CatalogError(f"{name} is damaged: {problems[0]}; copy or download it again")
    return files


def verify(name: str) -> list[FileCheck]:
    """Compare the files of a model on this machine, and its compiled packages, with the checksums recorded for them."""
    from slipstream.models.compiled.package import check_integrity

    folder = _local_folder(name)
    return check_files(folder) + check_integrity(folder)


def _local_folder(name: str) -> Path:
    """Where the files of a model on this machine are, whole or not."""
    own, path = store.home() / name, Path(name).expanduser()
    if name and store.manifest(own) is not None:
        return own
    if name and path.is_dir():
        return path
    if (match := HUB_ID.fullmatch(name)) and not path.is_file():
        return hub.snapshot(match["repo"], match["revision"], fetch=False)
    return resolve(name, fetch=False).path


def inspect(name: str, *, trust_remote_code: bool = False) -> dict[str, Any]:
    """What a model is: architecture, sizes, types, hash, end tokens."""
    return describe(resolve(name, trust_remote_code=trust_remote_code))


def convert(source: str, folder: str | Path, *, trust_remote_code: bool = False) -> Path:
    """Write any model as a new folder of safetensors, config and tokenizer."""
    target = Path(folder).expanduser().absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise CatalogError(f"{folder} exists and is not an empty folder; name a new one")
    files = resolve(source, trust_remote_code=trust_remote_code)
    with store.readable_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with store.written_atomically(target) as partial:
            if is_packed(files.path):
                store.write_manifest(partial, write_full(files.path, partial))
            else:
                for path in files.path.iterdir():
                    if path.is_file():  # follows the links of the hub's cache
                        shutil.copyfile(path, partial / path.name)
    return target
