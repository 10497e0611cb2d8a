"""Runs code that a model wrote, in a separate process with limited time and memory, without files and network.

This protects against mistakes. It does not protect against code that was written to break out. For that, run the whole
benchmark in a container.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

CHILD = Path(__file__).with_name("sandbox_child.py")


@dataclass(frozen=True)
class SandboxLimits:
    """The limits of a program."""

    seconds: float = 5.0
    memory: int = 1 << 29  # bytes of address space
    file_bytes: int = 1 << 20  # of what it prints


def passes(program: str, limits: SandboxLimits | None = None) -> bool:
    """Whether a program runs to its end without an error, within its limits."""
    limits = limits or SandboxLimits()
    token = secrets.token_hex(16)  # printed after the program ends; a program that exits early does not print it
    job = json.dumps({"program": program, "token": token, **asdict(limits)})
    environment = {"PATH": os.defpath, "PYTHONHASHSEED": "0"}
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as output:
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", str(CHILD)],
            stdin=subprocess.PIPE,
            stdout=output,  # a file, not a pipe: its size can be limited
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
        try:
            child.communicate(job.encode(), timeout=limits.seconds + 2)
        except subprocess.TimeoutExpired:
            return False
        finally:
            _end(child)
        output.seek(0)
        return child.returncode == 0 and output.read().endswith(token.encode())


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the process and all that it started: they share its process group."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
    child.kill()
    child.wait()
