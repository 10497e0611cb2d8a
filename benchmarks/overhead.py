"""What HTTP costs: tokens per second of streams through the server against the engine's own, in one interleaved run.

    python benchmarks/overhead.py [--model smollm2-135m] [--drafter eagle] [--clients 1 8 32] [--tokens 96]
                                  [--repeats 5] [--bar 0.90] [--depth N] [--engine-process auto|on|off]
                                  [--scripted] [--profile FILE] [--out FILE]

One engine, and a server over it in the same process, or with `--engine-process on` in another one (`auto`: on a GPU).
Its own speed: all requests are submitted at once and awaited, in the process of the engine.
Through HTTP: as many clients as there are requests, in one other process, each with a stream over loopback. Both sides
decode the same requests with the same seeds, so they emit the same number of tokens; that is checked. They take turns.
The clients share the processor with the server, as they do here, but not on a machine of their own.

The table has the median of each side and the ratio of neighbouring calls: median, mean and 95 % interval (Student's t
on logarithms), by the clock and by processor seconds of server and engine, without the clients. The last
columns are the processor time of HTTP's own threads, as a share of the whole and per token, and the processor time that
serving adds to the engine's own threads per token: other work on the machine disturbs them least. `--scripted` takes an
engine that computes nothing, so that HTTP is nearly all that is measured; its ratios mean nothing. The exit code is 1
where a median ratio by the clock is under the bar.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import platform
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

PROMPTS = [
    "Explain how a bicycle stays upright.",
    "Write a Python function that counts the words of a file.",
    "Tell a short story about a lighthouse keeper.",
    "List the planets with one fact about each.",
    "Why do leaves change their colour in autumn?",
    "Describe the way a letter takes through the post.",
    "Give me a recipe for potato soup.",
    "How does a compiler turn text into a program?",
]


class StreamReader(asyncio.Protocol):
    """Sends one request and keeps what comes back; nothing is parsed while the stream runs."""

    def __init__(self, request: bytes, done: asyncio.Future[bytes]) -> None:
        self._request, self._done, self._last = request, done, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._request)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._last = self._last[-2000:] + data  # the usage and the end are in there
        if b"data: [DONE]" in self._last:
            self._transport.close()
            self._done.set_result(self._last)

    def connection_lost(self, error: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(error or RuntimeError(f"the stream was cut off: {self._last!r}"))


async def stream_tokens(port: int, body: dict[str, Any]) -> int:
    """Run one stream to its end; the tokens it had."""
    loop = asyncio.get_running_loop()
    payload = json.dumps(body | {"stream": True, "stream_options": {"include_usage": True}}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    request, done = f"{head}Content-Length: {len(payload)}\r\n\r\n".encode() + payload, loop.create_future()
    await loop.create_connection(lambda: StreamReader(request, done), "127.0.0.1", port)
    end = await done
    start = end.rindex(b'"completion_tokens":') + len(b'"completion_tokens":')
    return int(end[start : end.index(b",", start)])


def client_process(port: int) -> None:
    """Runs the requests of each line that comes in at once, and answers with their tokens."""

    async def run(bodies: list[dict[str, Any]]) -> list[int]:
        return list(await asyncio.gather(*(stream_tokens(port, body) for body in bodies)))

    for line in sys.stdin:
        print(json.dumps(asyncio.run(run(json.loads(line)))), flush=True)


@contextmanager
def clients(port: int) -> Iterator[Callable[[list[dict[str, Any]]], list[int]]]:
    command = [sys.executable, __file__, "--client", str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def run(bodies: list[dict[str, Any]]) -> list[int]:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(bodies) + "\n")
            process.stdin.flush()
            tokens: list[int] = json.loads(process.stdout.readline())
            return tokens

        yield run
        process.stdin.close()


@contextmanager
def served(engine: Any, profile: Path | None) -> Iterator[int]:
    """The server over an engine, in a thread; its port."""
    import uvicorn

    from slipstream.serve.app import create_app
    from slipstream.serve.config import ServerConfig, ServerLimits
    from slipstream.serve.connections import timed_protocol
    from slipstream.serve.run import bind

    app = create_app(ServerConfig(models=("model",), limits=ServerLimits(max_requests=1024)), lambda name: engine)
    settings = uvicorn.Config(app, http=timed_protocol(60.0), log_level="warning", access_log=False)
    server = uvicorn.Server(settings)
    ready = threading.Event()
    app.state.ready = ready.set
    listener = bind("127.0.0.1", 0)

    def run() -> None:
        profiler = cProfile.Profile()
        if profile is None:
            server.run(sockets=[listener])
        else:
            profiler.runcall(server.run, sockets=[listener])
            profiler.dump_stats(profile)

    thread = threading.Thread(target=run)
    thread.start()
    ready.wait()
    yield listener.getsockname()[1]
    server.should_exit = True
    thread.join()
    listener.close()


def own_tokens(engine: Any, bodies: list[dict[str, Any]]) -> list[int]:
    """The same requests, given to the engine itself."""
    from slipstream.core.sampling import Sampling
    from slipstream.engines.base import GenerationOptions, Speculation

    handles = []
    for body in bodies:
        sampling = Sampling(body["temperature"], seed=body["seed"])
        speculation = Speculation(**body["speculation"])
        options = GenerationOptions(body["max_tokens"], ignore_eos=True, speculation=speculation)
        handles += engine.submit(body["messages"], sampling, options)
    return [handle.result().completion_tokens for handle in handles]


def bodies_of(count: int, tokens: int, depth: int | None) -> list[dict[str, Any]]:
    how: dict[str, Any] = {"max_tokens": tokens, "temperature": 0.8, "ignore_eos": True}
    how["speculation"] = {} if depth is None else {"depth": depth}
    chats = ([{"role": "user", "content": PROMPTS[number % len(PROMPTS)]}] for number in range(count))
    return [how | {"seed": number, "messages": chat} for number, chat in enumerate(chats)]


def open_native(model: str, drafter: str, rows: int) -> Any:
    from slipstream.engines.native.engine import NativeEngine
    from slipstream.engines.native.scheduler import Limits

    return NativeEngine(model, drafter, limits=Limits(rows=rows))


def opened(given: argparse.Namespace) -> Any:
    """The engine of a run, here or in a process of its own. Functions that go there belong to a module by its name."""
    import overhead
    import torch
    from scripted_engine import open_scripted

    from slipstream.engines.process.engine import ProcessEngine

    opener = partial(overhead.open_native, given.model, given.drafter, max(given.clients))
    if given.scripted:
        opener = partial(open_scripted, given.model)
    own = torch.cuda.is_available() if given.engine_process == "auto" else given.engine_process == "on"
    return ProcessEngine(opener) if own else opener()


def in_engine(engine: Any, name: str, *values: Any) -> Any:
    """Call a function of this module with the engine, in the process where it runs."""
    import overhead

    function = getattr(overhead, name)
    return engine.call(function, *values) if hasattr(engine, "call") else function(engine, *values)


def process_seconds(engine: Any) -> float:
    return time.process_time()


def all_seconds(engine: Any) -> float:
    """Processor seconds of the server and of the engine."""
    return time.process_time() + (in_engine(engine, "process_seconds") if hasattr(engine, "call") else 0.0)


def http_seconds() -> float:
    """Processor seconds of the event loop and of the threads that start requests: all but the engine and this one."""
    own = (thread for thread in threading.enumerate() if thread.name not in ("MainThread", "slipstream"))
    return sum(time.clock_gettime(time.pthread_getcpuclockid(thread.ident)) for thread in own if thread.ident)


def measure(given: argparse.Namespace) -> dict[str, Any]:
    import torch
    from engine import ratios

    engine = opened(given)
    records = []
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{torch.get_num_threads()} threads"
    with served(engine, given.profile) as port, clients(port) as through_http:
        for count in given.clients:
            bodies = bodies_of(count, given.tokens, given.depth)
            sides: dict[str, Callable[[], list[int]]] = {
                "engine": lambda bodies=bodies: in_engine(engine, "own_tokens", bodies),
                "http": lambda bodies=bodies: through_http(bodies),
            }
            speeds: dict[str, list[float]] = {name: [] for name in sides}
            efforts: dict[str, list[float]] = {name: [] for name in sides}
            works: list[tuple[float, float, int]] = []  # seconds of HTTP's threads, of the process, and tokens
            for repeat in range(given.repeats + 1):
                emitted = {}
                for name, run in sides.items() if repeat % 2 else reversed(sides.items()):
                    worked, http, began = all_seconds(engine), http_seconds(), time.perf_counter()
                    emitted[name] = run()
                    tokens = sum(emitted[name])
                    speeds[name].append(tokens / (time.perf_counter() - began))
                    effort = all_seconds(engine) - worked
                    efforts[name].append(tokens / effort)
                    if name == "http":
                        works.append((http_seconds() - http, effort, tokens))
                assert emitted["engine"] == emitted["http"], emitted
            medians = {name: statistics.median(values[1:]) for name, values in speeds.items()}  # the first warms up
            record: dict[str, Any] = {"ratio": ratios(speeds["http"][1:], speeds["engine"][1:])}
            record["processor"] = ratios(efforts["http"][1:], efforts["engine"][1:])
            record["share"] = statistics.median(work / whole for work, whole, _ in works[1:])
            record["microseconds"] = statistics.median(1e6 * work / tokens for work, _, tokens in works[1:])
            engine_side = (1e6 * (whole - work) / tokens for work, whole, tokens in works[1:])
            alone = (1e6 / effort for effort in efforts["engine"][1:])
            record["added"] = statistics.median(engine_side) - statistics.median(alone)
            records.append({"clients": count} | medians | record)
    engine.close()
    about = {"model": engine.label, "drafter": given.drafter, "machine": f"{platform.machine()}, {device}"}
    return about | {"tokens": given.tokens, "repeats": given.repeats, "records": records}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--drafter", default="eagle")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--depth", type=int, help="of all drafts; without it the policy decides")
    parser.add_argument("--engine-process", choices=["auto", "on", "off"], default="auto")
    parser.add_argument("--scripted", action="store_true", help="an engine that computes nothing")
    parser.add_argument("--bar", type=float, default=0.90)
    parser.add_argument("--profile", type=Path, help="profile the server's thread into this file")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--client", type=int, metavar="PORT", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.client:
        client_process(given.client)
        return 0
    report = measure(given)
    from engine import interval
    from load import save
    from rich.console import Console
    from rich.table import Table

    table = Table(
        "clients",
        "engine tok/s",
        "HTTP tok/s",
        "HTTP / engine",
        "by processor time",
        "HTTP's share",
        "µs per token",
        "added to engine",
        title=f"{report['model']}, {report['machine']}",
    )
    for record in report["records"]:
        speeds = [f"{record[name]:.1f}" for name in ("engine", "http")]
        shares = [interval(record[name]) for name in ("ratio", "processor")]
        table.add_row(
            str(record["clients"]),
            *speeds,
            *shares,
            f"{record['share']:.1%}",
            f"{record['microseconds']:.1f}",
            f"{record['added']:.1f}",
        )
    Console(width=120).print(table)
    if given.out:
        save(given.out, report | {"command": "python " + " ".join(sys.argv)})
    return int(any(record["ratio"]["median"] < given.bar for record in report["records"]))


if __name__ == "__main__":
    sys.exit(main())
