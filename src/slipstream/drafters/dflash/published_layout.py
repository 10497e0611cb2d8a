"""The tensor names of published DFlash checkpoints, in the layouts of DFlash itself and of `speculators` and vLLM.

The network is ours with the layout `masked`. These differ in a published checkpoint:

- Query, key and value are separate tensors, as are gate and up. Ours has the query apart, and key and value together.
- There are no scales of the fused layers. An export multiplies ours into `fc`, which is linear.
- DFlash numbers the feature layers as we do. `speculators` adds one to each number.
- A block has one slot more than tokens, unless `sample_from_anchor` is true.
- A reduced draft vocabulary has its own output rows and `d2t` and `t2d` (`eagle.published_layout`).
"""

from __future__ import annotations

from slipstream.drafters.dflash.network import DflashConfig

LAYER_NAMES = {  # our tensor of a layer -> the published tensors that it concatenates
    "norm_attention.weight": ("input_layernorm.weight",),
    "query.weight": ("self_attn.q_proj.weight",),
    "key_value.weight": ("self_attn.k_proj.weight", "self_attn.v_proj.weight"),
    "norm_query.weight": ("self_attn.q_norm.weight",),
    "norm_key.weight": ("self_attn.k_norm.weight",),
    "o.weight": ("self_attn.o_proj.weight",),
    "norm_mlp.weight": ("post_attention_layernorm.weight",),
    "gate_up.weight": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
    "down.weight": ("mlp.down_proj.weight",),
}
NAMES = {
    "fc.weight": ("fc.weight",),
    "norm_state.weight": ("hidden_norm.weight",),
    "norm.weight": ("norm.weight",),
    "output": ("lm_head.weight",),
}


def published_names(config: DflashConfig) -> dict[str, tuple[str, ...]]:
    """The published tensors that each of our tensors concatenates, in equal parts. Output rows only if stored."""
    names: dict[str, tuple[str, ...]] = {
        name: parts for name, parts in NAMES.items() if name != "output" or config.own_output
    }
    for number in range(config.layers):
        prefix = f"layers.{number}."
        names |= {prefix + name: tuple(prefix + part for part in parts) for name, parts in LAYER_NAMES.items()}
    return names
