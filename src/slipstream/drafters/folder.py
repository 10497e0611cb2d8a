"""A trained drafter as a folder: `config.json` and `model.safetensors`.

A head is shipped, so its bytes count: matrices are stored as bfloat16, or as int8 with one scale for each of their
rows, `<name>.scale`. Either way they come back as bfloat16 numbers, whatever the target computes in. That keeps one
head the same on every machine, and the kernel for few rows reads two bytes for each of them (`kernels.cpu.linear`).
After int8, rounding to bfloat16 adds a few hundredths to the error. Norms are a thousandth of it all and stay float32.

The configuration is written last and names the hash of the weights: a reader finds the old head, the new one, or a
mismatch that is refused, never half of one.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.drafters.eagle.network import EagleConfig, EagleNet
from slipstream.models.sources.folder import read_json
from slipstream.models.sources.store import sha256

KIND = "slipstream_drafter"  # the key by which a folder says what it is
WEIGHTS, CONFIG, IDS, SCALE = "model.safetensors", "config.json", "draft_ids", ".scale"
PRECISIONS = ("int8", "bf16")


def head_kind(folder: Path) -> str | None:
    """Which drafter a folder holds a head of; None where it is no head's folder."""
    if not (folder / CONFIG).is_file():
        return None
    kind = read_json(folder / CONFIG).get(KIND)
    return kind if isinstance(kind, str) else None


def save_head(
    folder: Path,
    net: EagleNet,
    draft_ids: Int[Tensor, " draft_vocab"],
    precision: str = "int8",
    about: Mapping[str, Any] | None = None,
) -> None:
    """Write a head. `about` is put into its configuration as it is: where it came from, what it reached."""
    _check_ids(draft_ids, net.config.draft_vocab)
    write(folder, "eagle", net.state_dict(), draft_ids, precision, net.config.as_dict(), about)


def load_head(
    folder: Path, embedding: Float[Tensor, "vocab hidden"], output: Float[Tensor, "vocab hidden"]
) -> tuple[EagleNet, Int[Tensor, " draft_vocab"]]:
    """A head for the target with this embedding and output matrix, in their type and place, and its vocabulary."""
    found, weights, ids = read(folder, "eagle")
    config = EagleConfig.of(found)
    if config.hidden != embedding.shape[1]:
        raise ValueError(
            f"the head in {folder} is for a target {config.hidden} wide, and this one is {embedding.shape[1]}"
        )
    _check_ids(ids, config.draft_vocab, len(output))
    net = EagleNet(config, None if config.own_output else output[ids.to(output.device)])
    placed = {name: weight.to(output.device, output.dtype) for name, weight in weights.items()}
    try:
        net.load_state_dict(placed, assign=True)
    except RuntimeError as error:
        raise ValueError(f"{folder / WEIGHTS} does not fit its {CONFIG}: {error}") from error
    net.get_buffer("frequency").data = net.get_buffer("frequency").to(output.device)
    return net.eval().requires_grad_(False), ids.to(output.device)


def write(
    folder: Path,
    kind: str,
    weights: Mapping[str, Tensor],
    draft_ids: Int[Tensor, " draft_vocab"],
    precision: str,
    config: Mapping[str, Any],
    about: Mapping[str, Any] | None = None,
) -> None:
    """Weights in a precision, the draft vocabulary beside them, and a configuration that names their hash."""
    if precision not in PRECISIONS:
        raise ValueError(f"precision is {precision!r}; one of {', '.join(PRECISIONS)}")
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {IDS: draft_ids.to("cpu", torch.int32).contiguous()}
    for name, weight in weights.items():
        tensors |= _stored(name, weight.detach().float().cpu(), precision)
    _put(folder / WEIGHTS, lambda path: save_file(tensors, path))
    said = {**(about or {}), KIND: kind, **config, "precision": precision, "sha256": sha256(folder / WEIGHTS)}
    _put(folder / CONFIG, lambda path: path.write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8"))


def read(folder: Path, kind: str) -> tuple[dict[str, Any], dict[str, Tensor], Int[Tensor, " draft_vocab"]]:
    """Configuration, weights as bfloat16 numbers, and draft vocabulary."""
    found = read_json(folder / CONFIG)
    if found.get(KIND) != kind:
        raise ValueError(f"{folder} holds no {kind} drafter: its {CONFIG} must say {KIND!r}: {kind!r}")
    tensors = _read(folder / WEIGHTS, found.get("sha256"))
    ids = tensors.pop(IDS, torch.zeros(0)).long()
    weights = {name: _restored(name, weight, tensors) for name, weight in tensors.items() if not name.endswith(SCALE)}
    return found, weights, ids


def _stored(name: str, weight: Float[Tensor, "..."], precision: str) -> dict[str, Tensor]:
    if weight.ndim < 2:
        return {name: weight.contiguous()}
    if precision == "bf16":
        return {name: weight.bfloat16().contiguous()}
    scale = weight.abs().amax(1).clamp(min=1e-12) / 127
    return {name: (weight / scale[:, None]).round().to(torch.int8), name + SCALE: scale}


def _restored(name: str, weight: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
    if weight.dtype == torch.int8:
        weight = weight.float() * tensors[name + SCALE][:, None]
    return weight.bfloat16() if weight.ndim > 1 else weight


def _read(path: Path, expected: Any) -> dict[str, Tensor]:
    try:
        actual = sha256(path)
        if actual != expected:
            raise ValueError(
                f"{path} is damaged or not the one its {CONFIG} speaks of: sha256 {actual}, not {expected}"
            )
        return load_file(path)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    except SafetensorError as error:
        raise ValueError(f"{path} is malformed: {error}") from error


def _check_ids(ids: Tensor, count: int, vocab: int | None = None) -> None:
    """Ascending, so that the first of equally likely ones is the lowest id in both vocabularies."""
    if len(ids) != count or bool((ids[1:] <= ids[:-1]).any()):
        raise ValueError(f"the draft vocabulary must be {count} token ids in ascending order; it holds {len(ids)}")
    if vocab is not None and not 0 <= int(ids[0]) <= int(ids[-1]) < vocab:
        raise ValueError(f"the draft vocabulary reaches token {int(ids[-1])}; the target has tokens 0 to {vocab - 1}")


def _put(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file under another name and rename it, which file systems do in one step."""
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
