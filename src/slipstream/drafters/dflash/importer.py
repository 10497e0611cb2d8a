"""Imports published DFlash checkpoints (`published_layout`).

An import refuses every setting that our network would compute differently.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from slipstream.core.array_types import Tensor
from slipstream.drafters.dflash.folder import save_stack
from slipstream.drafters.dflash.network import DflashConfig, DflashNet
from slipstream.drafters.dflash.published_layout import published_names
from slipstream.drafters.eagle.importer import draft_ids, published_tensors
from slipstream.drafters.eagle.published_layout import EMBEDDING, TO_TARGET
from slipstream.drafters.files.folder import CONFIG
from slipstream.models.sources.folder import read_json

OF_TARGET = (EMBEDDING, "verifier_lm_head.weight", "verifier_norm.weight")  # tensors that are the target's


def is_stack(folder: Path) -> bool:
    """Whether the configuration of a folder is that of a published DFlash checkpoint, of whatever variant."""
    config = read_json(folder / CONFIG)
    kinds = [config.get("speculators_model_type"), *(config.get("architectures") or ())]
    return "dflash_config" in config or any("dflash" in str(kind).lower() for kind in kinds)


def import_stack(folder: Path, out: Path, precision: str = "bf16") -> None:
    """Write a published DFlash checkpoint as a folder of ours."""
    stack_config, tensors = read_json(folder / CONFIG), published_tensors(folder)
    layer = _layer_config(folder, stack_config.get("transformer_layer_config", stack_config))
    _check_supported(folder, stack_config, layer)
    for name in OF_TARGET:
        tensors.pop(name, None)
    own_output = TO_TARGET in tensors
    if not own_output:
        tensors.pop("lm_head.weight", None)  # a full output matrix is the target's
    count = int(stack_config.get("draft_vocab_size") or layer.vocab_size) if own_output else int(layer.vocab_size)
    ids, order = draft_ids(folder, tensors, count).sort()
    config = _config(folder, stack_config, layer, len(ids), own_output)
    weights = _assembled(folder, config, tensors)
    if own_output:
        weights["output"] = weights["output"][order]
    net = DflashNet(config)
    net.load_state_dict({**weights, "scale": torch.ones(len(config.features))}, assign=True)
    target = (stack_config.get("speculators_config") or {}).get("verifier", {}).get("name_or_path")
    save_stack(out, net, ids, precision, {"target": target, "imported": "DFlash"})


def _layer_config(folder: Path, values: dict[str, Any]) -> Any:
    """The configuration of the layers with the defaults of its model type, as transformers has them."""
    from transformers import AutoConfig

    known = {name: value for name, value in values.items() if name not in ("model_type", "architectures", "auto_map")}
    try:
        return AutoConfig.for_model(values.get("model_type") or "qwen3", **known)
    except (ValueError, TypeError) as error:
        raise ValueError(f"the {CONFIG} of {folder} cannot be read: {str(error).splitlines()[0]}") from error


def _check_supported(folder: Path, stack_config: dict[str, Any], layer: Any) -> None:
    """Raise ValueError for settings that our network would compute differently."""
    own = stack_config.get("dflash_config") or {}
    rope = getattr(layer, "rope_parameters", None) or {}
    kind = stack_config.get("speculators_model_type", "dflash")
    wide = stack_config.get("target_hidden_size")
    reasons = {
        f"it is a {kind} checkpoint": kind != "dflash",
        "it is a DFlash 2 checkpoint": "conv_kernel_size" in own or "selector_top_k" in own,
        "it has a correction head": stack_config.get("projector_type", "dflash") != "dflash",
        "its attention has biases": bool(getattr(layer, "attention_bias", False)),
        "its attention has sinks": bool(own.get("attention_sink_bias")),
        "its attention has a window": "sliding_attention" in (getattr(layer, "layer_types", None) or ())
        or bool(own.get("use_swa")),
        "its attention is causal": bool(own.get("causal")),
        "its activation is not silu": layer.hidden_act != "silu",
        "its positions are scaled": rope.get("rope_type", "default") != "default",
        "its target has another width": wide not in (None, layer.hidden_size),
    }
    for reason, holds in reasons.items():
        if holds:
            raise ValueError(f"cannot import the stack in {folder}: {reason}, which the network does not compute")


def _config(folder: Path, stack_config: dict[str, Any], layer: Any, vocab: int, own_output: bool) -> DflashConfig:
    own = stack_config.get("dflash_config") or {}
    values = {**stack_config, **own}
    shifted = stack_config.get("aux_hidden_state_layer_ids")
    features = [number - 1 for number in shifted] if shifted else own.get("target_layer_ids")
    needed = {
        "target_layer_ids of dflash_config, or aux_hidden_state_layer_ids": features or None,
        "mask_token_id": values.get("mask_token_id"),
        "block_size": values.get("block_size"),
    }
    for name, value in needed.items():
        if value is None:
            raise ValueError(f"the {CONFIG} of {folder} lacks {name}")
    if min(features or ()) < 0:
        raise ValueError(f"the {CONFIG} of {folder} names layer {min(features or ())}; layers begin at 0")
    anchor_predicts = bool(values.get("sample_from_anchor", False))
    return DflashConfig(
        hidden=layer.hidden_size,
        heads=layer.num_attention_heads,
        kv_heads=layer.num_key_value_heads,
        head_dim=getattr(layer, "head_dim", None) or layer.hidden_size // layer.num_attention_heads,
        intermediate=layer.intermediate_size,
        layers=layer.num_hidden_layers,
        block=int(values["block_size"]) - (not anchor_predicts),
        features=tuple(features or ()),
        draft_vocab=vocab,
        rope_theta=float((getattr(layer, "rope_parameters", None) or {}).get("rope_theta") or 10000.0),
        eps=layer.rms_norm_eps,
        layout="masked",
        anchor_predicts=anchor_predicts,
        mask_token=int(values["mask_token_id"]),
        own_output=own_output,
    )


def _assembled(folder: Path, config: DflashConfig, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Our tensors from the published ones. Wrong shapes and unknown tensors raise ValueError."""
    with torch.device("meta"):
        shapes = {name: weight.shape for name, weight in DflashNet(config).state_dict().items()}
    weights = {}
    for name, published in published_names(config).items():
        rows, *columns = shapes[name]
        expected, parts = [rows // len(published), *columns], []
        for part_name in published:
            part = tensors.pop(part_name, torch.zeros(0))
            if list(part.shape) != expected:
                size = list(part.shape)
                raise ValueError(f"{part_name} in {folder} is of shape {size}; its {CONFIG} asks for {expected}")
            parts.append(part.float())
        weights[name] = torch.cat(parts)
    if tensors:
        raise ValueError(f"{folder} holds {sorted(tensors)[0]}, which has no place in a DFlash stack")
    return weights
