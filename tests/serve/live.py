"""Live servers: on the model of letters in a thread of this process, or as the command runs them."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
import uvicorn

import letters
from slipstream.engines.native.engine import NativeEngine
from slipstream.serve.app import create_app
from slipstream.serve.config import ServedEngine, ServerConfig
from slipstream.serve.connections import timed_protocol
from slipstream.serve.run import bind
from slipstream.serve.workers.group import WorkerGroup

MODEL = "letters"


@contextmanager
def served(config: ServerConfig | None = None, open_model=None, port: int = 0) -> Iterator[str]:
    config = config or ServerConfig(models=(MODEL,))
    app = create_app(config, open_model or (lambda name: NativeEngine(letters.target(), "ngram")))
    server = uvicorn.Server(
        uvicorn.Config(
            app, http=timed_protocol(config.limits.read_seconds), log_level="warning", timeout_graceful_shutdown=2
        )
    )
    app.state.stop = lambda: setattr(server, "should_exit", True)
    listener = bind("127.0.0.1", port)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        wait_until(lambda: app.state.failed or status(address) == 200)
        yield address
    finally:
        server.should_exit = True
        thread.join(30)
        listener.close()
    assert not thread.is_alive()


@contextmanager
def served_by_workers(engine, count: int) -> Iterator[tuple[str, WorkerGroup]]:
    """A server over an engine in another process, with several HTTP processes: its address and its group."""
    config = ServerConfig(models=(MODEL,), engine=ServedEngine(process=True), api_servers=count)
    listener, ready, started = bind("127.0.0.1", 0), threading.Event(), list[tuple[WorkerGroup, Any]]()
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"

    async def run() -> None:
        started.append((WorkerGroup(config, "quiet", lambda name: engine), asyncio.get_running_loop()))
        await started[0][0].run(listener, ready.set)

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    wait_until(lambda: status(address) == 200, 120)
    assert ready.is_set(), "every worker is connected to the engine before /health says so"
    group, loop = started[0]
    try:
        yield address, group
    finally:
        loop.call_soon_threadsafe(group.stop)
        thread.join(30)
    assert not thread.is_alive()


@contextmanager
def command(*words: str) -> Iterator[str]:
    """The address of `slipstream serve` with these words."""
    line = [sys.executable, "-m", "slipstream", "serve", *words, "--port", "0"]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True, env=env) as process:
        try:
            yield next(match[0] for line in process.stderr if (match := re.search(r"http://[\d.:]+", line)))
            process.send_signal(signal.SIGINT)
            assert process.wait(60) in (0, 130)
        finally:
            process.kill()


def tool(name: str, variable: str) -> str:
    """The path of a client that is installed on its own; `variable` names it where it is not on the path."""
    path = os.environ.get(variable) or shutil.which(name)
    if not path:
        pytest.skip(f"{name} is not installed; install it anywhere and set {variable} to its path")
    return path


def status(address: str) -> int:
    try:
        return httpx.get(f"{address}/health").status_code
    except httpx.HTTPError:
        return 0


def wait_until(holds: Callable[[], object], seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "it never came true"
        time.sleep(0.02)
