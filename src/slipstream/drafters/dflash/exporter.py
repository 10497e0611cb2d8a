"""Exports DFlash stacks for `speculators` and vLLM (`published_layout`).

An export is exact: a tensor is written as bfloat16 if that is exact, otherwise as float32.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from slipstream.core.array_types import Tensor
from slipstream.drafters.dflash.folder import load_stack
from slipstream.drafters.dflash.network import DflashConfig
from slipstream.drafters.dflash.published_layout import published_names
from slipstream.drafters.eagle.exporter import smallest
from slipstream.drafters.eagle.published_layout import IN_DRAFT, TO_TARGET
from slipstream.drafters.files.folder import CONFIG, WEIGHTS


def export_stack(folder: Path, out: Path, target: Any, name: str) -> None:
    """Write one of our stacks for `speculators` and vLLM. `name`: the target's name there."""
    embedding = target.get_input_embeddings().weight.detach().float().cpu()
    net, ids = load_stack(folder, embedding, target.get_output_embeddings().weight.detach().float().cpu())
    c = net.config
    if c.layout != "masked":
        raise ValueError(
            f"the stack in {folder} has the layout {c.layout}, which vLLM does not know; "
            "`slipstream train dflash -o layout=masked` trains one that can be exported"
        )
    weights = {**net.state_dict(), "output": net.output}
    weights["fc.weight"] = weights["fc.weight"] * weights.pop("scale").repeat_interleave(c.hidden)
    tensors: dict[str, Tensor] = {}
    for name_here, published in published_names(c).items():
        tensors |= dict(zip(published, weights[name_here].chunk(len(published)), strict=True))
    if len(ids) < len(embedding):  # otherwise the output matrix is the target's
        tensors["lm_head.weight"] = weights["output"]
    tensors = {key: smallest(value) for key, value in tensors.items()}
    if len(ids) < len(embedding):
        tensors[TO_TARGET] = ids - torch.arange(len(ids))
        tensors[IN_DRAFT] = torch.zeros(len(embedding), dtype=torch.bool).index_fill_(0, ids, True)
    out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, out / WEIGHTS, {"format": "pt"})
    config = _speculators(c, target, name)
    (out / CONFIG).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


def _speculators(c: DflashConfig, target: Any, name: str) -> dict[str, Any]:
    """The `config.json` of an exported stack."""
    layer = {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "vocab_size": target.get_input_embeddings().weight.shape[0],
        "hidden_size": c.hidden,
        "intermediate_size": c.intermediate,
        "num_hidden_layers": c.layers,
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.kv_heads,
        "head_dim": c.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": target.config.get_text_config().max_position_embeddings,
        "rms_norm_eps": c.eps,
        "rope_theta": c.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": c.rope_theta},
        "attention_bias": False,
        "layer_types": ["full_attention"] * c.layers,
        "tie_word_embeddings": False,
    }
    greedy = {"proposal_type": "greedy", "speculative_tokens": c.block, "verifier_accept_k": 1, "accept_tolerance": 0.0}
    return {
        "architectures": ["DFlashSpeculator"],
        "model_type": "speculators",
        "speculators_model_type": "dflash",
        "draft_vocab_size": c.draft_vocab,
        "block_size": c.slots,
        "mask_token_id": c.mask_token,
        "aux_hidden_state_layer_ids": [layer_id + 1 for layer_id in c.features],
        "sample_from_anchor": c.anchor_predicts,
        "sliding_window_non_causal": True,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
        "transformer_layer_config": layer,
        "speculators_config": {
            "algorithm": "dflash",
            "default_proposal_method": "greedy",
            "proposal_methods": [greedy],
            "verifier": {"name_or_path": name, "architectures": list(target.config.architectures or ())},
        },
    }
