"""Several trainings share the target's answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import letters
from slipstream.train import answers
from slipstream.train.run import train

SMALL = {"steps": 3, "tokens": 256, "vocab": 17, "answer": 12, "prompt": 32, "rows": 4}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("letters")
    letters.plain().save_pretrained(path)
    letters.tokenizer().save_pretrained(path)
    words = ("abc", "bcd", "cde", "efghij")
    (path / "prompts.jsonl").write_text("\n".join(json.dumps({"prompt": word}) for word in words))
    return path


@pytest.fixture(scope="module")
def first(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training that has its own answers."""
    path = tmp_path_factory.mktemp("first")
    run("draft_model", target, path, layers="1")
    return path


def run(method: str, target: Path, out: Path, **more: object) -> None:
    train(method, str(target), [target / "prompts.jsonl"], out, {**SMALL, **more}, device="cpu")


def test_the_answers_of_another_training_are_used(first, target, tmp_path, monkeypatch):
    run("eagle", target, tmp_path / "own")
    monkeypatch.setattr(answers, "generate_answers", None)  # a call would fail
    run("eagle", target, tmp_path / "shared", answers=str(first))
    own, shared = (load_file(tmp_path / name / "model.safetensors") for name in ("own", "shared"))
    assert all(torch.equal(own[name], shared[name]) for name in own)
    assert not (tmp_path / "shared/work/answers").exists()
    assert "answers" not in json.loads((tmp_path / "shared/config.json").read_text())["training"]


def test_a_new_folder_holds_the_answers_of_several_trainings(target, tmp_path, monkeypatch):
    run("eagle", target, tmp_path / "a", answers=str(tmp_path / "answers"))
    assert any((tmp_path / "answers").iterdir())
    monkeypatch.setattr(answers, "generate_answers", None)  # a call would fail
    run("draft_model", target, tmp_path / "b", layers="1", answers=str(tmp_path / "answers"))
    assert (tmp_path / "b/model.safetensors").exists()
    trained = (tmp_path / "a/model.safetensors").read_bytes()
    run("eagle", target, tmp_path / "a", answers=str(tmp_path / "answers"))  # the same command resumes
    assert (tmp_path / "a/model.safetensors").read_bytes() == trained


@pytest.mark.parametrize("change", [{"temperatures": "0"}, {"answer": 11}, {"seed": 1}, {"rows": 5}, {"prompt": 7}])
def test_answers_with_other_settings_are_refused_before_anything_is_written(change, first, target, tmp_path):
    name = "prompts" if "prompt" in change else next(iter(change))
    with pytest.raises(ValueError, match=rf"work holds answers with other settings \({name} was .*; use those"):
        run("eagle", target, tmp_path / "out", answers=str(first), **change)
    assert not (tmp_path / "out").exists()


def test_prompts_that_do_not_fit_into_memory_are_answered_in_halves(target, tmp_path, monkeypatch):
    asked, seeds = [], []
    generate = answers.generate_answers

    def limited(model, anatomy, prompts, temperatures, ends, tokens, seed):
        asked.append(len(prompts))
        if len(prompts) > 1:
            raise torch.cuda.OutOfMemoryError("out of memory")
        seeds.append(seed)
        return generate(model, anatomy, prompts, temperatures, ends, tokens, seed)

    monkeypatch.setattr(answers, "generate_answers", limited)
    run("eagle", target, tmp_path / "halves")
    assert max(asked) == 4
    assert len(set(seeds)) == len(seeds) >= 6, "no two of them draw the same numbers"
    assert json.loads((tmp_path / "halves/config.json").read_text())["answered_tokens"] > 20

    def never(*_):
        raise torch.cuda.OutOfMemoryError("out of memory")

    monkeypatch.setattr(answers, "generate_answers", never)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        run("eagle", target, tmp_path / "none")
