"""`slipstream bench --task` as a user runs it, on tiny models."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import letters_folder
from slipstream.bench.tasks.calibrate import RuleFigures
from slipstream.bench.tasks.curve_runs import spread
from slipstream.bench.tasks.outcome import Answered, TaskOutcome
from slipstream.bench.tasks.problems import Problem, TaskSet
from slipstream.cli.plan.calibrate import words_of


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("task")
    letters_folder.write(folder / "large")
    letters_folder.write(folder / "small", noise=0.1)
    (folder / "t.jsonl").write_text(
        '{"prompt": "abcabc", "checker": "regex", "answer": "[a-h]"}\n'
        '{"prompt": "ponm", "checker": "exact", "answer": "no"}\n'
        '{"prompt": "kl", "checker": "number", "answer": 7}\n'
    )
    return folder


def route(place, threshold, *more):
    words = ["--route", "request", "--small", str(place / "small"), "--threshold", str(threshold)]
    return ["bench", "--task", str(place / "t.jsonl"), "-m", str(place / "large"), *words, "--max-tokens", "8", *more]


def test_a_task_with_one_model(place, slipstream):
    done = slipstream("bench", "--task", str(place / "t.jsonl:2"), "-m", str(place / "large"), "--json")
    low, high = done.report["accuracy_interval"]
    assert 0 <= low <= done.report["accuracy"] <= high <= 1
    assert (done.report["problems"], done.report["lossless"], done.report["large_share"]) == (2, True, 1.0)
    assert done.report["max_tokens"] == 512
    assert "t, 2 problems" in done.stdout


def test_a_route(place, slipstream, tmp_path):
    small = slipstream(*route(place, 0, "--json")).report
    large = slipstream(*route(place, 1, "--json")).report
    assert (small["large_share"], large["large_share"]) == (0.0, 1.0)
    assert {answer["model"] for answer in small["answers"]} == {"small"}
    middle = slipstream(*route(place, 0.3, "--score", "entropy", "--out", str(tmp_path), "--json"))
    report = middle.report
    assert report["lossless"] is small["lossless"] is large["lossless"] is False
    assert report["seconds_per_request"] > 0
    assert all(0 <= answer["score"] <= 1 for answer in report["answers"])
    assert report["large_share"] == pytest.approx(sum(a["score"] <= 0.3 for a in report["answers"]) / 3, abs=1e-4)
    assert "lossless: false; route(score=entropy, threshold=0.3)" in middle.stdout
    assert '"text"' in (tmp_path / "results.json").read_text()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--threshold", "1.5"], "error: threshold is 1.5; it must be between 0 (the small model alone) and 1 (the"),
        (["--route", "words"], "error: route is 'words'; it must be one of request, token"),
        (
            ["--score", "luck"],
            "error: there is no score called 'luck'; one of agreement, entropy, learned, mean, quantile",
        ),
        (["--task", "nothing.jsonl"], "error: there is no task 'nothing.jsonl'; it must be humaneval, mbpp, gsm8k or"),
        (["--depth", "1,2"], "error: depth is '1,2'; with --task it must be one number"),
        (["-d", "ngram", "-d", "none"], "error: --task measures one setup, and drafter has 2 values; give one"),
        (["--workload", "code"], "error: --task and --workload are both given; --workload belongs to workloads"),
        (["--max-tokens", "0"], "error: max_tokens is 0; it must be 1 or more"),
        (["--small", "/nowhere"], "error: "),
    ],
)
def test_mistakes_are_one_sentence(place, slipstream, words, sentence):
    done = slipstream(*route(place, 0.5, *words))
    assert done.returncode == 2
    assert done.stderr.startswith(sentence)
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--threshold", "0.5"], "--threshold is given without --task"),
        (["--task", "t.jsonl", "--small", "x"], "belong to a route; add --route request or token"),
        (["--task", "t.jsonl", "--route", "request", "--small", "x"], "--route request needs --threshold T"),
        (["--task", "t.jsonl", "--route", "request", "--threshold", "0"], "--route request needs --small MODEL"),
    ],
)
def test_flags_that_lack_others(place, slipstream, words, sentence):
    done = slipstream("bench", "-m", str(place / "large"), *words)
    assert (done.returncode, sentence in done.stderr) == (2, True)


def test_a_token_route(place, slipstream):
    words = ["--route", "token", "--small", str(place / "small"), "--threshold", "0.2", "--max-tokens", "8", "--json"]
    report = slipstream("bench", "--task", str(place / "t.jsonl"), "-m", str(place / "large"), *words).report
    assert (report["lossless"], report["rule"]) == (False, "bild(fallback=0.2, argmax=true)")
    assert 0 < report["large_share"] <= 1


def test_a_curve(place, slipstream, tmp_path):
    words = ["--small", str(place / "small"), "--curve", "--verify", "lenient,cascade_token", "--max-tokens", "8"]
    task = ["bench", "--task", str(place / "t.jsonl"), "-m", str(place / "large")]
    done = slipstream(*task, *words, "--out", str(tmp_path), "--json")
    points = done.report["points"]
    kinds = [point["kind"] for point in points]
    assert kinds[:3] == ["small", "large", "exact"]
    assert kinds.count("lenient") == kinds.count("cascade_token") == 5
    assert {point["lossless"] for point in points[1:3]} == {True}
    assert points[2]["difference"] == 0
    assert any(not point["dominated"] for point in points)
    assert all(point["joules_per_request"] is None for point in points)
    assert kinds.count("request") >= 1
    assert all(point["rule"].startswith("route(score=mean") for point in points if point["kind"] == "request")
    assert "<svg" in (tmp_path / "curve.svg").read_text()
    answers = (tmp_path / "answers.jsonl").read_text()
    (tmp_path / "answers.jsonl").write_text(answers + '{"name": "cut o')  # an interrupted run
    again = slipstream(
        "bench", "--task", str(place / "t.jsonl"), "-m", "/nowhere", *words, "--out", str(tmp_path), "--json"
    )
    assert again.report["points"] == points  # nothing runs again
    assert (tmp_path / "answers.jsonl").read_text() == answers
    other = slipstream(*task, *words, "--out", str(tmp_path), "--batch", "2")
    assert "holds answers with batch 1, not 2; use another --out" in other.stderr
    assert "points against the large model" in done.report["finding"]
    assert "dominated" in done.stdout
    wrong = slipstream(*task, "--small", "x", "--curve", "--verify", "block")
    assert "verify is 'block'; a curve takes none, or the lossy rules cascade_chow" in wrong.stderr
    assert "--curve needs --small MODEL" in slipstream(*task, "--curve").stderr


def test_several_problems_at_a_time(place, slipstream):
    one = slipstream(*route(place, 0.3, "--json")).report
    three = slipstream(*route(place, 0.3, "--batch", "3", "--json")).report
    for name in ("accuracy", "large_share", "tokens_per_request"):
        assert one[name] == three[name]
    assert len({answer["seconds"] for answer in three["answers"]}) == 1


def test_the_module_does_the_same(place, capsys):
    from slipstream.bench.__main__ import main

    words = ["--task", str(place / "t.jsonl"), "-m", str(place / "large")]
    for wrong, sentence in (
        (["--curve"], "error: --curve needs --small MODEL, and neither --route nor --threshold"),
        (["--route", "request", "--threshold", "0.5"], "error: --route request needs --small MODEL"),
        (["--route", "request", "--small", "x"], "error: --route request needs --threshold T"),
        (["-d", "ngram", "-o", "size=3"], "error: ngram has no option 'size'"),
        (["-o", "size"], "error: option 'size' is not of the form key=value"),
        (["--answers-only"], "error: --answers-only needs --curve and --out DIR"),
        (["--batch", "1,2"], "error: batch is '1,2'; with --task it must be one number"),
    ):
        assert main([*words, *wrong]) == 2
        assert capsys.readouterr().err.startswith(sentence)
    assert main(["--small", "x"]) == 2
    assert "--small is given without --task" in capsys.readouterr().err
    assert main([*words, "--max-tokens", "6", "--json"]) == 0
    assert '"lossless": true' in capsys.readouterr().out


def test_a_curve_is_answered_here_and_graded_there(place, tmp_path, capsys):
    from slipstream.bench.__main__ import main

    words = ["--task", str(place / "t.jsonl:1"), "--small", str(place / "small"), "--curve", "--verify", "none"]
    words += ["--max-tokens", "4", "--batch", "2", "--out", str(tmp_path), "-m"]
    assert main([*words, str(place / "large"), "--answers-only"]) == 0
    assert not (tmp_path / "curve.json").exists()
    assert main([*words, "a model that is not here"]) == 0
    assert "points against the large model" in capsys.readouterr().out
    assert (tmp_path / "curve.json").exists()


def test_a_curve_is_timed_on_some_problems_with_the_quality_of_all(place, tmp_path, capsys):
    from slipstream.bench.__main__ import main

    words = ["--task", str(place / "t.jsonl"), "--small", str(place / "small"), "--curve", "--verify", "none"]
    words += ["--max-tokens", "4", "--limit", "2", "--quality-batch", "3", "--out", str(tmp_path), "--json", "-m"]
    assert main([*words, str(place / "large")]) == 0
    said = capsys.readouterr().out.splitlines()
    report = json.loads(said[-1])
    assert (report["problems"], report["batch"]) == (3, 3)
    assert {key: report["timing"][key] for key in ("problems", "batch", "same_texts")} == {
        "problems": 2, "batch": 1, "same_texts": 1.0
    }  # fmt: skip
    machine = report["hardware"]["accelerator"] or report["hardware"]["processor"]
    assert report["timing"]["hardware"] == report["hardware"]
    assert report["missing"] == []
    where = f"quality: 3 problems, 3 at a time, on {machine}; time and energy: 2 of them, 1 at a time, on {machine}; "
    assert any(line.startswith(where + "100 % of the timed answers") for line in said)
    points = report["points"]
    assert [point["timed_large_share"] for point in points[:3]] == [None, 1, 1]
    assert all(point["seconds_per_request"] > 0 for point in points)
    assert json.loads((tmp_path / "curve-batch-1.json").read_text())["points"] == points
    for name, runs in (("answers.jsonl", 3), ("times-batch-1.jsonl", 2)):
        lines = [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
        assert [len(line["answers"]) for line in lines[1:]] == [runs] * len(points)
    assert main([*words, "a model that is not here"]) == 0, "all runs are in the files"


def test_a_curve_ends_in_time_and_goes_on_later(place, tmp_path, capsys):
    from slipstream.bench.__main__ import main

    words = ["--task", str(place / "t.jsonl:1"), "--small", str(place / "small"), "--curve", "--verify", "none"]
    words += ["--max-tokens", "4", "--out", str(tmp_path), "-m", str(place / "large")]
    assert main([*words, "--time-limit", "0"]) == 2
    assert "the time limit ended before the large model was measured; give more time" in capsys.readouterr().err
    assert main(words) == 0
    answers = tmp_path / "answers.jsonl"
    answers.write_text("".join(answers.read_text().splitlines(keepends=True)[:4]))  # without the routes
    assert main([*words, "--time-limit", "0", "--json"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [point["kind"] for point in report["points"]] == ["small", "large", "exact"]
    assert [name.startswith("route(score=mean") for name in report["missing"]] == [True]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--limit", "4"], "error: limit is 4, and the task has 3 problems; give fewer"),
        (["--limit", "0"], "error: limit is 0; it must be 1 or more"),
        (["--quality-batch", "8"], "error: --quality-batch is for a curve that is timed on some problems; add --limit"),
        (["--time-limit", "-1"], "error: time_limit is -1; it must be 0 seconds or more"),
    ],
)
def test_mistakes_in_the_scope_of_a_curve(place, capsys, words, sentence):
    from slipstream.bench.__main__ import main

    task = ["--task", str(place / "t.jsonl"), "-m", str(place / "large")]
    assert main([*task, "--small", str(place / "small"), "--curve", *words]) == 2
    assert capsys.readouterr().err.startswith(sentence)
    assert main([*task, *words]) == 2
    assert f"{words[0]} belongs to a curve; add --curve" in capsys.readouterr().err


def test_timed_problems_are_spread_over_the_scores():
    problems = tuple(Problem(str(n), "x", "exact", "y") for n in range(10))
    scores = [0.9, 0.1, 0.8, 0.2, 0.7, 0.3, 0.6, 0.4, 0.5, 0.05]
    answers = tuple(Answered(str(n), 1.0, 1, 0.0, score=score) for n, score in enumerate(scores))
    task = TaskSet("t", problems)
    chosen = spread(task, TaskOutcome(task, answers, True, "greedy"), 5)
    assert [problem.id for problem in chosen.problems] == ["0", "1", "4", "5", "8"]


def test_a_classifier_is_trained_and_used(place, slipstream, tmp_path):
    lines = [
        f'{{"prompt": "{prompt}", "checker": "regex", "answer": "{answer}"}}'
        for prompt in ("abcabc", "ponm", "kl", "fgh", "nnn", "bdf", "mlk", "eee", "hgf", "jkl")
        for answer in (".", "#")
    ]
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    save = tmp_path / "classifier.json"
    words = ["-m", str(place / "large"), "--small", str(place / "small"), "--max-tokens", "6", "--json"]
    task = ["--task", str(tmp_path / "t.jsonl")]
    calibrated = slipstream(
        "plan", "calibrate", *words, *task, "--score", "learned", "--save", str(save), "--max-share", "0.5"
    )
    assert calibrated.report["score"] == f"learned(file={save})"
    assert 0 <= calibrated.report["cross_validation"]["auc"] <= 1
    assert "5-fold cross-validation over 20 answers" in calibrated.stdout
    used = ["--route", "request", "--threshold", "0.5", "--score", f"learned(file={save})"]
    report = slipstream("bench", *words, *task, *used).report
    assert all(0 < answer["score"] < 1 for answer in report["answers"])
    wrong = slipstream("bench", "-m", str(place / "large"), "--small", str(place / "large"), *task, *used)
    assert (wrong.returncode, "is another model" in wrong.stderr) == (2, True)
    for options, sentence in (
        (["--score", "learned"], "score is learned; add --save FILE"),
        (["--score", "mean", "--save", "x"], "--save is for a new classifier"),
    ):
        done = slipstream("plan", "calibrate", *words, *task, *options)
        assert (done.returncode, sentence in done.stderr) == (2, True)


def test_calibrate_and_choose(place, slipstream):
    words = ["--task", str(place / "t.jsonl"), "-m", str(place / "large"), "--small", str(place / "small")]
    few = slipstream("plan", "calibrate", *words)
    assert (few.returncode, few.stderr.strip()) == (
        2,
        "error: 3 problems cannot bound a loss of 2 points at 95 %; it takes at least 149",
    )
    found = slipstream("plan", "calibrate", *words, "--margin", "0.9", "--max-tokens", "6", "--json").report
    assert (found["threshold"], found["large_share"], found["lossless"]) == (0.0, 0.0, False)
    assert found["rule"].startswith("route(score=mean, threshold=")
    half = slipstream("plan", "calibrate", *words, "--max-share", "0.4", "--max-tokens", "6", "--json").report
    assert half["large_share"] == pytest.approx(1 / 3, abs=1e-4)
    loose = [*words, "--margin", "0.9", "--max-tokens", "6", "--json"]
    outcome = TaskOutcome(TaskSet("t", ()), (Answered("1", 1.0, 1, 1.0, correct=True),), None, "")
    chosen = slipstream("plan", "choose", *loose).report["candidates"]
    assert [entry["rule"].partition("(")[0] for entry in chosen[:3]] == ["route"] * 3
    assert [(entry["verify"], entry["lossless"]) for entry in chosen[3:]] == [
        (None, True), ("lenient(factor=2)", False), ("cascade_token(alpha=0.3)", False)
    ]  # fmt: skip
    assert chosen[3]["difference"] == 0, "exact speculation answers as the large model does"
    assert all(entry["large_seconds_per_request"] == chosen[0]["large_seconds_per_request"] for entry in chosen)
    few = slipstream("plan", "choose", *loose, "--verify", "none").report
    assert len(few["candidates"]) == 3
    rule, exact = (replace(RuleFigures.of(*[outcome] * 2, name), lossless=name is None) for name in ("typical", None))
    assert words_of("S", exact) == "-d S (exact)"
    assert words_of("S", rule) == '-d S --verify "typical" --depth 5 (lossy)'
    wrong = slipstream("plan", "choose", *loose, "--verify", "nonsense")
    assert (wrong.returncode, "nonsense" in wrong.stderr) == (2, True)
    for wrong, sentence in (
        (["--margin", "2"], "margin is 2; it must be between 0 and 1"),
        (["--max-share", "2"], "max_share is 2; it must be between 0 and 1"),
        (["--score", "agreement"], "calibration takes scores of one answer"),
    ):
        done = slipstream("plan", "calibrate", *words, *wrong)
        assert (done.returncode, sentence in done.stderr) == (2, True)
