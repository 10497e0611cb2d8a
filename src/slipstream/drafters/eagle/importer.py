"""Imports published EAGLE-3 heads (`published_layout`).

An import refuses every setting that our network would compute differently.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from slipstream.core.array_types import Int, Tensor
from slipstream.drafters.eagle.folder import save_head
from slipstream.drafters.eagle.network import EagleConfig, EagleNet
from slipstream.drafters.eagle.published_layout import (
    EMBEDDING,
    IN_DRAFT,
    LAYER,
    LAYER_IDS,
    PUBLISHED_NAMES,
    TO_TARGET,
    published_rows,
)
from slipstream.drafters.files.folder import CONFIG
from slipstream.models.sources.folder import PICKLES, read_json


def import_head(folder: Path, out: Path, precision: str = "bf16") -> None:
    """Write a published EAGLE-3 head as one of ours."""
    head_config, tensors = read_json(folder / CONFIG), published_tensors(folder)
    if LAYER + "hidden_norm.weight" not in tensors:
        raise ValueError(f"{folder} holds an EAGLE-1 or EAGLE-2 head or none at all; only EAGLE-3 heads are imported")
    own_output = "lm_head.weight" in tensors or TO_TARGET in tensors
    layer = head_config.get("transformer_layer_config", head_config)
    _check_supported(folder, head_config, layer)
    tensors.pop(EMBEDDING, None)
    ids, order = draft_ids(
        folder, tensors, int(head_config.get("draft_vocab_size") or layer.get("vocab_size", 0))
    ).sort()
    config = _config(folder, head_config, layer, len(ids), own_output)
    weights = _assembled(folder, config, tensors)
    if own_output:
        weights["output"] = weights["output"][order]
    net = EagleNet(config)
    net.load_state_dict({**weights, "scale": torch.ones(len(config.features))}, assign=True)
    target = head_config.get("speculators_config", {}).get("verifier", {}).get("name_or_path")
    save_head(out, net, ids, precision, {"target": target, "imported": "EAGLE-3"})


def published_tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder, by the names of `speculators`."""
    files = sorted(folder.glob("*.safetensors"))
    pickled = [path.name for kind in PICKLES for path in sorted(folder.glob(kind))]
    if not files:
        why = f"{pickled[0]} is pickled, and only safetensors are loaded" if pickled else "there is no safetensors file"
        raise ValueError(f"cannot import the head in {folder}: {why}")
    try:
        tensors = {name: tensor for path in files for name, tensor in load_file(path).items()}
    except SafetensorError as error:
        raise ValueError(f"{folder} holds a malformed file: {error}") from error
    return {name.removeprefix("model.").replace("midlayer.", LAYER): tensor for name, tensor in tensors.items()}


def _check_supported(folder: Path, head_config: dict[str, Any], layer: dict[str, Any]) -> None:
    """Raise ValueError for settings that our network would compute differently.

    As in vLLM, a missing `norm_before_residual` in a folder of `speculators` means true."""
    rope = layer.get("rope_scaling") or layer.get("rope_parameters") or {}
    reasons = {
        "norm_before_residual is true": head_config.get(
            "norm_before_residual", "speculators_model_type" in head_config
        ),
        "it is no eagle3 head": head_config.get("speculators_model_type", "eagle3") != "eagle3",
        "it has more than one layer": layer.get("num_hidden_layers", 1) != 1,
        "its activation is not silu": layer.get("hidden_act", "silu") != "silu",
        "its positions are scaled": rope.get("rope_type", rope.get("type", "default")) != "default",
        "its attention has a window": "sliding_attention" in (layer.get("layer_types") or ()),
        "it has extra norms": any(head_config.get(k) for k in ("norm_before_fc", "fc_norm", "norm_output")),
    }
    for reason, holds in reasons.items():
        if holds:
            raise ValueError(f"cannot import the head in {folder}: {reason}, which the eagle network does not compute")


def _config(
    folder: Path, head_config: dict[str, Any], layer: dict[str, Any], draft_vocab: int, own_output: bool
) -> EagleConfig:
    layer_ids = head_config.get(LAYER_IDS) or (head_config.get("eagle_config") or {}).get(LAYER_IDS)
    if not layer_ids or min(layer_ids) < 1:
        raise ValueError(
            f"the {CONFIG} of {folder} must say which layers of the target feed the head, as {LAYER_IDS!r}: "
            "numbers from 1; for a target of n layers EAGLE-3 itself takes [2, n // 2, n - 3]"
        )
    rope = layer.get("rope_parameters") or {}
    try:
        hidden, heads = layer["hidden_size"], layer["num_attention_heads"]
        return EagleConfig(
            hidden=hidden,
            heads=heads,
            kv_heads=layer.get("num_key_value_heads") or heads,
            head_dim=layer.get("head_dim") or hidden // heads,
            intermediate=layer["intermediate_size"],
            features=tuple(number - 1 for number in layer_ids),
            draft_vocab=draft_vocab,
            rope_theta=float(layer.get("rope_theta") or rope.get("rope_theta") or 10000.0),
            eps=layer.get("rms_norm_eps", 1e-6),
            own_output=own_output,
        )
    except KeyError as error:
        raise ValueError(f"the {CONFIG} of {folder} lacks {error.args[0]}") from error


def draft_ids(folder: Path, tensors: dict[str, Tensor], count: int) -> Int[Tensor, " draft_vocab"]:
    """The target's id of each draft token, in the order of the output rows."""
    offset, in_draft = tensors.pop(TO_TARGET, None), tensors.pop(IN_DRAFT, None)
    ids = torch.arange(count) if offset is None else torch.arange(len(offset)) + offset.long()
    different = len({i for i in ids.tolist() if i >= 0})
    if not len(ids) == different == count:
        raise ValueError(f"{TO_TARGET} in {folder} must give {count} different token ids; it gives {different}")
    if in_draft is not None and not torch.equal(in_draft.nonzero()[:, 0], ids.sort().values):
        raise ValueError(f"{TO_TARGET} and {IN_DRAFT} in {folder} are of different draft vocabularies")
    return ids


def _assembled(folder: Path, config: EagleConfig, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Our tensors from the published ones. Wrong shapes and unknown tensors raise ValueError."""
    with torch.device("meta"):
        shapes = {
            name: weight.shape for name, weight in EagleNet(config).state_dict().items() if name in PUBLISHED_NAMES
        }
    weights = {}
    for name, shape in shapes.items():
        parts = []
        for published, rows in zip(PUBLISHED_NAMES[name], published_rows(config, name, shape[0]), strict=True):
            part = tensors.pop(published, torch.zeros(0))
            expected = [rows, *shape[1:]]
            if list(part.shape) != expected:
                size = list(part.shape)
                raise ValueError(f"{published} in {folder} is of shape {size}; its {CONFIG} asks for {expected}")
            parts.append(part.float())
        weights[name] = torch.cat(parts)
    if tensors:
        raise ValueError(f"{folder} holds {sorted(tensors)[0]}, which has no place in an EAGLE-3 head of one layer")
    return weights
