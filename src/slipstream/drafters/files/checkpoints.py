"""Converts EAGLE heads and DFlash stacks between our folders and published checkpoints."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError, safe_open

from slipstream.drafters.dflash.exporter import export_stack
from slipstream.drafters.dflash.importer import import_stack, is_stack
from slipstream.drafters.eagle.exporter import export_head
from slipstream.drafters.eagle.importer import import_head
from slipstream.drafters.files.folder import CONFIG, WEIGHTS, trained_kind
from slipstream.drafters.files.shipped import shipped
from slipstream.models.sources import store
from slipstream.models.sources.catalog import resolve
from slipstream.models.sources.folder import read_json
from slipstream.models.sources.load import load_model

EXPORTS = {"eagle": export_head, "dflash": export_stack}


def convert_head(source: str, out: Path) -> Path | None:
    """Convert a head and return its new folder; None if the source is not a head.

    One of our heads (a folder, or the name of a shipped one) is written for `speculators`. A published head is written
    as one of ours."""
    folder = shipped().get(source, Path(source).expanduser())
    export, published = EXPORTS.get(trained_kind(folder) or ""), is_published(folder)
    if export is None and not published:
        return None
    out = out.expanduser().absolute()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} exists and is not an empty folder; name a new one")
    with store.readable_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        with store.written_atomically(out) as partial:
            if export is None:
                (import_stack if is_stack(folder) else import_head)(folder, partial)
            else:
                name = _target(folder)
                export(folder, partial, load_model(resolve(name), "float32"), name)
    return out


def _target(folder: Path) -> str:
    name = read_json(folder / CONFIG).get("target")
    if not name:
        raise ValueError(f"the {CONFIG} of {folder} must name the head's target, as 'target'")
    return str(name)


def is_published(folder: Path) -> bool:
    """Whether a folder holds a published head. Early ones have the config of a plain model and a tensor `fc`."""
    if not (folder / CONFIG).is_file() or trained_kind(folder) is not None:
        return False
    head_config = read_json(folder / CONFIG)
    if "speculators_model_type" in head_config or is_stack(folder):
        return True
    if any("eagle" in str(a).lower() for a in head_config.get("architectures") or ()):
        return True
    if not (folder / WEIGHTS).is_file():
        return False
    try:
        with safe_open(folder / WEIGHTS, "pt") as file:
            return "fc.weight" in file.keys()  # noqa: SIM118  (no mapping)
    except SafetensorError:
        return False
