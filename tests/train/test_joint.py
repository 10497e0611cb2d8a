"""Joint training: the target learns the answers in the data, the drafter learns the target, and both are saved."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import letters
from slipstream.core.sampling import Sampling
from slipstream.engines.native.engine import NativeEngine
from slipstream.train.answers import given_answers
from slipstream.train.methods.dflash import DflashMethod
from slipstream.train.methods.early_exit import EarlyExitMethod
from slipstream.train.methods.heads import ProphetMethod
from slipstream.train.options import DflashTrainOptions, EarlyExitTrainOptions, ProphetTrainOptions
from slipstream.train.prompts import read_prompts, split
from slipstream.train.run import train
from slipstream.train.teacher import Teacher

SMALL = {"steps": 30, "tokens": 1024, "rate": 0.01, "target_rate": 0.003, "vocab": 17, "answer": 16, "prompt": 32}
IDS = torch.arange(2, 19)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of letters, and data in which an answer repeats the first letter of its prompt."""
    path = tmp_path_factory.mktemp("letters")
    letters.plain().save_pretrained(path)
    letters.tokenizer().save_pretrained(path)
    rng = random.Random(1)
    words = ["".join(rng.choice(letters.LETTERS) for _ in range(rng.randrange(3, 8))) for _ in range(150)]
    lines = [json.dumps({"prompt": word, "response": 8 * word[0]}) for word in words]
    (path / "prompts.jsonl").write_text("\n".join(lines))
    return path


def losses(folder: Path) -> list[float]:
    journal = [json.loads(line) for line in (folder / "work/journal.jsonl").read_text().splitlines()]
    return [entry["loss"] for entry in journal if "loss" in entry]


@pytest.mark.parametrize("method", ["early_exit", pytest.param("dflash", marks=pytest.mark.slow), "prophet"])
def test_both_learn_and_are_used_together(method, folder, tmp_path):
    sizes = {"prophet": {"intermediate": 48, "window": 6}, "early_exit": {"layer": 1, "intermediate": 24}}
    sizes["dflash"] = {"layers": 1, "block": 5, "anchors": 8}
    options = SMALL | {"joint": 1} | sizes[method]
    out = tmp_path / "out"
    outcome = train(method, str(folder), [folder / "prompts.jsonl"], out, options, device="cpu")
    assert outcome.finished
    assert losses(out)[-1] < losses(out)[0] - 0.5
    before, after = (load_file(path / "model.safetensors") for path in (folder, out / "target"))
    assert all(not torch.equal(before[name], after[name]) for name in before)
    about = json.loads((out / "config.json").read_text())
    assert about["target"] == str(out / "target")
    assert (out / "target/tokenizer.json").exists()
    tau = sum(s.emitted for s in outcome.tasks.values()) / sum(s.cycles for s in outcome.tasks.values())
    with NativeEngine(str(out / "target"), str(out), depth=5, dtype="float32") as engine:
        _, held = split(read_prompts([folder / "prompts.jsonl"], engine.target.text, 32, 16), 0.05)
        done = engine.generate([list(p.tokens) for p in held], Sampling(temperature=0), max_tokens=16)
    decoded = sum(len(one.token_ids) for one in done) / sum(one.stats.cycles for one in done)
    assert decoded == pytest.approx(tau, rel=0.05)


def test_a_training_that_was_cut_off_ends_with_the_same_target(folder, tmp_path):
    data, options = [folder / "prompts.jsonl"], SMALL | {"joint": 1, "steps": 4, "heads": 2}

    def stop(phase, done, total, figures):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train("medusa", str(folder), data, tmp_path / "cut", options, device="cpu", on_progress=stop)
    for name in ("cut", "whole"):
        train("medusa", str(folder), data, tmp_path / name, options, device="cpu")
    for part in ("model.safetensors", "target/model.safetensors"):
        cut, whole = (load_file(tmp_path / name / part) for name in ("cut", "whole"))
        assert all(torch.equal(cut[name], whole[name]) for name in whole)


METHODS = {
    "dflash": lambda teacher: DflashMethod(teacher, IDS, DflashTrainOptions(layers=1, block=3, layout="masked")),
    "early_exit": lambda teacher: EarlyExitMethod(teacher, IDS, EarlyExitTrainOptions(layer=1)),
    "prophet": lambda teacher: ProphetMethod(teacher, IDS, ProphetTrainOptions(intermediate=24)),
}


@pytest.mark.parametrize("kind", METHODS)
@pytest.mark.parametrize("joint", [False, True])
def test_the_drafters_loss_reaches_a_target_that_is_trained_and_no_other(kind, joint, folder):
    teacher = Teacher(copy.deepcopy(letters.plain()), joint)
    method = METHODS[kind](teacher)
    batch = given_answers(read_prompts([folder / "prompts.jsonl"], letters.target().text, 32, 8)[:4]).batch([0, 1, 2])
    method.follow_target()
    method.loss(batch, teacher.read(batch, method.layers)).backward()
    reached = teacher.model.model.layers[0].self_attn.q_proj.weight.grad
    assert (reached is not None and bool(reached.any())) == joint
    assert any(p.grad is not None for p in method.net.parameters())


def test_labels_are_the_targets_distribution_or_the_text(folder):
    batch = given_answers(read_prompts([folder / "prompts.jsonl"], letters.target().text, 32, 8)[:2]).batch([0, 1])
    for text_labels in (False, True):
        teacher = Teacher(copy.deepcopy(letters.plain()), joint=True, text_labels=text_labels)
        output = teacher.read(batch)
        labels = teacher.label_probs(batch, output, torch.arange(19))
        assert not labels.requires_grad
        torch.testing.assert_close(labels.sum(-1), torch.ones(len(labels)))
        token = batch.tokens.roll(-1, 1)[batch.supervised]
        expected = (
            torch.eye(19)[token] if text_labels else (output.last @ teacher.output.T)[batch.supervised].softmax(-1)
        )
        torch.testing.assert_close(labels, expected.detach())


def test_answers_come_from_a_response_or_from_the_last_message(tmp_path):
    text, path = letters.target().text, tmp_path / "data.jsonl"
    chat = [{"role": "user", "content": "abc"}, {"role": "assistant", "content": "de"}]
    path.write_text("\n".join(map(json.dumps, ({"messages": chat}, {"prompt": "ab", "response": "ccccc"}))))
    first, second = read_prompts([path], text, 32, 4)
    assert first.tokens == tuple(text.encode("abc"))
    assert first.answer == (6, 7, 0)
    assert second.answer == (5, 5, 5, 5)  # cut, so it has no end


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("layer_skip", {"joint": 1}, "joint is 1, and layer_skip trains no weights; leave joint out"),
        ("mlp", {"joint": 2}, "joint is 2; it must be 0 or 1"),
        ("mlp", {"joint": 1, "answers": "elsewhere"}, "answers of a target that changes cannot be shared"),
        ("mlp", {"joint": 1, "target_rate": 0}, "target_rate is 0.0; it must be above 0"),
        ("mlp", {"joint": 1}, "line 1: joint training needs an answer, a text under `response` or a chat that ends"),
    ],
)
def test_what_cannot_be_trained_together_is_refused(method, options, message, folder, tmp_path):
    (tmp_path / "bare.jsonl").write_text("\n".join(json.dumps({"prompt": word}) for word in ("ab", "cd")))
    with pytest.raises(ValueError, match=message):
        train(method, str(folder), [tmp_path / "bare.jsonl"], tmp_path / "out", options, device="cpu")
