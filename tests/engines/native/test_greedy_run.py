"""A row alone that decodes greedily takes several cycles at a time, with the output and the counts of single ones."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch

import letters
import slipstream as ss
from slipstream.engines.native import greedy_run
from slipstream.engines.native.engine import NativeEngine
from slipstream.kernels.cpu.decoder import kernel
from slipstream.models.run.torch_model import TorchModel
from slipstream.models.target import Target
from slipstream.models.weights.linears import pack_linears

pytestmark = pytest.mark.skipif(kernel() is None, reason="needs a C++ compiler")
GREEDY = ss.Sampling(temperature=0)
LONG = {"max_tokens": 50, "ignore_eos": True}
calls: list[int] = []  # tokens of each call


@pytest.fixture
def engine(request, monkeypatch) -> Iterator[NativeEngine]:
    given, model = letters.target(), copy.deepcopy(letters.plain())
    pack_linears(model)
    calls.clear()
    own = TorchModel.continue_greedily

    def counted(self, row, most):
        calls.append(len(tokens := own(self, row, most)))
        return tokens

    monkeypatch.setattr(TorchModel, "continue_greedily", counted)
    with NativeEngine(Target(given.files, TorchModel(model), given.text), getattr(request, "param", None)) as opened:
        yield opened


def both(engine: NativeEngine, monkeypatch, **options) -> tuple[ss.Completion, ss.Completion]:
    """With several tokens per call, and one by one."""
    several = engine.generate("abc", **options)[0]
    assert max(calls, default=0) > 2
    with monkeypatch.context() as patch:
        patch.setattr(greedy_run, "MOST", 1)
        return several, engine.generate("abc", **options)[0]


def same(several: ss.Completion, single: ss.Completion) -> bool:
    fields = "text", "token_ids", "origins", "finish_reason"
    assert several.stats.cycles == single.stats.cycles == len(several.token_ids) or several.finish_reason == "stop"
    return all(getattr(several, name) == getattr(single, name) for name in fields)


def test_output_and_counts_are_those_of_single_cycles(engine, monkeypatch):
    several, single = both(engine, monkeypatch, sampling=GREEDY, **LONG)
    assert same(several, single)
    assert several.tau == 1.0


def test_text_ends_at_stop_strings_end_tokens_and_limits(engine, monkeypatch):
    text = engine.generate("abc", GREEDY, **LONG)[0].text
    for options in ({"stop": [text[20:23]]}, {"stop_token_ids": [letters.TOKENS.index(text[9])]}, {"max_tokens": 11}):
        assert same(*both(engine, monkeypatch, sampling=GREEDY, **{**LONG, **options}))


@pytest.mark.parametrize("engine", ["ngram"], indirect=True)
def test_a_drafter_goes_on_after_cycles_without_drafts(engine, monkeypatch):
    options = {"sampling": GREEDY, "max_tokens": 120, "ignore_eos": True}
    several = [engine.generate(prompt, **options)[0] for prompt in ("abc", "ponm", "hgfe")]
    monkeypatch.setattr(greedy_run, "MOST", 1)
    assert [engine.generate(done, **options)[0].token_ids for done in ("abc", "ponm", "hgfe")] == [
        done.token_ids for done in several
    ]


@pytest.mark.parametrize(
    "options",
    [
        {"sampling": ss.Sampling(temperature=0.7, seed=1)},
        {"sampling": ss.Sampling(temperature=0, repetition_penalty=1.3)},
        {"sampling": GREEDY, "logprobs": 2},
        {"sampling": GREEDY, "min_tokens": 49},
    ],
)
def test_what_needs_the_logits_is_decoded_cycle_by_cycle(engine, options):
    assert len(engine.generate("abc", **{**LONG, **options})[0].token_ids) == 50
    assert max(calls, default=0) <= 2


def test_rows_together_are_decoded_cycle_by_cycle_with_the_same_text(engine):
    alone = [engine.generate(prompt, GREEDY, **LONG)[0].token_ids for prompt in ("abc", "hgf")]
    assert max(calls) > 2
    together = engine.generate(["abc", "hgf"], GREEDY, **LONG)
    assert [done.token_ids for done in together] == alone


def test_a_request_without_finite_logits_ends_with_a_sentence(engine):
    with torch.no_grad():
        engine.target.model.model.base_model.norm.weight[3] = float("nan")
    done = engine.generate("abc", GREEDY, **LONG)[0]
    assert done.finish_reason == "error"
    assert "not finite" in str(done.error)
