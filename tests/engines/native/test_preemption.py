"""Rows that lose their places in the KV cache go on with the same text, whatever drafts for them."""

from __future__ import annotations

import pytest

import default
from slipstream.core.sampling import Sampling
from slipstream.engines.base import GenerationOptions
from slipstream.engines.native.engine import NativeEngine
from slipstream.engines.native.scheduler import Limits
from slipstream.models.cache import tensors

PROMPTS = ["List the numbers from 1 to 20.", "Write a haiku about rain.", "Repeat: red green blue red green blue"]
QUICK = ("suffix", "eagle")
OTHERS = (
    "ngram",
    "dflash",
    "medusa",
    "mlp",
    "prophet",
    "early_exit",
    "layer_skip",
    "draft_model",
    "lookahead",
    "staged",
)
OPTIONS = GenerationOptions(max_tokens=64, ignore_eos=True)


@pytest.fixture(scope="module")
def plain() -> list[list[int]]:
    with NativeEngine(default.target(), "none") as engine:
        return [
            engine.submit(text, Sampling(temperature=0), OPTIONS)[0].result().token_ids  # alone, and undrafted
            for text in PROMPTS
        ]


@pytest.mark.model
@pytest.mark.parametrize("drafter", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_a_preempted_row_goes_on_with_the_same_text(drafter, plain, monkeypatch):
    monkeypatch.setattr(tensors, "AHEAD", 16)
    monkeypatch.setattr(tensors, "SPARE", 16)
    target = default.target()
    with NativeEngine(target, drafter, depth=3, limits=Limits(rows=3, tokens=272, retained=0)) as engine:
        handles = [engine.submit(text, Sampling(temperature=0), OPTIONS)[0] for text in PROMPTS]
        said = [handle.result().token_ids for handle in handles]
        stats = engine.stats
    assert stats["preemptions"] >= 1, "all rows fitted, so nothing was tested"
    assert not stats["failures"]
    assert said == plain
    target.model.check_integrity()
