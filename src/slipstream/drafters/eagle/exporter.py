"""Exports EAGLE heads for `speculators` and vLLM (`published_layout`).

An export is exact: a tensor is written as bfloat16 if that is exact, otherwise as float32.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from slipstream.core.array_types import Tensor
from slipstream.drafters.eagle.folder import load_head
from slipstream.drafters.eagle.network import EagleConfig
from slipstream.drafters.eagle.published_layout import (
    EMBEDDING,
    IN_DRAFT,
    LAYER_IDS,
    PUBLISHED_NAMES,
    TO_TARGET,
    published_rows,
)
from slipstream.drafters.files.folder import CONFIG, WEIGHTS

FUSED_LAYERS = 3  # layers that vLLM's network fuses
DEPTH = 5  # drafted tokens per cycle that an exported config names as the default


def export_head(folder: Path, out: Path, target: Any, name: str) -> None:
    """Write one of our heads for `speculators` and vLLM. `name`: the target's name there."""
    embedding = target.get_input_embeddings().weight.detach().float().cpu()
    net, ids = load_head(folder, embedding, target.get_output_embeddings().weight.detach().float().cpu())
    c = net.config
    if len(c.features) != FUSED_LAYERS:
        raise ValueError(
            f"vLLM reads heads that fuse {FUSED_LAYERS} layers of the target; this one fuses {len(c.features)}"
        )
    weights = {**net.state_dict(), "output": net.output}
    weights["fc.weight"] = weights["fc.weight"] * weights.pop("scale").repeat_interleave(c.hidden)
    tensors = {EMBEDDING: embedding}
    for name_here, published_names in PUBLISHED_NAMES.items():
        weight = weights[name_here]
        parts = weight.split(published_rows(c, name_here, len(weight)))
        tensors |= dict(zip(published_names, parts, strict=True))
    tensors = {key: smallest(value) for key, value in tensors.items()}
    tensors[TO_TARGET] = ids - torch.arange(len(ids))
    tensors[IN_DRAFT] = torch.zeros(len(embedding), dtype=torch.bool).index_fill_(0, ids, True)
    out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, out / WEIGHTS, {"format": "pt"})
    config = _speculators(c, target, name)
    (out / CONFIG).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


def smallest(weight: Tensor) -> Tensor:
    """The tensor in bfloat16 if that is exact, otherwise unchanged."""
    half = weight.bfloat16()
    return (half if torch.equal(half.float(), weight) else weight).contiguous()


def _speculators(c: EagleConfig, target: Any, name: str) -> dict[str, Any]:
    """The `config.json` of an exported head."""
    target_config = target.config.get_text_config()
    layer = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": target.get_input_embeddings().weight.shape[0],
        "hidden_size": c.hidden,
        "intermediate_size": c.intermediate,
        "num_hidden_layers": 1,
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.kv_heads,
        "head_dim": c.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": target_config.max_position_embeddings,
        "rms_norm_eps": c.eps,
        "rope_theta": c.rope_theta,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
    }
    greedy = {"proposal_type": "greedy", "speculative_tokens": DEPTH, "verifier_accept_k": 1, "accept_tolerance": 0.0}
    return {
        "architectures": ["Eagle3Speculator"],
        "model_type": "speculators",
        "speculators_model_type": "eagle3",
        "draft_vocab_size": c.draft_vocab,
        LAYER_IDS: [layer + 1 for layer in c.features],
        "norm_before_residual": False,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
        "transformer_layer_config": layer,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [greedy],
            "verifier": {"name_or_path": name, "architectures": list(target.config.architectures or ())},
        },
    }
