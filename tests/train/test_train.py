"""Training on the language model of letters: it learns, it can be cut off, and its figures are what decoding shows."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import letters
from slipstream.cli.app import app
from slipstream.core.sampling import Sampling
from slipstream.engines.native.engine import NativeEngine
from slipstream.train.batch_decode import generate_answers
from slipstream.train.corpus import Corpus, collect, shards
from slipstream.train.loop import Schedule
from slipstream.train.methods.eagle import EagleMethod, attend
from slipstream.train.methods.early_exit import EarlyExitMethod
from slipstream.train.options import EagleTrainOptions, EarlyExitTrainOptions
from slipstream.train.prompts import TrainingPrompt, read_prompts, split
from slipstream.train.report import summary
from slipstream.train.run import train
from slipstream.train.tau import walk
from slipstream.train.teacher import Teacher

ENDS = frozenset({0})
SMALL = {"steps": 40, "tokens": 512, "rate": 0.01, "vocab": 17, "answer": 16, "prompt": 32, "rows": 64}


@pytest.fixture(scope="module")
def teacher() -> Teacher:
    return Teacher(copy.deepcopy(letters.plain()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("letters")
    letters.plain().save_pretrained(path)
    letters.tokenizer().save_pretrained(path)
    rng = random.Random(1)
    words = ["".join(rng.choice(letters.LETTERS) for _ in range(rng.randrange(3, 12))) for _ in range(400)]
    lines = [json.dumps({"prompt": word, "task": f"t{i % 2}"}) for i, word in enumerate(words)]
    (path / "prompts.jsonl").write_text("\n".join(lines))
    return path


def prompts(count: int) -> list[TrainingPrompt]:
    rng = random.Random(0)
    return [
        TrainingPrompt((1, *(rng.randrange(3, 19) for _ in range(rng.randrange(2, 9))), 2), "x") for _ in range(count)
    ]


def corpus(teacher: Teacher, folder: Path, count: int = 24) -> Corpus:
    def answer(some, temperatures, seed):
        return generate_answers(teacher.model, teacher.anatomy, [p.tokens for p in some], temperatures, ENDS, 12, seed)

    return collect(folder, shards(prompts(count), [0.0, 1.0], 16, 0), answer, lambda done: None)


def test_answers_in_a_batch_are_those_of_plain_decoding(teacher):
    asked = [prompt.tokens for prompt in prompts(12)]
    answers = generate_answers(teacher.model, teacher.anatomy, asked, [0.0] * 12, ENDS, 40, 0)
    for prompt, answer in zip(asked, answers, strict=True):
        text, expected = list(prompt), []
        while len(expected) < 40 and expected[-1:] != [0]:
            expected.append(int(letters.plain()(torch.tensor([text])).logits[0, -1].argmax()))
            text.append(expected[-1])
        assert answer == expected


def test_sampled_answers_follow_the_seed(teacher):
    asked = [prompt.tokens for prompt in prompts(8)]
    first, again, other = (
        generate_answers(teacher.model, teacher.anatomy, asked, [1.0] * 8, ENDS, 12, seed) for seed in (3, 3, 4)
    )
    assert first == again != other


def test_step_j_attends_to_true_slots_and_its_own_earlier_steps():
    torch.manual_seed(0)
    q = torch.randn(2, 5, 4, 8)
    past = [(torch.randn(2, 5, 2, 8), torch.randn(2, 5, 2, 8)) for _ in range(3)]
    found = attend(q, past)
    for row, base, head in [(0, 0, 0), (1, 3, 2), (0, 4, 3)]:
        keys = [past[0][0][row, i, head // 2] for i in range(base + 1)] + [k[row, base, head // 2] for k, _ in past[1:]]
        values = [past[0][1][row, i, head // 2] for i in range(base + 1)]
        values += [v[row, base, head // 2] for _, v in past[1:]]
        weights = (torch.stack(keys) @ q[row, base, head] / 8**0.5).softmax(0)
        torch.testing.assert_close(found[row, base, head], weights @ torch.stack(values))


def test_walk_counts_passes():
    assert walk([9, 9, 0, 2, 0, 1, 0, 0], prompt=3, length=8) == (5, 3)  # 1, then 1 + 0, then 1 + 2
    assert walk([9, 9, 9, 9, 9, 9], prompt=3, length=3) == (0, 1)


def test_every_sample_is_in_an_epoch_once_and_batches_keep_to_their_size(teacher, tmp_path):
    data = corpus(teacher, tmp_path)
    batches = data.epoch(256, seed=1)
    assert sorted(sample for batch in batches for sample in batch) == list(range(len(data)))
    for samples in batches:
        assert data.batch(samples).tokens.numel() <= 256 or len(samples) == 1
    assert data.epoch(256, seed=1) == batches != data.epoch(256, seed=2)
    batch = data.batch(batches[0])
    for row, (prompt, length) in enumerate(zip(batch.prompt_length.tolist(), batch.length.tolist(), strict=True)):
        assert batch.supervised[row].nonzero()[:, 0].tolist() == list(range(prompt - 1, length - 1))


MEDUSA = pytest.param("medusa", marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "method",
    ["eagle", "dflash", "draft_model", "early_exit", MEDUSA, "mlp", "prophet"],
)
def test_it_learns_and_its_greedy_tau_is_what_decoding_shows(method, folder, tmp_path):
    sizes = {"draft_model": {"layers": "1"}, "mlp": {"inner": 48}, "prophet": {"intermediate": 48, "window": 6}}
    sizes["early_exit"] = {"layer": 1, "intermediate": 24}
    sizes["dflash"] = {"layers": 1, "block": 5, "anchors": 8}
    options = SMALL | {"answers": folder / "answers"} | sizes.get(method, {})
    outcome = train(method, str(folder), [folder / "prompts.jsonl"], tmp_path / "out", options, device="cpu")
    journal = [json.loads(line) for line in (tmp_path / "out/work/journal.jsonl").read_text().splitlines()]
    losses = [entry["loss"] for entry in journal if "loss" in entry]
    assert losses[-1] < losses[0] - 0.05
    assert outcome.finished
    assert set(outcome.tasks) <= {"t0", "t1"}
    assert _decoded_tau(folder, tmp_path / "out", outcome.tasks.keys()) == pytest.approx(
        sum(s.emitted for s in outcome.tasks.values()) / sum(s.cycles for s in outcome.tasks.values()), rel=0.03
    )


def _decoded_tau(model: Path, drafter: Path, tasks) -> float:
    """Greedy decoding of the held-out prompts at depth five, through the engine, with the folder as it loads. It is
    stored in int8, so a close call may fall otherwise than in training: rarely."""
    with NativeEngine(str(model), str(drafter), depth=5, dtype="float32") as engine:
        _, held = split(read_prompts([model / "prompts.jsonl"], engine.target.text, 32), 0.05)
        done = engine.generate([list(p.tokens) for p in held], Sampling(temperature=0), max_tokens=16)
        return sum(len(one.token_ids) for one in done) / sum(one.stats.cycles for one in done)


def test_a_training_that_was_cut_off_ends_with_the_same_weights(folder, tmp_path):
    data = [folder / "prompts.jsonl"]

    def stop(phase, done, total, new):
        if phase == "training" and done == 7:
            raise KeyboardInterrupt

    short = SMALL | {"steps": 12}
    train("eagle", str(folder), data, tmp_path / "whole", short, device="cpu")
    with pytest.raises(KeyboardInterrupt):
        train("eagle", str(folder), data, tmp_path / "cut", short, device="cpu", on_progress=stop)
    state = torch.load(tmp_path / "cut/work/checkpoint.pt", weights_only=True)
    assert state["step"] == 7
    train("eagle", str(folder), data, tmp_path / "cut", short, device="cpu")
    whole, cut = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "cut"))
    assert all(torch.equal(whole[name], cut[name]) for name in whole)


def test_the_loss_is_finite_where_answers_are_shorter_than_the_roll_out(teacher, tmp_path):
    data = corpus(teacher, tmp_path, count=4)
    batch = data.batch([int(data.lengths.argmin())])
    student = EagleMethod(teacher, torch.arange(17), EagleTrainOptions(unroll=20))
    assert torch.isfinite(student.loss(batch, teacher.read(batch, student.layers)))


def test_an_exit_head_starts_as_the_next_layer_of_the_target(teacher, tmp_path):
    """The first of two layers and a copy of the second are the target itself."""
    data = corpus(teacher, tmp_path, count=4)
    batch, ids = data.batch(range(4)), torch.arange(len(teacher.output))
    student = EarlyExitMethod(teacher, ids, EarlyExitTrainOptions(layer=1))
    output = teacher.read(batch, student.layers)
    expected = teacher.log_probs(output.last[batch.supervised], ids)
    torch.testing.assert_close(student.logits(batch, output).log_softmax(-1), expected, atol=1e-4, rtol=1e-3)


def test_the_rate_climbs_and_falls():
    schedule = Schedule(steps=100, tokens=1, rate=1.0, warmup=10, seed=0)
    rates = [schedule.at(step) for step in range(100)]
    assert rates[0] == 0.1
    assert max(rates) == rates[9] == 1.0
    assert rates[9:] == sorted(rates[9:], reverse=True)
    assert rates[-1] == pytest.approx(0.1, abs=0.01)


def test_the_verb_writes_a_card_and_curves(folder, tmp_path):
    out = tmp_path / "out"
    words = ["train", "eagle", "-m", str(folder), "--data", str(folder / "prompts.jsonl"), "--out", str(out)]
    settings = [word for key, value in (SMALL | {"steps": 4}).items() for word in ("-o", f"{key}={value}")]
    done = CliRunner().invoke(app, [*words, "--device", "cpu", "--json", *settings])
    assert done.exit_code == 0, done.output
    report = json.loads(done.output.splitlines()[-1])
    assert report["finished"]
    assert 0 < report["cost"] < 1
    card = (out / "README.md").read_text()
    assert "prompts.jsonl" in card
    assert "train eagle" not in card or "Commit" in card


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"stepz": 3}, "eagle has no option 'stepz'; it takes features"),
        ({"steps": "many"}, "option steps of eagle is 'many'; it must be of type int"),
        ({"features": "9"}, "features names layer 9; the target has layers 0 to 1"),
        ({"temperatures": "hot"}, "temperatures is 'hot'; write numbers such as 0,1"),
        ({"precision": "int3"}, "precision is 'int3'; it must be int8, int6 or bf16"),
        ({"unroll": 0}, "unroll is 0; it must be 1 or more"),
        ({"prompt": 1}, "holds no prompt of at most 1 tokens"),
    ],
)
def test_bad_options_are_refused_by_name(options, said, folder, tmp_path):
    with pytest.raises(ValueError, match=said):
        train("eagle", str(folder), [folder / "prompts.jsonl"], tmp_path, SMALL | options, device="cpu")


@pytest.mark.parametrize(
    ("method", "options", "said"),
    [
        ("early_exit", {"layer": 2}, "layer is 2; the target has 2 layers, so it must be 1 to 1"),
        ("early_exit", {"window": 0}, "window is 0; it must be 1 or more"),
        ("medusa", {"heads": 0}, "heads is 0; it must be 1 or more"),
        ("medusa", {"inner": 3}, "medusa has no option 'inner'; it takes features, heads, decay, focus, blocks, "),
        ("medusa", {"recurrent": -1}, "recurrent is -1; it must be 0 or more"),
        (
            "prophet",
            {"projection": "linear", "recurrent": 8},
            "projection=linear see no drafted tokens; leave recurrent",
        ),
        ("mlp", {"inner": 0}, "inner is 0; it must be 1 or more"),
        ("mlp", {"focus": 2}, "focus is 2.0; it must be between 0 and 1"),
        ("mlp", {"decay": 0}, "decay is 0.0; it must be above 0 and at most 1"),
        ("prophet", {"projection": "cubic"}, "projection is 'cubic'; it must be transformer or linear"),
        ("prophet", {"features": "2"}, "features names layer 2; the target has layers 0 to 1"),
    ],
)
def test_bad_options_of_heads_are_refused_by_name(method, options, said, folder, tmp_path):
    with pytest.raises(ValueError, match=said):
        train(method, str(folder), [folder / "prompts.jsonl"], tmp_path, SMALL | options, device="cpu")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"prompt": "ab"}\nnonsense', "bad.jsonl, line 2: not JSON"),
        ("[1]", "bad.jsonl, line 1: a line is an object"),
        ('{"text": "ab"}', "bad.jsonl, line 1: neither a text under `prompt` nor a chat under `messages`"),
    ],
)
def test_a_malformed_line_is_named(text, said, tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=said):
        read_prompts([path], letters.target().text, 32)


def test_a_folder_goes_on_with_its_own_settings_only(folder, tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work/settings.json").write_text(json.dumps({"steps": 7}))
    with pytest.raises(ValueError, match="holds a training with other settings"):
        train("eagle", str(folder), [folder / "prompts.jsonl"], tmp_path, SMALL, device="cpu")


def test_a_target_whose_logits_are_more_than_a_matrix_is_refused():
    import tiny

    with pytest.raises(ValueError, match="its logits are more than its output matrix"):
        Teacher(tiny.build("gemma2"))


def test_summary_is_plain(folder, tmp_path):
    outcome = train("eagle", str(folder), [folder / "prompts.jsonl"], tmp_path, SMALL | {"steps": 2}, device="cpu")
    assert json.loads(json.dumps(summary(outcome)))["parameters"] == outcome.parameters
