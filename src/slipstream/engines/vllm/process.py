"""The worker's process. Messages are lines of JSON; a thread reads those of the worker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

WORKER = Path(__file__).with_name("worker.py")
KILLED = "its process was killed, as happens where a system runs out of memory"
QUIET = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}


class Process:
    """`hear` is called with every message after the first, and with None when the worker has ended."""

    def __init__(self, python: str, environment: dict[str, str], hear: Callable[[dict[str, Any] | None], None]) -> None:
        self._hear = hear
        self._log = tempfile.TemporaryFile("w+b")  # noqa: SIM115
        self._writing = threading.Lock()
        self._listener = threading.Thread(target=self._listen, name="slipstream-vllm", daemon=True)
        try:
            self._child = subprocess.Popen(
                [python or sys.executable, str(WORKER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                text=True,
                env=os.environ | QUIET | environment,
            )
        except OSError as error:
            self._log.close()
            raise ValueError(f"cannot run the interpreter {python}: {error.strerror}") from error

    def start(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Send the settings and wait until the engine is ready. Returns its first message."""
        self.say(settings)
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            return {"failed": self.last_words()}
        first: dict[str, Any] = json.loads(line)
        if "ready" in first:
            self._listener.start()
        return first

    def _listen(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            self._hear(json.loads(line))
        self._hear(None)

    def say(self, message: Mapping[str, Any]) -> None:
        assert self._child.stdin is not None
        try:
            with self._writing:
                self._child.stdin.write(json.dumps(message) + "\n")
                self._child.stdin.flush()
        except (BrokenPipeError, ValueError):
            return  # the worker has ended, which the listener reports

    @property
    def killed(self) -> bool:
        return self._child.wait() == -signal.SIGKILL

    def last_words(self) -> str:
        """Why the worker ended: the signal, or the last line of its log."""
        code = self._child.wait()
        if code == -signal.SIGILL:
            return "its build uses instructions that this processor lacks; try --dtype float32"
        if self.killed:
            return KILLED
        self._log.seek(0)
        lines = [line for line in self._log.read().decode(errors="replace").splitlines() if line.strip()]
        return lines[-1].strip() if lines else f"its process ended with code {code}"

    def end(self) -> None:
        assert self._child.stdin is not None
        with suppress(BrokenPipeError):
            self._child.stdin.close()
        try:
            self._child.wait(20)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        if self._listener.is_alive():
            self._listener.join()
        assert self._child.stdout is not None
        self._child.stdout.close()
        self._log.close()
