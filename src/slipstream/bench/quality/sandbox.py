"""Running code a model wrote: in a process of its own with little time, little memory, no files and no network.

This keeps mistakes from doing harm. It is no wall against code that was written to break out; for that, run all of it
inside a container.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

CHILD = Path(__file__).with_name("sandbox_child.py")


@dataclass(frozen=True)
class SandboxLimits:
    """What a program may use."""

    seconds: float = 5.0
    memory: int = 1 << 29  # bytes of address space
    file_bytes: int = 1 << 20  # of what it prints


def passes(program: str, limits: SandboxLimits | None = None) -> bool:
    """Whether a program runs to its end without an error, within its limits."""
    limits = limits or SandboxLimits()
    word = secrets.token_hex(16)  # said by the runner after the last line; an early exit does not know it
    order = json.dumps({"program": program, "word": word, **asdict(limits)})
    environment = {"PATH": os.defpath, "PYTHONHASHSEED": "0"}
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as output:
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-S", str(CHILD)],
                input=order.encode(),
                stdout=output,  # a file, not a pipe: its size can be limited
                stderr=subprocess.DEVNULL,
                cwd=folder,
                env=environment,
                timeout=limits.seconds + 2,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            return False
        output.seek(0)
        return done.returncode == 0 and output.read().endswith(word.encode())
