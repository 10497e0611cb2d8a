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
