"""`make demo`: what a newcomer sees first."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from slipstream.bench.statistics import Estimate

DEMO = Path(__file__).parents[1] / "examples" / "demo.py"


@pytest.mark.model
def test_the_demo_shows_speculation_at_work(slipstream, monkeypatch, capfd):
    """On any machine: with a fixed depth fewer passes than tokens, whatever the policy chooses."""
    monkeypatch.setattr(sys, "argv", [str(DEMO), "--tokens", "16", "--seconds", "0"])
    monkeypatch.setenv("COLUMNS", "80")
    spec = spec_from_file_location("demo", DEMO)
    demo = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "demo", demo)
    spec.loader.exec_module(demo)
    monkeypatch.setattr(demo, "LEAST", 2)
    monkeypatch.setattr(demo, "ratio", lambda fast, plain: Estimate(1.25, (1.05, 1.45)))  # two runs say little
    demo.main()
    shown = capfd.readouterr().out
    assert "def reverse" in shown
    for words in ("colours: accepted", "code, always 4", "chat, policy", "Try next:", "slipstream chat"):
        assert words in shown
    assert "…" not in shown, "the table fits a terminal of 80 columns"
    assert '  slipstream generate "Write a Python function that reverses a string." -d eagle --compare\n' in shown
    assert "NO" not in shown.split("┃ same ┃")[1].split("tau:")[0], "all ways of decoding give the same tokens"
    first = next(line for line in shown.splitlines() if "passes of the target" in line)
    emitted, passes = int(first.split()[0]), int(first.split()[3])
    assert passes < 0.6 * emitted
