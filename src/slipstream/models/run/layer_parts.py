"""The parts of a common decoder layer, by the names that transformers gives to its modules.

A common decoder layer: a norm; query, key and value, optionally normed per head; rotary embedding; attention; output.
Then a norm; gate and up; SiLU; down.
"""

from __future__ import annotations

from typing import Any

PRODUCTS = {
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "output": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
NORMS = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
HEAD_NORMS = {"query_norm": "self_attn.q_norm", "key_norm": "self_attn.k_norm"}  # of each head; most models have none


def head_norms(layer: Any) -> dict[str, Any]:
    """The norms of each head's query and key (Qwen 3). TypeError for a norm over all heads together."""
    parts = dict(layer.self_attn.named_children())
    norms = {name: norm for name, path in HEAD_NORMS.items() if (norm := parts.get(path.partition(".")[2])) is not None}
    for norm in norms.values():
        if norm.weight.shape != (layer.self_attn.head_dim,):
            raise TypeError("queries and keys are normed as a whole, not head by head")
        if norm.variance_epsilon != layer.input_layernorm.variance_epsilon:
            raise TypeError("its norms do not share one epsilon")
    return norms
