"""The models in slipstream's own cache."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from slipstream.models.sources import store
from slipstream.models.sources.store import CatalogError


@dataclass(frozen=True)
class InstalledModel:
    """A converted model in slipstream's own cache."""

    name: str
    path: Path
    bytes: int


def installed() -> list[InstalledModel]:
    """The models in slipstream's own cache, without those in the Hugging Face cache."""
    folders = sorted(store.home().glob("[!.]*"))
    return [InstalledModel(path.name, path, store.size(path)) for path in folders if store.manifest(path) is not None]


def remove(name: str) -> int:
    """Remove a model from slipstream's own cache. Returns how many bytes that freed."""
    models = installed()
    for model in models:
        if model.name == name:
            from slipstream.models.compiled.package import forget

            with store.readable_errors(model.path), store.locked(model.path):
                store.remove_tree(model.path)
                forget(model.path)
            return model.bytes
    names = ", ".join(model.name for model in models) or "nothing"
    raise CatalogError(f"{name!r} is not installed by slipstream, so it cannot be removed; installed: {names}")
