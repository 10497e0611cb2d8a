"""A process may end while its engine is at work: an engine need not be closed."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
from slipstream.core.sampling import Sampling
from slipstream.engines.native.engine import NativeEngine

engine = NativeEngine("smollm2-135m", drafter="eagle")
print(engine.generate("Hello", Sampling(temperature=0), max_tokens=4)[0].text)
engine.submit("Hello", Sampling(temperature=0))
"""


@pytest.mark.model
def test_a_process_ends_well_while_an_engine_is_at_work():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
