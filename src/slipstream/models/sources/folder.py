"""Checks of a model folder, and facts that can be read without loading the weights."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from pathlib import Path
from typing import Any

from slipstream.models.sources.store import CatalogError, manifest, sha256

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
USUAL = frozenset({"llama", "mistral", "qwen2"})  # causal: saves importing transformers for the check
SPEECH = frozenset({"whisper"})  # encoder-decoders that are run
OWN_CODE = "brings its own code; if you trust its author, --trust-remote-code (trust_remote_code=True) runs it"
ONLY = "only safetensors or GGUF are loaded"
PACKED = "model.blocks"  # weights as blocks of a GGUF file (`gguf.packed`), in the container of safetensors
ABOUT, FULL_HEADER, FULL_SHA256 = "packed", "header", "sha256"  # in its metadata: the safetensors file it stands for


def read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CatalogError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise CatalogError(f"{path} is malformed: {error}") from error
    if not isinstance(data, dict):
        raise CatalogError(f"{path} is malformed: it must hold one JSON object")
    return data


def missing(folder: Path) -> str | None:
    """What a folder lacks to be a model, as the end of a sentence; None if it is complete."""
    if not (folder / "config.json").is_file():
        gguf = next(folder.glob("*.gguf"), None)
        return f"has no config.json{f'; give the path of {gguf.name} in it' if gguf else ''}"
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = sorted(set(read_json(index).get("weight_map", {}).values()))
        absent = [shard for shard in shards if not (folder / shard).is_file()]
        if absent or not shards:
            return f"lacks {len(absent)} of its {len(shards)} weight files, {(absent or ['all'])[0]} first"
    elif not (folder / "model.safetensors").is_file() and not is_packed(folder):
        pickles = [path.name for pattern in PICKLES for path in folder.glob(pattern)]
        kind = f"its weights are pickles ({min(pickles)}); {ONLY}" if pickles else f"no model.safetensors; {ONLY}"
        return f"has no weights to load: {kind}"
    if not any((folder / name).is_file() for name in TOKENIZERS):
        return f"has no tokenizer; one of {', '.join(TOKENIZERS)} is needed"
    return None


def brings_code(folder: Path) -> bool:
    """Whether a model or its tokenizer names classes of its own, which are Python files beside it."""
    files = (folder / name for name in ("config.json", "tokenizer_config.json"))
    return any("auto_map" in read_json(path) for path in files if path.is_file())


def unfit(folder: Path, trust_remote_code: bool) -> str | None:
    """Why a folder's architecture cannot be run, as the end of a sentence; None if it can."""
    config = read_json(folder / "config.json")
    kind = config.get("model_type")
    if kind in SPEECH or kind in USUAL:
        return None
    if config.get("is_encoder_decoder"):
        return f"is an encoder-decoder model ({kind}); only causal language models and Whisper are run"
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL

    if "auto_map" in config and kind not in CAUSAL:
        return None if trust_remote_code else OWN_CODE
    if kind not in CAUSAL:
        return f"is of type {kind!r}, which is not a causal language model in this transformers version"
    return None


def cut_short(folder: Path) -> str | None:
    """Which weight file is not as long as its header says, as the end of a sentence; None if all are."""
    for path in weight_files(folder):
        if problem := weights_problem(path):
            return f"is damaged: {path.name} {problem}"
    return None


def weights_problem(path: Path) -> str | None:
    """Why a safetensors file is not complete, as the end of a sentence; None if it is. Only its header is read."""
    try:
        header = header_text(path)
        end = max((entry["data_offsets"][1] for entry in entries(header).values()), default=0)
        expected = 8 + len(header.encode()) + end
    except (ValueError, TypeError, LookupError, AttributeError):
        return "has no readable header"
    size = path.stat().st_size
    return None if size == expected else f"holds {size:,} bytes, and its header asks for {expected:,}"


def is_packed(folder: Path) -> bool:
    """Whether a folder holds its weights as blocks of a GGUF file only."""
    return (folder / PACKED).is_file() and not (folder / "model.safetensors").is_file()


def weight_files(folder: Path) -> list[Path]:
    if is_packed(folder):
        return [folder / PACKED]
    index = folder / "model.safetensors.index.json"
    names = set(read_json(index)["weight_map"].values()) if index.is_file() else {"model.safetensors"}
    return [folder / name for name in sorted(names)]


def weights_sha256(folder: Path) -> str:
    """The hash of the weight file; of several files, the hash of their hashes and names in order."""
    recorded = (manifest(folder) or {}).get("sha256")
    if isinstance(recorded, str):
        return recorded
    files = weight_files(folder)
    if len(files) == 1:
        return _file_sha256(files[0])
    return hashlib.sha256("".join(f"{_file_sha256(path)}  {path.name}\n" for path in files).encode()).hexdigest()


def _file_sha256(path: Path) -> str:
    if path.name == PACKED:
        return str(about_packed(path)[FULL_SHA256])
    stored = hub_hash(path)
    return stored if stored and len(stored) == 64 else sha256(path)


def hub_hash(path: Path) -> str | None:
    """The name of a file in the Hugging Face cache: the sha256 of large files, git's id (sha1) of others. None for
    files elsewhere."""
    name = os.path.basename(os.path.realpath(path))
    return name if path.is_symlink() and re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", name) else None


def tensors(folder: Path) -> dict[str, tuple[str, int]]:
    """Type and number of elements of every stored tensor; only the headers of the weight files are read."""
    stored = [entries(text) for text in _full_headers(folder)]
    return {name: (e["dtype"], math.prod(e["shape"])) for header in stored for name, e in header.items()}


def full_bytes(folder: Path) -> int:
    """Bytes of a model's tensors as safetensors, packed or not."""
    return sum(e["data_offsets"][1] - e["data_offsets"][0] for t in _full_headers(folder) for e in entries(t).values())


def _full_headers(folder: Path) -> list[str]:
    """The headers of the weight files, or of the file that the packed weights stand for."""
    files = weight_files(folder)
    return [about_packed(path)[FULL_HEADER] if path.name == PACKED else header_text(path) for path in files]


def header_text(path: Path) -> str:
    """The header of a safetensors file. ValueError if it is not such a file."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > path.stat().st_size:
            raise ValueError(f"{path} has a header longer than itself")
        return file.read(length).decode()


def entries(header: str) -> dict[str, Any]:
    """The tensors in a header of a safetensors file, in the order of their data."""
    tensors: dict[str, Any] = json.loads(header)
    tensors.pop("__metadata__", None)
    return dict(sorted(tensors.items(), key=lambda item: item[1]["data_offsets"]))


def about_packed(path: Path) -> dict[str, Any]:
    """What a file of packed weights says of the safetensors file that it stands for."""
    about: dict[str, Any] = json.loads(json.loads(header_text(path))["__metadata__"][ABOUT])
    return about
