"""A CPU beside llama.cpp built for the machine, one interleaved run: decoding, prompts, batches, drafts, start, memory.

    benchmarks/peers/build_llamacpp.sh          # once
    python benchmarks/cpu_peers.py [--model smollm2-135m] [--gguf FILE] [--library FOLDER] [--parts plain …]
                                   [--repeats 5] [--tokens 64] [--threads N] [--workloads code chat rewriting]
                                   [--prompts 2] [--drafters eagle dflash ngram] [--dtypes auto a8] [--depths 2 3]
                                   [--out FILE]

llama.cpp runs the model's own GGUF file and the file requantised to Q4_0 and Q8_0 (`peers/requantise.py`), by
`llama-bench`, `llama-batched-bench` and, for the texts of `drafts`, its server. `auto` has activations of 16 bits and
the file's own weights; `a8` has activations of 8 bits, as llama.cpp has. In every repeat each way runs once, and the
order turns round from repeat to repeat. A ratio is of two ways in the same repeat, with its 95 % interval (Student's t
on logarithms); beside it stands the ratio of the best repeats, which other programs on the machine disturb least.
The bars hold against the fastest of the three files. Exits with 1 where one is missed.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from cpu_start import START_BARS, start
from peers import llamacpp_speed
from peers.requantise import TYPES, native_build, requantised

import slipstream as ss
from slipstream.bench.measure.provenance import commit, hardware, load_average, versions
from slipstream.bench.statistics import Estimate, ratio
from slipstream.bench.workloads import load_workloads
from slipstream.engines import open_engine
from slipstream.engines.base import Engine, Speculation
from slipstream.engines.native.engine import NativeEngine
from slipstream.kernels.cpu import linear as cpu_linear
from slipstream.kernels.machine import cores
from slipstream.models.sources.gguf.files import gguf_file

PARTS = ("plain", "prompts", "batches", "drafts", "start")
GREEDY = ss.Sampling(temperature=0)
PROMPTS, BATCHES, SHORT = (128, 1024), (8, 32), 16  # tokens; rows; prompt tokens of a row
BARS = {"plain auto": 1.3, "plain a8": 1.5, "prompts": 1.3, "batches": 1.0, "drafts": 2.0, "own plain": 1.0}
NEVER_SLOWER, OF_THE_BEST = 0.98, 0.95
Speeds = dict[str, list[float]]


class Bar(NamedTuple):
    """A figure and its bound."""

    what: str
    figure: Estimate
    best: float | None  # the same of the best repeats
    bound: float
    above: bool = True

    @property
    def met(self) -> bool:
        return self.figure.value >= self.bound if self.above else self.figure.value <= self.bound


def compared(what: str, ours: Sequence[float], theirs: Sequence[float], bound: float) -> Bar:
    return Bar(what, ratio(ours, theirs), max(ours) / max(theirs), bound)


def interleaved(ways: dict[str, Callable[[], float]], repeats: int) -> Speeds:
    """The speed of every way in every repeat. The first repeat warms up and does not count."""
    speeds: Speeds = {name: [] for name in ways}
    for repeat in range(repeats + 1):
        for name in list(ways) if repeat % 2 else list(ways)[::-1]:
            speed = ways[name]()
            if repeat:
                speeds[name].append(speed)
    print("  ".join(f"{name} {max(values):.1f}" for name, values in speeds.items()), "(best)", flush=True)
    return speeds


class Sides:
    """Our engines by number format, and llama.cpp's files by type."""

    def __init__(self, args: Any) -> None:
        self.args, self.build = args, native_build(args.library)
        own = str(args.gguf or args.model)
        self.files = {"own file": gguf_file(own)} | {kind: requantised(self.build, own, kind) for kind in TYPES}
        self.engines = {dtype: self._engine(dtype) for dtype in args.dtypes}
        text = " ".join(item.turns[0] for item in load_workloads("summary")[0].items)
        ids = next(iter(self.engines.values())).text.encode(text, raw=True)
        self.ids = (ids * (1 + max(PROMPTS) // len(ids)))[: max(PROMPTS)]

    def _engine(self, dtype: str) -> NativeEngine:
        limits = ss.Limits(rows=max(BATCHES), retained=0)
        return NativeEngine(self.args.model, None, dtype=dtype, limits=limits)

    def close(self) -> None:
        for engine in self.engines.values():
            engine.close()

    def race(self, ours: Callable[[Engine], float], theirs: Callable[[Path], float]) -> Speeds:
        ways: dict[str, Callable[[], float]] = {name: partial(ours, engine) for name, engine in self.engines.items()}
        ways |= {f"llama.cpp {kind}": partial(theirs, file) for kind, file in self.files.items()}
        return interleaved(ways, self.args.repeats)

    def plain(self) -> tuple[Speeds, list[Bar]]:
        args, build = self.args, self.build
        speeds = self.race(
            lambda engine: decode(engine, [self.ids[:1]], args.tokens),
            lambda file: llamacpp_speed.decoding(build, file, args.tokens, args.threads),
        )
        return speeds, [self._bar(f"decoding, {name}", speeds, name, BARS[f"plain {name}"]) for name in self.engines]

    def prompts(self, count: int) -> tuple[Speeds, list[Bar]]:
        args, build = self.args, self.build
        speeds = self.race(
            lambda engine: read(engine, self.ids[:count]),
            lambda file: llamacpp_speed.reading(build, file, count, args.threads),
        )
        return speeds, [self._bar(f"prompt of {count}, {name}", speeds, name, BARS["prompts"]) for name in self.engines]

    def batches(self, rows: int) -> tuple[Speeds, list[Bar]]:
        args, build = self.args, self.build
        prompts = [self.ids[i : i + SHORT] for i in range(rows)]
        speeds = self.race(
            lambda engine: decode(engine, prompts, args.tokens),
            lambda file: llamacpp_speed.batched(build, file, rows, SHORT, args.tokens, args.threads),
        )
        return speeds, [self._bar(f"batch of {rows}, {name}", speeds, name, BARS["batches"]) for name in self.engines]

    def _bar(self, what: str, speeds: Speeds, name: str, bound: float) -> Bar:
        fastest = max((f"llama.cpp {kind}" for kind in self.files), key=lambda way: max(speeds[way]))
        return compared(f"{what} / {fastest}", speeds[name], speeds[fastest], bound)


def decode(engine: Engine, prompts: Sequence[Sequence[int]], tokens: int) -> float:
    """Tokens per second of all rows together without the first token of each, which takes the prompt's time."""
    whole, first = (elapsed(engine, prompts, count) for count in (tokens + 1, 1))
    return len(prompts) * tokens / (whole - first)


def read(engine: Engine, prompt: Sequence[int]) -> float:
    """Tokens of a prompt per second, until its first token is there."""
    return len(prompt) / elapsed(engine, [prompt], 1)


def elapsed(engine: Engine, prompts: Sequence[Sequence[int]], tokens: int) -> float:
    started = time.perf_counter()
    done = engine.generate([list(prompt) for prompt in prompts], GREEDY, max_tokens=tokens, ignore_eos=True)
    assert all(len(completion.token_ids) == tokens for completion in done)
    return time.perf_counter() - started


def drafts(args: Any) -> tuple[dict[str, Speeds], list[Bar]]:
    """Texts with the project's drafters, by policy and at fixed depths, against own plain decoding and llama.cpp."""
    dtype = args.dtypes[0]
    loading = {"dtype": dtype, "limits": ss.Limits(retained=0)}
    options = {"library": str(native_build(args.library).folder), "threads": str(args.threads)}
    theirs = () if args.gguf else THEIRS  # its server needs the tokenizer in the GGUF file
    engines = {f"llama.cpp {name}": open_engine("llamacpp", args.model, name, None, None, options) for name in theirs}
    ways: dict[str, tuple[Engine, Speculation | None]] = {name: (engine, None) for name, engine in engines.items()}
    for drafter in args.drafters:
        engines[drafter] = engine = NativeEngine(args.model, drafter, **loading)
        ways.setdefault("plain", (engine, Speculation(off=True)))
        ways[drafter] = engine, Speculation()
        if drafter != "ngram":
            ways |= {f"{drafter} {depth}": (engine, Speculation(depth=depth)) for depth in args.depths}
    results, bars = {}, list[Bar]()
    for workload in args.workloads:
        items = load_workloads(f"{workload}:{args.prompts}")[0].items
        print(workload, end=": ", flush=True)
        runs = {name: partial(answer, *way, items, args.tokens) for name, way in ways.items()}
        results[workload] = interleaved(runs, args.repeats)
        bars += draft_bars(f"{workload}, {dtype}", results[workload], args.drafters)
    for engine in engines.values():
        engine.close()
    return results, bars


THEIRS = ("none", "ngram")  # llama.cpp's drafters


def answer(engine: Engine, asked: Speculation | None, items: Sequence[Any], tokens: int) -> float:
    """Tokens per second of answers, prompts included."""
    started, more = time.perf_counter(), {} if asked is None else {"speculation": asked}
    done = [engine.generate(item.turns[0], GREEDY, max_tokens=tokens, ignore_eos=True, **more)[0] for item in items]
    return sum(len(completion.token_ids) for completion in done) / (time.perf_counter() - started)


def draft_bars(where: str, speeds: Speeds, drafters: Sequence[str]) -> list[Bar]:
    def fastest(names: list[str]) -> str:
        return max(names, key=lambda name: max(speeds[name]))

    theirs = [name for name in speeds if name.startswith("llama.cpp")]
    fixed = [name for name in speeds if name[-1].isdigit()]
    drafting = fastest([*drafters, *fixed])
    amx = "amx_int8" in Path("/proc/cpuinfo").read_text() if platform.machine() == "x86_64" else False
    bars = [compared(f"{where}: {drafting} / plain", speeds[drafting], speeds["plain"], BARS["own plain"])]
    if theirs:
        best, bound = fastest(theirs), BARS["drafts"] if amx else BARS["own plain"]
        bars.append(compared(f"{where}: {drafting} / {best}", speeds[drafting], speeds[best], bound))
    for name in drafters:
        bars.append(compared(f"{where}: policy, {name} / plain", speeds[name], speeds["plain"], NEVER_SLOWER))
        own = [depth for depth in fixed if depth.rpartition(" ")[0] == name]
        if own and max(speeds[best := fastest(own)]) > max(speeds["plain"]):
            bars.append(compared(f"{where}: policy, {name} / {best}", speeds[name], speeds[best], OF_THE_BEST))
    return bars


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--gguf", type=Path, help="llama.cpp's file, where --model is a folder")
    parser.add_argument("--library", default="")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=cores())
    parser.add_argument("--dtypes", nargs="+", choices=("auto", "a8"), default=["auto", "a8"])
    parser.add_argument("--workloads", nargs="+", default=["code", "chat", "rewriting"])
    parser.add_argument("--prompts", type=int, default=2)
    parser.add_argument("--drafters", nargs="+", default=["eagle", "dflash", "ngram"])
    parser.add_argument("--depths", type=int, nargs="+", default=[2, 3])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    build, speeds, bars, load = native_build(args.library), dict[str, Any](), list[Bar](), load_average()
    print(build.label, flush=True)
    if sides_wanted := [part for part in args.parts if part in ("plain", "prompts", "batches")]:
        sides = Sides(args)
        runs = {"plain": [("decoding", sides.plain)]}
        runs["prompts"] = [(f"prompt of {n}", partial(sides.prompts, n)) for n in PROMPTS]
        runs["batches"] = [(f"batch of {n}", partial(sides.batches, n)) for n in BATCHES]
        for title, run in (pair for part in sides_wanted for pair in runs[part]):
            print(title, end=": ", flush=True)
            speeds[title], more = run()
            bars += more
        sides.close()
    if "drafts" in args.parts:
        speeds["drafts"], more = drafts(args)
        bars += more
    if "start" in args.parts:
        figures = start(args.model, args.repeats)
        bars += [Bar(name, figures[name], None, bound, above=False) for name, bound in START_BARS.items()]
    show(bars)
    if args.out:
        save(args, build, speeds, bars, load)
    sys.exit(not all(bar.met for bar in bars))


def show(bars: list[Bar]) -> None:
    """The bars, one in a line: figure, interval, ratio of the best repeats, bound."""
    for bar in bars:
        span = "" if bar.figure.interval is None else " ({:.2f} to {:.2f})".format(*bar.figure.interval)
        best = "" if bar.best is None else f", best repeats {bar.best:.2f}"
        bound = f"{'at least' if bar.above else 'at most'} {bar.bound:g}: {'met' if bar.met else 'MISSED'}"
        print(f"{bar.what}: {bar.figure.value:.2f}{span}{best}; {bound}")


def save(args: Any, build: Any, speeds: dict[str, Any], bars: list[Bar], load: float | None) -> None:
    report = {
        "command": f"python benchmarks/cpu_peers.py {' '.join(sys.argv[1:])}",
        "hardware": hardware() | {"load_average": load},
        "versions": versions(),
        "commit": commit(),
        "kernels": cpu_linear.status().partition(" (")[0],
        "llama.cpp": build.details,
        "tokens_per_second": rounded(speeds),
        "bars": [
            {"what": bar.what, "figure": bar.figure.data(), "of_best": bar.best and round(bar.best, 3)}
            | {"bound": bar.bound, "met": bar.met}
            for bar in bars
        ],
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(report) + "\n")


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: rounded(inner) for name, inner in value.items()}
    return [round(number, 1) for number in value]


if __name__ == "__main__":
    main()
