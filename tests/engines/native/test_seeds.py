"""One seed gives one text by default, at any depth; each output names its rule and what it promises."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator

import pytest
import torch

import default
import letters
from slipstream.core.rules import rules
from slipstream.core.sampling import Sampling
from slipstream.core.tree import Siblings
from slipstream.drafters.draft_model import DraftModel
from slipstream.engines import base
from slipstream.engines.base import Completion, Speculation
from slipstream.engines.native.engine import NativeEngine
from slipstream.engines.native.planning import choose_rule
from slipstream.engines.native.scheduler import Limits
from slipstream.models.run.layers import keep_layers
from slipstream.models.run.torch_model import TorchModel
from slipstream.plan.ir.nodes import AutoRule
from slipstream.plan.policy.policies import Adaptive

WARM = Sampling(temperature=0.8, seed=7)
RUNS = range(4)


class Timed(Adaptive):
    """The policy of an engine with made-up times, which differ from run to run."""

    def __init__(self, run: int) -> None:
        super().__init__()
        self._times, self._step = random.Random(run), 0.03 * run

    def price(self, drafting: float, scoring: float, tokens: int) -> None:
        drafting = self._times.uniform(0.9, 1.1) * self._step * self.free._record.steps
        super().price(drafting, 1 + self._times.uniform(0, 0.1) * tokens, tokens)


def opened(run: int, **options) -> NativeEngine:
    """The model of letters, drafted for by its first layer, with times of its own."""
    engine = NativeEngine(letters.target(), "none", limits=Limits(retained=0), policy=Timed(run), **options)
    small = copy.deepcopy(letters.plain())
    keep_layers(small, "0")
    engine._drafters["mini"] = DraftModel(TorchModel(small), len(letters.TOKENS))
    return engine


def completions(**speculation) -> Iterator[Completion]:
    how = Speculation(drafter="mini", **speculation)
    for run in RUNS:
        with opened(run) as engine:
            yield from engine.generate("abcabc", WARM, max_tokens=60, ignore_eos=True, speculation=how)


@pytest.mark.parametrize("tree", [None, pytest.param(8, marks=pytest.mark.slow)])
def test_one_seed_gives_one_text_at_any_depth(tree):
    done = list(completions(shape=tree))
    assert {c.rule for c in done} == {"coupled"}
    assert len({tuple(c.token_ids) for c in done}) == 1
    assert all(sum(c.stats.accepted) for c in done)
    if tree is None:
        assert len({tuple(c.stats.drafted) for c in done}) > 1, "the depth did not vary, so nothing was tested"


def test_the_block_rule_with_a_seed_has_a_fixed_depth():
    """The times differ, and the text does not: the policy is not asked. Another depth gives another text."""
    done = list(completions(verify="block"))
    assert len({tuple(c.token_ids) for c in done}) == 1
    assert {(c.rule, c.lossless, c.repeatable) for c in done} == {("block", True, None)}
    texts = {tuple(next(completions(verify="block", depth=depth)).token_ids) for depth in (1, 2, 3, 5)}
    assert len(texts) > 1
    assert tuple(done[0].token_ids) in texts


@pytest.mark.parametrize(
    ("named", "temperature", "seeded", "tree", "rule"),
    [
        (None, 0.8, True, False, "coupled"),
        (None, 0.8, True, True, "coupled"),
        (None, 0.8, False, False, "block"),
        (None, 0.8, False, True, "no_replace"),
        (None, 0.0, True, True, "greedy"),
        ("token", 0.8, True, False, "token"),
        ("token", 0.0, True, False, "greedy"),
    ],
)
def test_the_default_rule(named, temperature, seeded, tree, rule):
    assert choose_rule(named, AutoRule(), temperature, seeded, tree) == rule


def test_a_completion_names_its_rule_and_its_promise():
    with opened(0) as engine:
        drafted = {"drafter": "ngram"}

        def rule(sampling: Sampling, **how) -> tuple[str, bool | None, str | None]:
            (done,) = engine.generate("abab", sampling, max_tokens=2, speculation=Speculation(**drafted | how))
            return done.rule, done.lossless, done.repeatable

        assert rule(WARM) == ("coupled", True, "up to ties")
        assert rule(WARM, off=True) == ("coupled", True, "up to ties")
        assert rule(Sampling(0.8)) == ("block", True, None)
        assert rule(Sampling(0.8), shape=4) == ("no_replace", True, None)
        assert rule(WARM, shape=4) == ("coupled", True, "up to ties")
        assert rule(Sampling(0)) == ("greedy", True, "up to ties")
    with opened(0, verify="token") as engine:
        assert rule(WARM) == ("token", True, None)
        assert rule(WARM, verify="coupled") == ("coupled", True, "up to ties")


def test_a_drafter_whose_trees_a_rule_cannot_take_is_refused_in_a_sentence(monkeypatch):
    monkeypatch.setattr(DraftModel, "siblings", frozenset({Siblings.CHOSEN}))
    with (
        opened(0) as engine,
        pytest.raises(ValueError, match=r"spectr takes no tree of this drafter's \(chosen\); use"),
    ):
        engine.generate("abab", WARM, speculation=Speculation(drafter="mini", shape=4, verify="spectr"))
    assert Siblings.CHOSEN not in rules.get("spectr").siblings
    assert set(Siblings) == set(rules.get("coupled").siblings)


def test_samples_without_a_seed_use_the_systems_randomness():
    with opened(0) as engine:
        torch.manual_seed(0)
        before = torch.get_rng_state()
        first = engine.generate("ab", Sampling(1.5), max_tokens=24, ignore_eos=True, n=2)
        assert torch.equal(torch.get_rng_state(), before), "the caller's generator was used"
        torch.manual_seed(0)
        again = engine.generate("ab", Sampling(1.5), max_tokens=24, ignore_eos=True, n=2)
    assert len({tuple(c.token_ids) for c in [*first, *again]}) == 4


@pytest.mark.model
@pytest.mark.parametrize("tree", [None, 8])
def test_one_seed_gives_one_text_on_the_default_model(tree):
    texts, drafted = set(), set()
    for run in range(3):
        with NativeEngine(default.target(), "eagle", shape=tree, policy=Timed(run)) as engine:
            (done,) = engine.generate("List the numbers from 1 to 30, then again.", WARM, max_tokens=32)
        texts.add(done.text)
        drafted.add(tuple(done.stats.drafted))
        assert done.guarantee == base.Guarantee("coupled", True, "bit for bit")
    assert len(texts) == 1
    if tree is None:
        assert len(drafted) > 1, "the depth did not vary, so nothing was tested"


@pytest.mark.parametrize("verify", [None, "block", "token", "coupled"])
def test_a_temperature_too_small_for_float32_is_greedy(verify):
    with opened(0) as engine:
        how = Speculation(drafter="mini", depth=3, verify=verify)
        (cold,) = engine.generate("abcabc", Sampling(0), max_tokens=8, ignore_eos=True, speculation=how)
        (tiny,) = engine.generate("abcabc", Sampling(1e-46), max_tokens=8, ignore_eos=True, speculation=how)
    assert (tiny.token_ids, tiny.rule, tiny.error) == (cold.token_ids, "greedy", None)
