"""Clients of `overhead.py`: processes that read many streams at once, each event parsed as it comes.

    python benchmarks/overhead_clients.py PORT

Each line of the standard input is a list of request bodies, which run at once. The answer is a line with the tokens of
each stream and the processor seconds that this process has used since its start.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


class StreamReader(asyncio.Protocol):
    """Sends one request and counts the tokens of the events that come back. HTTP's chunks and the events of a stream
    are read in full; `usage` of the last event must state the same count."""

    def __init__(self, request: bytes, done: asyncio.Future[int]) -> None:
        self._request, self._done = request, done
        self._data, self._body, self._in_body = b"", b"", False
        self._tokens, self._stated = 0, -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._request)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        if not self._in_body:
            head, end, rest = self._data.partition(b"\r\n\r\n")
            if not end:
                return
            if not head.startswith(b"HTTP/1.1 200"):
                self._fail(f"the server answered {self._data!r}")
                return
            self._data, self._in_body = rest, True
        self._read_chunks()

    def _read_chunks(self) -> None:
        data, at = self._data, 0
        while (end := data.find(b"\r\n", at)) >= 0:
            size = int(data[at:end], 16)
            if len(data) < end + size + 4:
                break
            self._body += data[end + 2 : end + 2 + size]
            at = end + size + 4
        self._data = data[at:]
        *events, self._body = self._body.split(b"\n\n")
        for event in events:
            self._read_event(event)

    def _read_event(self, event: bytes) -> None:
        text = event.removeprefix(b"data: ")
        if text == b"[DONE]":
            self._transport.close()
            if self._tokens != self._stated:
                self._fail(f"{self._tokens} tokens came, and the usage states {self._stated}")
            elif not self._done.done():
                self._done.set_result(self._tokens)
            return
        parsed = json.loads(text)
        if "error" in parsed:
            self._fail(str(parsed["error"]))
            return
        for choice in parsed["choices"]:
            self._tokens += len(choice["slipstream"]["origins"]) if "slipstream" in choice else 0
        if parsed.get("usage"):
            self._stated = parsed["usage"]["completion_tokens"]

    def _fail(self, sentence: str) -> None:
        if not self._done.done():
            self._done.set_exception(RuntimeError(sentence))
        self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(error or RuntimeError("the stream was cut off"))


async def stream_tokens(port: int, body: dict[str, Any]) -> int:
    """Run one stream to its end; the tokens it had."""
    loop = asyncio.get_running_loop()
    payload = json.dumps(body | {"stream": True, "stream_options": {"include_usage": True}}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    request, done = f"{head}Content-Length: {len(payload)}\r\n\r\n".encode() + payload, loop.create_future()
    await loop.create_connection(lambda: StreamReader(request, done), "127.0.0.1", port)
    return await done


class ClientProcesses:
    """Runs requests from several processes, as many of them in each."""

    def __init__(self, processes: Sequence[subprocess.Popen[str]]) -> None:
        self._processes = processes
        self.seconds = 0.0  # of processor time, up to the end of the last run

    def run(self, bodies: list[dict[str, Any]]) -> list[int]:
        """The tokens of each request, of which all run at once."""
        count = len(self._processes)
        for number, process in enumerate(self._processes):
            assert process.stdin is not None
            process.stdin.write(json.dumps(bodies[number::count]) + "\n")
            process.stdin.flush()
        tokens, self.seconds = [0] * len(bodies), 0.0
        for number, process in enumerate(self._processes):
            assert process.stdout is not None
            answer = json.loads(process.stdout.readline())
            tokens[number::count] = answer["tokens"]
            self.seconds += answer["seconds"]
        return tokens


@contextmanager
def client_processes(port: int, count: int) -> Iterator[ClientProcesses]:
    command = [sys.executable, __file__, str(port)]
    pipe = subprocess.PIPE
    processes = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(count)]
    try:
        yield ClientProcesses(processes)
    finally:
        for process in processes:
            process.communicate()


async def main(port: int) -> None:
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        tokens = await asyncio.gather(*(stream_tokens(port, body) for body in json.loads(line)))
        print(json.dumps({"tokens": tokens, "seconds": time.process_time()}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
