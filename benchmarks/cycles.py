"""Milliseconds of one cycle after the prompt, by drafter and depth.

    python benchmarks/cycles.py [--drafters none:0 eagle:5 dflash:5 dflash:8] [--model smollm2-135m] [--device auto]
        [--tokens 200] [--repeats 7] [--kernels]

One request at a time, greedy. A cycle's time is the difference between a long and a short answer to the same prompt,
divided by the difference of their cycles, so the prompt does not count. Shown are the median of the repeats and the
range of all but the lowest and the highest quarter. `--kernels` lists the GPU kernels of one answer by their time.
"""

from __future__ import annotations

import argparse
import statistics
import time

from rich.console import Console
from rich.table import Table

import slipstream as ss
from slipstream.engines.base import GenerationOptions
from slipstream.engines.native.build import build_target
from slipstream.engines.native.engine import NativeEngine

PROMPT = "Write a Python function that merges two sorted lists, and explain each line of it in detail."
SHORT = 40  # tokens of the short answer
SHOWN = 25  # kernels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--drafters", nargs="+", default=["none:0", "eagle:5", "dflash:5", "dflash:8"])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--kernels", action="store_true")
    given = parser.parse_args()
    if given.tokens <= 2 * SHORT or given.repeats < 3:
        parser.error(f"--tokens must be above {2 * SHORT}, --repeats 3 or more")
    target = build_target(given.model, device=given.device)
    table = Table("drafter", "depth", "ms per cycle", "middle half", "tau")
    for spec in given.drafters:
        name, _, depth = spec.rpartition(":")
        with NativeEngine(target, name, limits=ss.Limits(rows=1, retained=0)) as engine:
            drafting = ss.Speculation(depth=int(depth)) if int(depth) else ss.Speculation(off=True)
            times, tau = measure(engine, drafting, given)
            low, _, high = statistics.quantiles(times, n=4)
            table.add_row(name, depth, f"{statistics.median(times):.4f}", f"{low:.4f} to {high:.4f}", f"{tau:.2f}")
            if given.kernels:
                show_kernels(engine, drafting, given)
    Console().print(table)


def answer(engine: NativeEngine, drafting: ss.Speculation, tokens: int) -> tuple[float, int]:
    """Seconds and cycles of one answer."""
    options = GenerationOptions(tokens, ignore_eos=True, speculation=drafting)
    began = time.perf_counter()
    done = engine.submit(PROMPT, ss.Sampling(0.0), options)[0].result()
    return time.perf_counter() - began, done.stats.cycles


def measure(engine: NativeEngine, drafting: ss.Speculation, given: argparse.Namespace) -> tuple[list[float], float]:
    """Milliseconds per cycle of each repeat, and tau of the long answer. Two answers warm up."""
    for _ in range(2):
        answer(engine, drafting, given.tokens)
    times, cycles = [], 1
    for _ in range(given.repeats):
        brief, few = answer(engine, drafting, SHORT)
        whole, cycles = answer(engine, drafting, given.tokens)
        times.append((whole - brief) / (cycles - few) * 1000)
    return times, given.tokens / cycles


def show_kernels(engine: NativeEngine, drafting: ss.Speculation, given: argparse.Namespace) -> None:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        _, cycles = answer(engine, drafting, given.tokens)
    table = Table("kernel", "µs per cycle", "launches per cycle")
    for entry in sorted(profiler.key_averages(), key=lambda entry: -entry.self_device_time_total)[:SHOWN]:
        table.add_row(entry.key[:80], f"{entry.self_device_time_total / cycles:.1f}", f"{entry.count / cycles:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
