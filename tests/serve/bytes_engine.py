"""An engine on a tiny model of bytes that writes a given text, with a chat template that has tools."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import alphabets
from slipstream.engines.native.engine import NativeEngine
from slipstream.models.run.torch_model import TorchModel
from slipstream.models.sources.load import ModelFiles
from slipstream.models.target import Target
from slipstream.models.text.codec import TextCodec

TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}"
    "Write <tool_call> and </tool_call>.<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>\n"
    "{{ {'name': c.function.name, 'arguments': c.function.arguments} | tojson }}\n</tool_call>{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@cache
def weights():
    torch.manual_seed(1)
    size = len(alphabets.byte_level())
    config = LlamaConfig(
        vocab_size=size, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
        max_position_embeddings=4096, bos_token_id=None, eos_token_id=2,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


class Scripted(NativeEngine):
    """Writes `script` where nothing constrains it, and remembers its prompts."""

    script = ""

    def __init__(self) -> None:
        tokenizer = alphabets.byte_level()
        tokenizer.chat_template = TEMPLATE
        files = ModelFiles("bytes", Path("bytes"), "folder")
        super().__init__(Target(files, TorchModel(copy.deepcopy(weights())), TextCodec(tokenizer)), "ngram")
        self.prompts: list[str] = []

    def encoded_request(self, token_ids, sampling, options, history=None):
        request = super().encoded_request(token_ids, sampling, options, history)
        self.prompts.append(self.text.tokenizer.decode(request.prompt))
        if options.constraint is not None:
            return request
        script = [*self.text.encode(self.script, raw=True), 2]

        def write(tokens, logits):
            place = len(tokens) - len(request.prompt)
            forced = torch.full_like(logits, -torch.inf)
            forced[script[min(place, len(script) - 1)]] = 0.0
            return forced

        return replace(request, processor=write)
