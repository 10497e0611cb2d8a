"""Converts a Whisper model as OpenAI stores it, one .pt file, to a folder of safetensors.

The file holds the sizes and the weights, and is read without running code of it (`weights_only`). It has no tokenizer:
`openai_tokenizer` makes that.
"""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from slipstream.models.sources.store import CatalogError, sha256
from slipstream.models.sources.whisper.openai_tokenizer import write_tokenizer

NAMES = (
    (r"\bblocks\.", "layers."),
    (r"\bcross_attn_ln\.", "encoder_attn_layer_norm."),
    (r"\bcross_attn\.", "encoder_attn."),
    (r"\battn_ln\.", "self_attn_layer_norm."),
    (r"\battn\.", "self_attn."),
    (r"\.query\.", ".q_proj."),
    (r"\.key\.", ".k_proj."),
    (r"\.value\.", ".v_proj."),
    (r"\.out\.", ".out_proj."),
    (r"\bmlp_ln\.", "final_layer_norm."),
    (r"\bmlp\.0\.", "fc1."),
    (r"\bmlp\.2\.", "fc2."),
    (r"\.ln(_post)?\.", ".layer_norm."),
    (r"\btoken_embedding\.", "embed_tokens."),
    (r"\bpositional_embedding$", "embed_positions.weight"),
)
SIZES = {
    "num_mel_bins": "n_mels",
    "vocab_size": "n_vocab",
    "max_source_positions": "n_audio_ctx",
    "d_model": "n_audio_state",
    "encoder_attention_heads": "n_audio_head",
    "encoder_layers": "n_audio_layer",
    "max_target_positions": "n_text_ctx",
    "decoder_attention_heads": "n_text_head",
    "decoder_layers": "n_text_layer",
}


def openai_file(path: Path) -> Path | None:
    """The .pt file that a path names: the file itself, or the only one of a folder without a configuration."""
    if path.is_file():
        return path if path.suffix == ".pt" else None
    files = list(path.glob("*.pt")) if path.is_dir() and not (path / "config.json").exists() else []
    return files[0] if len(files) == 1 else None


def convert_openai(source: Path, target: Path) -> dict[str, Any]:
    """Write the model of a .pt file to `target`. Returns what the manifest says of it."""
    sizes, weights = _read(source)
    end = write_tokenizer(source, sizes["n_vocab"], target)
    config = {name: sizes[own] for name, own in SIZES.items()} | {
        "model_type": "whisper",
        "architectures": ["WhisperForConditionalGeneration"],
        "is_encoder_decoder": True,
        "encoder_ffn_dim": 4 * sizes["n_audio_state"],
        "decoder_ffn_dim": 4 * sizes["n_audio_state"],
        "decoder_start_token_id": end + 1,
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), end),
    }
    (target / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    return {"source_sha256": sha256(source)}


def _read(source: Path) -> tuple[dict[str, int], dict[str, torch.Tensor]]:
    try:
        stored = torch.load(source, map_location="cpu", weights_only=True)
        sizes, weights = stored["dims"], stored["model_state_dict"]
        by_name = {renamed(name): weight.contiguous() for name, weight in weights.items()}
        return {own: int(sizes[own]) for own in SIZES.values()}, by_name
    except (OSError, RuntimeError, EOFError, LookupError, TypeError, AttributeError, pickle.UnpicklingError) as error:
        reason = str(error).partition("\n")[0]
        raise CatalogError(f"{source} is not a Whisper model as OpenAI stores it ({reason})") from error


def renamed(name: str) -> str:
    """The name of a weight in transformers."""
    for pattern, own in NAMES:
        name = re.sub(pattern, own, name)
    return f"model.{name}"
