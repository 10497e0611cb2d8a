"""The drafters that come along: as small as promised, undamaged, and as good on the default model as they were."""

from __future__ import annotations

import pytest

import default
from slipstream.core.sampling import Sampling
from slipstream.drafters.files.shipped import shipped, shipped_for
from slipstream.engines.native.engine import NativeEngine
from slipstream.models.sources.folder import read_json
from slipstream.models.sources.store import sha256

PROMPTS = [
    "Write a Python function that returns the n-th Fibonacci number, and explain how it works.",
    "A baker sells 12 loaves in the morning and twice as many in the afternoon. How many loaves is that in all?",
    "Give three tips for staying healthy during a long winter.",
]
# tau of a chain of five, greedy, 48 tokens each
GOLDEN = {"smollm2-135m-eagle": 3.06, "smollm2-135m-draft": 2.77, "smollm2-135m-skip": 2.36}
TOLERANCE = 0.05  # of it: another machine rounds otherwise, and a near tie may fall to the other side


def test_they_are_small_and_undamaged():
    sizes = {name: sum(path.stat().st_size for path in folder.iterdir()) for name, folder in shipped().items()}
    assert set(sizes) == set(GOLDEN)
    assert sum(sizes.values()) < 20e6
    for folder in shipped().values():
        weights = folder / "model.safetensors"
        if folder.name != "smollm2-135m-skip":  # a skip set has no weights
            assert weights.stat().st_size < 15e6
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
        return [one.token_ids for one in engine.generate(PROMPTS, Sampling(temperature=0), max_tokens=48)]


@pytest.mark.model
@pytest.mark.parametrize("name", GOLDEN)
def test_golden_tau_and_the_tokens_of_plain_decoding(name, plain):
    with NativeEngine(default.build("smollm2-135m", "float32"), name, depth=5) as engine:
        drafted = engine.generate(PROMPTS, Sampling(temperature=0), max_tokens=48)
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
