"""Check a model's files against the checksums that were recorded when they were written or fetched.

A folder made here has a manifest with the sha256 of every file (`store`). The Hugging Face cache names its files by
their hash. Weights without a record are compared with their own header, which shows whether they were cut short.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slipstream.models.sources.folder import hub_hash, weights_problem
from slipstream.models.sources.store import MANIFEST, WEIGHTS, manifest, sha256

SHA256 = 64  # digits of a hash


@dataclass(frozen=True)
class FileCheck:
    """One file of a model. `recorded`: there was a checksum to compare it with."""

    name: str
    bytes: int
    recorded: bool
    problem: str | None = None

    def __str__(self) -> str:
        return f"{self.name} {self.problem or ('is intact' if self.recorded else 'has no recorded checksum')}"


def check_files(folder: Path, expected: Mapping[str, str] | None = None) -> list[FileCheck]:
    """Every file of a folder, and those that are missing; `expected` adds checksums that the folder does not record."""
    checksums = _recorded(folder) | dict(expected or {})
    present = {path.name for path in folder.iterdir() if not path.is_dir()} - {MANIFEST}
    return [_check(folder / name, checksums.get(name)) for name in sorted(present | checksums.keys())]


def _recorded(folder: Path) -> dict[str, str]:
    """The sha256 of files by name. Manifests of earlier versions name that of the weights or of the GGUF file only."""
    about = manifest(folder) or {}
    if "files" in about:
        return {name: entry["sha256"] for name, entry in about["files"].items()}
    kept = next(folder.glob("*.gguf"), None)
    if kept is not None and "gguf_sha256" in about:
        return {kept.name: about["gguf_sha256"]}
    return {WEIGHTS: about["sha256"]} if "sha256" in about and (folder / WEIGHTS).is_file() else {}


def _check(path: Path, expected: str | None) -> FileCheck:
    if not path.is_file():
        return FileCheck(path.name, 0, recorded=expected is not None, problem="is missing")
    expected = expected or hub_hash(path)
    size = path.stat().st_size
    if expected is not None:
        actual = sha256(path) if len(expected) == SHA256 else _git_hash(path)
        problem = None if actual == expected else f"is damaged (hash {actual[:12]}…, recorded {expected[:12]}…)"
        return FileCheck(path.name, size, recorded=True, problem=problem)
    problem = weights_problem(path) if path.suffix == ".safetensors" else None
    return FileCheck(path.name, size, recorded=False, problem=problem)


def _git_hash(path: Path) -> str:
    """git's id of a file's content."""
    data = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
