"""What HTTP costs: tokens per second of streams through the server against the engine's own, in one interleaved run.

    python benchmarks/overhead.py [--model smollm2-135m] [--drafter eagle] [--clients 1 8 32] [--tokens 96]
                                  [--repeats 5] [--bar 0.90] [--depth N] [--engine-process auto|on|off]
                                  [--api-server-count N] [--client-processes N] [--scripted] [--profile FILE]
                                  [--out FILE]

One engine, and a server over it in the same process, or with `--engine-process on` in another one (`auto`: on a GPU),
or with `--api-server-count` in several others. Its own speed: all requests are submitted at once and awaited, in the
process of the engine. Through HTTP: as many clients as there are requests, each with a stream over loopback, in
processes of their own. Clients parse every event. Both sides decode the same requests with the same seeds, so they emit
the same number of tokens; that is checked. They take turns.

The table has the median of each side and the ratio of neighbouring calls by the clock: median, mean and 95 % interval
(Student's t on logarithms). Then follow the processor time of HTTP per token, the processor time that serving adds to
the engine's own threads per token, and the cores that each part keeps busy while streams run. `--scripted` takes an
engine that computes nothing, so that HTTP is nearly all that is measured; its ratios mean nothing. The exit code is 1
where a median ratio is under the bar.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import os
import platform
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from overhead_clients import ClientProcesses, client_processes

from slipstream.serve.config import ServerLimits

LIMITS = ServerLimits(max_requests=1024, max_requests_per_key=1024)
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


@contextmanager
def served_here(engine: Any, profile: Path | None) -> Iterator[tuple[int, list[int]]]:
    """The server over an engine, in a thread of this process: its port, and no other process."""
    import uvicorn

    from slipstream.serve.app import create_app
    from slipstream.serve.config import ServerConfig
    from slipstream.serve.run import bind, http_settings

    app = create_app(ServerConfig(models=("model",), limits=LIMITS), lambda name: engine)
    server = uvicorn.Server(http_settings(app, LIMITS))
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
    yield listener.getsockname()[1], []
    server.should_exit = True
    thread.join()
    listener.close()


@contextmanager
def served_by_workers(engine: Any, count: int) -> Iterator[tuple[int, list[int]]]:
    """The server over an engine, in several processes: its port, and the ids of the processes."""
    from slipstream.serve.config import ServedEngine, ServerConfig
    from slipstream.serve.run import bind
    from slipstream.serve.workers.group import WorkerGroup

    config = ServerConfig(("model",), ServedEngine(process=True), LIMITS, api_servers=count)
    listener, ready, started = bind("127.0.0.1", 0), threading.Event(), list[tuple[WorkerGroup, Any]]()
    port = listener.getsockname()[1]

    async def run() -> None:
        started.append((WorkerGroup(config, "quiet", lambda name: engine), asyncio.get_running_loop()))
        await started[0][0].run(listener, ready.set)

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    ready.wait()
    group, loop = started[0]
    yield port, group.process_ids
    loop.call_soon_threadsafe(group.stop)
    thread.join()


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


def opened(given: argparse.Namespace, own_process: bool) -> Any:
    """The engine of a run, here or in a process of its own. Functions that go there belong to a module by its name."""
    import overhead
    from scripted_engine import open_scripted

    from slipstream.engines.process.engine import ProcessEngine

    opener = partial(overhead.open_native, given.model, given.drafter, max(given.clients))
    if given.scripted:
        opener = partial(open_scripted, given.model)
    return ProcessEngine(opener) if own_process else opener()


def in_engine(engine: Any, name: str, *values: Any) -> Any:
    """Call a function of this module with the engine, in the process where it runs."""
    import overhead

    function = getattr(overhead, name)
    return engine.call(function, *values)


def process_seconds(engine: Any) -> float:
    return time.process_time()


def http_seconds(workers: list[int]) -> float:
    """Processor seconds of HTTP: of its processes, and of all threads here but the engine's and this one."""
    own = (thread for thread in threading.enumerate() if thread.name not in ("MainThread", "slipstream"))
    here = sum(time.clock_gettime(time.pthread_getcpuclockid(thread.ident)) for thread in own if thread.ident)
    return here + sum(map(seconds_of, workers))


def seconds_of(pid: int) -> float:
    """Processor seconds of another process."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


@dataclass
class Effort:
    """Wall-clock and processor seconds of one call, by part."""

    tokens: list[int]
    wall: float
    engine: float
    http: float
    clients: float


@dataclass
class Bench:
    """One engine, a server over it, and the clients of that server."""

    engine: Any
    workers: list[int]
    clients: ClientProcesses
    is_own_process: bool

    def call(self, run: Callable[[list[dict[str, Any]]], list[int]], bodies: list[dict[str, Any]]) -> Effort:
        before, began = self._seconds(), time.perf_counter()
        tokens = run(bodies)
        wall = time.perf_counter() - began
        engine, http, clients = (after - then for after, then in zip(self._seconds(), before, strict=True))
        return Effort(tokens, wall, engine, http, clients)

    def _seconds(self) -> tuple[float, float, float]:
        http = http_seconds(self.workers)
        engine = in_engine(self.engine, "process_seconds")
        return engine if self.is_own_process else engine - http, http, self.clients.seconds

    def measure(self, count: int, given: argparse.Namespace) -> dict[str, Any]:
        """Both sides in turns, with so many requests at once. The first turn warms up."""
        from engine import ratios

        bodies = bodies_of(count, given.tokens, given.depth)
        sides = {"engine": lambda bodies: in_engine(self.engine, "own_tokens", bodies), "http": self.clients.run}
        efforts: dict[str, list[Effort]] = {name: [] for name in sides}
        for repeat in range(given.repeats + 1):
            for name, run in sides.items() if repeat % 2 else reversed(sides.items()):
                efforts[name].append(self.call(run, bodies))
            assert efforts["engine"][-1].tokens == efforts["http"][-1].tokens
            walls = ", ".join(f"{name} {efforts[name][-1].wall:.2f} s" for name in sides)
            say(f"{count} clients, turn {repeat} of {given.repeats}: {walls}")
        own, http = efforts["engine"][1:], efforts["http"][1:]
        tokens = sum(own[0].tokens)
        return {
            "clients": count,
            "engine": statistics.median(tokens / each.wall for each in own),
            "http": statistics.median(tokens / each.wall for each in http),
            "ratio": ratios([1 / each.wall for each in http], [1 / each.wall for each in own]),
            "microseconds": statistics.median(1e6 * each.http / tokens for each in http),
            "added": 1e6 * statistics.median(b.engine - a.engine for a, b in zip(own, http, strict=True)) / tokens,
            "busy": {
                part: statistics.median(getattr(each, part) / each.wall for each in http)
                for part in ("engine", "http", "clients")
            },
        }


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def measure(given: argparse.Namespace) -> dict[str, Any]:
    import torch

    on_gpu = torch.cuda.is_available()
    own = on_gpu if given.engine_process == "auto" else given.engine_process == "on"
    count = given.api_server_count or (min(4, max(1, (os.cpu_count() or 1) // 4)) if own and on_gpu else 1)
    own = own or count > 1
    say("loading the model")
    engine = opened(given, own)
    say(f"starting HTTP, processes: {count}")
    serving = served_by_workers(engine, count) if count > 1 else served_here(engine, given.profile)
    many = given.client_processes or max(1, min(8, (os.cpu_count() or 1) // 2))
    with serving as (port, workers), client_processes(port, many) as clients:
        bench = Bench(engine, workers, clients, own)
        records = [bench.measure(at_once, given) for at_once in given.clients]
    engine.close()
    device = torch.cuda.get_device_name() if on_gpu else f"{torch.get_num_threads()} threads"
    about = {"model": engine.label, "drafter": given.drafter, "machine": f"{platform.machine()}, {device}"}
    processes = {"http": count, "clients": many, "engine": int(own)}
    return about | {"tokens": given.tokens, "repeats": given.repeats, "processes": processes, "records": records}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--drafter", default="eagle")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--depth", type=int, help="of all drafts; without it the policy decides")
    parser.add_argument("--engine-process", choices=["auto", "on", "off"], default="auto")
    parser.add_argument("--api-server-count", type=int, help="HTTP processes; by default as slipstream serve has them")
    parser.add_argument("--client-processes", type=int, help="by default half of the cores, at most 8")
    parser.add_argument("--scripted", action="store_true", help="an engine that computes nothing")
    parser.add_argument("--bar", type=float, default=0.90)
    parser.add_argument("--profile", type=Path, help="profile the server's thread into this file")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    report = measure(given)
    from engine import interval
    from load import save
    from rich.console import Console
    from rich.table import Table

    columns = ["clients", "engine tok/s", "HTTP tok/s", "HTTP / engine", "HTTP µs/token", "added to engine"]
    table = Table(*columns, "busy cores: engine, HTTP, clients", title=f"{report['model']}, {report['machine']}")
    for record in report["records"]:
        table.add_row(
            str(record["clients"]),
            *(f"{record[name]:.1f}" for name in ("engine", "http")),
            interval(record["ratio"]),
            *(f"{record[name]:.1f}" for name in ("microseconds", "added")),
            ", ".join(f"{record['busy'][part]:.2f}" for part in ("engine", "http", "clients")),
        )
    Console(width=120).print(table)
    if given.out:
        save(given.out, report | {"command": "python " + " ".join(sys.argv)})
    return int(any(record["ratio"]["median"] < given.bar for record in report["records"]))


if __name__ == "__main__":
    sys.exit(main())
