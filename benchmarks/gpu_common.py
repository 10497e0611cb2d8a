"""What the parts of `gpu.py` share: clocks, prompts, and an engine that is asked."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from slipstream.bench.workloads import load_workloads
from slipstream.core.sampling import Sampling
from slipstream.engines.base import GenerationOptions, Speculation
from slipstream.engines.native.build import build_target
from slipstream.engines.native.engine import NativeEngine
from slipstream.engines.native.scheduler import Limits

WAYS = {"plain": Speculation(depth=0), "eagle 3": Speculation(depth=3), "eagle 5": Speculation(depth=5)}
TREES = {f"tree {nodes}": Speculation(shape=nodes) for nodes in (8, 15, 24)}


def bandwidth() -> float:
    """Bytes read and written per second by a large copy."""
    source = torch.empty(1 << 31, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / (timed(lambda: target.copy_(source), 20) / 1000)


def timed(run: Callable[[], object], count: int = 50) -> float:
    """Milliseconds, the median of five stretches."""
    times = []
    for _ in range(6):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(count):
            run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / count)
    return statistics.median(times[1:])


def open_engine(asked: argparse.Namespace, **more: Any) -> NativeEngine:
    return NativeEngine(build_target(asked.model, **more), asked.head, "block", limits=Limits(rows=64, retained=0))


def prompts(count: int) -> list[str]:
    loads = load_workloads("code,chat,maths,summary")
    texts = [workload.items[i].turns[0] for i in range(3) for workload in loads]
    return [texts[i % len(texts)] for i in range(count)]


def answer(
    engine: NativeEngine, texts: list[str], tokens: int, how: Speculation, warm: float = 0.0
) -> tuple[int, float, list[list[int]]]:
    """Tokens, tau and the answers, all requests at once."""
    options = GenerationOptions(max_tokens=tokens, speculation=how, ignore_eos=True)
    tickets = [engine.submit(text, Sampling(temperature=warm, seed=n), options)[0] for n, text in enumerate(texts)]
    done = [ticket.result() for ticket in tickets]
    cycles = sum(completion.stats.cycles for completion in done)
    count = sum(len(completion.token_ids) for completion in done)
    return count, count / max(1, cycles), [completion.token_ids for completion in done]


def timed_batch(
    engine: NativeEngine,
    prompts: Sequence[list[int]],
    samplings: Sequence[Sampling],
    options: GenerationOptions,
    first: bool = False,
) -> dict[str, float]:
    """Tokens, cycles and seconds of requests that start together, prompts included.

    `first`: the seconds until every request has its first token, too."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    began, timed = time.perf_counter(), {}
    handles = engine.submit_all(prompts, samplings, options)
    if first:
        for handle in handles:
            next(iter(handle))
        timed["first"] = time.perf_counter() - began
    done = [handle.result() for handle in handles]
    timed["seconds"] = time.perf_counter() - began
    counts = {"tokens": sum(len(answer.token_ids) for answer in done)}
    return timed | counts | {"cycles": sum(answer.stats.cycles for answer in done)}


def pace(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    """Tokens per second and tau of batches that ran one after another."""
    tokens, cycles, seconds = (sum(run[name] for run in runs) for name in ("tokens", "cycles", "seconds"))
    return {"speed": tokens / seconds, "tau": tokens / cycles}
