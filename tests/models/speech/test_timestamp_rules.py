"""The rules of timestamps against transformers' own logits processor, on every kind of beginning."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import torch
from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor

from slipstream.models.speech.timestamp_rules import TranscriptRules

END, NO_TIMES, FIRST, VOCAB = 10, 13, 14, 44
PROMPT = [11, 12]


def rules(suppressed=(NO_TIMES,), suppressed_first=(), first_time: int | None = FIRST) -> TranscriptRules:
    return TranscriptRules(2, END, suppressed, suppressed_first, first_time, latest_start=5)


def outputs(rng: random.Random):
    """Beginnings of transcripts: segments of text between times that do not decrease."""
    tokens, time = [], FIRST
    for _ in range(rng.randrange(4)):
        time = min(VOCAB - 1, time + rng.randrange(4))
        tokens.append(time)
        tokens += [rng.randrange(END) for _ in range(rng.randrange(1, 4))]
        time = min(VOCAB - 1, time + rng.randrange(4))
        tokens.append(time)
    return tokens[: rng.randrange(len(tokens) + 1)]


@pytest.mark.parametrize("seed", range(40))
def test_the_same_tokens_are_allowed_as_by_transformers(seed):
    rng = random.Random(seed)
    output = outputs(rng)
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * 3
    config = SimpleNamespace(
        eos_token_id=END,
        no_timestamps_token_id=NO_TIMES,
        bos_token_id=END,
        max_initial_timestamp_index=5,
        _detect_timestamp_from_logprob=True,
    )
    peer = WhisperTimeStampLogitsProcessor(config, begin_index=2)
    expected = peer(torch.tensor([[*PROMPT, *output]]), logits[None].clone())[0]
    ours = rules()([*PROMPT, *output], logits.clone())
    assert torch.equal(ours, expected)


def test_suppressed_tokens_are_never_allowed_and_some_not_at_first():
    logits = torch.zeros(VOCAB)
    own = rules(suppressed=(3, 4), suppressed_first=(5, END), first_time=None)
    first, later = own(PROMPT, logits), own([*PROMPT, 1], logits)
    assert (first == -torch.inf).nonzero().flatten().tolist() == [3, 4, 5, END]
    assert (later == -torch.inf).nonzero().flatten().tolist() == [3, 4]
    assert not logits.isinf().any()  # the argument is not changed
