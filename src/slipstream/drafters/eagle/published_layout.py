"""The tensor names of published EAGLE-3 heads, in the layout of `speculators` and vLLM.

The network is the same as ours. These differ in a published checkpoint:

- Query, key and value are separate tensors, as are gate and up.
- There are no scales of the fused layers. An export multiplies ours into `fc`, which is linear.
- A feature layer has the number of the layer that reads the state, one more than our number.
- `d2t` holds the difference between the target's token id and the draft token id.
- A published head has its own output rows, and an import keeps them (`EagleConfig.own_output`).
- EAGLE uses the target's embedding, so an import ignores an embedding in the checkpoint.
"""

from __future__ import annotations

from slipstream.drafters.eagle.network import EagleConfig

LAYER = "layers.0."
PUBLISHED_NAMES = {  # our tensor -> the published tensors that it concatenates
    "fc.weight": ("fc.weight",),
    "norm_embedding.weight": (LAYER + "input_layernorm.weight",),
    "norm_state.weight": (LAYER + "hidden_norm.weight",),
    "qkv.weight": tuple(f"{LAYER}self_attn.{part}_proj.weight" for part in "qkv"),
    "o.weight": (LAYER + "self_attn.o_proj.weight",),
    "norm_mlp.weight": (LAYER + "post_attention_layernorm.weight",),
    "gate_up.weight": (LAYER + "mlp.gate_proj.weight", LAYER + "mlp.up_proj.weight"),
    "down.weight": (LAYER + "mlp.down_proj.weight",),
    "norm.weight": ("norm.weight",),
    "output": ("lm_head.weight",),
}
EMBEDDING, TO_TARGET, IN_DRAFT = "embed_tokens.weight", "d2t", "t2d"
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"


def published_rows(c: EagleConfig, name: str, rows: int) -> list[int]:
    """The rows of each published tensor that one of ours concatenates."""
    kv = c.kv_heads * c.head_dim
    return {"qkv.weight": [c.heads * c.head_dim, kv, kv], "gate_up.weight": [c.intermediate] * 2}.get(name, [rows])
