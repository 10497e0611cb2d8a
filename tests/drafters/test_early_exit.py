"""Early exit drafts with the target's first layers, leaves their work to the score pass, and keeps the loop exact."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest
import torch

from slipstream.audit.tables.enumeration import outcomes
from slipstream.core.loop import decode
from slipstream.core.noise import CounterNoise
from slipstream.core.rules import rules
from slipstream.core.sampling import Sampling
from slipstream.core.tree import Shape
from slipstream.core.types import Budget, Request, Row
from slipstream.drafters.early_exit import EarlyExit
from slipstream.drafters.none import NoDrafter
from slipstream.models.run.forward_pass import ForwardPass
from slipstream.models.run.torch_model import TorchModel
from slipstream.plan.policy.policies import Fixed
from tiny import VOCAB, build

SMALL = {"vocab_size": 3, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
LAYERS = 4


def target(**more) -> TorchModel:
    return TorchModel(build("llama", num_hidden_layers=LAYERS, **more))


def plain(model, ids: list[int], layers: int | None = None) -> torch.Tensor:
    """The logits after these tokens by the model's own attention, without a cache: of all layers, or of the first."""
    model.set_attn_implementation("eager")
    try:
        with torch.inference_mode():
            done = model(torch.tensor([ids]), use_cache=False, output_hidden_states=layers is not None)
            if layers is None:
                return done.logits[0, -1]
            return model.lm_head(model.model.norm(done.hidden_states[layers][0, -1]))
    finally:
        model.set_attn_implementation("slipstream")


def texts(model: TorchModel, drafter, rule: str, policy: Fixed, temperature: float) -> list[list[int]]:
    rows = [Row(Request([3, 4, 5 + i][: 2 + i % 2], Sampling(temperature, seed=i), 12 + i)) for i in range(3)]
    for _ in decode(rows, model, drafter, rules.get(rule)(), policy):
        model.check_integrity()
    return [row.output for row in rows]


def test_every_law_is_that_of_the_first_layers():
    model = target()
    rows = [Row(Request([5, 6, 7, 8, i], Sampling(0.7, seed=i))) for i in range(3)]
    model.open(rows)
    budget = [Budget(depth) for depth in (3, 0, 2)]
    draft = EarlyExit(model, 2).propose(rows, budget, CounterNoise(rows, [False] * 3))
    assert [int((draft.tree.row == r).sum()) for r in range(3)] == [3, 0, 2]
    for r, row in enumerate(rows):
        text = list(row.tokens)
        for node in (draft.tree.row == r).nonzero()[:, 0].tolist():
            expected = (plain(model.model, text, layers=2) / 0.7).softmax(-1)
            torch.testing.assert_close(draft.law.dense()[node], expected, atol=1e-4, rtol=1e-3)
            text.append(int(draft.token[node]))


@pytest.mark.parametrize(
    ("rule", "temperature", "policy"),
    [
        ("greedy", 0.0, Fixed(3)),
        ("coupled", 0.8, Fixed(3)),
        ("greedy", 0.0, Fixed(3, shape=Shape(nodes=6, width=3))),
        ("coupled", 0.8, Fixed(2, shape=Shape.levels([2, 1]))),
    ],
)
def test_the_text_is_that_of_plain_decoding(rule, temperature, policy):
    model = target()
    drafted = texts(model, EarlyExit(model, 3), rule, policy, temperature)
    assert drafted == texts(target(), NoDrafter(VOCAB), rule, Fixed(0), temperature)


def test_no_layer_runs_twice_for_a_token_of_a_chain(monkeypatch):
    model, run, ran = target(), ForwardPass.run, Counter[tuple[int, int, int]]()

    def counted(self, pieces, span, *arguments):
        for piece in pieces:
            for n in range(piece.skip, len(piece.line)):
                ran.update((piece.line.row, piece.line.start + n, layer) for layer in range(*span))
        return run(self, pieces, span, *arguments)

    monkeypatch.setattr(ForwardPass, "run", counted)
    rows = [Row(Request([3, 4, 5, 6 + i], Sampling(0), 20)) for i in range(2)]
    drafted = 0
    for steps in decode(rows, model, EarlyExit(model, 3), rules.get("greedy")(), Fixed(3)):
        assert set(ran.values()) == {1}, "a token at a place runs through a layer once in a cycle"
        assert {layer for _, _, layer in ran} == set(range(LAYERS))
        drafted += sum(step.drafted for step in steps)
        ran.clear()
    assert drafted


@pytest.mark.parametrize("rule", ["token", "block"])
def test_two_cycles_have_the_targets_joint_law(rule):
    """Every outcome of every draw, against the target's own forward."""
    model = TorchModel(build("llama", num_hidden_layers=2, **SMALL).double())
    drafter = EarlyExit(model, 1)

    def run(rows, noise):
        loop = decode(rows, model, drafter, rules.get(rule)(), Fixed(1), noise)
        for _ in range(2):
            next(loop)
        loop.close()

    found: dict[tuple[int, ...], float] = defaultdict(float)
    for outcome in outcomes(lambda: Row(Request([0, 1], Sampling(1.5), 1000)), run):
        assert not outcome.faults
        found[tuple(outcome.row.output)[:2]] += outcome.prob
    for first in range(3):
        after_first = (plain(model.model, [0, 1]).double() / 1.5).softmax(-1)[first]
        for second in range(3):
            after_both = (plain(model.model, [0, 1, first]).double() / 1.5).softmax(-1)[second]
            assert found[first, second] == pytest.approx(float(after_first * after_both), abs=1e-7)


@pytest.mark.parametrize("layer", [0, LAYERS, -1])
def test_a_layer_outside_the_target_is_refused(layer):
    with pytest.raises(ValueError, match=f"layer is {layer}; the target has {LAYERS} layers, so it must be 1 to 3"):
        EarlyExit(target(), layer)
