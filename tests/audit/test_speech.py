"""The output law of a tiny random Whisper by enumeration of every draw, with the rules of timestamps in force.

Draft and target listen to the same audio, each with its own encoder. The rules change the laws of both at every node.
"""

from __future__ import annotations

from collections import defaultdict

import pytest
import torch

import whispers
from slipstream.audit.tables.enumeration import outcomes
from slipstream.core.loop import decode
from slipstream.core.rules import rules
from slipstream.core.sampling import Sampling
from slipstream.core.types import Request, Row
from slipstream.drafters.draft_model import DraftModel
from slipstream.drafters.early_exit import EarlyExit
from slipstream.drafters.ngram import NGram
from slipstream.models.run.torch_model import TorchModel
from slipstream.models.speech.timestamp_rules import TranscriptRules
from slipstream.plan.policy.policies import Fixed

VOCAB, END, FIRST, PROMPT, TOKENS = 11, 4, 8, [5, 6], 4
RULES = TranscriptRules(len(PROMPT), END, (3, 5, 6, 7), (END,), FIRST, latest_start=1)
AUDIO = whispers.condition(3)


def request(max_tokens: int = TOKENS) -> Request:
    return Request(PROMPT, Sampling(0.9), max_tokens, frozenset({END}), processor=RULES, condition=AUDIO)


@pytest.fixture(scope="module")
def target() -> TorchModel:
    return TorchModel(whispers.build(0).double())


def joint(model) -> dict[tuple[int, ...], float]:
    """The probability of every transcript by transformers' own modules."""
    texts: dict[tuple[int, ...], float] = defaultdict(float)

    def grow(text: tuple[int, ...], probability: float) -> None:
        if len(text) == TOKENS or (text and text[-1] == END):
            texts[text] += probability
            return
        tokens = [*PROMPT, *text]
        with torch.no_grad():
            output = model(input_features=AUDIO.features[None].double(), decoder_input_ids=torch.tensor([tokens]))
        probs = (RULES(tokens, output.logits[0, -1]) / 0.9).softmax(-1).tolist()
        for token, p in enumerate(probs):
            if p > 0:
                grow((*text, token), probability * p)

    grow((), 1.0)
    return texts


def drafter(kind: str, target: TorchModel):
    if kind == "draft_model":
        return DraftModel(TorchModel(whispers.build(1).double()), VOCAB)
    return EarlyExit(target, 1) if kind == "early_exit" else NGram(VOCAB)


@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize("kind", ["draft_model", "early_exit", "ngram"])
def test_the_law_is_the_targets(target, kind, rule):
    own = drafter(kind, target)
    observed: dict[tuple[int, ...], float] = defaultdict(float)
    faults: set[str] = set()

    def run(rows, noise):
        for _ in decode(rows, target, own, rules.get(rule)(), Fixed(2), noise):
            pass

    for outcome in outcomes(lambda: Row(request()), run):
        observed[tuple(outcome.row.output)] += outcome.prob
        faults |= outcome.faults
    expected = joint(whispers.build(0).double())
    assert not faults
    assert len(expected) > 12
    assert max(abs(expected[text] - observed[text]) for text in expected.keys() | observed.keys()) < 1e-9
