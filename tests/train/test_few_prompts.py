"""Small trainings: few prompts, few steps, and what they report."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from typer.testing import CliRunner

import letters
from slipstream.cli.app import app
from slipstream.train.options import GROUPS, describe
from slipstream.train.prompts import TrainingPrompt, split
from slipstream.train.report import draw_curves, summary, table_rows
from slipstream.train.run import train

SMALL = {"steps": 3, "tokens": 256, "vocab": 17, "answer": 12, "prompt": 32, "rows": 4}
WORDS = ["abc", "bcd", "cde", "def", "efg"]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("letters")
    letters.plain().save_pretrained(path)
    letters.tokenizer().save_pretrained(path)
    return path


def data(folder: Path, words: list[str]) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": word}) for word in words))
    return path


def run(target: Path, folder: Path, words: list[str] = WORDS, **more):
    arguments = {name: more.pop(name) for name in ("minutes", "on_progress") if name in more}
    path = data(folder, words)
    return train("eagle", str(target), [path], folder / "out", SMALL | more, device="cpu", **arguments)


@pytest.mark.parametrize("count", [2, 3, 19, 20, 400])
def test_the_split_leaves_prompts_on_both_sides(count):
    for start in range(0, 4000, count):
        prompts = [TrainingPrompt((n,), "x") for n in range(start, start + count)]
        kept, held = split(prompts, 0.05)
        assert kept
        assert held
        assert sorted(kept + held, key=lambda prompt: prompt.tokens) == prompts


@pytest.mark.parametrize("words", [WORDS, WORDS[:2]])
def test_few_prompts_are_enough(words, target, tmp_path):
    outcome = run(target, tmp_path, words)
    assert outcome.finished
    assert (tmp_path / "out/model.safetensors").exists()


def test_one_prompt_is_refused_before_anything_is_written(target, tmp_path):
    with pytest.raises(ValueError, match=r"prompts.jsonl holds one prompt .*; training needs two, one is held out"):
        run(target, tmp_path, ["abc", "abc"])
    assert not (tmp_path / "out").exists()


def test_progress_counts_answers(target, tmp_path):
    seen = defaultdict(list)
    run(target, tmp_path, on_progress=lambda phase, done, total, _: seen[phase].append((done, total)))
    assert seen["answers to train on"] == [(0, 8), (4, 8), (8, 8)]  # four prompts at two temperatures, four in a batch
    assert seen["held-out answers"] == [(0, 2), (2, 2)]
    assert seen["training"] == [(1, 3), (2, 3), (3, 3)]


def test_a_tau_that_was_not_measured_is_not_zero(target, tmp_path):
    outcome = run(target, tmp_path, temperatures="0")
    (task,) = summary(outcome)["tasks"].values()
    assert task["tau_greedy"] >= 1
    assert task["tau_sampled"] is None
    assert [row[2] for row in table_rows(outcome)] == ["not measured", "not measured"]
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert [set(tau) for tau in config["tau"].values()] == [{"greedy"}]


def test_tau_at_temperature_1_is_measured_on_answers_of_temperature_1_alone(target, tmp_path):
    (sums,) = run(target, tmp_path, temperatures="0.5").tasks.values()
    assert sums.greedy is None
    assert sums.sampled is None


def curves(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """The number of visible points of every curve, by panel."""
    panels = {}

    def look(figure, path, **_):
        for axis in figure.axes:
            assert all(line.get_marker() == "o" for line in axis.lines)
            panels[axis.get_title()] = [len(line.get_xdata()) for line in axis.lines]

    monkeypatch.setattr(Figure, "savefig", look)
    draw_curves(folder)
    return panels


def test_a_short_training_has_curves(target, tmp_path, monkeypatch):
    run(target, tmp_path)
    assert curves(tmp_path / "out", monkeypatch) == {"loss": [3], "tau on held-out prompts": [3, 3]}


def test_panels_without_values_are_left_out(tmp_path, monkeypatch):
    (tmp_path / "work").mkdir()
    (tmp_path / "work/journal.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    assert curves(tmp_path, monkeypatch) == {"loss": [1]}
    (tmp_path / "work/journal.jsonl").write_text("")
    assert draw_curves(tmp_path) is None


def test_the_losses_before_a_stop_are_in_the_journal(target, tmp_path):
    def stop(phase, done, total, figures):
        if phase == "training" and done == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(target, tmp_path, steps=200, on_progress=stop)
    entries = [json.loads(line) for line in (tmp_path / "out/work/journal.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in entries if "loss" in entry] == [7]


def test_other_prompts_do_not_resume_a_training(target, tmp_path):
    run(target, tmp_path)
    with pytest.raises(ValueError, match=r"holds a training with other settings \(prompts was '"):
        run(target, tmp_path, [*WORDS, "fgh"])


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"minutes": 0}, "minutes is 0; it must be above 0"),
        ({"rate": 0}, "rate is 0.0; it must be above 0"),
        ({"rows": -1}, "rows is -1; it must be 0 or more"),
        ({"temperatures": "0,nan"}, "temperatures is '0,nan'; each must be 0 or more"),
    ],
)
def test_bad_numbers_are_refused(more, message, target, tmp_path):
    with pytest.raises(ValueError, match=message):
        run(target, tmp_path, **more)


def test_help_lists_every_option_with_its_default():
    text = " ".join(CliRunner().invoke(app, ["train", "--help"]).output.split())
    for kind in GROUPS.values():
        for name, about, default in describe(kind):
            assert f"{name} {about} [default: {default}]" in text


def test_the_page_lists_every_option_with_its_default():
    page = (Path(__file__).parents[2] / "docs/train.md").read_text()
    for kind in GROUPS.values():
        for name, about, default in describe(kind):
            assert f"| `{name}` | {default} | {about} |" in page


def test_the_verb_says_what_was_not_measured(target, tmp_path):
    words = [
        "train",
        "eagle",
        "-m",
        str(target),
        "--data",
        str(data(tmp_path, WORDS)),
        "--out",
        str(tmp_path / "[out]"),
    ]
    settings = [word for key, value in (SMALL | {"temperatures": "0"}).items() for word in ("-o", f"{key}={value}")]
    done = CliRunner().invoke(app, [*words, "--device", "cpu", *settings])
    assert done.exit_code == 0, done.output
    assert "0.00" not in done.output
    assert "not measured: no held-out answer has that temperature" in done.output
    assert f"-d {tmp_path / '[out]'}" in done.output
