"""`benchmarks/cpu_context.py`: the line through passes by context, and passes that are off it."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

CONTEXTS = (128, 512, 2048, 4096, 8184)


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("cpu_context")


def test_what_grows_with_the_context_is_attention(script):
    listed = script.records({(1, context): 10 + 0.005 * context for context in CONTEXTS}, entry=46080)
    assert [record["of_line"] for record in listed] == [1.0] * 5
    assert listed[-1]["attention"] == pytest.approx(40.92 / 50.92, abs=1e-3)
    assert listed[-1]["gb_per_second"] == pytest.approx(46080 / 5000, abs=0.01)  # bytes per nanosecond
    assert "| 1 | 8,184 | 50.9 | 1.00 | 80 % | 9.2 |" in script.table(listed)


def test_a_cost_that_grows_faster_than_the_context_is_off_the_line(script):
    listed = script.records({(1, context): 10 + 1e-6 * context**2 for context in CONTEXTS}, entry=46080)
    assert max(record["of_line"] for record in listed) > script.BAR
