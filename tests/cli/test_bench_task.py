"""`slipstream bench --task` as a user runs it, on tiny models."""

from __future__ import annotations

import pytest

import letters_folder


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
        (["--score", "luck"], "error: there is no score called 'luck'; one of agreement, entropy, mean, quantile"),
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
    assert "<svg" in (tmp_path / "curve.svg").read_text()
    assert "points against the large model" in done.report["finding"]
    assert "dominated" in done.stdout
    wrong = slipstream(*task, "--small", "x", "--curve", "--verify", "block")
    assert "verify is 'block'; a curve takes the lossy rules cascade_chow" in wrong.stderr
    assert "--curve needs --small MODEL" in slipstream(*task, "--curve").stderr


def test_calibrate_and_choose(place, slipstream):
    words = ["--task", str(place / "t.jsonl"), "-m", str(place / "large"), "--small", str(place / "small")]
    few = slipstream("plan", "calibrate", *words)
    assert (few.returncode, few.stderr.strip()) == (
        2,
        "error: 3 problems cannot bound a loss of 2 points at 95 %; it takes at least 149",
    )
    found = slipstream("plan", "calibrate", *words, "--margin", "0.9", "--max-tokens", "6", "--json").report
    assert (found["threshold"], found["large_share"], found["lossless"]) == (0.0, 0.0, False)
    half = slipstream("plan", "calibrate", *words, "--max-share", "0.4", "--max-tokens", "6", "--json").report
    assert half["large_share"] == pytest.approx(1 / 3, abs=1e-4)
    chosen = slipstream("plan", "choose", *words, "--margin", "0.9", "--max-tokens", "6", "--json").report
    assert len(chosen["candidates"]) == 3
    for wrong, sentence in (
        (["--margin", "2"], "margin is 2; it must be between 0 and 1"),
        (["--max-share", "2"], "max_share is 2; it must be between 0 and 1"),
        (["--score", "agreement"], "calibration takes scores of one answer"),
    ):
        done = slipstream("plan", "calibrate", *words, *wrong)
        assert (done.returncode, sentence in done.stderr) == (2, True)
