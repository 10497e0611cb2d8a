"""The experiments at tiny size: every variant trains, a second call repeats nothing, and the tables fill a page."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

ROOT = Path(__file__).parents[2] / "benchmarks" / "experiments"


@pytest.fixture(scope="module")
def scripts():
    """The modules of the scripts by name."""
    names = [path.stem for path in ROOT.glob("*.py") if path.stem != "charts"]
    before = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        yield {name: importlib.import_module(name) for name in names}
    for name in names:
        sys.modules.pop(name, None)
    sys.modules.update(before)


@pytest.fixture(scope="module")
def out(scripts: dict[str, ModuleType], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one run of every variant."""
    folder = tmp_path_factory.mktemp("experiments")
    (folder / "runs").mkdir()
    lines = [
        json.dumps({"prompt": f"Count to {n}.", "response": " ".join(map(str, range(1, n)))}) for n in range(2, 62)
    ]
    (folder / "data.jsonl").write_text("\n".join(lines))
    run, sizes = scripts["run"], scripts["settings"].SIZES["tiny"]
    scripts["text_data"].prepare(folder / "data.jsonl", folder / "data", sizes)
    for experiment in (2, 1, 3, 4):
        for variant in run.variants(experiment, sizes):
            run.train_one(run.Job(experiment, variant, 0), "tiny", folder, "cpu")
    scripts["summary"].write_summary(folder)
    return folder


def test_every_run_has_a_curve_and_its_cost(scripts, out):
    runs = scripts["summary"].read_runs(out)
    assert {(run["experiment"], run["variant"]) for run in runs} == {
        *((1, variant) for variant in ("early_exit", "prophet")),
        *((2, variant) for variant in ("none", "linear", "transformer")),
        *((3, variant) for variant in ("plain", "recycled")),
        *((4, variant) for variant in ("target", "1x48", "2x32")),
    }
    for run in runs:
        assert [entry["step"] for entry in run["curve"]] == [1, 2]
        assert run["curve"][0]["seconds"] <= run["curve"][1]["seconds"]
        assert run["parameters"] > 0


def test_heads_of_experiment_1_have_equally_many_parameters(scripts, out):
    sizes = [run["head_parameters"] for run in scripts["summary"].read_runs(out) if run["experiment"] == 1]
    assert max(sizes) == pytest.approx(min(sizes), rel=0.01)


def test_draft_models_of_experiment_4_have_equally_many_parameters(scripts, out):
    runs = [run for run in scripts["summary"].read_runs(out) if run["experiment"] == 4 and run["variant"] != "target"]
    assert max(run["parameters"] for run in runs) == pytest.approx(min(run["parameters"] for run in runs), rel=0.03)


def test_runs_of_a_seed_begin_with_the_same_model(scripts, out):
    """The only difference between variants of experiment 2 is the heads' loss."""
    sizes, new_model = scripts["settings"].SIZES["tiny"], scripts["small_model"].new_model
    first, again, other = (new_model(sizes, seed, "cpu").state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["model.embed_tokens.weight"], other["model.embed_tokens.weight"])


def test_recycling_off_is_the_plain_exit(scripts):
    """With nothing recycled, the second pass through the first layers gives the states of the first pass."""
    sizes, recycling = scripts["settings"].SIZES["tiny"], scripts["recycling"]
    from slipstream.train.corpus import SampleBatch
    from slipstream.train.options import EarlyExitTrainOptions
    from slipstream.train.teacher import Teacher

    teacher = Teacher(scripts["small_model"].new_model(sizes, 0, "cpu"))
    method = recycling.RecycledExit(teacher, torch.arange(sizes.vocab), EarlyExitTrainOptions(layer=1))
    tokens = torch.randint(sizes.vocab, (2, 12), generator=torch.Generator().manual_seed(0))
    batch = SampleBatch(tokens, torch.tensor([3, 4]), torch.tensor([12, 10]), torch.zeros(2))
    output = teacher.read(batch, method.layers)
    nowhere = torch.zeros(2, dtype=torch.long)
    torch.testing.assert_close(method._states(batch, output, nowhere), output.features)
    with torch.no_grad():
        method.net.recycled.weight.normal_()
    states = method._states(batch, output, torch.tensor([5, 5]))
    assert not torch.allclose(states[:, 1:6], output.features[:, 1:6])
    torch.testing.assert_close(states[:, 0], output.features[:, 0])


def test_recycled_guesses_follow_the_draft_of_their_base(scripts):
    """A guess is that of a pass in which positions after the base's next token are not recycled."""
    sizes, recycling = scripts["settings"].SIZES["tiny"], scripts["recycling"]
    from slipstream.train.corpus import SampleBatch
    from slipstream.train.options import EarlyExitTrainOptions
    from slipstream.train.teacher import Teacher

    teacher = Teacher(scripts["small_model"].new_model(sizes, 0, "cpu"))
    method = recycling.RecycledExit(teacher, torch.arange(sizes.vocab), EarlyExitTrainOptions(layer=1))
    with torch.no_grad():
        for weight in method.net.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    tokens = torch.randint(sizes.vocab, (1, 12), generator=torch.Generator().manual_seed(1))
    batch = SampleBatch(tokens, torch.tensor([4]), torch.tensor([12]), torch.zeros(1))
    with torch.no_grad():
        output = teacher.read(batch, method.layers)
        guesses = method.guesses(batch, output, 3)
        for base in (3, 6):
            logits = method.net(method._states(batch, output, torch.tensor([base + 1])))[0] @ teacher.output.T
            for step, guess in enumerate(guesses):
                place = base + 1 + step
                assert int(guess.position[0, base]) == place
                expected = logits[place].log_softmax(-1)[tokens[0, place + 1]]
                torch.testing.assert_close(guess.log_prob[0, base], expected)
        assert guesses[0].position[0, :3].tolist() == [-1] * 3


def test_a_second_call_trains_nothing(scripts, out, monkeypatch):
    run = scripts["run"]
    jobs = [run.Job(1, variant, 0) for variant in ("early_exit", "prophet")]
    assert all(run.result(out, job).exists() for job in jobs)
    assert jobs[0].needs == (run.Job(2, "none", 0),)
    arguments = ["run.py", "--device", "cpu", "--data", str(out / "data.jsonl"), "--out", str(out), "--size", "tiny"]
    monkeypatch.setattr(sys, "argv", [*arguments, "--seeds", "1", "--no-speed", "--experiment", "1", "2"])
    monkeypatch.setattr(run, "train_one", lambda *_: pytest.fail("a run that is there was repeated"))
    run.main()


@pytest.mark.slow
def test_speeds_are_added_to_the_runs(scripts, out):
    run = scripts["run"]
    job = run.Job(1, "early_exit", 0)
    sizes = scripts["settings"].SIZES["tiny"]
    data = scripts["text_data"].load(out / "data", sizes)
    speed = scripts["speed"].measure_speed(*run.speed_folders(job, out), data, sizes, "cpu")
    assert set(speed) == set(scripts["summary"].SPEEDS)
    assert speed["tau"] >= 1


def test_tables_replace_what_is_in_their_place(scripts, out):
    tables, summary = scripts["tables"], json.loads((out / "summary.json").read_text())
    page = "before\n<!-- table 2 -->\nold\n<!-- end -->\nafter\n"
    text = tables.table("2", summary["2"])
    assert text.startswith("|  | none | ")
    page = tables.filled(page, "2", text)
    assert "old" not in page
    assert page.startswith("before\n<!-- table 2 -->\n\n|")
    assert page.endswith("<!-- end -->\nafter\n")
    with pytest.raises(SystemExit, match="no place for table 3"):
        tables.filled(page, "3", text)


def test_the_interval_of_paired_differences_is_students(scripts):
    mean, half = scripts["summary"].interval([1.0, 2.0, 3.0])
    assert mean == 2
    assert half == pytest.approx(4.3027 * 1 / 3**0.5, rel=1e-4)
    assert scripts["summary"].interval([1.0]) == (1.0, None)
