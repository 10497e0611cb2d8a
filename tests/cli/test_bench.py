"""`slipstream bench` as a user runs it, on a tiny model."""

from __future__ import annotations

import pytest

import letters
from slipstream.bench import session
from slipstream.bench.measure.roofline import Machine
from slipstream.bench.statistics import NOT_DRAFTED, ONE_REPEAT


@pytest.fixture
def folder(tmp_path, monkeypatch) -> str:
    monkeypatch.setattr(session, "probe_machine", lambda dtype, device: Machine(1e9, 1e11))
    letters.plain().save_pretrained(tmp_path / "letters")
    letters.tokenizer().save_pretrained(tmp_path / "letters")
    (tmp_path / "ab.jsonl").write_text('{"prompt": "abcabc"}\n')
    return str(tmp_path / "letters")


def test_a_table_a_report_and_json_as_the_last_line(folder, tmp_path, slipstream):
    load = ["--workload", str(tmp_path / "ab.jsonl"), "--max-tokens", "4", "--repeats", "1", "--temperature", "0,1"]
    done = slipstream("bench", "-m", folder, "-d", "ngram", *load, "--out", str(tmp_path / "out"), "--json")
    assert [(r["drafter"], r["rule"]) for r in done.report["records"]] == [
        ("none", "plain"), ("ngram", "greedy"), ("none", "plain"), ("ngram", "block"),
    ]  # fmt: skip
    assert any(line.startswith("native  ngram") for line in done.stdout.splitlines())
    assert {record["verdict"] for record in done.report["records"]} <= {None, ONE_REPEAT, NOT_DRAFTED}
    assert all(record["ratio_to_plain_interval"] is None for record in done.report["records"])
    assert "one repeat has no interval, so no ratio is claimed" in done.report["takeaway"]
    assert " faster" not in done.stdout
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "journal.jsonl",
        "report.html",
        "results.json",
    ]


def test_a_mistake_is_one_sentence(folder, slipstream):
    done = slipstream("bench", "-m", folder, "--batch", "none")
    assert done.returncode == 2
    assert done.stderr.strip() == "error: batch holds 'none'; write numbers from 1 on, as 1,4 or 2-5"


def test_forecasts_stand_beside_measurements(folder, tmp_path, slipstream):
    for name, prompts in {"one": ("abcabc", "bcdbcd"), "two": ("aabbaabb", "ccddccdd")}.items():
        lines = "".join(f'{{"prompt": "{prompt}"}}\n' for prompt in prompts)
        (tmp_path / f"{name}.jsonl").write_text(lines)
    spec = ",".join(f"{tmp_path / name}.jsonl:1" for name in ("one", "two"))
    load = ["--workload", spec, "--max-tokens", "8", "--repeats", "1", "--depth", "1,3", "--sample", "1"]
    done = slipstream("bench", "-m", folder, "-d", "ngram", *load, "--forecast", "--json")
    drafting = [record for record in done.report["records"] if record["drafter"] == "ngram"]
    assert len(drafting) == 4
    for record in drafting:
        for figure in ("tau", "tokens_per_second", "speedup"):
            assert record["measured"][figure] > 0
            low, high = record["forecast"][f"{figure}_interval"]
            assert low <= record["forecast"][figure] <= high
            ratio = record["forecast"][figure] / record["measured"][figure]
            assert record["forecast_error"][figure] == pytest.approx(ratio - 1, rel=1e-3, abs=1e-3)
    compared = done.report["forecast"]
    assert compared["errors"]["points"] == compared["errors_with_sample"]["points"] == 4
    assert compared["errors_with_text"]["points"] == 4
    for point in compared["points"]:  # greedy n-grams are replayed on the very text, so that tau is known
        if point["drafter"] == "ngram" and point["temperature"] == 0:
            assert abs(point["error_with_text"]["tau"]) < 0.5 * abs(point["error"]["tau"]) + 0.35
    assert compared["errors"]["tau"]["median"] <= compared["errors"]["tau"]["worst"]
    assert "error of the forecasts from the other workloads, 4 points" in done.stdout


@pytest.mark.parametrize(("flags", "sentence"), [
    (["--depth", "auto,2"], "--forecast needs the native engine and fixed depths without plans, such as --depth 1,3,5"),
    (["--depth", "2"], "--forecast needs two or more workloads: each is forecast from the others"),
    (["--depth", "2", "-d", "none"], "--forecast has nothing to forecast; name a drafter with -d"),
])  # fmt: skip
def test_what_cannot_be_forecast_is_one_sentence(folder, tmp_path, slipstream, flags, sentence):
    drafter = [] if "-d" in flags else ["-d", "ngram"]
    workload = ["--workload", str(tmp_path / "ab.jsonl")]
    done = slipstream("bench", "-m", folder, *drafter, *workload, "--forecast", *flags)
    assert done.returncode == 2
    assert done.stderr.strip() == f"error: {sentence}"
