"""The drafters that come along: as small as promised, undamaged, and as good on the default model as they were."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import blocks
import default
import heads
import letters
import letters_folder
import state_heads
from slipstream.core.sampling import Sampling
from slipstream.drafters.build import build_drafter
from slipstream.drafters.dflash.folder import save_stack
from slipstream.drafters.eagle.folder import save_head
from slipstream.drafters.exit_head.network import ExitConfig, ExitNet
from slipstream.drafters.files import shipped as shipped_module
from slipstream.drafters.files.draft_folder import save_draft
from slipstream.drafters.files.net_folder import save_net
from slipstream.drafters.files.shipped import shipped, shipped_for
from slipstream.engines.native.engine import NativeEngine
from slipstream.models.load_target import load_target
from slipstream.models.sources.folder import read_json
from slipstream.models.sources.store import sha256
from slipstream.models.target import Target
from slipstream.models.weights.linears import rounded
from slipstream.train.methods.draft_model import student

PROMPTS = [
    "Write a Python function that returns the n-th Fibonacci number, and explain how it works.",
    "A baker sells 12 loaves in the morning and twice as many in the afternoon. How many loaves is that in all?",
    "Give three tips for staying healthy during a long winter.",
]
# tau of a chain of five, greedy, 24 tokens each
GOLDEN = {
    "smollm2-135m-eagle": 2.88,
    "smollm2-135m-dflash": 2.88,
    "smollm2-135m-draft": 2.77,
    "smollm2-135m-exit": 2.40,
    "smollm2-135m-medusa": 2.67,
    "smollm2-135m-mlp": 2.48,
    "smollm2-135m-prophet": 2.57,
    "smollm2-135m-skip": 2.32,
}
TOLERANCE = 0.05  # of it: another machine rounds otherwise, and a near tie may fall to the other side


def test_they_are_small_and_undamaged():
    sizes = {name: sum(path.stat().st_size for path in folder.iterdir()) for name, folder in shipped().items()}
    assert set(sizes) == set(GOLDEN)
    assert sum(sizes.values()) < 36e6
    for folder in shipped().values():
        weights = folder / "model.safetensors"
        if folder.name != "smollm2-135m-skip":  # a skip set has no weights
            assert weights.stat().st_size < 12e6
            assert sha256(weights) == read_json(folder / "config.json")["sha256"]
        assert (folder / "README.md").read_text().startswith(f"# {folder.name}")


def test_they_are_found_by_name_and_by_weights():
    head = shipped()["smollm2-135m-eagle"]
    weights = read_json(head / "config.json")["target_sha256"]
    assert shipped_for("eagle", "smollm2-135m", None) == shipped_for("eagle", "elsewhere", weights) == head
    assert shipped_for("eagle", "elsewhere", "0" * 64) is None
    assert shipped_for("draft_model", "smollm2-135m", None) == shipped()["smollm2-135m-draft"]


@pytest.fixture(scope="module")
def plain() -> list[list[int]]:
    with NativeEngine(default.build("smollm2-135m", "float32"), "none") as engine:
        return [one.token_ids for one in engine.generate(PROMPTS, Sampling(temperature=0), max_tokens=24)]


@pytest.mark.model
@pytest.mark.parametrize("name", GOLDEN)
def test_golden_tau_and_the_tokens_of_plain_decoding(name, plain):
    with NativeEngine(default.build("smollm2-135m", "float32"), name, depth=5) as engine:
        drafted = engine.generate(PROMPTS, Sampling(temperature=0), max_tokens=24)
    assert [one.token_ids for one in drafted] == plain
    tau = sum(len(one.token_ids) for one in drafted) / sum(one.stats.cycles for one in drafted)
    assert tau == pytest.approx(GOLDEN[name], rel=TOLERANCE)


@pytest.mark.model
def test_the_draft_model_has_a_speed_of_its_own():
    """Though it knows fewer tokens than the text it is given holds."""
    with NativeEngine(default.build("smollm2-135m", "float32"), "draft_model") as engine:
        (sample,) = engine.generate(PROMPTS[:1], Sampling(temperature=0), max_tokens=8)
        speed = engine.draft_speed(sample, 4)
    assert speed is not None
    assert speed > 0


IDS = torch.arange(3, 19)


def write_random(kind: str, folder: Path, about: dict[str, str]) -> None:
    """A drafter with random weights for the model of letters."""
    model = letters.plain()
    if kind == "eagle":
        save_head(folder, heads.head(model, IDS.tolist(), (0, 1)), IDS, "bf16", about)
    elif kind == "dflash":
        save_stack(folder, blocks.stack(model, IDS.tolist(), features=(0, 1)), IDS, "bf16", about)
    elif kind == "early_exit":
        net = ExitNet(ExitConfig(32, 1, 4, 2, 8, 48, len(IDS)))
        save_net(folder, kind, net, net.config, IDS, "bf16", about)
    elif kind == "draft_model":
        save_draft(folder, student(model, "0"), "0", IDS, "bf16", about)
    else:
        net = state_heads.random_net(kind, 32, (1,), len(IDS))
        save_net(folder, kind, net, net.config, IDS, "bf16", about)


@pytest.mark.parametrize("kind", ["dflash", "draft_model", "eagle", "early_exit", "medusa", "mlp", "prophet"])
def test_a_shipped_drafter_is_used_without_options_and_refused_for_another_target(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(shipped_module, "FOLDER", tmp_path)
    folder, about = tmp_path / f"letters-{kind}", {"target": "letters", "target_sha256": "a" * 64}
    write_random(kind, folder, about)
    texts = []
    for drafter in ("none", kind):
        with NativeEngine(letters.target(), drafter, depth=3) as engine:
            texts.append(engine.generate("abcab", Sampling(temperature=0), max_tokens=16)[0].token_ids)
            drafted = engine.stats["drafted"]
    assert texts[0] == texts[1]
    assert drafted > 8
    target = letters.target()
    other = Target(replace(target.files, name="other", sha256="b" * 64), target.model, target.text)
    with pytest.raises(ValueError, match=r"was trained for letters \(sha256 aaa.* and other is another target"):
        build_drafter(str(folder), other)


@pytest.mark.parametrize("kind", ["dflash", "eagle", "medusa", "mlp", "prophet"])
def test_a_draft_vocabulary_can_be_cut(kind, tmp_path):
    write_random(kind, tmp_path / kind, {})
    texts = []
    for options in ({}, {"vocab": 5}, {"vocab": 99}):
        with NativeEngine(letters.target(), str(tmp_path / kind), depth=3, options=options) as engine:
            assert len(engine.drafter(engine.drafter_name).vocabulary.ids) == min(len(IDS), options.get("vocab", 99))
            samples = engine.generate("abcab", Sampling(temperature=0), max_tokens=16)
            texts.append(samples[0].token_ids)
            assert engine.stats["drafted"]
    assert texts[0] == texts[1] == texts[2]
    with pytest.raises(ValueError, match="vocab is 0; it must be 1 or more"):
        build_drafter(str(tmp_path / kind), letters.target(), {"vocab": 0})


@pytest.mark.parametrize("given", ["named", "distilled"])
def test_a_draft_model_of_8_bits(given, tmp_path):
    """An 8-bit dtype used to be ignored by draft models."""
    if given == "distilled":
        write_random("draft_model", tmp_path / "draft", {})
    options = {"model": str(tmp_path / "draft")} if given == "distilled" else {"layers": "0"}
    target = load_target(str(letters_folder.write(tmp_path / "letters")), "float32", package=False)
    drafter = build_drafter("draft_model", target, {**options, "dtype": "int8"})
    assert rounded(drafter.model.model)
    assert not rounded(build_drafter("draft_model", target, options).model.model)
