"""A server process under load, on a model of letters: the short version of `make load`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import letters

ROOT = Path(__file__).parents[2]


OWN, SEVERAL = ["--engine-process", "on"], ["--api-server-count", "2"]


@pytest.mark.parametrize(
    "how", [[], pytest.param(OWN, marks=pytest.mark.slow), pytest.param(SEVERAL, marks=pytest.mark.slow)]
)
def test_streams_are_whole_and_nothing_leaks(tmp_path, how):
    letters.plain().save_pretrained(tmp_path)
    letters.tokenizer().save_pretrained(tmp_path)
    words = [str(ROOT / "benchmarks" / "load.py"), "--model", str(tmp_path), "--drafter", "ngram", "--distinct", "16"]
    words += ["--clients", "32", "--warm", "1", "--seconds", "2", "--tokens", "4", "16", "--", *how]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=200, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
