"""`slipstream serve --api-server-count`: processes that are killed, one queue, and a stop that lets streams finish."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from live import status, wait_until

import letters

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")]
BODY = {"prompt": "abcabcabc", "max_tokens": 24, "ignore_eos": True, "seed": 3, "speculation": {"depth": 2}}
LONG = BODY | {"max_tokens": 120, "stream": True, "speculation": {"off": True}}
MANY = LONG | {"n": 64}  # takes a while: 16 rows decode at a time


def children(pid: int, module: str) -> list[int]:
    pids = [child for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]
    return [int(child) for child in pids if module.encode() in Path(f"/proc/{child}/cmdline").read_bytes()]


def workers(pid: int) -> list[int]:
    return [worker for forks in children(pid, "fork_server") for worker in children(forks, "fork_server")]


def value(address: str, name: str) -> float:
    lines = httpx.get(f"{address}/metrics").text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"slipstream:{name}"))


@contextmanager
def started(folder: Path, *words: str, count: int = 2) -> Iterator[tuple[subprocess.Popen, str]]:
    """`slipstream serve` with so many HTTP processes: its process and its address."""
    line = [sys.executable, "-m", "slipstream", "serve", str(folder), "--port", "0", *words]
    line += ["--api-server-count", str(count)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True, env=env) as process:
        try:
            address = next(match[0] for line in process.stderr if (match := re.search(r"http://[\d.:]+", line)))
            threading.Thread(target=process.stderr.read, daemon=True).start()
            yield process, address
            process.send_signal(signal.SIGINT)
            assert process.wait(60) in (0, 130, -signal.SIGTERM)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("letters")
    letters.plain().save_pretrained(path)
    letters.tokenizer().save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def server(folder, tmp_path_factory) -> Iterator[tuple[subprocess.Popen, str]]:
    with started(folder) as here:
        yield here


def ask(address: str, body: dict = BODY, **headers: str) -> httpx.Response:
    return httpx.post(f"{address}/v1/completions", json=body, headers=headers)


@pytest.mark.failures
def test_a_worker_that_is_killed_is_started_again(server):
    process, address = server
    before = workers(process.pid)
    os.kill(before[0], signal.SIGKILL)
    wait_until(lambda: len(workers(process.pid)) == 2 and workers(process.pid) != before)
    for _ in range(4):
        assert ask(address).status_code == 200


@pytest.mark.failures
def test_a_fork_server_that_is_killed_is_started_again_when_a_worker_ends(server):
    process, address = server
    (forks,) = children(process.pid, "fork_server")
    before = workers(process.pid)
    os.kill(forks, signal.SIGKILL)
    assert ask(address).status_code == 200, "workers go on without it"
    os.kill(before[0], signal.SIGKILL)
    wait_until(lambda: len(workers(process.pid)) == 1)
    for _ in range(4):
        assert ask(address).status_code == 200


@pytest.mark.failures
def test_an_engine_process_that_is_killed_is_started_again_for_all_workers(server):
    process, address = server
    expected = ask(address).json()["choices"]
    (engine,) = children(process.pid, "process.host")
    os.kill(engine, signal.SIGKILL)
    wait_until(lambda: status(address) == 503)
    assert ask(address).status_code == 503
    wait_until(lambda: status(address) == 200)
    for _ in range(4):
        assert ask(address).json()["choices"] == expected


def test_the_queue_is_one_for_all_workers(folder, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("first\nsecond\n")
    with started(folder, "--max-requests", "2", "--api-key-file", str(keys)) as (_, address):
        bearer = {"Authorization": "Bearer first"}
        assert ask(address).status_code == 401
        with (
            httpx.stream("POST", f"{address}/v1/completions", json=MANY, headers=bearer),
            httpx.stream("POST", f"{address}/v1/completions", json=MANY, headers=bearer),
        ):
            refused = [ask(address, **bearer) for _ in range(4)]
        assert {answer.status_code for answer in refused} == {429}
        assert all(int(answer.headers["Retry-After"]) > 0 for answer in refused)
        wait_until(lambda: value(address, "num_requests_active") == 0)
        assert value(address, "requests_rejected_total") == 4
        assert ask(address, **bearer).status_code == 200


@pytest.mark.parametrize("count", [1, 2])
def test_streams_finish_when_the_server_stops(folder, count):
    with started(folder, "--engine-process", "on", count=count) as (process, address):
        parts = dict[int, str]()

        def stream(number: int) -> None:
            parts[number] = ask(address, MANY | {"n": 16}).text

        clients = [threading.Thread(target=stream, args=(number,)) for number in range(2)]
        for client in clients:
            client.start()
        wait_until(lambda: value(address, "num_requests_active") == 2)
        own = workers(process.pid) + children(process.pid, "process.host")
        process.send_signal(signal.SIGTERM)
        for client in clients:
            client.join()
        assert all(part.endswith("data: [DONE]\n\n") and '"length"' in part for part in parts.values())
        process.wait(30)
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in own), 10)


def test_a_model_that_cannot_be_loaded_is_one_sentence(slipstream, tmp_path):
    began = time.monotonic()
    done = slipstream("serve", str(tmp_path), "--api-server-count", "2", "--port", "0")
    assert done.returncode == 2
    assert str(tmp_path) in done.stderr.splitlines()[-1]
    assert time.monotonic() - began < 60
