"""A distilled draft model as a folder: some layers of its target, and its small draft vocabulary.

Embeddings and output rows are the target's own and are not stored. The rest is stored in the format of `folder`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.drafters.files.folder import CONFIG, WEIGHTS, read, write
from slipstream.models.run.layers import chosen_layers


def save_draft(
    folder: Path,
    net: nn.Module,
    layers: str,
    draft_ids: Int[Tensor, " draft_vocab"],
    precision: str = "int8",
    about: Mapping[str, Any] | None = None,
) -> None:
    """Write a decoder made of the target's `layers`. `net` has no embeddings."""
    write(folder, "draft_model", net.state_dict(), draft_ids, precision, {"layers": layers}, about)


def load_draft(
    folder: Path, target: Any, output: Float[Tensor, "vocab hidden"], config: Any
) -> tuple[Any, Int[Tensor, " draft_vocab"]]:
    """A draft model that uses the embeddings, output rows and configuration of `target`, and its token ids."""
    from transformers import AutoModelForCausalLM

    stored, weights, ids = read(folder, "draft_model")
    config = copy.deepcopy(config)
    own = config.get_text_config()
    kept = chosen_layers(str(stored.get("layers")), own.num_hidden_layers)
    own.num_hidden_layers, own.tie_word_embeddings = len(kept), False
    if getattr(own, "layer_types", None):
        own.layer_types = [own.layer_types[i] for i in kept]
    model = AutoModelForCausalLM.from_config(config, dtype=output.dtype, attn_implementation="sdpa").to(output.device)
    try:
        model.base_model.load_state_dict(
            {name: weight.to(output.device, output.dtype) for name, weight in weights.items()}, strict=False
        )
        absent = model.base_model.state_dict().keys() - weights.keys()
    except RuntimeError as error:
        raise ValueError(f"{folder / WEIGHTS} does not fit {type(target).__name__}: {error}") from error
    if any("embed" not in name for name in absent):
        raise ValueError(f"{folder / WEIGHTS} does not fit its {CONFIG}: it lacks {sorted(absent)[0]}")
    model.set_input_embeddings(target.get_input_embeddings())
    head = nn.Linear(output.shape[1], len(ids), bias=False, device="meta")
    head.weight = nn.Parameter(output[ids.to(output.device)], requires_grad=False)
    model.set_output_embeddings(head)
    return model.eval().requires_grad_(False), ids.to(output.device)
