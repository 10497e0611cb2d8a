"""Describes a trained drafter and checks its files, without loading it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slipstream.drafters.files.folder import CONFIG, IDS, KIND, SCALE, WEIGHTS, trained_kind
from slipstream.drafters.files.shipped import shipped
from slipstream.models.sources import store
from slipstream.models.sources.folder import read_json, tensors
from slipstream.models.sources.verify import FileCheck, check_files

LEFT_OUT = frozenset({KIND, "target_sha256", "training", "answered_tokens"})  # details of training are in its README


def drafter_folder(name: str) -> Path | None:
    """The folder of a shipped drafter by its name, or of another one by its path; None if it holds no drafter."""
    folder = shipped().get(name, Path(name).expanduser())
    return folder if trained_kind(folder) else None


def summaries() -> list[dict[str, Any]]:
    """The shipped drafters by name, kind, target and size."""
    configs = {name: read_json(folder / CONFIG) for name, folder in shipped().items()}
    return [
        {"name": name, "kind": config[KIND], "target": config.get("target"), "bytes": store.size(shipped()[name])}
        for name, config in configs.items()
    ]


def describe_drafter(name: str, folder: Path) -> dict[str, Any]:
    """A drafter's properties as JSON values: kind, target, sizes, hash, and its tau on held-out prompts."""
    config = read_json(folder / CONFIG)
    if problem := next((str(check) for check in verify_drafter(folder) if check.problem), None):
        raise ValueError(f"the drafter {name} cannot be used: {problem}")
    stored = tensors(folder) if (folder / WEIGHTS).exists() else {}
    weights = {key: count for key, (_, count) in stored.items() if key != IDS and not key.endswith(SCALE)}
    return {
        "name": name,
        "path": str(folder),
        "kind": config[KIND],
        "shipped": name in shipped(),
        **{key: value for key, value in config.items() if key not in LEFT_OUT},
        "parameters": sum(weights.values()),
        "bytes": store.size(folder),
    }


def verify_drafter(folder: Path) -> list[FileCheck]:
    """Compare the weights, if the drafter has any, with the hash that the configuration names."""
    expected = read_json(folder / CONFIG).get("sha256")
    has_weights = expected is not None or (folder / WEIGHTS).exists()
    return check_files(folder, {WEIGHTS: str(expected)} if has_weights else {})
