"""GGUF files of tiny models whose blocks are random bytes: every number that a block can hold is as likely as any."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tokenizers import pre_tokenizers

from slipstream.models.weights.gguf_blocks import TYPES

HIDDEN, VOCAB = 256, 300
FACTORS = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}  # where float16 numbers lie
SIZES = {"attn_q": 256, "attn_k": 128, "attn_v": 128, "attn_output": 256, "ffn_gate": 512, "ffn_up": 512}
KINDS = ["Q4_K", "Q5_K", "Q6_K", "Q5_0", "Q4_0", "Q8_0", "Q5_1", "Q4_1"]


def random_blocks(kind: str, outputs: int, inputs: int, seed: int = 0, size: float = 1e-3) -> np.ndarray:
    """Raw rows [outputs, bytes] of a type."""
    rng, each = np.random.default_rng(seed), TYPES[kind].size
    raw = rng.integers(0, 256, (outputs, inputs // (256 if kind.endswith("K") else 32), each), dtype=np.uint8)
    for at in FACTORS.get(kind, (0,)):
        factor = rng.normal(scale=size, size=(*raw.shape[:2], 1)).astype(np.float16)
        raw[..., at : at + 2] = factor.view(np.uint8)
    return raw.reshape(outputs, -1)


def write_gguf(path: Path, arch: str = "qwen2", kinds: list[str] | None = None) -> Path:
    """A Llama, whose queries and keys such files have in another order of rows and whose output matrix is the
    embedding, or a Qwen 2, with an output matrix and biases."""
    gguf = pytest.importorskip("gguf")
    pytest.importorskip("accelerate", reason="transformers reads GGUF files with accelerate only")
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(2)
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(512)
    writer.add_head_count(8)
    writer.add_head_count_kv(4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(32)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_K_M)
    _add_words(writer, gguf.TokenType)
    kinds, rng = kinds or KINDS, np.random.default_rng(5)
    shapes = {"token_embd": (VOCAB, HIDDEN)} | ({"output": (VOCAB, HIDDEN)} if arch == "qwen2" else {})
    for layer in range(2):
        shapes |= {f"blk.{layer}.{name}": (outputs, HIDDEN) for name, outputs in SIZES.items()}
        shapes[f"blk.{layer}.ffn_down"] = HIDDEN, 512
    for i, (name, shape) in enumerate(shapes.items()):
        kind = kinds[i % len(kinds)]
        size = 3e-5 if kind in ("Q4_K", "Q5_K", "Q6_K") else 5e-3
        raw = random_blocks(kind, *shape, seed=i, size=size)
        writer.add_tensor(f"{name}.weight", raw, raw_dtype=gguf.GGMLQuantizationType[kind])
    plain = {f"blk.{layer}.{norm}_norm.weight": HIDDEN for layer in range(2) for norm in ("attn", "ffn")}
    if arch == "qwen2":
        plain |= {
            f"blk.{layer}.{name}.bias": SIZES[name] for layer in range(2) for name in ("attn_q", "attn_k", "attn_v")
        }
    for name, count in {"output_norm.weight": HIDDEN, **plain}.items():
        writer.add_tensor(name, rng.normal(1.0, 0.1, count).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_words(writer: object, kind: object) -> None:
    words = ["<|endoftext|>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "12"]
    words += [f"[PAD{i}]" for i in range(len(words), VOCAB)]
    writer.add_vocab_size(VOCAB)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(words)
    writer.add_token_types([kind.CONTROL] + [kind.NORMAL] * (VOCAB - 1))
    writer.add_token_merges(["1 2"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(False)
