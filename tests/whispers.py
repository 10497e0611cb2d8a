"""Tiny random Whisper models: in memory with a small vocabulary, and as folders with a tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    PreTrainedTokenizerFast,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)

from slipstream.models.run.encoder_decoder.condition import Condition
from slipstream.models.run.torch_model import TorchModel

MELS, POSITIONS = 4, 6
LANGUAGES = ("en", "de", "fr")
TIMES = 1501
SMALL = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_target_positions": 96,
    "decoder_start_token_id": 1,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
}


def build(seed: int = 0, spread: float = 0.4, **more: Any) -> WhisperForConditionalGeneration:
    """A random model whose weights are large enough for both attentions to matter."""
    given = {"vocab_size": 11, "num_mel_bins": MELS, "max_source_positions": POSITIONS, **SMALL, **more}
    torch.manual_seed(seed)
    model = WhisperForConditionalGeneration(WhisperConfig(**given)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 1 and "encoder.embed_positions" not in name:
                weight.normal_(0, spread)
            elif name.endswith("bias"):
                weight.normal_(0, 0.1)
    return model


@torch.inference_mode()
def run_captured(model: TorchModel) -> None:
    """Let a model run as on a GPU: passes over buffers of fixed size, which are captured there."""
    if torch.cuda.is_available() and model.device.type == "cpu":
        pytest.skip("needs Triton's interpreter, which is not used beside a GPU")
    from slipstream.models.run.encoder_decoder import gpu_decoder
    from slipstream.models.run.encoder_decoder.gpu_decoder import cross_decoder
    from slipstream.models.run.gpu import pass_sizes

    if not torch.cuda.is_available():
        pass_sizes.LEAST = gpu_decoder.RUNS = (
            1  # programs that find nothing to do cost the interpreter as much as others
        )
    forward = model.forward_pass
    forward._captured = forward.decoder = cross_decoder(model.model, model.rows, forward._states)
    assert forward.decoder is not None


def condition(seed: int) -> Condition:
    """Random features for the models of `build`."""
    return Condition(torch.randn(MELS, 2 * POSITIONS, generator=torch.Generator().manual_seed(seed)))


def tokenizer(languages: Sequence[str] = LANGUAGES) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer with the special tokens of a multilingual Whisper, in their order."""
    letters = sorted(ByteLevel.alphabet())
    core = Tokenizer(BPE({letter: i for i, letter in enumerate(letters)}, []))
    core.pre_tokenizer, core.decoder = ByteLevel(add_prefix_space=False), ByteLevelDecoder()
    special = ["endoftext", "startoftranscript", *languages, "translate", "transcribe", "startoflm", "startofprev"]
    special += ["nospeech", "notimestamps"]
    core.add_special_tokens([AddedToken(f"<|{name}|>", special=True) for name in special])
    core.add_tokens([AddedToken(f"<|{step * 0.02:.2f}|>", special=False) for step in range(TIMES)])
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|endoftext|>", bos_token="<|endoftext|>")


def write(folder: Path, seed: int = 0, noise: float = 0.0, languages: Sequence[str] = LANGUAGES, **more: Any) -> Path:
    """A folder as Hugging Face stores Whisper. With noise on its weights it is another model that partly agrees."""
    words = tokenizer(languages)
    end = words.eos_token_id
    ids = {"decoder_start_token_id": end + 1, "pad_token_id": end, "bos_token_id": end, "eos_token_id": end}
    sizes = {"vocab_size": len(words), "max_source_positions": 1500, "max_target_positions": 64, **ids}
    model = build(seed, **{**sizes, "begin_suppress_tokens": [end], **more})
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight += noise * torch.randn(weight.shape, generator=generator)
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    WhisperFeatureExtractor(feature_size=model.config.num_mel_bins).save_pretrained(folder)
    return folder


def tone(seconds: float, pitch: float = 440.0) -> np.ndarray:
    """A tone that changes its loudness, at 16 kHz."""
    time = np.arange(int(16_000 * seconds)) / 16_000
    return (0.3 * np.sin(2 * np.pi * pitch * time) * (1 + np.sin(3 * time)) / 2).astype(np.float32)
