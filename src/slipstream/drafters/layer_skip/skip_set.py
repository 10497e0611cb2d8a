"""Skip sets: which attention and MLP blocks of a target are left out of drafting. Written as text, or as a folder.

As text, `a4-9,m12` names the attention of layers 4 to 9 and the MLP of layer 12, and `7` names both blocks of layer 7.
A folder of `slipstream train layer_skip` holds a `config.json` with the set and the target that it was found for.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slipstream.core.interfaces import TargetModel
from slipstream.drafters.files.folder import CONFIG, KIND, trained_kind, write_config
from slipstream.drafters.files.net_folder import check_target
from slipstream.drafters.files.shipped import shipped, shipped_for
from slipstream.kernels.cpu.decoder import SkippedBlocks
from slipstream.models.sources.folder import read_json

NAME = "layer_skip"
KEPT_ENDS = 0.25  # share of the layers at each end that the default set keeps whole


def find_skip_set(target: TargetModel, layers: int, skip: str | None) -> SkippedBlocks:
    """The set that the option names; else the one shipped for the target; else the default set."""
    if skip is not None:
        folder = shipped().get(skip, Path(skip).expanduser())
        return read_skip_set(folder, target, layers) if folder.is_dir() else parse_skip_set(skip, layers)
    try:
        files = target.files
    except ValueError:  # a model that was made in memory
        return default_skip_set(layers)
    found = shipped_for(NAME, files.name, files.sha256)
    return default_skip_set(layers) if found is None else read_skip_set(found, target, layers)


def default_skip_set(layers: int) -> SkippedBlocks:
    """Every second attention and every third MLP in the middle of the network, where a block changes least."""
    ends = max(1, round(KEPT_ENDS * layers))
    middle = range(ends, layers - ends)
    attention, mlp = frozenset(middle[::2]), frozenset(middle[1::3])
    return SkippedBlocks(attention or frozenset({layers - 1}), mlp)


def parse_skip_set(text: str, layers: int) -> SkippedBlocks:
    """Read a set written as text. ValueError for a layer outside the model."""
    blocks: dict[str, set[int]] = {"a": set(), "m": set()}
    for part in text.split(","):
        kind = part[:1] if part[:1] in blocks else ""
        first, _, last = part.removeprefix(kind).partition("-")
        if not first.isdecimal() or not (last or first).isdecimal():
            raise ValueError(f"skip is {text!r}; write a folder, or blocks such as a4-9,m12,20: {_legend(layers)}")
        for name in kind or blocks:
            blocks[name] |= set(range(int(first), int(last or first) + 1))
    return checked(SkippedBlocks(frozenset(blocks["a"]), frozenset(blocks["m"])), layers)


def checked(skipped: SkippedBlocks, layers: int) -> SkippedBlocks:
    """The set itself. ValueError if it is empty or names a layer outside the model."""
    outside = sorted(i for i in skipped.attention | skipped.mlp if not 0 <= i < layers)
    if outside:
        raise ValueError(f"skip names layer {outside[0]}; the target has layers 0 to {layers - 1}")
    if not skipped.attention | skipped.mlp:
        raise ValueError(f"skip names no block; write blocks such as a4-9,m12,20: {_legend(layers)}")
    return skipped


def _legend(layers: int) -> str:
    return f"a for attention, m for MLP, no letter for both, layers 0 to {layers - 1}"


def read_skip_set(folder: Path, target: TargetModel, layers: int) -> SkippedBlocks:
    """The set of a folder. ValueError if it was found for another target or for another number of layers."""
    if trained_kind(folder) != NAME:
        raise ValueError(f"{folder} holds no {NAME} drafter: its {CONFIG} must say {KIND!r}: {NAME!r}")
    check_target(folder, target)
    config = read_json(folder / CONFIG)
    attention, mlp, depth = (config.get(name) for name in ("attention", "mlp", "layers"))
    if depth != layers:
        raise ValueError(f"the skip set in {folder} is for a target of {depth} layers, and this one has {layers}")
    if not _are_layers(attention) or not _are_layers(mlp):
        raise ValueError(f"{folder / CONFIG} is malformed: attention and mlp must be lists of layers")
    return checked(SkippedBlocks(frozenset(attention), frozenset(mlp)), layers)  # type: ignore[arg-type]


def _are_layers(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(layer, int) for layer in value)


def save_skip_set(folder: Path, skipped: SkippedBlocks, layers: int, about: Mapping[str, Any]) -> None:
    """Write the folder that `-d FOLDER` loads."""
    write_config(folder, {**about, KIND: NAME, **as_dict(skipped, layers)})


def as_dict(skipped: SkippedBlocks, layers: int) -> dict[str, Any]:
    """A set as JSON has it."""
    return {"layers": layers, "attention": sorted(skipped.attention), "mlp": sorted(skipped.mlp)}
