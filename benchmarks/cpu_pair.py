"""A target and its draft model on a CPU: is speculation a gain? Ours beside llama.cpp, on the same two GGUF files.

    python benchmarks/cpu.py --pair TARGET.gguf DRAFT.gguf [--tokens 64] [--prompts 1] [--repeats 2] [--out FILE]

Greedy, every prompt read anew, each way in turn, the order turned round every repeat, the first one warming up. Every
cell is printed, and saved, as soon as it is there. Where llama.cpp is not installed, or says nothing, ours are
measured alone.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from slipstream.bench.workloads import load_workloads
from slipstream.core.law import OneHot
from slipstream.core.sampling import Sampling
from slipstream.core.tree import Tree
from slipstream.core.types import Draft, Request, Row
from slipstream.engines import open_engine
from slipstream.engines.base import Engine, Speculation
from slipstream.engines.native.engine import NativeEngine
from slipstream.engines.native.scheduler import Limits
from slipstream.models.run.torch_model import TorchModel

OURS: dict[str, Speculation] = {
    "plain": Speculation(off=True),
    "policy": Speculation(),
    "depth 1": Speculation(depth=1),
    "depth 2": Speculation(depth=2),
    "depth 3": Speculation(depth=3),
    "n-gram": Speculation(drafter="ngram"),
}
THEIRS = ("llama.cpp", "llama.cpp with the draft")
GREEDY = Sampling(temperature=0)
WORKLOADS, PASSES, CONTEXT = ("code", "chat"), (1, 2, 4, 8), 200
Speeds = dict[str, dict[str, list[float]]]


def race(args: Any, keep: Callable[[Speeds, dict[str, dict[int, float]]], None]) -> Speeds:
    """Tokens per second by workload and way, one number a repeat; `keep` is told all there is after every cell."""
    target, draft = args.pair
    ours = NativeEngine(target, draft, limits=Limits(retained=0))
    print(ours.label, flush=True)
    drafter: Any = ours.drafter(draft)
    passes = {"target": costs(ours.target.model), "draft": costs(drafter.model)}
    for who, seconds in passes.items():
        print(f"{who}, ms a pass:", ", ".join(f"{n} tokens {ms:.1f}" for n, ms in seconds.items()), flush=True)
    theirs = peers(target, draft)
    speeds: Speeds = {name: {way: [] for way in (*OURS, *theirs)} for name in WORKLOADS}
    for workload, way, engine, asked, repeat in turns(args, ours, theirs):
        items = load_workloads(f"{workload}:{args.prompts}")[0].items
        more = {} if asked is None else {"speculation": asked}
        started = time.perf_counter()
        done = [engine.generate(i.turns[0], GREEDY, max_tokens=args.tokens, **more)[0] for i in items]
        speed = sum(len(completion.token_ids) for completion in done) / (time.perf_counter() - started)
        note = "" if repeat else " (warming up)"
        print(
            f"{workload}, {way}: {speed:.2f} tokens/s, tau {statistics.mean(d.tau for d in done):.2f}{note}", flush=True
        )
        if repeat:
            speeds[workload][way].append(speed)
            keep(speeds, passes)
    for engine in (ours, *theirs.values()):
        engine.close()
    return speeds


def peers(target: str, draft: str) -> dict[str, Engine]:
    """llama.cpp without the draft model and with it, where it says a word."""
    engines: dict[str, Engine] = {}
    for way, drafter in zip(THEIRS, ("none", draft), strict=True):
        try:
            engines[way] = open_engine("llamacpp", target, drafter)
            (done,) = engines[way].generate("Hello", GREEDY, max_tokens=1)
            if not done.token_ids:
                engines.pop(way).close()
                print(f"{way} is left out: {done.error or 'it says nothing'}", flush=True)
        except ValueError as error:
            print(f"{way} is left out: {error}", flush=True)
    return engines


def turns(
    args: Any, ours: Engine, theirs: dict[str, Engine]
) -> Iterator[tuple[str, str, Engine, Speculation | None, int]]:
    ways: list[tuple[str, Engine, Speculation | None]] = [(way, ours, asked) for way, asked in OURS.items()]
    ways += [(way, engine, None) for way, engine in theirs.items()]
    for workload in WORKLOADS:
        for repeat in range(args.repeats + 1):
            for way in ways if repeat % 2 else ways[::-1]:
                yield workload, *way, repeat


def costs(model: TorchModel) -> dict[int, float]:
    """Milliseconds of a pass by its tokens."""
    found = passes(model, PASSES, 8)
    return {tokens: 1e3 * statistics.median(seconds[2:]) for tokens, seconds in found.items()}


def passes(model: TorchModel, sizes: Sequence[int], rounds: int) -> dict[int, list[float]]:
    """Seconds of passes over so many tokens behind a context of 200, in turn."""
    row = Row(Request([token % model.vocab for token in range(100, 100 + CONTEXT)]))
    model.open([row])
    model.prefill([row], CONTEXT - 1)
    found: dict[int, list[float]] = {tokens: [] for tokens in sizes}
    for _ in range(rounds):
        for tokens, seconds in found.items():
            drafted = torch.arange(tokens - 1)
            draft = Draft(Tree.chains([tokens - 1]), drafted, OneHot(drafted, model.vocab))
            started = time.perf_counter()
            model.score([row], draft)
            seconds.append(time.perf_counter() - started)
    model.close([row])
    return found
