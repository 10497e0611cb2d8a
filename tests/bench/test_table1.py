"""`benchmarks/table1.py` on a tiny model: texts are written, then graded."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

import letters_folder


@pytest.fixture
def table1(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("table1")


def test_table_1_of_letters(table1, tmp_path, capsys):
    pytest.importorskip("rouge_score", reason="ROUGE-2 needs the package rouge-score")
    folder = str(letters_folder.write(tmp_path / "large"))
    articles = [{"prompt": text, "reference": "d e f"} for text in ("abc", "kl")]
    (tmp_path / "xsum.jsonl").write_text("\n".join(map(json.dumps, articles)))
    problem = {"prompt": "def f(x):\n", "entry_point": "f", "test": "def check(f):\n    assert f(1)\n"}
    (tmp_path / "code.jsonl").write_text(json.dumps({"checker": "python", **problem}))
    words = ["--xsum", f"{tmp_path}/xsum.jsonl", "--humaneval", f"{tmp_path}/code.jsonl", "--out", f"{tmp_path}/out"]
    sizes = ["--summary-tokens", "8", "--code-tokens", "6", "--samples", "2", "--timed", "1", "--batch", "4"]
    assert table1.main(["run", "-m", folder, "-d", "ngram", *words, *sizes]) == 0
    assert table1.main(["grade", *words]) == 0
    table = json.loads((tmp_path / "out" / "table1.json").read_text())
    assert [row["metric"] for row in table["rows"]] == ["ROUGE-2", "ROUGE-2", "pass@1", "pass@2"]
    greedy = table["rows"][0]
    assert (greedy["identical_texts"], greedy["difference"], greedy["equal_within_interval"]) == (1.0, 0.0, True)
    assert greedy["speed_up"] > 0
    assert "| XSum, greedy | ROUGE-2 |" in capsys.readouterr().out


def test_pass_at_k(table1):
    pass_at = importlib.import_module("table1_grade").pass_at
    assert pass_at(1, 10, 3) == pytest.approx(0.3)
    assert pass_at(10, 10, 1) == 1.0
    assert pass_at(2, 4, 1) == pytest.approx(1 - 3 / 6)
