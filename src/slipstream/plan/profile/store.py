"""Profiles on disk: one JSON file each, written whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path

from slipstream.models.sources.store import home
from slipstream.plan.profile.key import ProfileKey, slug
from slipstream.plan.profile.profile import FORMAT, LAYOUT, Profile


def profiles_home() -> Path:
    """The folder of profiles in the user's cache."""
    return home().parent / "profiles"


def default_path(key: ProfileKey) -> Path:
    """Where the profile of a model on this machine is kept."""
    return profiles_home() / key.file_name


def may_have_profile(model: str) -> bool:
    """Whether there is a profile of a model with this name, without reading any weights."""
    return any(profiles_home().glob(f"{slug(model)}-*.json"))


def read_profile(path: Path, key: ProfileKey | None = None) -> Profile:
    """A profile from a file. ValueError if it is unreadable, or if it does not belong to `key`."""
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        if saved["format"] != FORMAT or saved["layout"] != LAYOUT:
            raise KeyError("format")
        profile = Profile.from_json(saved)
    except OSError as error:
        raise ValueError(f"cannot read the profile {path}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is not a complete profile of this version; make one with slipstream profile"
        ) from error
    if key is not None and (clause := key.why_not(profile.key)) is not None:
        raise ValueError(f"the profile {path} is {clause}; make one with slipstream profile")
    return profile


def write_profile(path: Path, profile: Profile) -> None:
    """Write a profile atomically."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(profile.to_json(), indent=1) + "\n", encoding="utf-8")
        os.replace(partial, path)
    except OSError as error:
        raise ValueError(f"cannot write the profile {path}: {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)
