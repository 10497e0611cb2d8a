"""Decoders of audio and image tokens: random weights, no tokenizer, prompts of token ids. They take the path of text.

- `audio`: a decoder of semantic speech tokens (GPT-2's architecture, 48 codes and two marks), as in speech synthesis.
- `image`: a decoder of image tokens in raster order (Llama's architecture, 64 codes), 4 x 4 of them.
"""

from __future__ import annotations

import copy

import pytest
import torch

import tiny
from slipstream.core.loop import decode
from slipstream.core.rules import rules
from slipstream.core.sampling import Sampling
from slipstream.core.types import Request, Row
from slipstream.drafters.draft_model import DraftModel
from slipstream.drafters.early_exit import EarlyExit
from slipstream.drafters.ngram import NGram
from slipstream.models.run.torch_model import TorchModel
from slipstream.plan.policy.policies import Fixed

DECODERS = {"audio": ("gpt2", 50, 24), "image": ("llama", 64, 16)}  # architecture, vocabulary, tokens to generate
PROMPTS = ([1, 7, 7, 9], [3])


@pytest.fixture(params=DECODERS, scope="module")
def decoder(request):
    """A decoder, and the number of tokens that it generates."""
    kind, vocab, length = DECODERS[request.param]
    return tiny.build(kind, vocab_size=vocab), vocab, length


def drafter(name: str, model: TorchModel, plain, vocab: int):
    noisy = copy.deepcopy(plain)
    with torch.no_grad():
        for weight in noisy.parameters():
            weight += 0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    made = {"ngram": lambda: NGram(vocab), "early_exit": lambda: EarlyExit(model, 2)}
    return made.get(name, lambda: DraftModel(TorchModel(noisy), vocab))()


def generate(model, own, rule, sampling, length, depth) -> list[list[int]]:
    rows = [Row(Request(prompt, sampling, length)) for prompt in PROMPTS]
    for _ in decode(rows, model, own, rules.get(rule)(), Fixed(depth)):
        pass
    return [row.output for row in rows]


@pytest.mark.parametrize("name", ["draft_model", "early_exit", "ngram"])
@pytest.mark.parametrize(("rule", "sampling"), [("greedy", Sampling(0)), ("coupled", Sampling(1.0, top_k=20, seed=4))])
def test_speculation_gives_the_tokens_of_plain_decoding(decoder, name, rule, sampling):
    plain, vocab, length = decoder
    model = TorchModel(copy.deepcopy(plain))
    own = drafter(name, model, plain, vocab)
    drafted = generate(model, own, rule, sampling, length, 4)
    assert drafted == generate(model, own, rule, sampling, length, 0)
    assert [len(output) for output in drafted] == [length, length]
