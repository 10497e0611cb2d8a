"""A server process and a client for its streams that costs little: what `load.py` and `overhead.py` share."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any


@dataclass(frozen=True)
class ServerProcess:
    """A `slipstream serve` that is ready, with what /proc tells about it."""

    pid: int
    host: str
    port: int

    def usage(self) -> dict[str, float]:
        """Resident memory in MiB, threads, open descriptors: the sum over all processes of the server."""
        folders = [Path(f"/proc/{pid}") for pid in (self.pid, *child_processes(self.pid))]
        pages = sum(int((folder / "statm").read_text().split()[1]) for folder in folders)
        return {
            "memory": pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
            "threads": sum(len(list((folder / "task").iterdir())) for folder in folders),
            "descriptors": sum(len(list((folder / "fd").iterdir())) for folder in folders),
        }


def child_processes(pid: int) -> list[int]:
    """The processes that a process has started: its workers and engines."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


@contextmanager
def server_process(words: Sequence[str], seconds: float = 60.0) -> Iterator[ServerProcess]:
    """`slipstream serve WORDS` on a free port of this machine, ended in the end."""
    command = [sys.executable, "-m", "slipstream", "serve", *words, "--port", "0"]
    with TemporaryFile("w+") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            while not (found := re.search(r"http://([\d.]+):(\d+)/", text := _read(log))):
                if process.poll() is not None:
                    raise RuntimeError(text)
                time.sleep(0.1)
            yield ServerProcess(process.pid, found[1], int(found[2]))
            process.send_signal(signal.SIGINT)
            process.wait(seconds)
        finally:
            process.kill()


def _read(file: IO[str]) -> str:
    """All of it, wherever another process writes to it."""
    return os.pread(file.fileno(), 1 << 20, 0).decode()


class Connection:
    """One request on a connection of its own: HTTP/1.1, read as it comes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.status, self.headers = 0, dict[str, str]()

    async def send(self, method: str, path: str, body: bytes = b"") -> None:
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        self._writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        await self._writer.drain()

    async def answer(self) -> None:
        """Read the status and the headers."""
        first, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        self.status = int(first.split()[1])
        self.headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}

    async def parts(self) -> AsyncIterator[bytes]:
        """The body in the pieces in which it was sent."""
        if self.headers.get("transfer-encoding") != "chunked":
            yield await self._reader.readexactly(int(self.headers.get("content-length", 0)))
            return
        while size := int(await self._reader.readline(), 16):
            yield (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readline()

    async def whole(self) -> Any:
        return json.loads(b"".join([part async for part in self.parts()]))


@asynccontextmanager
async def connection(server: ServerProcess) -> AsyncIterator[Connection]:
    reader, writer = await asyncio.open_connection(server.host, server.port)
    try:
        yield Connection(reader, writer)
    finally:
        writer.close()  # whatever is unread: the server sees a client that is gone


async def ask(server: ServerProcess, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """A request that is answered whole."""
    async with connection(server) as own:
        await own.send("POST", path, json.dumps(body).encode())
        await own.answer()
        answer: dict[str, Any] = await own.whole()
        if own.status != 200:
            raise RuntimeError(f"{path} gave {own.status}: {answer}")
        return answer


async def metrics(server: ServerProcess) -> dict[str, float]:
    """Counters and gauges without labels."""
    async with connection(server) as own:
        await own.send("GET", "/metrics")
        await own.answer()
        text = b"".join([part async for part in own.parts()]).decode()
    pairs = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#") and "{" not in line)
    return {name.removeprefix("slipstream:"): float(value) for name, value in pairs}


@dataclass
class StreamResult:
    """What a client read of one stream."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    done: bool = False  # the last event came
    first: float = 0.0  # seconds from the request to the first tokens
    gaps: list[float] = field(default_factory=list)  # seconds between events with tokens
    spread: float = 0.0  # seconds from the first token to the last

    def take(self, event: dict[str, Any]) -> int:
        """Read one event; the number of its tokens."""
        if "error" in event:
            self.error = event["error"]["message"]
            return 0
        self.usage = event.get("usage") or self.usage
        count = 0
        for choice in event["choices"]:
            self.text += choice["text"] if "text" in choice else choice["delta"].get("content") or ""
            self.finish_reason = choice["finish_reason"] or self.finish_reason
            tokens = choice.get("token_ids", ())
            self.token_ids += tokens
            count += len(tokens)
        return count


async def read_stream(own: Connection, began: float, pause: float = 0.0, most: int | None = None) -> StreamResult:
    """Read events to the end, or so many of them; `pause` seconds after each of the first ten."""
    result, last, events = StreamResult(), 0.0, 0
    async for part in own.parts():
        now = time.perf_counter()
        for line in part.split(b"\n"):
            if not line.startswith(b"data: "):
                continue
            if line == b"data: [DONE]":
                result.done = True
                continue
            if result.take(json.loads(line[6:])):
                if last:
                    result.gaps.append(now - last)
                else:
                    result.first = now - began
                result.spread, last = now - began - result.first, now
        events += 1
        if most is not None and events >= most:
            return result
        if pause and events <= 10:
            await asyncio.sleep(pause)
    return result
