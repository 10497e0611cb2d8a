"""Models of a kind that cannot be decoded speculatively are refused for their kind, not for one of their parameters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

from slipstream import hf

IDS = {"input_ids": torch.tensor([[1, 2, 3]])}


def t5() -> tuple[Any, dict[str, Any]]:
    config = T5Config(
        vocab_size=64, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, decoder_start_token_id=0
    )  # fmt: skip
    return T5ForConditionalGeneration(config).eval(), IDS


def whisper() -> tuple[Any, dict[str, Any]]:
    config = WhisperConfig(
        vocab_size=64, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, num_mel_bins=8, max_source_positions=16,
        max_target_positions=32, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    return WhisperForConditionalGeneration(config).eval(), {"input_features": torch.randn(1, 8, 32)}


def mamba() -> tuple[Any, dict[str, Any]]:
    config = MambaConfig(vocab_size=64, hidden_size=16, state_size=4, num_hidden_layers=1)
    return MambaForCausalLM(config).eval(), IDS


KINDS = {
    t5: r"t5 \(T5ForConditionalGeneration\) is refused: it is an encoder-decoder",
    whisper: r"whisper \(WhisperForConditionalGeneration\) is refused: it is an encoder-decoder",
    mamba: r"mamba \(MambaForCausalLM\) is refused: it has a recurrent state .*, which cannot be rolled back",
}


@pytest.mark.parametrize("build", KINDS, ids=lambda build: build.__name__)
@pytest.mark.parametrize("more", [{}, {"do_sample": True}], ids=["greedy", "sampled"])
@pytest.mark.filterwarnings("ignore")
def test_a_kind_is_refused_for_its_kind(build, more):
    model, inputs = build()
    with pytest.raises(ValueError, match=KINDS[build]) as refusal:
        model.generate(**inputs, max_new_tokens=4, custom_generate=hf.generate, **more)
    assert str(refusal.value).count(". ") == 0  # one sentence


@pytest.mark.filterwarnings("ignore")
def test_such_a_model_cannot_draft_either():
    config = LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    model, (drafter, _) = LlamaForCausalLM(config).eval(), mamba()
    with pytest.raises(ValueError, match="it has a recurrent state"):
        model.generate(**IDS, max_new_tokens=4, custom_generate=hf.generate, drafter=drafter)
