"""Starts the process of an engine and talks to it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from slipstream.engines.process.channel import Channel

CLOSE_SECONDS = 30.0  # that the process has to end its requests before it is killed


class EngineChild:
    """One process. `wait_ready` waits until its engine is open."""

    def __init__(self, opening: bytes) -> None:
        """`opening` is the pickled function that opens the engine."""
        self._folder = tempfile.TemporaryDirectory(prefix="slipstream-")  # of this user only
        self.address = str(Path(self._folder.name, "engine"))  # of the socket to which other processes connect
        ours, theirs = socket.socketpair()
        with theirs, socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self.address)
            listener.listen()
            self._process = start_module("slipstream.engines.process.host", [theirs, listener])
        self.channel, self.pid = Channel(ours), self._process.pid
        self._opening = opening

    def wait_ready(self) -> dict[str, Any]:
        """What the process tells of its engine. Raises the error that kept it from opening one."""
        with suppress(OSError):  # it has ended, which the next line finds
            self.channel.send(self._opening)
        name, value = self.channel.receive() or ("ended", None)
        if name == "ready":
            about: dict[str, Any] = value
            return about
        how = self.reap()
        raise value if name == "failed" else ValueError(f"the engine's process ended while it started ({how})")

    def reap(self) -> str:
        """Wait for the end of the process, whose channel is closed. How it ended."""
        self.channel.close()
        self._folder.cleanup()
        return ended(self._process.wait())

    def end(self) -> None:
        """Let it end its requests, and kill it where that takes too long."""
        try:
            self.channel.send("close")
            self._process.wait(CLOSE_SECONDS)
        except (OSError, subprocess.TimeoutExpired):
            self.kill()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def start_module(name: str, sockets: Sequence[socket.socket]) -> subprocess.Popen[bytes]:
    """Run a module of this package in a new process and session. The numbers of its sockets are its arguments."""
    numbers = [connection.fileno() for connection in sockets]
    command = [sys.executable, "-m", name, *map(str, numbers)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=numbers, env=env, start_new_session=True)


def ended(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
