"""A trained drafter of any kind as a folder: `config.json`, which names the kind, and `model.safetensors`.

Trained drafters are shipped, so they should be small. Matrices are stored as bfloat16, as int8 with one scale per row,
or as int6 with one scale per 64 weights; scales are `<name>.scale`. They are always loaded as bfloat16 numbers,
whatever type the target computes in. So a drafter is the same on every machine, and the CPU kernels read two bytes per
weight (`kernels.cpu.linear`). After int8, rounding to bfloat16 increases the error by a few percent. Norms are a
thousandth of the weights and stay float32.

The configuration is written last and holds the hash of the weights. A reader sees the old drafter, the new one, or a
mismatch, which is refused.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.drafters.files.six_bits import GROUP, pack, unpack
from slipstream.models.sources.folder import read_json
from slipstream.models.sources.store import sha256

KIND = "slipstream_drafter"  # the key of a drafter's kind in its configuration
WEIGHTS, CONFIG, IDS, SCALE = "model.safetensors", "config.json", "draft_ids", ".scale"
PRECISIONS = ("int8", "int6", "bf16")


def trained_kind(folder: Path) -> str | None:
    """The registered kind of the trained drafter in a folder; None if the folder holds none."""
    if not (folder / CONFIG).is_file():
        return None
    kind = read_json(folder / CONFIG).get(KIND)
    return kind if isinstance(kind, str) else None


def write(
    folder: Path,
    kind: str,
    weights: Mapping[str, Tensor],
    draft_ids: Int[Tensor, " draft_vocab"],
    precision: str,
    config: Mapping[str, Any],
    about: Mapping[str, Any] | None = None,
) -> None:
    """Write weights in a precision, the draft vocabulary, and a configuration with the hash of the weights."""
    if precision not in PRECISIONS:
        raise ValueError(f"precision is {precision!r}; one of {', '.join(PRECISIONS)}")
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {IDS: _stored_ids(draft_ids.cpu())}
    for name, weight in weights.items():
        tensors |= _stored(name, weight.detach().float().cpu(), precision)
    write_atomically(folder / WEIGHTS, lambda path: save_file(tensors, path))
    stored = {**(about or {}), KIND: kind, **config, "precision": precision, "sha256": sha256(folder / WEIGHTS)}
    write_config(folder, stored)


def write_config(folder: Path, config: Mapping[str, Any]) -> None:
    """Write a drafter's configuration. A drafter without weights consists of it alone."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(
        folder / CONFIG, lambda path: path.write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    )


def read(folder: Path, kind: str) -> tuple[dict[str, Any], dict[str, Tensor], Int[Tensor, " draft_vocab"]]:
    """Configuration, weights as bfloat16 numbers, and draft vocabulary."""
    config = read_json(folder / CONFIG)
    if config.get(KIND) != kind:
        raise ValueError(f"{folder} holds no {kind} drafter: its {CONFIG} must say {KIND!r}: {kind!r}")
    tensors = _read(folder / WEIGHTS, config.get("sha256"))
    ids = _restored_ids(tensors.pop(IDS, torch.zeros(0)))
    scales = {name for name in tensors if name.removesuffix(SCALE) != name and name.removesuffix(SCALE) in tensors}
    weights = {name: _restored(name, weight, tensors) for name, weight in tensors.items() if name not in scales}
    return config, weights, ids


def _stored_ids(ids: Int[Tensor, " draft_vocab"]) -> Tensor:
    """Sorted ids as a bit for every token id, where that is smaller. Others as numbers."""
    most = int(ids.max()) if len(ids) else 0
    numbers = ids.to(torch.uint16 if most < 1 << 16 else torch.int32).contiguous()
    if most // 8 >= numbers.nbytes or not bool((ids[1:] > ids[:-1]).all()):
        return numbers
    return torch.from_numpy(np.packbits(np.bincount(ids.numpy()).astype(bool)))


def _restored_ids(stored: Tensor) -> Int[Tensor, " draft_vocab"]:
    if stored.dtype == torch.uint8:
        return torch.from_numpy(np.flatnonzero(np.unpackbits(stored.numpy())))
    return stored.long()


def _stored(name: str, weight: Float[Tensor, "..."], precision: str) -> dict[str, Tensor]:
    if weight.ndim < 2:
        return {name: weight.contiguous()}
    if precision == "bf16":
        return {name: weight.bfloat16().contiguous()}
    if precision == "int6" and weight.ndim == 2 and weight.shape[1] % GROUP == 0:
        packed, scales = pack(weight)
        return {name: packed, name + SCALE: scales}
    scale = weight.abs().amax(1).clamp(min=1e-12) / 127
    return {name: (weight / scale[:, None]).round().to(torch.int8), name + SCALE: scale}


def _restored(name: str, weight: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
    if weight.dtype == torch.uint8:
        weight = unpack(weight, tensors[name + SCALE])
    elif weight.dtype == torch.int8:
        weight = weight.float() * tensors[name + SCALE][:, None]
    return weight.bfloat16() if weight.ndim > 1 else weight


def _read(path: Path, expected: Any) -> dict[str, Tensor]:
    try:
        actual = sha256(path)
        if actual != expected:
            raise ValueError(f"{path} is damaged or does not belong to its {CONFIG}: sha256 {actual}, not {expected}")
        return load_file(path)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    except SafetensorError as error:
        raise ValueError(f"{path} is malformed: {error}") from error


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file under a temporary name and rename it, which is atomic."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    partial = Path(name)
    try:
        write(partial)
        partial.chmod(0o644)
        with open(partial, "rb") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
