"""Builds a drafter from the name that a user gave. The registry holds the kinds; each kind has its own factory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from slipstream.core.interfaces import Drafter, TargetModel
from slipstream.drafters import drafters
from slipstream.drafters.files.folder import trained_kind
from slipstream.drafters.files.shipped import shipped
from slipstream.models.sources.catalog import names_model

Options = Mapping[str, Any]
DEFAULT_KIND = "draft_model"  # the kind of a model that does not say which drafter it is


def drafter_kind(name: str) -> str:
    """The registered kind that a name stands for: itself, the kind of a trained folder, or a draft model."""
    if name not in drafters and (name in shipped() or names_model(name)):
        return trained_kind(shipped().get(name, Path(name))) or DEFAULT_KIND
    drafters.get(name)
    return name


def build_drafter(name: str, target: TargetModel, options: Options | None = None) -> Drafter:
    """A drafter by its registered name, by the folder of a trained one, or by the name or folder of a draft model.

    The target stores the hidden states that the drafter needs from now on."""
    options, kind = dict(options or {}), drafter_kind(name)
    drafter_class = drafters.get(kind)
    if kind != name:
        if "model" not in {field.name for field in fields(drafter_class.options_type)}:
            raise ValueError(f"{name} says that it holds a drafter of kind {kind}, which is not loaded from a folder")
        options = {"model": str(shipped().get(name, name)), **options}
    drafter = drafter_class.build(target, drafter_class.read_options(options, kind))
    target.features.declare(drafter.needs.features)
    return drafter
