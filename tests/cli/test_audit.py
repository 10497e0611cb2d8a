"""`slipstream audit` as a user runs it, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


def slipstream(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "slipstream", *words], capture_output=True, text=True, timeout=300)


def last_json(done: subprocess.CompletedProcess[str]):
    return json.loads(done.stdout.splitlines()[-1])


def test_the_honest_rules_pass_every_layer():
    done = slipstream("audit", "--json", "--samples", "8000")
    report = last_json(done)
    assert done.returncode == 0, done.stdout
    assert report["passed"]
    assert len(report["checks"]) > 20
    assert {check["layer"] for check in report["checks"]} == report["layers"].keys()


def test_the_audit_catches_every_planted_bug():
    done = slipstream("audit", "--self-test", "--json", "--samples", "8000")
    report = last_json(done)
    assert done.returncode == 0, done.stdout
    assert report["planted"] == report["caught"] == 17
    assert all("exact" in bug["layers"] for bug in report["bugs"])
    assert sum("sampled" in bug["layers"] for bug in report["bugs"]) >= 9


def test_tables_of_the_users_own(tmp_path):
    table = {"vocab": 2, "order": 1, "target": [[0.5, 0.5], [0.25, 0.75]], "draft": [[0.9, 0.1], [0.5, 0.5]]}
    path = tmp_path / "table.json"
    path.write_text(json.dumps(table))
    done = slipstream("audit", "--table", str(path), "--verify", "block", "--json", "--samples", "2000")
    assert done.returncode == 0, done.stderr
    assert last_json(done)["passed"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--verify", "tokn"], "one of block, chosen, coupled, greedy, no_replace"),
        (["--depth", "-1"], "takes 1 to 3"),
        (["--samples", "3"], "at least 1000"),
        (["--seed", "-3"], "0 or more"),
        (["--table", "no-such-file.json"], "cannot read"),
        (["--frobnicate"], "No such option"),
        (["--depth", "two"], "--depth"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(words, says):
    done = slipstream("audit", *words)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "text",
    [
        "not json",
        "{}",
        '{"vocab": 2, "order": 1, "target": [[1, 0]], "draft": [[1, 0]]}',
        '{"vocab": 2, "order": 1, "target": [[1, 1], [0, 1]], "draft": [[1, 0], [0, 1]]}',
        '{"vocab": "two", "order": 1, "target": [], "draft": []}',
    ],
)
def test_a_malformed_table_is_one_sentence(tmp_path, text):
    path = tmp_path / "table.json"
    path.write_text(text)
    done = slipstream("audit", "--table", str(path))
    assert done.returncode == 2
    assert "malformed" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--engine", "magic"], "there is no engine called 'magic'"),
        (["--engine", "native", "-d", "none"], "no speculation to audit"),
        (["--engine", "native", "--temperature", "0"], "above 0"),
        (["--engine", "native", "--samples", "10"], "at least 200"),
        (["--engine", "transformers", "-d", "medusa"], "it offers none, ngram, draft_model, early_exit"),
        (["--engine", "transformers", "--verify", "block"], "verification rule of its own"),
    ],
)
def test_engines_are_refused_in_a_sentence(words, said, capsys):
    from slipstream.cli import main

    with pytest.raises(SystemExit) as ended:
        main(["audit", *words])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
