"""`slipstream audit` as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from slipstream.audit.planted import chain
from slipstream.audit.planted.chain import PLANTED
from slipstream.audit.tables import run


def whole(*words: str) -> Any:
    """The report of an audit in a process of its own: without the type checks of tests it takes half as long."""
    command = [sys.executable, "-m", "slipstream", "audit", *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_the_honest_rules_pass_every_layer():
    report = whole("--samples", "2000")
    assert report["passed"]
    assert len(report["checks"]) > 20
    assert {check["layer"] for check in report["checks"]} == report["layers"].keys()


@pytest.mark.slow
def test_the_audit_catches_every_planted_bug():
    report = whole("--self-test", "--samples", "2000")
    assert report["planted"] == report["caught"] == len(PLANTED)
    assert all("exact" in bug["layers"] for bug in report["bugs"])
    assert sum("sampled" in bug["layers"] for bug in report["bugs"]) >= 9


def test_a_self_test_reports_which_layers_caught_a_bug(slipstream, monkeypatch):
    """Two bugs; tests/audit/test_audit.py enumerates all of them."""
    names = ("target row shifted by one", "draws reused across cycles")
    for module in (chain, run):
        monkeypatch.setattr(module, "PLANTED", {name: PLANTED[name] for name in names})
    report = slipstream("audit", "--self-test", "--samples", "1000", "--json").report
    assert report["planted"] == report["caught"] == len(names)
    assert [bug["bug"] for bug in report["bugs"]] == list(names)
    assert all("exact" in bug["layers"] for bug in report["bugs"])
    assert any("sampled" in bug["layers"] for bug in report["bugs"])


def test_tables_of_the_users_own(slipstream, tmp_path):
    table = {"vocab": 2, "order": 1, "target": [[0.5, 0.5], [0.25, 0.75]], "draft": [[0.9, 0.1], [0.5, 0.5]]}
    path = tmp_path / "table.json"
    path.write_text(json.dumps(table))
    words = ("--table", str(path), "--verify", "block", "--json", "--samples", "2000")
    assert slipstream("audit", *words).report["passed"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--verify", "tokn"], "one of bild, block, cascade_chow, cascade_difference"),
        (["--depth", "-1"], "takes 1 to 3"),
        (["--samples", "3"], "at least 1000"),
        (["--seed", "-3"], "0 or more"),
        (["--table", "no-such-file.json"], "cannot read"),
        (["--frobnicate"], "No such option"),
        (["--depth", "two"], "--depth"),
        (["--dtype", "a8"], "--dtype is for the audit of a model, -m NAME"),
        (["-m", "smollm2-135m", "-d", "none"], "no speculation to audit"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(slipstream, words, says):
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
def test_a_malformed_table_is_one_sentence(slipstream, tmp_path, text):
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
def test_engines_are_refused_in_a_sentence(slipstream, words, said):
    done = slipstream("audit", *words)
    assert done.returncode == 2
    assert said in done.stderr
