"""A server under load: many streaming clients, some of which go away, read slowly or ask for nonsense (`make load`).

    python benchmarks/load.py [--model smollm2-135m] [--drafter eagle] [--clients 64] [--seconds 300] [--warm 60]
                              [--distinct 48] [--tokens 16 64] [--out FILE] [-- SERVE OPTIONS]

The server is a process of its own. Each client sends one request after another: a stream that is read to its end, one
that is left in the middle, one whose client goes away before the answer, one that is read slowly, or one that is wrong.
Half of the streams have speculation off. Requests are drawn from `--distinct` of them, each with a seed or greedy.

Checked, with exit code 1 where it does not hold:
- Every finished stream equals a replay of its request that runs alone and without speculation: same tokens, same text.
- Wrong requests get the status that says so.
- Afterwards no row runs, nothing waits, and the server has no more threads and descriptors than after the warm-up.
- Resident memory stays within 2 % of its median after the warm-up. The warm-up lasts until caches are full.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from http_streams import ServerProcess, StreamResult, ask, connection, metrics, read_stream, server_process
from rich.console import Console
from rich.table import Table

TOPICS = ["the sea", "a red bicycle", "prime numbers", "bread", "the moon", "a quiet street", "rivers", "old maps"]
TASKS = ["Write a line about {}.", "What is {}?", "List facts on {}:", "def describe(): # {}"]
KINDS = {"stream": 70, "leave": 10, "vanish": 7, "slow": 5, "wrong": 8}  # shares of requests
MEMORY_BAND = 0.02
WRONG: list[tuple[str, bytes, int]] = [
    ("/v1/completions", b'{"prompt": "a", "temprature": 1}', 400),
    ("/v1/completions", b'{"prompt": "a", "temperature": -1}', 400),
    ("/v1/completions", b'{"prompt": "' + b"a b " * 300_000 + b'"}', 400),
    ("/v1/completions", b'{"prompt": "' + b"a" * (5 << 20) + b'"}', 413),
    ("/v1/chat/completions", b"{", 400),
    ("/v1/chat/completions", b"\xff\xfe\x00", 400),
    ("/v1/chat/completions", b'{"model": "gpt-9", "messages": [{"role": "user", "content": "a"}]}', 404),
    ("/v1/nothing", b"{}", 404),
]


@dataclass
class Load:
    """One run: what is asked, what came back, and what the server looked like meanwhile."""

    server: ServerProcess
    requests: list[tuple[str, dict[str, Any]]]
    rng: random.Random
    finished: list[tuple[int, str, StreamResult]] = field(default_factory=list)  # request, on or off, result
    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    samples: list[dict[str, float]] = field(default_factory=list)

    async def phase(self, clients: int, seconds: float) -> None:
        """Run the clients for so long, then wait until all of them are done."""
        until = time.monotonic() + seconds
        watcher = asyncio.create_task(self._watch())
        await asyncio.gather(*(self._client(until) for _ in range(clients)))
        watcher.cancel()
        await self._quiet()

    async def _watch(self) -> None:
        while True:
            self.samples.append(self.server.usage())
            await asyncio.sleep(0.5)

    async def _quiet(self, seconds: float = 30.0) -> None:
        """Wait until the server has nothing to do; a row that is not freed is a leak."""
        names, until = ("num_requests_running", "num_requests_waiting", "num_requests_active"), time.monotonic()
        while any(left := [(await metrics(self.server))[name] for name in names]):
            if time.monotonic() > until + seconds:
                self.problems.append(f"rows running, waiting, active after all clients are gone: {left}")
                return
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.5)

    async def _client(self, until: float) -> None:
        while time.monotonic() < until:
            (kind,) = self.rng.choices(list(KINDS), list(KINDS.values()))
            try:
                await getattr(self, f"_{kind}")()
            except (OSError, asyncio.IncompleteReadError, ValueError) as error:
                self.problems.append(f"{kind}: {error!r}")
                await asyncio.sleep(0.1)
            self.counts[kind] += 1

    def _draw(self) -> tuple[int, str, str, bytes]:
        """The number of a request, its speculation, its path and its body as a stream."""
        index = self.rng.randrange(len(self.requests))
        path, body = self.requests[index]
        way = self.rng.choice(["on", "off"])
        how: dict[str, Any] = {"off": True} if way == "off" else self.rng.choice([{}, {"depth": 3}])
        streamed = body | {"stream": True, "stream_options": {"include_usage": True}, "speculation": how}
        return index, way, path, json.dumps(streamed).encode()

    async def _stream(self, pause: float = 0.0) -> None:
        index, way, path, body = self._draw()
        began = time.perf_counter()
        async with connection(self.server) as own:
            await own.send("POST", path, body)
            await own.answer()
            if own.status != 200:
                self.problems.append(f"a good request got {own.status}: {await own.whole()}")
                return
            result = await read_stream(own, began, pause)
        if not result.done or result.error:
            self.problems.append(f"a stream ended with {result.error or 'no last event'}")
        self.finished.append((index, "slow" if pause else way, result))

    async def _slow(self) -> None:
        await self._stream(pause=self.rng.uniform(0.02, 0.2))

    async def _leave(self) -> None:
        """Read some events and go away."""
        _, _, path, body = self._draw()
        async with connection(self.server) as own:
            await own.send("POST", path, body)
            await own.answer()
            await read_stream(own, 0.0, most=self.rng.randrange(1, 8))

    async def _vanish(self) -> None:
        """Go away before the answer, sometimes in the middle of the request."""
        _, _, path, body = self._draw()
        async with connection(self.server) as own:
            await own.send("POST", path, body)
            await asyncio.sleep(self.rng.uniform(0.0, 0.5))

    async def _wrong(self) -> None:
        path, body, expected = self.rng.choice(WRONG)
        async with connection(self.server) as own:
            await own.send("POST", path, body)
            await own.answer()
            answer = await own.whole()
        if own.status != expected or "message" not in answer.get("error", {}):
            self.problems.append(f"{path} with a wrong body got {own.status}, not {expected}: {answer}")

    async def replay(self) -> int:
        """Run every request again, alone and plainly, and compare; the number of streams compared."""
        streams = defaultdict(list)
        for index, way, result in self.finished:
            streams[index].append((way, result))
        for index, results in streams.items():
            path, body = self.requests[index]
            answer = await ask(self.server, path, body | {"speculation": {"off": True}})
            (choice,) = answer["choices"]
            text = choice["text"] if "text" in choice else choice["message"]["content"]
            expected = (choice["token_ids"], text, choice["finish_reason"])
            for way, result in results:
                if (result.token_ids, result.text, result.finish_reason) != expected:
                    self.problems.append(f"speculation {way}: {body} gave {result}, its replay {expected}")
                elif result.usage.get("completion_tokens") != len(result.token_ids):
                    self.problems.append(f"usage {result.usage} of {len(result.token_ids)} tokens")
        return len(self.finished)


def draw_requests(count: int, tokens: tuple[int, int], rng: random.Random) -> list[tuple[str, dict[str, Any]]]:
    """Requests that one can repeat: paths and bodies, greedy or with a seed."""
    requests: list[tuple[str, dict[str, Any]]] = []
    for number in range(count):
        prompt = rng.choice(TASKS).format(rng.choice(TOPICS))
        body: dict[str, Any] = {"max_tokens": rng.randint(*tokens), "temperature": rng.choice([0, 0.7, 1.0])}
        body |= {"seed": number, "return_token_ids": True}
        if number % 2:
            requests.append(("/v1/chat/completions", body | {"messages": [{"role": "user", "content": prompt}]}))
        else:
            requests.append(("/v1/completions", body | {"prompt": prompt}))
    return requests


def check_resources(before: dict[str, float], load: Load) -> dict[str, Any]:
    """Compare the server's threads, descriptors and memory with those after the warm-up."""
    after, memory = load.server.usage(), [sample["memory"] for sample in load.samples]
    for name in ("threads", "descriptors"):
        if after[name] > before[name]:
            load.problems.append(f"{name} grew from {before[name]:g} to {after[name]:g}")
    median = statistics.median(memory)
    low, high = min(memory) / median - 1, max(memory) / median - 1
    if low < -MEMORY_BAND or high > MEMORY_BAND:
        load.problems.append(f"memory went from {low:+.1%} to {high:+.1%} of its median, {median:.0f} MiB")
    series = [round(value) for value in memory[:: max(1, len(memory) // 60)]]
    return after | {"memory": median, "memory_low": low, "memory_high": high, "memory_series": series}


def percentiles(values: list[float]) -> list[float]:
    """p50 and p99."""
    ordered = sorted(values)
    return [ordered[min(len(ordered) - 1, int(len(ordered) * share))] for share in (0.5, 0.99)] if ordered else [0, 0]


def times(load: Load) -> dict[str, dict[str, Any]]:
    """Milliseconds to the first token, between events and per token; p50 and p99 by speculation."""
    report: dict[str, dict[str, Any]] = {}
    for way in ("on", "off"):
        results = [result for _, own, result in load.finished if own == way]
        spoken = [result for result in results if len(result.token_ids) > 1]
        values = {
            "first_token_ms": [result.first for result in results],
            "between_events_ms": [gap for result in results for gap in result.gaps],
            "per_token_ms": [result.spread / (len(result.token_ids) - 1) for result in spoken],
        }
        milliseconds = {name: [1000 * value for value in percentiles(own)] for name, own in values.items()}
        tokens, cycles = sum(len(r.token_ids) for r in results), sum(1 + len(r.gaps) for r in results)
        report[way] = {"streams": len(results), "tokens": tokens, "tokens_per_event": tokens / max(1, cycles)}
        report[way] |= milliseconds
    return report


async def warm_up(load: Load, clients: int, seconds: float) -> float:
    """Run until memory is flat, at most four times `seconds`; the seconds it took. The server keeps the prefixes of all
    texts up to a limit, so each request runs once before the load."""
    began, last = time.monotonic(), 0.0
    await asyncio.gather(*(ask(load.server, path, body) for path, body in load.requests))
    for _ in range(4):
        await load.phase(clients, seconds)
        memory = load.server.usage()["memory"]
        if memory < last * (1 + MEMORY_BAND / 4):
            break
        last = memory
    return time.monotonic() - began


async def run(server: ServerProcess, given: argparse.Namespace) -> tuple[Load, dict[str, Any]]:
    rng = random.Random(given.seed)
    load = Load(server, draw_requests(given.distinct, tuple(given.tokens), rng), rng)
    warmed = await warm_up(load, given.clients, given.warm)
    before, load.samples = server.usage(), []
    warm = len(load.finished)
    began = time.monotonic()
    await load.phase(given.clients, given.seconds)
    elapsed = time.monotonic() - began
    resources = {"before": before, "after": check_resources(before, load)}
    compared = await load.replay()
    tokens = sum(len(result.token_ids) for _, _, result in load.finished[warm:])
    load.finished = load.finished[warm:]
    report = {
        "warm_up_seconds": warmed,
        "seconds": elapsed,
        "clients": given.clients,
        "requests": dict(load.counts),
        "compared": compared,
        "tokens_per_second": tokens / elapsed,
        "speculation": times(load),
        "resources": resources,
        "problems": load.problems[:20],
    }
    return load, report


def show(report: dict[str, Any]) -> None:
    table = Table(
        "speculation", "streams", "tokens/event", "first token", "between events", "per token", title="p50/p99"
    )
    for way, own in report["speculation"].items():
        cells = [f"{p50:.0f} / {p99:.0f} ms" for p50, p99 in (own[f"{n}_ms"] for n in TIMES)]
        table.add_row(way, str(own["streams"]), f"{own['tokens_per_event']:.2f}", *cells)
    console, before, after = Console(width=120), report["resources"]["before"], report["resources"]["after"]
    console.print(table)
    requests = ", ".join(f"{count} {kind}" for kind, count in report["requests"].items())
    warmed, speed = report["warm_up_seconds"], report["tokens_per_second"]
    console.print(f"{report['clients']} clients, {report['seconds']:.0f} s after {warmed:.0f} s, {speed:.0f} tokens/s.")
    console.print(f"Requests: {requests}. Streams equal to their replay: {report['compared']}.")
    console.print(f"Memory {after['memory']:.0f} MiB, {after['memory_low']:+.1%} to {after['memory_high']:+.1%}.")
    kept = (f"{name} {before[name]:g} → {after[name]:g}" for name in ("threads", "descriptors"))
    console.print(f"After the warm-up and after the load: {', '.join(kept)}.")
    for problem in report["problems"]:
        console.print(f"[red]{problem[:600]}", highlight=False)


TIMES = ("first_token", "between_events", "per_token")


def save(path: Path, report: dict[str, Any]) -> None:
    """Write the whole file or nothing."""
    partial = path.with_suffix(".partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial.write_text(json.dumps(report, indent=1) + "\n")
    os.replace(partial, path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--drafter", default="eagle")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=300.0, help="after the warm-up")
    parser.add_argument("--warm", type=float, default=60.0, help="seconds of load, again until memory is flat")
    parser.add_argument("--distinct", type=int, default=48, help="requests to draw from, each replayed once")
    parser.add_argument("--tokens", type=int, nargs=2, default=(16, 64), metavar=("LEAST", "MOST"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("serve", nargs="*", help="more options of `slipstream serve`, after --")
    given = parser.parse_args()
    words = [given.model, "-d", given.drafter, *given.serve]
    with server_process(words) as server:
        _, report = asyncio.run(run(server, given))
    show(report)
    if given.out:
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
        about = {"command": "python " + " ".join(sys.argv), "serve": words, "commit": commit}
        save(given.out, about | {"machine": f"{platform.machine()}, {os.cpu_count()} cores"} | report)
    return int(bool(report["problems"]))


if __name__ == "__main__":
    sys.exit(main())
