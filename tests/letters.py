"""A language model of sixteen letters: real modules and a real tokenizer, in milliseconds."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from slipstream.models.run.torch_model import TorchModel
from slipstream.models.sources.load import ModelFiles
from slipstream.models.target import Target
from slipstream.models.text.codec import TextCodec

LETTERS = "abcdefghijklmnop"
TOKENS = ["<end>", "<user>", "<bot>", *LETTERS]
TEMPLATE = "{% for m in messages %}<user>{{ m.content }}{% endfor %}<bot>"


def tokenizer() -> PreTrainedTokenizerFast:
    made = Tokenizer(models.WordLevel({token: i for i, token in enumerate(TOKENS)}, unk_token="<end>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex("<.*?>|."), "isolated")
    made.decoder = decoders.Fuse()
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="<end>", additional_special_tokens=["<user>", "<bot>"]
    )
    wrapped.chat_template = TEMPLATE
    return wrapped


@cache
def plain() -> Any:
    """The model as transformers runs it."""
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=len(TOKENS), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=160, bos_token_id=None, eos_token_id=0, tie_word_embeddings=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(0, 0.25)
    return model


def target() -> Target:
    found = ModelFiles("letters", Path("letters"), "folder")
    return Target(found, TorchModel(copy.deepcopy(plain())), TextCodec(tokenizer()))
