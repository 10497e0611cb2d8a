"""What a server has to survive: clients that send too much, go away or read slowly, and parts that fail."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import live
import pytest
from live import MODEL, served, status, wait_until

import letters
from slipstream.drafters.ngram import NGram
from slipstream.engines.job import Job
from slipstream.engines.native.engine import NativeEngine
from slipstream.engines.native.scheduler import Limits
from slipstream.serve.config import ServerConfig, ServerLimits
from slipstream.serve.run import bind

LONG = {"prompt": "abcabcabc", "max_tokens": 120, "ignore_eos": True, "seed": 3}


class Failing(NGram):
    """Drafts four times and fails from then on."""

    def propose(self, rows, budget, noise):
        self.calls = getattr(self, "calls", 0) + 1
        if self.calls > 4:
            raise RuntimeError("the drafter is broken")
        return super().propose(rows, budget, noise)


def value(address: str, name: str) -> float:
    lines = httpx.get(f"{address}/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"slipstream:{name}"))


def test_a_client_that_sends_too_much_reads_why():
    limits = ServerLimits(max_body=1 << 20)
    with served(ServerConfig(models=(MODEL,), limits=limits)) as address:
        host = urlsplit(address)
        body = b'{"prompt": "' + b"a" * (8 << 20) + b'"}'
        head = f"POST /v1/completions HTTP/1.1\r\nHost: here\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        with socket.create_connection((host.hostname, host.port), timeout=30) as own:
            own.sendall(head + body)  # where the server closes before it has read all, this or the next line fails
            assert own.recv(4096).startswith(b"HTTP/1.1 413 ")


@pytest.mark.failures
def test_a_stream_goes_on_when_its_drafter_fails():
    def open_model(name: str) -> NativeEngine:
        return NativeEngine(letters.target(), Failing(len(letters.TOKENS)))

    short = LONG | {"max_tokens": 32}
    body = short | {"stream": True, "stream_options": {"include_usage": True}, "speculation": {"depth": 3}}
    with served(open_model=open_model) as address:
        events = httpx.post(f"{address}/v1/completions", json=body).text.split("\n\n")
        plain = httpx.post(f"{address}/v1/completions", json=short | {"speculation": {"off": True}}).json()
        failures = value(address, "spec_decode_num_drafter_failures_total")
    parts = [json.loads(event[6:]) for event in events if event.startswith("data: {")]
    assert "".join(part["choices"][0]["text"] for part in parts if part["choices"]) == plain["choices"][0]["text"]
    speculation = parts[-1]["usage"]["speculation"]
    assert speculation["drafted"] > 0
    assert speculation["drafter_failed"] is True
    assert plain["usage"]["speculation"]["drafter_failed"] is False
    assert failures == 1


def test_a_reader_that_waits_holds_up_nobody_and_loses_nothing(monkeypatch):
    def small_buffers(host: str, port: int) -> socket.socket:
        listener = bind(host, port)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        return listener

    monkeypatch.setattr(live, "bind", small_buffers)
    body = LONG | {"n": 8, "max_tokens": 32, "stream": True, "logprobs": 16, "speculation": {"off": True}}
    with served() as address:
        host, payload = urlsplit(address), json.dumps(body).encode()
        with socket.socket() as own:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            own.connect((host.hostname, host.port))
            head = "POST /v1/completions HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\n"
            own.sendall(f"{head}Content-Length: {len(payload)}\r\n\r\n".encode() + payload)
            other = httpx.post(f"{address}/v1/completions", json=LONG | {"max_tokens": 40}, timeout=30)
            assert other.json()["usage"]["completion_tokens"] == 40
            wait_until(lambda: value(address, "num_requests_running") == 0)
            assert value(address, "num_requests_active") == 1, "the reader has not read its answer"
            own.settimeout(30)
            text = bytearray()
            while b"data: [DONE]" not in text[-64:]:
                text += own.recv(1 << 16)
        assert text.count(b'"finish_reason":"length"') == 8
        assert text.count(b'"token_logprobs":[') == 8 * 32


def test_a_stream_for_a_client_that_knows_no_chunks():
    payload = json.dumps(LONG | {"max_tokens": 4, "stream": True}).encode()
    with served() as address:
        host = urlsplit(address)
        with socket.create_connection((host.hostname, host.port), timeout=30) as own:
            head = f"POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {len(payload)}"
            own.sendall(head.encode() + b"\r\n\r\n" + payload)
            answer = b""
            while part := own.recv(1 << 16):
                answer += part
    headers, body = answer.split(b"\r\n\r\n", 1)
    assert b"chunked" not in headers
    assert all(event.startswith(b"data: ") for event in body.split(b"\n\n") if event), "no sizes of chunks between"
    assert body.endswith(b"data: [DONE]\n\n")


def test_a_client_that_goes_away_frees_its_row_within_a_cycle(monkeypatch):
    engine, cycles = NativeEngine(letters.target(), "none"), list[int]()
    cancel = Job.cancel

    def cancelled(job: Job) -> None:
        cycles.append(engine.stats["row_cycles"])
        cancel(job)

    monkeypatch.setattr(Job, "cancel", cancelled)
    with served(open_model=lambda name: engine) as address:
        with httpx.stream("POST", f"{address}/v1/completions", json=LONG | {"n": 8, "stream": True}) as response:
            next(response.iter_lines())
        wait_until(lambda: value(address, "num_requests_active") == 0)
        wait_until(lambda: value(address, "num_requests_running") == 0)
        assert engine.stats["row_cycles"] - cycles[0] <= 2 * 8, "the cycle under way, and no other"


def test_a_key_with_many_requests_does_not_starve_another():
    config = ServerConfig(models=(MODEL,), api_keys=("greedy", "modest"))
    finished: list[str] = []

    def open_model(name: str) -> NativeEngine:
        return NativeEngine(letters.target(), "none", limits=Limits(rows=2))

    with served(config, open_model) as address, httpx.Client(timeout=60) as client:

        def ask(key: str) -> None:
            headers, body = {"Authorization": f"Bearer {key}"}, LONG | {"max_tokens": 20}
            assert client.post(f"{address}/v1/completions", json=body, headers=headers).status_code == 200
            finished.append(key)

        many = [threading.Thread(target=ask, args=("greedy",)) for _ in range(12)]
        for thread in many:
            thread.start()
        wait_until(lambda: value(address, "num_requests_waiting") > 4)
        ask("modest")
        for thread in many:
            thread.join()
    assert finished.index("modest") < 9, "the requests of the other key that came first did not all go first"


def child_processes(pid: int) -> list[str]:
    return [child for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]


def all_ended(pids: list[str]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="SIGKILL of a process that listens, as on Linux")
@pytest.mark.parametrize("process", ["off", "on"])
def test_a_server_that_was_killed_under_load_serves_again(tmp_path, process):
    letters.plain().save_pretrained(tmp_path)
    letters.tokenizer().save_pretrained(tmp_path)
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    address, texts = f"http://127.0.0.1:{port}", []
    words = [sys.executable, "-m", "slipstream", "serve", str(tmp_path), "--port", str(port)]
    words += ["--engine-process", process]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}

    def load() -> None:
        with suppress(httpx.HTTPError):
            while True:
                httpx.post(f"{address}/v1/completions", json=LONG | {"stream": True})

    for _ in range(2):
        with subprocess.Popen(words, stderr=subprocess.DEVNULL, env=env) as server:
            wait_until(lambda: status(address) == 200)
            texts.append(httpx.post(f"{address}/v1/completions", json=LONG).json()["choices"][0]["text"])
            clients = [threading.Thread(target=load) for _ in range(8)]
            for thread in clients:
                thread.start()
            wait_until(lambda: value(address, "num_requests_running") >= 4)
            own = child_processes(server.pid)
            server.send_signal(signal.SIGKILL)
        for thread in clients:
            thread.join()
        assert bool(own) is (process == "on")
        wait_until(partial(all_ended, own), 10)
    assert texts[0] == texts[1]


def test_a_port_that_is_taken_is_one_sentence(slipstream):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = slipstream("serve", "--port", str(taken.getsockname()[1]))
    assert done.returncode == 2
    assert "cannot be listened on" in done.stderr.splitlines()[-1]


def test_a_key_file_without_a_key_is_one_sentence(slipstream, tmp_path: Path):
    for content, said in (
        (b"# nothing\n", "holds no API key; write one per line"),
        (b"\xff\xfe", "is not a text file"),
    ):
        (tmp_path / "keys").write_bytes(content)
        done = slipstream("serve", "--api-key-file", str(tmp_path / "keys"))
        assert done.returncode == 2
        assert said in done.stderr.splitlines()[-1]


def test_several_processes_need_an_engine_of_its_own(slipstream):
    done = slipstream("serve", "--api-server-count", "2", "--engine-process", "off")
    assert done.returncode == 2
    assert "need the engine in a process of its own; use --engine-process on" in done.stderr.splitlines()[-1]
