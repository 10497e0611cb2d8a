"""Medusa, MLP and prophet heads draft by their law over whole texts, keep to their heads, and load from folders."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import letters
from slipstream.audit.real import RealPair, plan_real
from slipstream.core.loop import decode
from slipstream.core.noise import CounterNoise
from slipstream.core.rules import rules
from slipstream.core.sampling import Sampling
from slipstream.core.tree import Shape
from slipstream.core.types import Budget, Request, Row
from slipstream.drafters.build import build_drafter
from slipstream.drafters.files.net_folder import save_net
from slipstream.engines.native.engine import NativeEngine
from slipstream.models.run.torch_model import TorchModel
from slipstream.models.target import Target
from slipstream.models.weights.linears import PackedLinear
from slipstream.plan.policy.policies import Fixed
from state_heads import SIZES, drafter_for, random_net, reference
from tiny import build
from watched import SOME, Turns, Watched

KINDS = ["medusa", "mlp", "prophet"]


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


def watched(kind: str, **options) -> Watched:
    return Watched(make=drafter_for(kind), reference=reference, **options)


@pytest.mark.parametrize(("kind", "dtype"), [*((kind, torch.float64) for kind in SIZES), slow("mlp", torch.float32)])
def test_every_law_is_the_networks_over_the_whole_text_in_ragged_batches(kind, dtype):
    subject = watched(kind, dtype=dtype, prefill_chunk=7)
    subject.decode(subject.rows(2, 9, 1, max_tokens=6), policy=Turns(*map(Budget, (3, 1, 0, 4))))
    assert subject.compared > 10


TREES = [
    ("medusa", "no_replace"),
    ("medusa,recurrent", "no_replace"),
    ("mlp", "replace"),
    ("mlp", "chosen"),
    slow("prophet", "no_replace"),
]


@pytest.mark.parametrize(("kind", "rule"), TREES)
def test_every_law_of_a_tree_is_the_networks_along_its_own_path(kind, rule):
    subject = watched(kind)
    grown, levels = (Budget(3, shape=shape) for shape in (Shape(nodes=8, width=3), Shape.levels([2, 2, 1])))
    subject.decode(subject.rows(4, 7, max_tokens=6), rule, Turns(grown, levels, Budget(2), Budget(0)))
    assert subject.compared > 12


@pytest.mark.parametrize("kind", [slow("mlp"), "prophet"])
def test_reused_prefixes_have_their_states(kind):
    subject = watched(kind)
    first = subject.rows(40, max_tokens=4)
    subject.decode(first)
    again = [Row(Request(first[0].tokens[:n] + subject.text(2), Sampling(1.5, seed=n), 5)) for n in (36, 41)]
    subject.decode(again)
    assert subject.target.prefixes.counts.prefix_tokens_reused > 60


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_drafted_before_the_target_has_read_the_prompt_and_no_more_than_there_are_heads(kind):
    subject = watched(kind, prefill_chunk=4)
    rows = subject.rows(9, 1)
    subject.target.open(rows)
    noise = CounterNoise(rows, [False] * 2)
    for _ in range(2):
        assert len(subject.drafter.propose(rows, [Budget(9)] * 2, noise).token) == 0
        subject.target.prefill(rows[:1], 4)
    assert subject.drafter.propose(rows, [Budget(9)] * 2, noise).tree.row.tolist() == [0] * 4


@pytest.mark.parametrize(
    ("kind", "rule", "temperature"), [("medusa", "greedy", 0.0), ("mlp", "coupled", 0.8), ("prophet", "coupled", 0.8)]
)
def test_one_seed_gives_the_tokens_of_plain_decoding(kind, rule, temperature):
    target = TorchModel(build("qwen2").double())
    drafter, texts = drafter_for(kind)(target, SOME), []
    for policy in (Turns(Budget(3), Budget(4, shape=Shape(nodes=6, width=3))), Fixed(0)):
        rows = [Row(Request([7, 8, i], Sampling(temperature, seed=i), 14)) for i in range(3)]
        steps = [s for c in decode(rows, target, drafter, rules.get(rule)(), policy) for s in c]
        texts.append(([row.output for row in rows], sum(step.drafted for step in steps)))
    assert texts[0][0] == texts[1][0]
    assert texts[0][1] > 40


@pytest.mark.parametrize("kind", [slow("medusa"), "mlp", slow("prophet")])
def test_the_audit_of_a_real_pair_passes(kind):
    target = TorchModel(build("qwen2").double())
    pair = RealPair(target, drafter_for(kind)(target, SOME), [[5, 6, 7, 8]], [5, 6, 7])
    for check in (item.run() for item in plan_real(pair, ["block"], 64, 0.8)):
        assert check.passed, f"{check.name}: {check.detail}"
        assert "nothing" not in check.detail


def saved(kind: str, folder: Path, **about: str) -> Path:
    net = random_net(kind, 32, (1,), 9, heads=3)
    save_net(folder, kind.partition(",")[0], net, net.config, torch.arange(0, 18, 2), "int8", about)
    return folder


@pytest.mark.parametrize("kind", SIZES)
def test_a_folder_drafts_by_its_path_and_greedy_text_is_that_of_plain_decoding(kind, tmp_path):
    folder = saved(kind, tmp_path / "head")
    texts = []
    for drafter in ("none", str(folder)):
        with NativeEngine(letters.target(), drafter, depth=5) as engine:
            texts.append(engine.generate("abcab", Sampling(0), max_tokens=24)[0].token_ids)
            drafted = engine.stats["drafted"]
            assert not engine.stats["failures"]
    assert texts[0] == texts[1]
    assert drafted > 10


@pytest.mark.parametrize("kind", KINDS)
def test_what_does_not_fit_is_refused_in_one_sentence(kind, tmp_path):
    target = letters.target()
    with pytest.raises(ValueError, match=f"no {kind} head is shipped for letters; `slipstream train {kind}` makes one"):
        build_drafter(kind, target)
    folder = saved(kind, tmp_path / "head", target="other", target_sha256="ab" * 32)
    known = Target(replace(target.files, sha256="cd" * 32), target.model, target.text)
    with pytest.raises(ValueError, match=r"was trained for other \(sha256 abab.*letters is another target"):
        build_drafter(kind, known, {"model": str(folder)})
    build_drafter(kind, target, {"model": str(folder)})  # the hash of a plain folder is not known
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k != "heads"}))
    with pytest.raises(ValueError, match="the head's config lacks heads"):
        build_drafter(kind, target, {"model": str(folder)})
    (folder / "config.json").write_text(json.dumps(config | {"heads": 4}))
    with pytest.raises(ValueError, match=r"model.safetensors does not fit its config.json"):
        build_drafter(kind, target, {"model": str(folder)})


@pytest.mark.parametrize("kind", KINDS)
def test_on_a_cpu_all_its_matrices_are_packed(kind, tmp_path):
    drafter = build_drafter(str(saved(kind, tmp_path / "head")), letters.target())
    layers = [module for module in drafter.net.modules() if isinstance(module, torch.nn.Linear)]
    if isinstance(drafter.output, torch.nn.Linear):
        pytest.skip("no kernel here")
    assert isinstance(drafter.output, PackedLinear)
    assert not layers
