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
    return CommonOptions(**{**method.defaults, **common_values}), method.options(**own_values)


ANSWER_SETTINGS = ("model", "prompts", "answer", "temperatures", "rows", "seed")  # that decide the target's answers


def check_resume(work: Path, settings: dict[str, Any]) -> None:
    """Write the settings into the working folder. ValueError if it holds a training with other settings."""
    if changed := _compared(work, settings, every=True):
        raise ValueError(f"{work.parent} holds a training with other settings ({changed}); name a new folder")


def check_answers(folder: Path, settings: dict[str, Any]) -> None:
    """Write the settings of the answers into their folder. ValueError if it holds answers with other settings.

    The folder may be the working folder of another training, which holds more settings."""
    if changed := _compared(folder, {name: settings[name] for name in ANSWER_SETTINGS}, every=False):
        raise ValueError(f"{folder} holds answers with other settings ({changed}); use those or name a new folder")


def _compared(folder: Path, settings: dict[str, Any], every: bool) -> str:
    """The stored settings that differ, as text. If none are stored, these are written.

    `every`: whether stored settings must not have other names."""
    path = folder / "settings.json"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(settings, indent=2))
    stored = json.loads(path.read_text())
    names = settings.keys() | stored.keys() if every else settings.keys()
    changed = sorted(name for name in names if settings.get(name) != stored.get(name))
    return ", ".join(f"{name} was {stored.get(name)!r}" for name in changed)
