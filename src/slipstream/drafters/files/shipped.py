"""Drafters that come with slipstream, each trained for one model of the catalog."""

from __future__ import annotations

from pathlib import Path

from slipstream.drafters.files.folder import trained_kind
from slipstream.models.sources.folder import read_json

FOLDER = Path(__file__).parents[1] / "trained"


def shipped() -> dict[str, Path]:
    """The folders of the shipped drafters by name."""
    return {path.parent.name: path.parent for path in sorted(FOLDER.glob("*/config.json"))}


def shipped_for(kind: str, name: str, sha256: str | None) -> Path | None:
    """The shipped drafter of a kind for a target, given by its catalog name or the hash of its weights; or None."""
    for folder in shipped().values():
        about = read_json(folder / "config.json")
        if trained_kind(folder) == kind and (name == about.get("target") or sha256 == about.get("target_sha256")):
            return folder
    return None
