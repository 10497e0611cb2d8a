"""Layer skip drafts with the target's own weights, leaves nothing in its cache, and keeps the loop exact."""

from __future__ import annotations

import json
from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch

from heads import TableTarget
from slipstream.audit.subject import Pair
from slipstream.audit.tables.enumeration import outcomes
from slipstream.core.loop import decode
from slipstream.core.noise import CounterNoise
from slipstream.core.rules import rules
from slipstream.core.sampling import Sampling
from slipstream.core.tree import Shape
from slipstream.core.types import Budget, Request, Row
from slipstream.drafters.layer_skip.drafter import LayerSkip
from slipstream.drafters.layer_skip.skip_set import default_skip_set, parse_skip_set, read_skip_set, save_skip_set
from slipstream.drafters.layer_skip.threshold import ACCEPTANCE, Threshold
from slipstream.drafters.none import NoDrafter
from slipstream.kernels.cpu.decoder import SkippedBlocks
from slipstream.models.run.torch_model import TorchModel
from slipstream.models.weights import linears
from slipstream.plan.policy.policies import Fixed
from tiny import VOCAB, build

LAYERS = 4
SKIPPED = SkippedBlocks(frozenset({1, 2}), frozenset({2, 3}))
SMALL = {"vocab_size": 2, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None}


def target(kernels: bool = True) -> TorchModel:
    """With kernels, sums have one order, so that numbers are equal to the bit."""
    model = build("llama", num_hidden_layers=LAYERS)
    if not kernels:
        return TorchModel(model)
    packed = TorchModel(linears.prepared(model, invariant=True), invariant=True)
    if packed.decoder is None:
        pytest.skip("there is no kernel for this machine")
    return packed


def plain(model, ids: list[int], committed: int, skipped: SkippedBlocks = SKIPPED) -> torch.Tensor:
    """The logits of a draft by the model's own attention: the committed tokens before the last ran through all blocks,
    and the others without the skipped ones."""
    from transformers import DynamicCache

    layers = model.model.layers
    model.set_attn_implementation("eager")
    hooks = []
    try:
        cache = DynamicCache()
        with torch.inference_mode():
            model(torch.tensor([ids[: committed - 1]]), past_key_values=cache, use_cache=True)
            for i in skipped.attention:  # it runs, so that the cache has one length in all layers
                hooks.append(layers[i].self_attn.register_forward_hook(lambda _, __, out: (out[0] * 0, *out[1:])))
            for i in skipped.mlp:
                hooks.append(layers[i].mlp.register_forward_hook(lambda _, __, out: out * 0))
            return model(torch.tensor([ids[committed - 1 :]]), past_key_values=cache).logits[0, -1]
    finally:
        for hook in hooks:
            hook.remove()
        model.set_attn_implementation("slipstream")


def opened(model: TorchModel, drafter: LayerSkip, rows: list[Row]) -> None:
    model.open(rows)
    drafter.open(rows)
    model.prefill(rows, 100)


@pytest.mark.parametrize("kernels", [True, False], ids=["kernels", "modules"])
def test_every_law_is_that_of_the_blocks_that_are_left(kernels):
    model = target(kernels)
    drafter = LayerSkip(model, SKIPPED)
    rows = [Row(Request([5, 6, 7, 8, i], Sampling(0.7, seed=i))) for i in range(3)]
    opened(model, drafter, rows)
    draft = drafter.propose(rows, [Budget(depth) for depth in (3, 0, 2)], CounterNoise(rows, [False] * 3))
    assert [int((draft.tree.row == r).sum()) for r in range(3)] == [3, 0, 2]
    for r, row in enumerate(rows):
        text = list(row.tokens)
        for node in (draft.tree.row == r).nonzero()[:, 0].tolist():
            expected = (plain(model.model, text, row.length) / 0.7).softmax(-1)
            torch.testing.assert_close(draft.law.dense()[node], expected, atol=1e-4, rtol=1e-3)
            text.append(int(draft.token[node]))


def texts(model: TorchModel, drafter, rule: str, policy: Fixed, temperature: float) -> list[list[int]]:
    rows = [Row(Request([3, 4, 5 + i][: 2 + i % 2], Sampling(temperature, seed=i), 12 + i)) for i in range(3)]
    for _ in decode(rows, model, drafter, rules.get(rule)(), policy):
        model.check_integrity()
    return [row.output for row in rows]


@pytest.mark.parametrize(
    ("rule", "temperature", "policy"),
    [
        ("greedy", 0.0, Fixed(3)),
        ("coupled", 0.8, Fixed(3)),
        ("greedy", 0.0, Fixed(3, shape=Shape(nodes=6, width=3))),
        ("coupled", 0.8, Fixed(2, shape=Shape.levels([2, 1]))),
        ("coupled", 0.8, Fixed(3, shape=Shape(nodes=6, width=3))),
    ],
)
@pytest.mark.parametrize("kernels", [True, False], ids=["kernels", "modules"])
def test_the_text_is_that_of_plain_decoding(kernels, rule, temperature, policy):
    model = target(kernels)
    drafted = texts(model, LayerSkip(model, SKIPPED, 0.02), rule, policy, temperature)
    assert drafted == texts(target(kernels), NoDrafter(VOCAB), rule, Fixed(0), temperature)


def test_nothing_of_a_draft_remains_in_the_cache():
    """After every cycle the cache holds, to the bit, what a cache without drafts holds."""
    drafting, reference = target(), target()
    row = Row(Request([3, 4, 5, 6], Sampling(0), 16))
    loop = decode([row], drafting, LayerSkip(drafting, SKIPPED), rules.get("greedy")(), Fixed(3))
    drafted = 0
    for steps in loop:
        drafted += sum(step.drafted for step in steps)
        cached = drafting.cached(row)
        copy = Row(Request([*row.tokens[:cached], 0], Sampling(0)))
        reference.open([copy])
        while reference.cached(copy) < cached:
            reference.prefill([copy], 1000)
        for layer, (keys, values) in reference.cache.all_tensors():
            stored = dict(drafting.cache.all_tensors())[layer]
            for mine, own in zip(stored, (keys, values), strict=True):
                places = (range(first, first + cached) for first in (drafting.index(row), reference.index(copy)))
                left, right = (held[0, :, at] for held, at in zip((mine, own), places, strict=True))
                torch.testing.assert_close(left, right, atol=0, rtol=0)
        reference.close([copy])
    assert drafted


def test_a_prompt_that_is_not_read_yet_is_not_drafted_from():
    model = target()
    drafter = LayerSkip(model, SKIPPED)
    rows = [Row(Request([3, 4, 5], Sampling(seed=1)))]
    model.open(rows)
    drafter.open(rows)
    assert len(drafter.propose(rows, [Budget(3)], CounterNoise(rows, [False])).tree) == 0
    model.prefill(rows, 100)
    assert len(drafter.propose(rows, [Budget(3)], CounterNoise(rows, [False])).tree) == 3


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_nothing_follows_a_token_of_an_unsure_law(temperature):
    model = target()
    rows = [Row(Request([5, 6, 7, 8 + i], Sampling(temperature, seed=i))) for i in range(4)]
    free, unsure = LayerSkip(model, SKIPPED), LayerSkip(model, SKIPPED, 1.0)
    opened(model, free, rows)
    unsure.open(rows)
    whole = free.propose(rows, [Budget(3)] * 4, CounterNoise(rows, [False] * 4))
    cut = unsure.propose(rows, [Budget(3)] * 4, CounterNoise(rows, [False] * 4))
    assert len(whole.tree) == 12
    assert cut.token.tolist() == whole.token[whole.tree.depth == 0].tolist(), "the first token costs nothing more"


def test_the_threshold_rises_when_drafts_are_rejected_and_falls_when_they_are_accepted():
    threshold = Threshold(0.5)
    for _ in range(30):
        threshold.update(0, 4)
    assert 0.5 < threshold.value < 0.54
    for _ in range(100):
        threshold.update(4, 4)
    assert threshold.rate > ACCEPTANCE
    assert threshold.value < 0.5
    off = Threshold(0.0)
    off.update(0, 4)
    assert off.value == 0


@pytest.mark.parametrize(
    ("rule", "threshold"), [pytest.param("token", 0.0, marks=pytest.mark.slow), ("token", 0.6), ("block", 0.6)]
)
def test_two_drafting_cycles_have_the_targets_joint_law(rule, threshold):
    """Every outcome of every draw, against the target's own forward. A prompt of one token is drafted from at once."""
    model = TorchModel(build("llama", num_hidden_layers=2, **SMALL).double())
    drafter = LayerSkip(model, SkippedBlocks(frozenset({1}), frozenset({0})), threshold)

    sizes, propose = set(), drafter.propose

    def counted(*arguments):
        draft = propose(*arguments)
        sizes.update(draft.tree.row.bincount(minlength=draft.tree.rows).tolist())
        return draft

    drafter.propose = counted

    def run(rows, noise):
        loop = decode(rows, model, drafter, rules.get(rule)(), Fixed(2), noise)
        for _ in range(2):
            next(loop)
        loop.close()

    found: dict[tuple[int, ...], float] = defaultdict(float)
    for outcome in outcomes(lambda: Row(Request([1], Sampling(1.5), 1000)), run):
        assert not outcome.faults
        found[tuple(outcome.row.output)[:2]] += outcome.prob
    model.model.set_attn_implementation("eager")
    with torch.inference_mode():
        after = [(model.model(torch.tensor([ids])).logits[0, -1] / 1.5).softmax(-1) for ids in ([1], [1, 0], [1, 1])]
    for first in range(2):
        for second in range(2):
            expected = float(after[0][first] * after[1 + first][second])
            assert found[first, second] == pytest.approx(expected, abs=1e-7)
    assert sizes == ({1, 2} if threshold else {2}), "some drafts end early and others do not"


def test_skip_sets_are_written_as_text():
    assert parse_skip_set("a0-2,m1,3", 4) == SkippedBlocks(frozenset({0, 1, 2, 3}), frozenset({1, 3}))
    for layers in (1, 2, 4, 30):
        skipped = default_skip_set(layers)
        assert skipped.attention
        assert max(skipped.attention | skipped.mlp) < layers


@pytest.mark.parametrize(
    ("skip", "message"),
    [
        ("a4", "skip names layer 4; the target has layers 0 to 3"),
        ("x1", "skip is 'x1'; write a folder, or blocks such as a4-9,m12,20"),
        ("a", "skip is 'a'; write a folder, or blocks such as a4-9,m12,20"),
        ("a2-1", "skip names no block; write blocks such as a4-9,m12,20"),
        ("-1", "skip is '-1'; write a folder, or blocks such as"),
    ],
)
def test_bad_skip_sets_are_refused_in_one_sentence(skip, message):
    with pytest.raises(ValueError, match=message):
        parse_skip_set(skip, LAYERS)


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        ({"layers": 6}, "is for a target of 6 layers, and this one has 4"),
        ({"target_sha256": "1" * 64, "target": "other"}, "was trained for other .* is another target"),
        ({"attention": [9]}, "skip names layer 9; the target has layers 0 to 3"),
        ({"mlp": "all"}, "attention and mlp must be lists of layers"),
        ({"slipstream_drafter": "eagle"}, "holds no layer_skip drafter"),
    ],
)
def test_a_folder_for_another_target_is_refused_in_one_sentence(tmp_path, stored, message):
    tiny = TableTarget(Pair.random(1).draft)
    tiny.files = SimpleNamespace(name="tiny", sha256="0" * 64, quantised=False)
    save_skip_set(tmp_path, SKIPPED, LAYERS, {"target": "tiny", "target_sha256": "0" * 64})
    assert read_skip_set(tmp_path, tiny, LAYERS) == SKIPPED
    config = json.loads((tmp_path / "config.json").read_text()) | stored
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=message):
        read_skip_set(tmp_path, tiny, LAYERS)
