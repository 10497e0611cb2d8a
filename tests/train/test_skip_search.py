"""The search for blocks to skip: it finds the best set of a known model, resumes, and its folder drafts exactly."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch

import letters
from slipstream.core.sampling import Sampling
from slipstream.drafters.files.describe import describe_drafter
from slipstream.engines.native.engine import NativeEngine
from slipstream.kernels.cpu.decoder import SkippedBlocks
from slipstream.train.report import write_card
from slipstream.train.run import train
from slipstream.train.skip_search import SkipSearch

SMALL = {"steps": 8, "tokens": 512, "vocab": 17, "answer": 12, "prompt": 32, "rows": 64, "share": 0.5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("letters")
    letters.plain().save_pretrained(path)
    letters.tokenizer().save_pretrained(path)
    rng = random.Random(1)
    words = ["".join(rng.choice(letters.LETTERS) for _ in range(rng.randrange(3, 12))) for _ in range(60)]
    (path / "prompts.jsonl").write_text("\n".join(json.dumps({"prompt": word}) for word in words))
    return path


def test_the_search_finds_the_best_set_of_a_linear_model():
    generator = torch.Generator().manual_seed(0)
    effect = -torch.rand(2, 8, generator=generator)
    effect[0, 2], effect[0, 5], effect[1, 3] = -0.01, -0.02, -0.01
    cost = torch.tensor([[1.0] * 8, [3.0] * 8])
    search = SkipSearch(cost, budget=5)
    for _ in range(80):
        tried = search.propose(seed=1)
        assert len(tried.attention) + 3 * len(tried.mlp) <= 5
        value = float(effect[0, sorted(tried.attention)].sum() + effect[1, sorted(tried.mlp)].sum())
        search.learn(tried, value)
    assert search.best == SkippedBlocks(frozenset({2, 5}), frozenset({3}))


def test_a_found_set_drafts_identically_to_plain_decoding(folder, tmp_path):
    data, out = [folder / "prompts.jsonl"], tmp_path / "out"
    outcome = train("layer_skip", str(folder), data, out, SMALL, device="cpu")
    assert outcome.finished
    assert 0 < outcome.cost < 1
    write_card(outcome, "slipstream train layer_skip", "unknown")
    assert "A drafter of kind layer_skip" in (out / "README.md").read_text()
    facts = describe_drafter(str(out), out)
    assert (facts["kind"], facts["layers"], facts["parameters"]) == ("layer_skip", 2, 0)
    texts = {}
    for drafter, options in ((str(out), {}), ("layer_skip", {"skip": str(out)}), ("none", {})):
        with NativeEngine(str(folder), drafter, depth=3, options=options, dtype="float32") as engine:
            done = engine.generate(["abc", "bdfhk", "ppq"], Sampling(temperature=0), max_tokens=12)
            texts[drafter] = [one.token_ids for one in done]
    assert texts[str(out)] == texts["layer_skip"] == texts["none"]


def test_a_search_that_was_cut_off_ends_with_the_same_set(folder, tmp_path):
    def stop(phase, done, total, new):
        if phase == "training" and done == 5:
            raise KeyboardInterrupt

    data = [folder / "prompts.jsonl"]
    train("layer_skip", str(folder), data, tmp_path / "whole", SMALL, device="cpu")
    with pytest.raises(KeyboardInterrupt):
        train("layer_skip", str(folder), data, tmp_path / "cut", SMALL, device="cpu", on_progress=stop)
    assert not (tmp_path / "cut/config.json").exists()
    train("layer_skip", str(folder), data, tmp_path / "cut", SMALL, device="cpu")
    whole, cut = (torch.load(tmp_path / name / "work/checkpoint.pt", weights_only=True) for name in ("whole", "cut"))
    assert whole["step"] == cut["step"] == 8
    assert all(torch.equal(whole["net"][name], cut["net"][name]) for name in whole["net"])
    sets = [json.loads((tmp_path / name / "config.json").read_text()) for name in ("whole", "cut")]
    assert sets[0]["attention"] == sets[1]["attention"]
    assert sets[0]["mlp"] == sets[1]["mlp"]


@pytest.mark.parametrize("share", ["0", "1", "-0.5"])
def test_a_share_that_skips_nothing_or_all_is_refused(share, folder, tmp_path):
    with pytest.raises(ValueError, match=r"share is .*; it must be above 0 and below 1"):
        train("layer_skip", str(folder), [folder / "prompts.jsonl"], tmp_path, SMALL | {"share": share}, device="cpu")
