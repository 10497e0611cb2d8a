"""A CPU by context: milliseconds of a target pass of 1 and 8 tokens, and whether they are linear in the context.

    python benchmarks/cpu_context.py [--contexts 128 512 2048 4096 8192] [--tokens 1 8] [--repeats 9] [--threads N]
                                     [--processor-time] [--model smollm2-135m] [--out FILE]

One row for each context, all passes in turn, the least time of each. The longest context leaves room for the pass.
`fit` is a straight line through the passes over the same number of tokens, by least squares of relative errors. What
grows with the context is attention; `GB/s` is keys and values over its time. `--processor-time` counts the processor
seconds of one thread, for machines that others use. Exits 1 where a pass takes 10 % longer than its line.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from invariant import timed

from slipstream.bench.measure.provenance import commit, load_average, provenance
from slipstream.bench.measure.roofline import weights_of
from slipstream.core.types import Request, Row
from slipstream.engines.native.build import build_target
from slipstream.models.run.torch_model import TorchModel

BAR = 1.10  # of the line
PROMPT_CHUNK = 512


def opened(model: TorchModel, length: int) -> Row:
    """A row whose cache holds so many random tokens."""
    rng = random.Random(length)
    row = Row(Request([rng.randrange(model.vocab) for _ in range(length)]))
    model.open([row])
    while any(model.prefill([row], PROMPT_CHUNK)):
        pass
    return row


def measure(model: TorchModel, given: argparse.Namespace, clock: Callable[[], float]) -> dict[tuple[int, int], float]:
    """The least milliseconds by tokens and context."""
    longest = model.context - max(given.tokens)
    rows = {length: opened(model, length) for length in sorted({min(each, longest) for each in given.contexts})}
    least = {(tokens, length): float("inf") for tokens in given.tokens for length in rows}
    for _ in range(given.repeats + 1):
        for tokens, length in least:
            least[tokens, length] = min(least[tokens, length], 1000 * timed(model, [rows[length]], tokens, clock))
    model.close(list(rows.values()))
    return least


def read_speed(clock: Callable[[], float]) -> float:
    """Bytes per second of a sum over more than the caches hold."""
    data, seconds = torch.ones(1 << 26), []
    for _ in range(10):
        began = clock()
        data.sum()
        seconds.append(clock() - began)
    return data.nbytes / min(seconds)


def line(contexts: Sequence[int], milliseconds: Sequence[float]) -> tuple[float, float]:
    """Milliseconds without context, and per token of context."""
    weights = 1 / np.asarray(milliseconds)
    sides = np.stack([np.ones(len(contexts)), np.asarray(contexts)], 1)
    fixed, slope = np.linalg.lstsq(sides * weights[:, None], np.ones(len(contexts)), rcond=None)[0]
    return float(fixed), float(slope)


def records(least: dict[tuple[int, int], float], entry: int) -> list[dict[str, Any]]:
    """One record for each pass. `entry`: bytes of a cached token."""
    listed = []
    for tokens in dict.fromkeys(tokens for tokens, _ in least):
        passes = {context: ms for (own, context), ms in least.items() if own == tokens}
        fixed, slope = line(list(passes), list(passes.values()))
        for context, ms in passes.items():
            of_line, attention = ms / (fixed + slope * context), ms - fixed
            figures = {"ms": round(ms, 3), "of_line": round(of_line, 3), "attention": round(attention / ms, 3)}
            listed.append({"tokens": tokens, "context": context, **figures})
            listed[-1]["gb_per_second"] = round(context * entry / attention / 1e6, 2)
    return listed


def table(listed: Sequence[dict[str, Any]]) -> str:
    lines = [
        "| tokens | context | ms | of the line | attention's share | GB/s of keys and values |",
        "|--:|--:|--:|--:|--:|--:|",
    ]
    for record in listed:
        place = f"| {record['tokens']} | {record['context']:,} | {record['ms']:.1f} | {record['of_line']:.2f}"
        lines.append(f"{place} | {100 * record['attention']:.0f} % | {record['gb_per_second']:.1f} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--contexts", type=int, nargs="+", default=[128, 512, 2048, 4096, 8192])
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--processor-time", action="store_true")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if threads := 1 if given.processor_time else given.threads:
        torch.set_num_threads(threads)
    target = build_target(given.model, device="cpu")
    target.model.retain(0)
    clock = time.thread_time if given.processor_time else time.perf_counter
    least = measure(target.model, given, clock)
    listed, bandwidth = records(least, weights_of(target.files).per_token), read_speed(clock)
    print(f"{target.label}, {torch.get_num_threads()} threads, memory {bandwidth / 1e9:.1f} GB/s\n{table(listed)}")
    if given.out:
        origin = {"commit": commit(), "load": load_average(), **provenance(target.files, sys.argv)}
        given.out.write_text(json.dumps({"origin": origin, "bandwidth": round(bandwidth), "passes": listed}) + "\n")
    return int(any(record["of_line"] > BAR for record in listed))


if __name__ == "__main__":
    sys.exit(main())
