"""The option `draft_temperature`: the told law has that temperature, and the output keeps the target's law."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import blocks
from heads import on_table
from slipstream.audit.subject import Pair, Subject
from slipstream.audit.tables.exact import check_cycles
from slipstream.core.noise import CounterNoise
from slipstream.core.rules import rules
from slipstream.core.sampling import Sampling
from slipstream.core.tree import Shape
from slipstream.core.types import Budget, Request, Row
from slipstream.drafters import drafters
from slipstream.drafters.draft_model import DraftModel
from slipstream.drafters.early_exit import EarlyExit
from slipstream.drafters.layer_skip.drafter import LayerSkip
from slipstream.drafters.layer_skip.skip_set import parse_skip_set
from slipstream.models.run.torch_model import TorchModel
from slipstream.plan.policy.policies import Fixed
from state_heads import heads_on_table
from tiny import VOCAB, build

PAIR = Pair.random(1)
ON_TABLE = {"eagle": on_table, "dflash": blocks.on_table, "mlp": heads_on_table("mlp")}
SAMPLING = ["dflash", "draft_model", "eagle", "early_exit", "layer_skip", "medusa", "mlp", "prophet"]


def hotter(kind: str, table):
    drafter = ON_TABLE[kind](table)
    drafter.draft_temperature = 3.0
    return drafter


@pytest.mark.parametrize("kind", [pytest.param("eagle", marks=pytest.mark.slow), "dflash", "mlp"])
def test_the_loop_is_exact_at_another_draft_temperature(kind):
    """Every outcome of every draw: chains, and trees without replacement."""
    subject = Subject(rules.get("token"), drafter=partial(hotter, kind))
    check = check_cycles("x", subject, PAIR)
    assert check.passed, check.detail
    trees = Subject(rules.get("no_replace"), lambda: Fixed(1, shape=Shape((-1, -1))), drafter=partial(hotter, kind))
    check = check_cycles("x", trees, PAIR, depth=1, cycles=1)
    assert check.passed, check.detail


def made(kind: str, model: TorchModel):
    if kind == "draft_model":
        return DraftModel(TorchModel(build("llama", num_hidden_layers=2)), VOCAB)
    return EarlyExit(model, 2) if kind == "early_exit" else LayerSkip(model, parse_skip_set("1", 3))


@pytest.mark.parametrize("kind", ["draft_model", "early_exit", "layer_skip"])
def test_the_told_law_has_the_draft_temperature(kind):
    """At the request's temperature 1 and at the draft temperature 2, the logits of the two laws differ by a factor."""
    model = TorchModel(build("llama", num_hidden_layers=3))
    laws = []
    for temperature in (None, 2.0):
        drafter, rows = made(kind, model), [Row(Request([5, 6, 7], Sampling(1.0, seed=3)))]
        drafter.draft_temperature = temperature
        model.open(rows)
        drafter.open(rows)
        model.prefill(rows, 100)
        laws.append(drafter.propose(rows, [Budget(1)], CounterNoise(rows, [False])).law.dense()[0])
        drafter.close(rows)
        model.close(rows)
    torch.testing.assert_close(laws[1], (laws[0].log() / 2).softmax(-1), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", SAMPLING)
def test_every_drafter_that_samples_takes_it(name):
    options_type = drafters.get(name).options_type
    assert options_type(draft_temperature=0.5).draft_temperature == 0.5
    with pytest.raises(ValueError, match=r"draft_temperature is 0.0; it must be above 0 and at most 100"):
        options_type(draft_temperature=0.0)
