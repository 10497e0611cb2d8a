"""`benchmarks/gpu_cells.py`: which cells there are, what a second call does, and which bars are missed."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

import letters_folder


@pytest.fixture
def bars(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("gpu_cells_bars")


def record(policy: list[float], **fixed: list[float]) -> dict:
    speeds = {"plain": [100.0] * 3, "policy": policy} | {f"depth {name[1:]}": each for name, each in fixed.items()}
    return {"speeds": speeds, "tau": {"policy": 2.0}}


def test_ninety_cells_of_which_twelve_measure_fixed_depths(bars):
    every = bars.cells(bars.BATCHES, list(bars.RULES), bars.WORKLOADS)
    assert len({cell.name for cell in every}) == 90
    assert sorted(cell.name for cell in every if cell.stated) == sorted(bars.STATED)
    assert len(set(bars.STATED)) == 12
    assert [cell.workload for cell in every[:15]] == ["mix"] * 15  # a cut run holds whole workloads


def test_bars(bars):
    cell = bars.Cell(8, "greedy", "code")
    assert bars.misses(cell, record([98.0, 99.0, 98.0])) == []
    (line,) = bars.misses(cell, record([97.0, 97.0, 99.0]))
    assert "8 greedy code: policy 0.970 of plain decoding" in line
    best = {"d1": [150.0] * 3, "d3": [160.0, 161.0, 160.0]}
    assert bars.misses(cell, record([155.0] * 3, **best)) == []
    (line,) = bars.misses(cell, record([151.0] * 3, **best))
    assert "policy 0.944 of depth 3" in line
    slight = {"d1": [102.0, 103.0, 103.0]}
    assert bars.misses(cell, record([99.0] * 3, **slight)) == [
        "missed, 8 greedy code: policy 0.990 of plain decoding, depth 1 1.030"
    ]
    assert bars.misses(bars.Cell(64, "greedy", "code"), record([99.0] * 3, **slight)) == []


def test_a_stall_is_a_repeat_under_half_the_median(bars):
    stalled = record([200.0, 99.0, 210.0])
    assert bars.stalls(stalled) == {"policy": 1}
    (line,) = bars.misses(bars.Cell(1, "block", "mix"), stalled)
    assert line.endswith("1 of 3 runs stalled: policy")
    assert bars.table({bars.Cell(1, "block", "mix"): stalled}).endswith("| 1 |")


def test_a_second_call_measures_what_is_missing(bars, monkeypatch, tmp_path, capsys):
    cells = importlib.import_module("gpu_cells")
    monkeypatch.setattr(cells, "texts", lambda workload: ["abc", "dcba"])
    folder, out = str(letters_folder.write(tmp_path / "letters")), tmp_path / "cells.json"
    call = ["--model", folder, "--drafter", "ngram", "--device", "cpu", "--tokens", "3", "--repeats", "2"]
    call += ["--out", str(out), "--rules", "block", "--workloads", "code"]
    cells.main([*call, "--batches", "1", "8", "--seconds", "0"])
    assert not out.exists()
    cells.main([*call, "--batches", "1"])
    (first,) = json.loads(out.read_text())["cells"].items()
    cells.main([*call, "--batches", "1", "32"])
    both = json.loads(out.read_text())["cells"]
    assert first in both.items()
    assert {name: len(each["speeds"]) for name, each in both.items()} == {"1 block code": 2, "32 block code": 6}
    assert all(len(speeds) == 2 for each in both.values() for speeds in each["speeds"].values())
    assert "| 32 | block | code |" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="name another file"):
        cells.main([*call, "--repeats", "3"])
