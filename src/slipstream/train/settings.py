"""Parses the options of a training, and compares them with those of a training to resume."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from slipstream.train.options import CommonOptions


def parse_options(method: Any, options: Mapping[str, Any]) -> tuple[CommonOptions, Any]:
    """Split options into those of every method and the method's own. Unknown names raise ValueError."""
    own = {f.name: f for f in fields(method.options)}
    common = {f.name: f for f in fields(CommonOptions)}
    assert own.keys().isdisjoint(common), "a method's options must not hide those of every method"
    common_values: dict[str, Any] = {}
    own_values: dict[str, Any] = {}
    for key, value in options.items():
        field, values = (own[key], own_values) if key in own else (common.get(key), common_values)
        if field is None:
            raise ValueError(f"{method.name} has no option {key!r}; it takes {', '.join([*own, *common])}")
        try:
            values[key] = {"int": int, "float": float}.get(str(field.type), str)(value)
        except ValueError as error:
            raise ValueError(f"option {key} of {method.name} is {value!r}; it must be of type {field.type}") from error
    return CommonOptions(**common_values), method.options(**own_values)


def check_resume(work: Path, settings: dict[str, Any]) -> None:
    """Write the settings into the working folder. ValueError if it holds a training with other settings."""
    path = work / "settings.json"
    if path.exists():
        began = json.loads(path.read_text())
        changed = sorted(key for key in settings.keys() | began.keys() if settings.get(key) != began.get(key))
        if changed:
            names = ", ".join(f"{key} was {began.get(key)!r}" for key in changed)
            raise ValueError(f"{work.parent} holds a training with other settings ({names}); name a new folder")
    work.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(settings, indent=2))
