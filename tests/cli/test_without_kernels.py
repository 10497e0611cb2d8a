"""Without compiled kernels decoding is several times slower: the user is told so, and why."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import letters
import letters_folder
from slipstream.kernels.cpu import attention as cpu_attention
from slipstream.kernels.cpu import linear as cpu_linear
from slipstream.models.run.invariant import why_not
from slipstream.models.weights import precision


def test_a_cache_that_cannot_be_written_is_reported_in_one_line(tmp_path):
    model = str(letters_folder.write(tmp_path / "model"))
    words = [sys.executable, "-m", "slipstream", "generate", "abc", "-m", model, "--max-tokens", "4", "--json"]
    env = {**os.environ, "SLIPSTREAM_CACHE": "/dev/null/cache"}
    done = subprocess.run(words, capture_output=True, text=True, env=env, timeout=200)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if "kernels" in line]
    assert lines == [
        "slipstream: compiled kernels are not used: /dev/null/cache/kernels cannot be used (Not a directory); "
        "set SLIPSTREAM_CACHE to a folder that only you can write to; decoding on this CPU is several times slower"
    ]


@pytest.mark.parametrize("reason", ["no C++ compiler on PATH", "/cache cannot be used (Read-only file system)"])
def test_what_needs_kernels_is_refused_with_the_true_reason(monkeypatch, reason):
    monkeypatch.setattr(cpu_attention, "_loaded", lambda: reason)
    assert why_not(letters.plain()) == f"its kernels are not available ({reason})"
    monkeypatch.setattr(cpu_linear, "_loaded", lambda row_bits: reason)
    with pytest.raises(ValueError, match="a8, activations of eight bits, needs compiled kernels: ") as error:
        precision.choose("a8")
    assert reason in str(error.value)
