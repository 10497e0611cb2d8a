"""The language model of sixteen letters as files: a folder of safetensors and tokenizer, and a GGUF file in it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch

import letters


def write(folder: Path, noise: float = 0.0) -> Path:
    """With noise on its weights it is another model, which agrees with the first to some degree."""
    model = copy.deepcopy(letters.plain())
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight += noise * torch.randn_like(weight)
    model.save_pretrained(folder)
    letters.tokenizer().save_pretrained(folder)
    _gguf(folder / "letters.gguf", model)
    return folder


def _gguf(path: Path, model: Any) -> None:
    from gguf import GGUFWriter, TokenType

    config, weights = model.config, model.state_dict()
    out = GGUFWriter(path, "llama")
    out.add_context_length(config.max_position_embeddings)
    out.add_embedding_length(config.hidden_size)
    out.add_block_count(config.num_hidden_layers)
    out.add_feed_forward_length(config.intermediate_size)
    out.add_head_count(config.num_attention_heads)
    out.add_head_count_kv(config.num_key_value_heads)
    out.add_layer_norm_rms_eps(config.rms_norm_eps)
    out.add_rope_freq_base(config.rope_parameters["rope_theta"])
    out.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    out.add_vocab_size(config.vocab_size)
    out.add_tokenizer_model("llama")
    out.add_token_list(letters.TOKENS)
    out.add_token_scores([0.0] * len(letters.TOKENS))
    out.add_token_types([TokenType.CONTROL] * 3 + [TokenType.NORMAL] * (len(letters.TOKENS) - 3))
    out.add_eos_token_id(0)
    out.add_add_bos_token(False)
    for name, weight in weights.items():
        if name != "lm_head.weight":
            out.add_tensor(_name(name), _value(name, weight.float(), config).numpy())
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def _name(name: str) -> str:
    if not name.startswith("model.layers."):
        return {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}[name]
    _, _, layer, part = name.removesuffix(".weight").split(".", 3)
    return f"blk.{layer}.{NAMES[part]}.weight"


def _value(name: str, weight: Any, config: Any) -> Any:
    """llama.cpp rotates neighbours where transformers rotates halves, so queries and keys are reordered."""
    heads = config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads
    if ".q_proj." not in name and ".k_proj." not in name:
        return weight
    size = len(weight) // heads
    return weight.reshape(heads, 2, size // 2, -1).transpose(1, 2).reshape(weight.shape)
